"""One command to a ledger and its reply: what is sent, what the reply means, and what follows if the server forgot.

While the ledger must still be there, a command says which epoch and sequence number are expected, and in which
interval the server's clock must be by our monotonic clock. The script refuses what does not fit before it grants
anything, and `resolve` deals with the refusal:

    LOST         gone, another, or older than it was     quarantine: start anew, grant nothing until all is harmless
    MOVED        another server than the last one        the same, unless it has replayed a complete append-only file
    CLOCK        its clock was set                       the same, unless our command was only late
    RECONFIGURE  kept under an older version of a limit  bring it under the new one, unless another process was faster
    EDGES        a period of the calendar has begun      send the edges of this one
    LEASED       clients hold tokens of it               send it by the script that knows of leases

`resolve` is a flow: a generator that yields what is to be sent and is given the replies. A batcher runs it
(`batching.py`), for threads and for tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from headway.engines.redis.client.governing import newer_limit_found, older_limit_found
from headway.engines.redis.client.ledger_client import Reply
from headway.engines.redis.client.reconfigure import reconfigure
from headway.engines.redis.client.requests import encode_batch
from headway.engines.redis.script import protocol
from headway.engines.redis.script.protocol import HEAD, HEADER, OK, TICK, command, framed, numbers
from headway.errors import EngineUnavailable, LimitMismatch

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.client.requests import Request

log = logging.getLogger("headway")

Flow = Generator[bytes, Any, None]

HEAD_SIZE = HEAD.size
SIZES = tuple(b"$%d\r\n" % size for size in range(512))
"""What stands before an argument of the Redis protocol, by its length."""
ATTEMPTS = 12
PARTS_ARE_MISSING = ("HEADWAY_LOST", "no such key", "index out of range")
SLACK = 1000
"""Ticks by which a clock may be off before it is said to have been set."""
PROMPT = 10_000_000
"""Nanoseconds, or four times what it took last time: within these a command is expected to arrive. A later one is
refused for its time, found to have been late, and sent again with all the time it has. So a clock that is set forward
by more is noticed."""
WHY = {
    protocol.LOST: "its ledger was lost (flushed, evicted or overtaken by a failover)",
    protocol.MOVED: "another server keeps its ledger now and may have missed the last grants",
    protocol.CLOCK: "the server's clock was set",
}


class ClockSample:
    """A moment on the server's clock and on ours: where the server's clock must be now, unless it was set."""

    __slots__ = ("received", "sent", "ticks")

    def __init__(self, ticks: float, sent: int, received: int) -> None:
        self.ticks = ticks
        self.sent = sent
        self.received = received

    def bounds(self, sent: int, later: int, drift: float) -> tuple[float, float]:
        """The server's time, at least and at most, for a command that is sent at `sent` and has run before `later`."""
        least = int(self.ticks + (sent - self.received) * (1 - drift) / TICK) - SLACK
        most = int(self.ticks + (later - self.sent) * (1 + drift) / TICK) + SLACK
        return float(least), float(most)


