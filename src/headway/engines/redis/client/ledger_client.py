"""A client's side of a ledger: what it knows of it, what it wants of it, and how the two talk.

The server decides; the client remembers just enough to notice when the server has *forgotten*. With every answer comes
the epoch of the ledger (a name it got when it was created), its sequence number and how long it will live. While it
must
still be there, the client says which epoch and number it expects, and in which interval the server's clock must be by
its own monotonic clock. What does not fit is refused by the script before anything is granted, and is dealt with here:

    LOST    gone, another, or older than it was     quarantine: start anew, grant nothing until all is harmless
    MOVED   another server than the last one        the same, unless it has replayed a complete append-only file
    CLOCK   its clock was set                       the same, unless our command was only late
    ADOPT   kept under an older version of a limit  bring it under the new one (`headway.core`), if nobody was faster
    EDGES   a period of the calendar has begun      send the edges of this one

`resolve` is a flow: a generator that yields what is to be sent and gets the answers sent in. It is run by a lane
(`lanes.py`) for threads and for tasks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Any

from headway.core.window import WindowRule
from headway.engines.redis.client.reconfigure import reconfigure
from headway.engines.redis.script import protocol
from headway.engines.redis.script.protocol import (
    HEAD,
    HEADER,
    OK,
    TICK,
    command,
    framed,
    numbers,
    read_numbers,
)
from headway.engines.redis.script.scripts import CONCURRENCY
from headway.errors import EngineUnavailable, LimitMismatch

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.redis.client.registry import LimiterRegistry
    from headway.engines.redis.client.requests import Acquire, Request
    from headway.engines.redis.engine import Engine

log = logging.getLogger("headway")

Flow = Generator[bytes, Any, None]

HEAD_SIZE = HEAD.size
COMPACT = Struct("<24sdddqq")
"""What is left of an account that is not used: epoch, sequence number, shift, the end of a pause, until when the ledger
lives, and when it was heard of."""
SIZES = tuple(b"$%d\r\n" % size for size in range(512))
"""What stands before an argument of the Redis protocol, by its length."""
ATTEMPTS = 12
UNPLANNED = 1 << 62
"""A time that never comes."""
ENDS = 32
"""Ends of permits in one command: each of them may let a waiter have its turn."""
OLDEST = 32
"""Waiters that every poll asks after; and as many of the others."""
PARTS_ARE_MISSING = ("HEADWAY_LOST", "no such key", "index out of range")
SLACK = 1000
"""Ticks by which a clock may be off before it is said to have been set."""
PROMPT = 10_000_000
"""Nanoseconds, or four times what it took last time: within these a command is expected to be there. One that is late
is refused for its time, found to have been late, and asked again with all the time it has; so the clock cannot be set
forward by more without anybody noticing."""
WHY = {
    protocol.LOST: "its ledger was lost (flushed, evicted or overtaken by a failover)",
    protocol.MOVED: "another server keeps its ledger now and may have missed the last grants",
    protocol.CLOCK: "the server's clock was set",
}


class ClockSample:
    """A moment on the server's clock and on ours: where the server's clock must be now, if nobody sets it."""

    __slots__ = ("received", "sent", "ticks")

    def __init__(self, ticks: float, sent: int, received: int) -> None:
        self.ticks = ticks
        self.sent = sent
        self.received = received

    def least(self, now: int, drift: float) -> float:
        """The server's time, at least, for a command that is sent at `now`."""
        return float(int(self.ticks + (now - self.received) * (1 - drift) / TICK) - SLACK)

    def most(self, later: int, drift: float) -> float:
        """The server's time, at most, for a command that has run before `later`."""
        return float(int(self.ticks + (later - self.sent) * (1 + drift) / TICK) + SLACK)


class LedgerTerms:
    """What every call has to know of its limiter, whatever the key; the rest of it is in `LimiterRegistry`."""

    __slots__ = (
        "clock",
        "clock_samples",
        "drift",
        "engine",
        "generation",
        "lease",
        "sharded",
        "text",
        "timeout_ns",
    )  # fmt: skip

    engine: Engine
    clock: Clock
    clock_samples: dict[bytes, ClockSample]
    """Where the clock of each server stood when it was heard of last."""
    drift: float
    lease: float
    generation: float
    sharded: float
    text: bytes
    timeout_ns: int


