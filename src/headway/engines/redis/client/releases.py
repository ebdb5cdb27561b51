"""What is sent without waiting for a reply: releases of permits, and places given back.

They travel in a stream of their own, so that they need not keep their order with the requests of the same process.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headway.engines.redis.client.batching import UnknownOutcome
from headway.engines.redis.client.ledger_client import ENDS
from headway.engines.redis.client.round_trip import RoundTrip
from headway.engines.redis.script import protocol
from headway.engines.redis.script.protocol import HEAD

if TYPE_CHECKING:
    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.client.requests import Request
    from headway.engines.redis.engine import Engine


class PendingRelease:
    """Requests on their way in one command, with its number; written again when a connection fails."""

    __slots__ = ("copies", "first", "follows", "number", "requests", "stream", "written")

    def __init__(self, *requests: Request) -> None:
        self.requests = list(requests)
        # Given when it gets in line.
        self.stream = b""
        self.number = 0
        # Whether it is not the first of its stream: then it is applied only if the one before it was.
        self.follows = False
        self.written = False
        # How often it was written, and when that was first.
        self.copies = self.first = 0

    def payload(self, ident: bytes) -> bytes:
        # A release serves the queue, so it too expects a time. One that arrives late is refused, and sent again. But a
        # process that is about to end sends nothing again; and the first release may be the only one of a process that
        # ends by `os._exit`. So these two may be late.
        number = -self.number if self.follows else self.number
        round_trip = RoundTrip(self.ledger, self.requests, self.stream, number, ident)
        round_trip.slow = self.number == 1 or self.ledger.registry.engine.ending
        round_trip.epoch = self.requests[0].epoch
        payload = round_trip.encode()
        self.first = self.first or round_trip.sent
        return payload

    def join(self, other: PendingRelease) -> bool:
        """Take the requests of another one along; False: that cannot be. Under the line's lock."""
        mine, more = self.requests, other.requests
        if self.copies or len(mine) + len(more) > ENDS:
            return False
        if mine[0].ledger is not more[0].ledger or mine[0].epoch != more[0].epoch:
            return False
        for request in more:
            request.posted = True
        mine += more
        return True

    @property
    def ledger(self) -> LedgerClient:
        return self.requests[0].ledger

    def new_box(self) -> ReleaseStream:
        """For the first release of its client on a connection; that of the client before it, if that was compacted."""
        ledger = self.ledger
        dropped, ledger.release_stream = ledger.release_stream, None
        return dropped or ReleaseStream(ledger.registry.engine)

    def answered(self, reply: Any) -> bool:
        """An answer came: mostly it says nothing. If the ledger was lost, what ends here is not known there any more;
        if only the script was, or something has to be cleared up first, it is asked for like everything else. Returns
        whether that is so."""
        engine = self.ledger.registry.engine
        if isinstance(reply, Exception):
            elsewhere = engine.halfway(self.ledger, reply) or engine.moved(self.ledger, reply) is not None
            if elsewhere or protocol.no_script(reply) or engine.out_of_order(reply):
                self._again()
                return True
            engine.repeated_log.warning(
                f"limiter {self.ledger.registry.name!r}", f"a release was refused by the engine: {reply}"
            )
        elif len(reply) >= HEAD.size:
            status = HEAD.unpack_from(reply)[0]
            if status in (
                protocol.MOVED,
                protocol.EDGES,
                protocol.RECONFIGURE,
                protocol.CLOCK,
                protocol.SKIPPED,
                protocol.LEASED,
            ):
                self._again()
                return True
        for request in self.requests:
            request.settle()
        return False

    def _again(self) -> None:
        """This copy was refused. One on another connection may still be under way, and must not be the second one that
        is applied: so if there is one, it has to be found out first what becomes of it."""
        engine = self.ledger.registry.engine
        if self.copies > 1:
            self.resolve_unknown()
            return
        for request in self.requests:
            # It may have been asked for before, with a question that failed.
            request.done = request.orphan = request.unknown = False
            request.error = None
            engine.ask_later(request)

    def resolve_unknown(self) -> None:
        """Have the background worker find out whether it was applied, and if it was not, send it anew."""
        ledger = self.ledger
        ledger.registry.engine.worker.resolve_unknown(
            UnknownOutcome(ledger, self.requests, self.stream, self.number, self.first)
        )


class ReleaseStream:
    """The stream of one client's releases on one connection.

    What has been written on a connection that failed is written again under its old number, and may have to be asked
    after by it. A later number that is applied meanwhile would make it stale: so releases that come later, and those
    that were not yet written, travel in another stream.
    """

    __slots__ = ("engine", "number", "stream")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Given when it is needed.
        self.stream = b""
        self.number = 0

    def line_up(self, release: PendingRelease, line: deque[PendingRelease]) -> None:
        """Under the line's lock: it has the order of the numbers."""
        self.stamp(release)
        for request in release.requests:
            request.posted = True
        line.append(release)

    def stamp(self, release: PendingRelease) -> None:
        release.follows = self.stream != b""
        release.stream = self.stream = self.stream or self.engine.new_stream()
        self.number = release.number = self.number + 1