class RoundTrip(Reply):
    """A batch of requests in one command, with its number in a stream; and its reply."""

    __slots__ = ("batch", "commands", "epoch", "first", "ident", "ledger", "number", "slow", "stream")

    def __init__(
        self,
        ledger: LedgerClient,
        batch: list[Request],
        stream: bytes,
        number: int,
        ident: bytes,
        first: int = 0,
    ) -> None:
        self.ledger = ledger
        self.batch = batch
        tickets = ledger.registry.engine.tickets
        self.commands = [batch[0].encode(tickets)] if len(batch) == 1 else encode_batch(batch, tickets)
        self.stream = stream
        self.number = number
        self.ident = ident
        # When it was sent before; a reply may be from then. 0: never.
        self.first = first
        # The epoch in which it makes sense; empty: any.
        self.epoch = b""
        # Whether it has been found to take longer than usual.
        self.slow = False
        # Nothing was said yet.
        self.status = self.now = self.lives = self.governed = 0.0
        self.several = 0

    def encode(self, prelude: bytes | None = None) -> bytes:
        """The whole command as it is sent now."""
        ledger = self.ledger
        frame = ledger.frame
        registry = ledger.registry
        self.sent = registry.clock.now()
        known = self.sent < ledger.expires
        low = high = 0.0
        sample = registry.clock_samples.get(self.ident)
        if sample is not None:
            longest = registry.timeout_ns
            if not self.slow:
                longest = min(longest, max(PROMPT, 4 * (sample.received - sample.sent)))
            low, high = sample.bounds(self.sent, self.sent + longest, registry.drift)
        seq = ledger.seq if known else 0.0
        if cython.compiled:
            head = pack_header(  # type: ignore[name-defined] # noqa: F821 - in round_trip.pxd
                registry.engine.fixed_time, low, high, self.number, seq, registry.lease, registry.generation,
                frame.width, registry.sharded,
            )  # fmt: skip
        else:
            head = HEADER.pack(
                registry.engine.fixed_time, low, high, self.number, seq, registry.lease, registry.generation,
                frame.width, registry.sharded,
            )  # fmt: skip
        epoch = self.epoch or (ledger.epoch if known else b"")
        # Nearly always the same as last time: only the numbers and the requests are news.
        same = (self.stream, epoch, self.ident)
        middle = frame.middles.get(same)
        if middle is None or ledger.restless:
            over = ledger.over if ledger.pause_state is None else ledger.pause_state.left(self.sent)
            middle = b"\r\n" + framed(*same, registry.records(ledger, self), ledger.text, over)
            if len(frame.middles) > 8:
                frame.middles.clear()
            if not over or over == ledger.over:
                frame.middles[same] = middle
        commands = self.commands if prelude is None else [prelude, *self.commands]
        if len(commands) == 1 and len(commands[0]) < len(SIZES):
            return b"".join((frame.opening, head, middle, SIZES[len(commands[0])], commands[0], b"\r\n"))
        if len(commands) == 2 and len(commands[0]) < len(SIZES) and len(commands[1]) < len(SIZES):
            # A grant whose status is said with it.
            return b"".join(
                (
                    frame.opening_of_two, head, middle, SIZES[len(commands[0])], commands[0], b"\r\n",
                    SIZES[len(commands[1])], commands[1], b"\r\n",
                )
            )  # fmt: skip
        return b"*%d%b%b%b%b" % (
            frame.parts + len(commands), frame.reopening, head, middle, framed(*commands),
        )  # fmt: skip

    def settle(self, reply: Any) -> bool:
        """Take a reply that says what the batch wanted to know; False: something has to be resolved first."""
        ledger = self.ledger
        registry = ledger.registry
        self.received = registry.clock.now()
        if type(reply) is not bytes or len(reply) < HEAD.size:
            return False
        if cython.compiled:
            self.status = number_at(reply, 0)  # type: ignore[name-defined] # noqa: F821 - in round_trip.pxd, as below
            self.now = number_at(reply, 1)  # type: ignore[name-defined] # noqa: F821
            self.seq = number_at(reply, 2)  # type: ignore[name-defined] # noqa: F821
            self.lives = number_at(reply, 3)  # type: ignore[name-defined] # noqa: F821
            self.quarantine = number_at(reply, 4)  # type: ignore[name-defined] # noqa: F821
            self.pause = number_at(reply, 5)  # type: ignore[name-defined] # noqa: F821
            self.shift = number_at(reply, 6)  # type: ignore[name-defined] # noqa: F821
            self.waiting = number_at(reply, 7)  # type: ignore[name-defined] # noqa: F821
            self.reply_epoch = epoch_of(reply)  # type: ignore[name-defined] # noqa: F821
            answers = numbers_from(reply, HEAD_SIZE)  # type: ignore[name-defined] # noqa: F821
        else:
            (
                self.status, self.now, self.seq, self.lives, self.quarantine, self.pause, self.shift, self.waiting,
                self.reply_epoch,
            ) = HEAD.unpack_from(reply)  # fmt: skip
            answers = unpack_from(f"<{(len(reply) - HEAD_SIZE) // 8}d", reply, HEAD_SIZE)
        self.pause_end = self.now + self.pause if self.pause > 0 else 0.0
        if self.status != OK:
            return False
        if not self.first:
            self.since = self.sent
            # A new one each time: other threads read it.
            registry.clock_samples[self.ident] = ClockSample(self.now, self.sent, self.received)
        else:
            self.since = self.first
            if self.ident not in registry.clock_samples:
                registry.clock_samples[self.ident] = ClockSample(self.now, self.first, self.received)
        ledger.ident = self.ident
        ledger.apply_reply(self)
        position = 0
        for request in self.batch:
            position = request.apply_reply(self, answers, position)
        # False: the text of a newer limit has to be read, which is to be shown with these numbers.
        return self.governed <= ledger.governed

    def resolve(self, reply: Any) -> Flow:  # noqa: C901 - one branch for each answer there is
        """Clear up what the first answer was about, until the batch has been heard; raises what cannot be helped."""
        ledger = self.ledger
        registry = ledger.registry
        prelude: bytes | None = None
        for _ in range(ATTEMPTS):
            if self.governed > ledger.governed:
                newer_limit_found(ledger, self.governed, (yield command(b"HGET", ledger.keys[0], b"l")))
                return
            if isinstance(reply, Exception):
                if any(text in str(reply) for text in PARTS_ARE_MISSING):
                    self.status = protocol.LOST
                    prelude = yield from self.handle_loss(broken=True)
                elif not protocol.no_script(reply):
                    raise reply
                else:
                    yield command(b"SCRIPT", b"LOAD", ledger.script.text)
            elif len(reply) < HEAD.size:
                # STALE: a later command of this stream was faster, so this one is nobody's any more.
                raise EngineUnavailable(registry.engine.address, "an answer was overtaken; ask again")
            elif self.status == protocol.EDGES:
                registry.server_time(self.now, self.received)
            elif self.status == protocol.LEASED:
                ledger.lend(self.lives)
            elif self.status == protocol.RECONFIGURE:
                older_limit_found(ledger, (yield command(b"HGET", ledger.keys[0], b"l")))
                yield from reconfigure(ledger)
            elif self.status == protocol.MISMATCH:
                existing = yield command(b"HGET", ledger.keys[0], b"l")
                text = existing.decode() if isinstance(existing, bytes) else "another kind of limit"
                raise LimitMismatch(registry.name, text, ledger.text.decode())
            elif self.status == protocol.VERSION:
                raise LimitMismatch(
                    registry.name, f"format {self.lives:.0f}", "format 1 of this version of headway"
                )
            elif self.status == protocol.CLOCK and not self.lives and self.was_only_late():
                self.slow = True
            else:
                prelude = yield from self.handle_loss()
            reply = yield self.encode(prelude)
            if self.settle(reply):
                return
        raise EngineUnavailable(registry.engine.address, "the ledger changes faster than it can be read")

    def was_only_late(self) -> bool:
        """Whether the clock was not set, but the command was on its way for longer than it was worth."""
        registry = self.ledger.registry
        sample = registry.clock_samples.get(self.ident)
        if sample is None:
            return True
        low, high = sample.bounds(self.sent, self.received, registry.drift)
        return bool(low <= self.now <= high)

    def handle_loss(self, broken: bool = False) -> Generator[bytes, Any, bytes | None]:
        """Grants may have been forgotten: what to say first when the batch is sent again.

        `broken`: parts of the ledger are missing, so that no script can read it.
        """
        ledger = self.ledger
        registry = ledger.registry
        if self.status == protocol.CLOCK:
            registry.clock_samples.pop(self.ident, None)
        if self.status == protocol.MOVED and (yield from complete_file()):
            return numbers(protocol.TRUST)
        if self.status == protocol.LOST and not ledger.epoch:
            return None
        ticks, whole = registry.quarantine(ledger, self.now)
        if registry.on_loss == "trust":
            return self.trust(whole or ticks, broken)
        log.error(
            "limiter %r: %s; nothing is granted for %.3g s%s",
            registry.name,
            WHY[int(self.status)],
            ticks / 1e6,
            ", then it is trusted (max_quarantine), so a longer window may see more than its limit"
            if whole
            else "",
        )
        registry.notify("quarantine", ledger.key, ticks / 1e6)
        return numbers(protocol.QUARANTINE, ticks, whole)

    def trust(self, doubt: float, broken: bool) -> bytes:
        """Go on at once with the ledger that is there, which says from now on for how long it is in doubt."""
        ledger = self.ledger
        registry = ledger.registry
        ledger.epoch, ledger.expires = b"", 0
        registry.engine.repeated_log.warning(
            f"limiter {registry.name!r}",
            f"{WHY[int(self.status)]}; it is trusted all the same (on_ledger_loss='trust'), so up to twice the limit "
            f"may be granted; in doubt for {doubt / 1e6:.3g} s",
        )
        # A clock that went back before the ledger's last time: what the ledger has noted lies in the future now.
        keep = not broken and not (self.status == protocol.CLOCK and self.lives)
        return numbers(protocol.QUARANTINE, 0, doubt, keep)


def complete_file() -> Generator[bytes, Any, bool]:
    """Whether the server has replayed a file to which every write was synchronised before it was acknowledged."""
    persistence = yield command(b"INFO", b"persistence")
    always = yield command(b"CONFIG", b"GET", b"appendfsync")
    role = yield command(b"INFO", b"replication")
    if any(isinstance(answer, Exception) for answer in (persistence, always, role)):
        return False
    alone = b"role:master" in role and b"second_repl_offset:-1" in role
    values = list(always.values()) if isinstance(always, dict) else always
    return (
        alone and b"aof_enabled:1" in persistence and any(value in (b"always", "always") for value in values)
    )