class LedgerClient:
    """One limiter's ledgers for one key, as this process knows them."""

    __slots__ = (
        "__weakref__",
        "allowance_ns",
        "batchers",
        "can_queue",
        "compacted",
        "ends",
        "epoch",
        "expires",
        "framed",
        "front",
        "halted",
        "held",
        "ident",
        "key",
        "keys",
        "last_loop_batcher",
        "leased",
        "leases",
        "lookup_keys",
        "opening",
        "over",
        "packed",
        "parts",
        "pause_state",
        "poll_at",
        "registry",
        "release_stream",
        "reopening",
        "replied_at",
        "restless",
        "rota",
        "rules",
        "script",
        "seen",
        "seq",
        "shift",
        "sleepers",
        "spare",
        "standing",
        "text",
        "uses_wall_clock",
        "visited",
        "waiting",
        "was_compacted",
        "width",
    )

    def __init__(
        self, registry: LimiterRegistry, keys: tuple[bytes, ...], key: str | None, rules: tuple[Any, ...]
    ) -> None:
        self.registry = registry
        self.keys = keys
        self.key = key
        # The root of the limiter's own ledger, whose pause holds every key up, and until when it was heard to do so, on
        # the server's clock (0: not at all); in a cluster, where it may be elsewhere, what this process knows of it.
        self.over = (
            b"" if key is None or registry.metrics or registry.sharded else registry.redis_keys((None,))[0]
        )
        self.halted = 0.0
        self.pause_state = None if key is None else registry.pause_state
        self.epoch = b""
        self.seq = 0.0
        # Until then, on our clock, the ledger must be there; and when it was heard of last.
        self.expires = 0
        self.replied_at = 0
        # Who answered last.
        self.ident = b""
        # The sum of all by which promised slots were moved.
        self.shift = 0.0
        # By which keys its limiter knows it; when it was seen to be unused, if it was not used since (0: it was);
        # whether it is not among its limiter's accounts any more, as it was idle; and whether it was so before and is
        # known on the shelf (`LimiterRegistry.sweep`).
        self.lookup_keys: tuple[str | None, ...] = ()
        self.seen = 0
        self.compacted = self.was_compacted = False
        self.begin()
        self.renew(rules)

    def begin(self) -> None:
        """Nobody of this process asks, waits or holds; so it is in a forked child."""
        # One for threads (None), and one for each event loop; the last one that a task has used is kept at hand.
        self.batchers: dict[Any, Any] = {}
        self.last_loop_batcher: Any = None
        # Who stands in the ledger's queue, who sleeps until a promised slot, and what is held under a lease.
        self.standing: dict[int, Acquire] = {}
        # When the keeper polls for the waiters; and which of them were not asked after yet, this time around.
        self.poll_at = UNPLANNED
        self.rota: list[int] = []
        self.sleepers: set[Acquire] = set()
        self.leases: dict[Any, Any] = {}
        self.visited = 0
        self.ends: deque[Request] = deque()
        # How many stood in its queue when it was heard of last.
        self.waiting = 0.0
        # The streams that the one before it had, if it was reduced: of commands, and of letters.
        self.spare: list[bytes] | None = None
        self.release_stream: Any = None

    def renew(self, rules: tuple[Any, ...]) -> None:
        """Go by these rules from now on; those of a key may be of other kinds than its limiter's."""
        registry = self.registry
        self.rules = rules
        self.text = registry.text_of(rules)
        self.can_queue = registry.can_queue(rules)
        self.script = registry.script_of(rules, self.can_queue)
        # How late after its slot a permit may still be spent; and which ones are held, which of them under a lease.
        self.allowance_ns = registry.allowance_of(rules)
        self.held = any(rule.held for rule in rules)
        self.leased = [i for i, rule in enumerate(rules) if protocol.kind_of(rule) == CONCURRENCY]
        self.uses_wall_clock = any(rule.uses_wall_clock for rule in rules)
        # Whether what it says with every command is another each time.
        self.restless = self.uses_wall_clock or (self.pause_state is not None and self.pause_state.until > 0)
        redis_keys = tuple(dict.fromkeys(self.keys))
        self.front = (b"EVALSHA", self.script.sha, str(len(redis_keys)).encode(), *redis_keys)
        self.packed = b"" if self.uses_wall_clock else self.records(0)
        self.framed: dict[tuple[bytes, bytes, bytes], bytes] = {}
        self.width = len(rules)
        self.parts = len(self.front) + 7
        self.reopening = b"\r\n" + framed(*self.front) + b"$%d\r\n" % HEADER.size
        self.opening = b"*%d" % (self.parts + 1) + self.reopening

    @property
    def busy(self) -> bool:
        """Whether the keeper has to look after it."""
        return bool(self.standing or self.sleepers or self.leases)

    def records(self, now: int) -> bytes:
        """The rules as the script reads them; of a calendar quota they are another every day."""
        return b"".join(
            protocol.record_of(rule, at, now) for rule, at in zip(self.rules, self.whereabouts(), strict=True)
        )

    def whereabouts(self) -> list[int]:
        """Which of the keys each rule's ledger is in, counted from 1; with metrics, the first one is the root."""
        redis_keys = {key: pool for pool, key in enumerate(dict.fromkeys(self.keys), 1)}
        own = self.keys[1:] or self.keys * len(self.rules)
        return [redis_keys[key] for key in own]

    def encode(self, round_trip: RoundTrip, prelude: bytes | None) -> bytes:
        """The whole command for a batch of requests."""
        registry = self.registry
        known = round_trip.sent < self.expires
        low = high = 0.0
        sample = registry.clock_samples.get(round_trip.ident)
        if sample is not None:
            low = sample.least(round_trip.sent, registry.drift)
            high = sample.most(round_trip.sent + round_trip.expected_ns(sample), registry.drift)
        seq = self.seq if known else 0.0
        if cython.compiled:
            head = pack_header(  # type: ignore[name-defined] # noqa: F821 - in account.pxd
                registry.engine.fixed_time,
                low,
                high,
                round_trip.number,
                seq,
                registry.lease,
                registry.generation,
                self.width,
                registry.sharded,
            )
        else:
            head = HEADER.pack(
                registry.engine.fixed_time,
                low,
                high,
                round_trip.number,
                seq,
                registry.lease,
                registry.generation,
                self.width,
                registry.sharded,
            )
        epoch = round_trip.epoch or (self.epoch if known else b"")
        # Nearly always the same as last time: only the numbers and the commands are news.
        same = (round_trip.stream, epoch, round_trip.ident)
        middle = self.framed.get(same)
        if middle is None or self.restless:
            over = self.over if self.pause_state is None else self.pause_state.left(round_trip.sent)
            middle = b"\r\n" + framed(*same, registry.records(self, round_trip), self.text, over)
            if len(self.framed) > 8:
                self.framed.clear()
            if not over or over == self.over:
                self.framed[same] = middle
        said = round_trip.said if prelude is None else [prelude, *round_trip.said]
        if len(said) == 1 and len(said[0]) < len(SIZES):
            return b"".join((self.opening, head, middle, SIZES[len(said[0])], said[0], b"\r\n"))
        return b"*%d%b%b%b%b" % (self.parts + len(said), self.reopening, head, middle, framed(*said))

    def apply_reply(self, round_trip: RoundTrip) -> None:  # noqa: C901 - one branch for each thing that may have changed
        """Remember how the ledger stands."""
        if round_trip.reply_epoch != self.epoch:
            if self.epoch:
                if round_trip.since < self.replied_at:
                    return  # an answer from before the loss that comes late
                self.forget_promises(round_trip.reply_epoch)
            self.epoch = round_trip.reply_epoch
            self.seq = round_trip.seq
        elif round_trip.seq > self.seq:
            self.seq = round_trip.seq
        self.replied_at = round_trip.since
        # Counted from before it was sent, and short of what the server's clock may be ahead by.
        self.expires = round_trip.since + int(round_trip.lives * 0.998) * TICK - 1_000_000
        self.waiting = round_trip.waiting
        if round_trip.waiting and not self.can_queue:
            self.registry.queue_up()
        if self.over and (round_trip.pause > 0 or self.halted):
            self.apply_pause(round_trip)
        if round_trip.shift != self.shift:
            self.shift = round_trip.shift
            for sleeper in list(self.sleepers):
                if self.counted(sleeper):
                    self.recall(sleeper)
                sleeper.wake()
        if self.compacted:
            self.registry.pass_on(self)

    def merge_from(self, other: LedgerClient) -> None:
        """What another one of the same ledgers has heard, which was reduced while somebody still used it."""
        if other.epoch != self.epoch:
            if not other.epoch or other.replied_at < self.replied_at:
                return
            if self.epoch:
                self.forget_promises(other.epoch)
            self.epoch = other.epoch
            self.seq = other.seq
        elif other.seq > self.seq:
            self.seq = other.seq
        if other.replied_at >= self.replied_at:
            self.replied_at, self.expires, self.ident = other.replied_at, other.expires, other.ident

    def remember(self) -> bytes:
        """What has to be known of the ledger to notice its loss."""
        numbers = (self.seq, self.shift, self.halted, self.expires, self.replied_at)
        return COMPACT.pack(self.epoch, *numbers)

    def restore(self, memory: bytes, ident: bytes) -> None:
        """Go on where another one was when it was reduced."""
        epoch, self.seq, self.shift, self.halted, self.expires, self.replied_at = COMPACT.unpack_from(memory)
        self.epoch = epoch if self.expires else b""  # never heard of
        self.ident = ident
        self.was_compacted = True

    def apply_pause(self, round_trip: RoundTrip) -> None:
        """Until when the limiter is paused; it may be sooner or later than was said."""
        ends = round_trip.held_up_until()
        if ends > self.halted:
            self.recall_sleepers()
        elif ends < self.halted and round_trip.now < self.halted:
            self.recall_waiters()
        self.halted = ends

    def distrust(self) -> None:
        """A script may have ended in the midst of its work: what the ledger says of itself is not to be believed. It is
        refused as one that was lost, since no sequence number is as high as what is expected now."""
        self.seq = protocol.NEVER
        if self.compacted:
            self.registry.pass_on(self)

    def forget_promises(self, epoch: bytes) -> None:
        """The ledger began anew: what it had promised is void, and whoever waits has to ask again. Not who stands or
        sleeps there already: another lane may have been faster."""
        for request in [*self.sleepers, *self.standing.values()]:
            if request.epoch != epoch:
                self.standing.pop(request.ticket, None)
                request.void = True
                request.wake()

    def recall_sleepers(self, until: int | None = None) -> None:
        """The whole limiter is paused: who sleeps until a slot gives it back, and asks for one after the pause."""
        for acquire in list(self.sleepers):
            if until is None or acquire.slot + self.moved(acquire) < until:
                self.recall(acquire)

    def recall_waiters(self) -> None:
        """A pause of the whole limiter ends sooner than was said: who was to sleep for as long asks anew, and may go.
        What was reserved stays reserved."""
        for acquire in list(self.sleepers):
            if acquire in self.registry.waiters:
                self.recall(acquire)

    def recall(self, acquire: Acquire) -> None:
        """Have a sleeper give its slot back and ask for another. Void first: one that has risen by then looks for that
        after it has left the sleepers, and either it does not go, or its slot is not given back."""
        acquire.void = True
        if acquire in self.sleepers and acquire.verdict == protocol.GRANTED:
            acquire.give_back(again=True)
        acquire.wake()

    def counted(self, acquire: Acquire) -> bool:
        """Whether its slot is one of a window. When that is moved, what it waits for does not move with it: permits
        cool by their own time, paused or not."""
        rules = zip(self.rules, acquire.costs, strict=True)
        return any(cost > 0 and isinstance(rule, WindowRule) for rule, cost in rules)

    def on_pause(self, lifted: bool) -> None:
        """A pause of the whole limiter has begun, was lifted or has changed."""
        until = 0 if self.pause_state is None else self.pause_state.until
        self.restless = self.uses_wall_clock or until > 0
        if lifted:
            self.recall_waiters()
        else:
            self.recall_sleepers(until)
        # Who stands may be served now, or is to know for how long not.
        self.visited = 0

    def stand(self, acquire: Acquire, poll_at: int) -> None:
        """Remember a waiter in the ledger's queue, and have it looked after."""
        self.standing[acquire.ticket] = acquire
        self.registry.engine.wait_for(acquire)
        if poll_at < self.poll_at:
            self.registry.engine.worker.plan_poll(self, poll_at)

    def some_waiters(self) -> list[Acquire]:
        """Whom a poll asks after: the oldest, as they are served first, and some of the others in turn."""
        standing = self.standing
        try:
            some = list(islice(standing.values(), OLDEST))
        except RuntimeError:  # another thread came or went meanwhile
            some = list(standing.values())[:OLDEST]
        if len(some) == OLDEST:
            known = {acquire.ticket for acquire in some}
            rota = self.rota = self.rota or list(standing)
            turn = rota[-OLDEST:]
            del rota[-OLDEST:]
            some += [
                acquire
                for acquire in map(standing.get, turn)
                if acquire is not None and acquire.ticket not in known
            ]
        return some

    def sleep(self, acquire: Acquire) -> None:
        """Remember who sleeps until a promised slot, and learn of what may move it."""
        self.sleepers.add(acquire)
        self.registry.engine.track(self)
        # What was heard since it was promised, only those were told who slept by then.
        if self.pause_state is not None:
            self.recall_sleepers(self.pause_state.until)
            sooner = acquire.pause > 0 and not self.pause_state.until
        else:
            sooner = bool(self.over) and self.halted < acquire.halted
            if (self.over and self.halted > acquire.halted) or (
                self.shift != acquire.shift and self.counted(acquire)
            ):
                self.recall(acquire)
        if sooner and acquire in self.registry.waiters:
            self.recall(acquire)

    def moved(self, acquire: Acquire) -> int:
        """By how much a slot was moved since it was promised, in nanoseconds."""
        by = self.shift - acquire.shift
        return self.registry.stretched(by) if by > 0 else int(by * TICK)

    def take_ends(self, taken: list[Request] | None = None) -> list[Request]:
        """The ends that wait for a question to travel with; those of a ledger that is no more are nobody's. While it is
        found out which one it is, they wait."""
        taken = [] if taken is None else taken
        while self.epoch and len(taken) < ENDS:
            try:
                # In one step: a signal's handler that raises between two would take the end with it.
                taken.extend(map(deque.popleft, (self.ends,)))
            except IndexError:  # not asked before: another thread may take the last one
                break
            if taken[-1].epoch != self.epoch:
                taken.pop()
        return taken

    def post(self, request: Request) -> None:
        """Say something that nobody waits for the answer of."""
        self.registry.engine.post(request)


