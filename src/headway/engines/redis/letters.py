"""What is said without waiting for an answer: the ends of permits, and places given back.

They travel in a stream of their own, so that they need not keep their order with the questions of the same process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headway.engines.redis import words
from headway.engines.redis.account import Talk
from headway.engines.redis.words import HEAD

if TYPE_CHECKING:
    from headway.engines.redis.account import Account
    from headway.engines.redis.requests import Request

log = logging.getLogger("headway")


class Letter:
    """One request on its way, with its number; written again when a connection fails."""

    __slots__ = ("number", "request", "stream", "written")

    def __init__(self, request: Request, stream: bytes, number: int) -> None:
        self.request = request
        self.stream = stream
        self.number = number
        self.written = False

    def payload(self, ident: bytes) -> bytes:
        # The queue is served by an end, so it too expects a time. One that arrives late is refused, and asked for.
        said, timeout_ns = [self.request.command], self.account.spec.timeout_ns
        talk = Talk(self.account, [self.request], said, self.stream, self.number, ident, timeout_ns)
        talk.sent = self.account.spec.clock.now()
        talk.epoch = self.request.epoch
        return self.account.compose(talk, None)

    @property
    def account(self) -> Account:
        return self.request.account

    def answered(self, reply: Any) -> None:
        """An answer came: mostly it says nothing. If the ledger was lost, what ends here is not known there any more;
        if only the script was, or something has to be cleared up first, it is asked for like everything else."""
        engine = self.account.spec.engine
        if isinstance(reply, Exception):
            elsewhere = engine.halfway(self.account, reply) or engine.moved(self.account, reply) is not None
            if elsewhere or words.no_script(reply) or engine.out_of_order(reply):
                engine.ask_later(self.request)
            else:
                log.warning("limiter %r: an end was refused by the engine: %s", self.account.spec.name, reply)
        elif len(reply) >= HEAD.size:
            status = HEAD.unpack_from(reply)[0]
            if status in (words.MOVED, words.EDGES, words.ADOPT, words.CLOCK):
                engine.ask_later(self.request)


class Letterbox:
    """The stream of one account's letters."""

    __slots__ = ("number", "stream")

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self.number = 0

    def next(self, request: Request) -> Letter:
        self.number += 1
        return Letter(request, self.stream, self.number)