class RoundTrip:
    """One round trip: a batch of requests on its way, with its number in a stream."""

    __slots__ = (
        "batch",
        "epoch",
        "first",
        "ident",
        "ledger",
        "lives",
        "now",
        "number",
        "pause",
        "quarantine",
        "received",
        "reply_epoch",
        "said",
        "sent",
        "seq",
        "several",
        "shift",
        "since",
        "slow",
        "status",
        "stream",
        "tally",
        "timeout_ns",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        ledger: LedgerClient,
        batch: list[Request],
        said: list[bytes],
        stream: bytes,
        number: int,
        ident: bytes,
        timeout_ns: int,
        first: int = 0,
    ) -> None:
        self.ledger = ledger
        self.batch = batch
        # What they say, as commands.
        self.said = said
        self.stream = stream
        self.number = number
        self.ident = ident
        self.timeout_ns = timeout_ns
        # When it was sent before; an answer may be from then. 0: never.
        self.first = first
        # The epoch in which it makes sense; empty: any.
        self.epoch = b""
        self.sent = self.received = self.since = 0
        # Whether it has been found to take longer than usual.
        self.slow = False
        # How many more of those who said the same are granted, and the tally of all.
        self.several = 0
        self.tally = 0.0
        # What the answer says.
        self.reply_epoch = b""
        self.status = self.now = self.seq = self.lives = self.quarantine = self.pause = self.shift = (
            self.waiting
        ) = 0.0

    def open(self, prelude: bytes | None = None) -> bytes:
        """What to send."""
        ledger = self.ledger
        self.sent = ledger.registry.clock.now()
        return ledger.encode(self, prelude)

    def held_up_until(self) -> float:
        """The end of the pause that the answer tells of, on the server's clock; 0 if there is none."""
        return self.now + self.pause if self.pause > 0 else 0.0

    def expected_ns(self, sample: ClockSample) -> int:
        """How long it may take until the server has it."""
        if self.slow:
            return self.timeout_ns
        return min(self.timeout_ns, max(PROMPT, 4 * (sample.received - sample.sent)))

    def settle(self, reply: Any) -> bool:
        """Take an answer that says what the batch wanted to know; False: something has to be cleared up first."""
        ledger = self.ledger
        registry = ledger.registry
        self.received = registry.clock.now()
        if type(reply) is not bytes or len(reply) < HEAD.size:
            return False
        self.read(reply)
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
        if cython.compiled:
            said = numbers_from(reply, HEAD_SIZE)  # type: ignore[name-defined] # noqa: F821 - in account.pxd
        else:
            said = read_numbers(reply, HEAD.size)
        position = 0
        for request in self.batch:
            position = request.apply_reply(self, said, position)
        return True

    def read(self, reply: bytes) -> None:
        """How every answer begins."""
        if cython.compiled:
            self.status = number_at(reply, 0)  # type: ignore[name-defined] # noqa: F821 - in account.pxd, as below
            self.now = number_at(reply, 1)  # type: ignore[name-defined] # noqa: F821
            self.seq = number_at(reply, 2)  # type: ignore[name-defined] # noqa: F821
            self.lives = number_at(reply, 3)  # type: ignore[name-defined] # noqa: F821
            self.quarantine = number_at(reply, 4)  # type: ignore[name-defined] # noqa: F821
            self.pause = number_at(reply, 5)  # type: ignore[name-defined] # noqa: F821
            self.shift = number_at(reply, 6)  # type: ignore[name-defined] # noqa: F821
            self.waiting = number_at(reply, 7)  # type: ignore[name-defined] # noqa: F821
            self.reply_epoch = reply[64:88]
        else:
            (
                self.status, self.now, self.seq, self.lives, self.quarantine, self.pause, self.shift, self.waiting,
                self.reply_epoch,
            ) = HEAD.unpack_from(reply)  # fmt: skip

    def resolve(self, reply: Any) -> Flow:  # noqa: C901 - one branch for each answer there is
        """Clear up what the first answer was about, until the batch has been heard; raises what cannot be helped."""
        ledger = self.ledger
        registry = ledger.registry
        prelude: bytes | None = None
        for _ in range(ATTEMPTS):
            if isinstance(reply, Exception):
                if any(text in str(reply) for text in PARTS_ARE_MISSING):
                    self.status = protocol.LOST
                    prelude = yield from self.handle_loss()
                elif not protocol.no_script(reply):
                    raise reply
                else:
                    yield command(b"SCRIPT", b"LOAD", ledger.script.text)
            elif len(reply) < HEAD.size:
                # STALE: a later command of this stream was faster, so this one is nobody's any more.
                raise EngineUnavailable(registry.engine.address, "an answer was overtaken; ask again")
            elif self.status == protocol.EDGES:
                registry.server_time(self.now, self.received)
            elif self.status == protocol.RECONFIGURE:
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
            reply = yield self.open(prelude)
            if self.settle(reply):
                return
        raise EngineUnavailable(registry.engine.address, "the ledger changes faster than it can be read")

    def was_only_late(self) -> bool:
        """Whether the clock was not set, but the command was on its way for longer than it was worth."""
        registry = self.ledger.registry
        sample = registry.clock_samples.get(self.ident)
        if sample is None:
            return True
        return bool(
            sample.least(self.sent, registry.drift) <= self.now <= sample.most(self.received, registry.drift)
        )

    def handle_loss(self) -> Generator[bytes, Any, bytes | None]:
        """Grants may have been forgotten: what to say first when the batch is sent again."""
        ledger = self.ledger
        registry = ledger.registry
        if self.status == protocol.CLOCK:
            registry.clock_samples.pop(self.ident, None)
        if registry.on_loss == "trust":
            ledger.epoch, ledger.expires = b"", 0
            if self.status == protocol.CLOCK and self.lives:
                return numbers(protocol.QUARANTINE, 0, 0)  # what it has noted lies in the future now
            return numbers(protocol.TRUST) if self.status == protocol.MOVED else None
        if self.status == protocol.MOVED and (yield from complete_file()):
            return numbers(protocol.TRUST)
        if self.status == protocol.LOST and not ledger.epoch:
            return None
        ticks, whole = registry.quarantine(ledger, self.now)
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
