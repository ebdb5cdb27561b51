"""A process's side of one key's ledgers: what it knows of them, what it sends with every command, and its waiters.

The server decides. The client remembers just enough to notice that the server has *forgotten* something: the epoch of
the ledger (a name that it got when it was created), its sequence number, and until when it lives. Every reply says
these three. `round_trip.py` sends them as what is expected, and deals with a reply that does not fit.

A waiter either stands in the ledger's queue, or sleeps until a slot that it was promised. Both are kept here, so that
a pause, a loss or a moved slot reaches them.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Any

from headway.core.window import WindowRule
from headway.engines.redis.script import protocol
from headway.engines.redis.script.protocol import HEADER, TICK, framed
from headway.engines.redis.script.scripts import CONCURRENCY

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.base import Keys
    from headway.engines.redis.client.registry import LimiterRegistry
    from headway.engines.redis.client.requests import Acquire, Request
    from headway.engines.redis.client.round_trip import ClockSample
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.script.scripts import Script

COMPACT = Struct("<24sdddqq")
"""What is left of a client that is not used: epoch, sequence number, shift, the end of a pause, until when the ledger
lives, and when its last reply was requested."""
UNPLANNED = 1 << 62
"""A time that never comes."""
ENDS = 32
"""Releases in one command: each of them may let a waiter have its turn."""
OLDEST = 32
"""Waiters that every poll asks after; and as many of the others."""


class Reply:
    """What the server said in one round trip, as the ledger and the requests read it; a `RoundTrip` fills it."""

    __slots__ = (
        "governed", "lives", "now", "pause", "pause_end", "quarantine", "received", "reply_epoch", "sent", "seq",
        "several", "shift", "since", "status", "tally", "waiting",
    )  # fmt: skip

    sent: int
    received: int
    """On our clock, as is `since`."""
    since: int
    """Since when it may have been applied: `sent`, or earlier if it was sent before."""
    status: float
    now: float
    """The server's time."""
    reply_epoch: bytes
    seq: float
    lives: float
    """For how long the ledger lives."""
    quarantine: float
    pause: float
    pause_end: float
    """On the server's clock; 0: there is no pause."""
    shift: float
    waiting: float
    """How many wait in the ledger's queue."""
    several: int
    tally: float
    """How many more of the equal requests are granted, and the tally of all of them."""
    governed: float
    """The generation of the limit that governs, if that is another than this process's."""


class CommandFrame:
    """The parts of a command that stay the same from call to call, as bytes."""

    __slots__ = ("middles", "opening", "opening_of_two", "parts", "records", "reopening", "width")

    def __init__(self, script: Script, keys: tuple[bytes, ...], records: bytes, width: int) -> None:
        front = (b"EVALSHA", script.sha, str(len(keys)).encode(), *keys)
        # The rules as the script reads them; empty where they differ from day to day.
        self.records = records
        self.width = width
        # How many parts a command has beside its requests; how it begins, with any number of requests, one and two.
        self.parts = len(front) + 7
        self.reopening = b"\r\n" + framed(*front) + b"$%d\r\n" % HEADER.size
        self.opening = b"*%d" % (self.parts + 1) + self.reopening
        self.opening_of_two = b"*%d" % (self.parts + 2) + self.reopening
        # What comes between the numbers and the requests, by stream, epoch and server.
        self.middles: dict[tuple[bytes, bytes, bytes], bytes] = {}


class LedgerTerms:
    """What every call has to know of its limiter, whatever the key; the rest of it is in `LimiterRegistry`."""

    __slots__ = (
        "clock",
        "clock_samples",
        "closed",
        "countdown",
        "drift",
        "engine",
        "generation",
        "lease",
        "ledgers",
        "sharded",
        "text",
        "timeout_ns",
        "with_status",
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
    with_status: bool
    """Whether every batch asks how the limit stands after its grants."""
    closed: bool
    ledgers: dict[Keys, LedgerClient]
    """The client of each key that was used not long ago."""
    countdown: int
    """Calls until some of them are looked at, whether they are idle."""

    def ledger(self, keys: Keys) -> LedgerClient:
        """The client of a key, or of a combination of keys where the limiter has metrics."""
        # First: what is found then is not looked at by this call.
        self.countdown -= 1
        if self.countdown <= 0:
            self.sweep()
        found = self.ledgers.get(keys)
        if found is None:
            found = self.open_ledger(keys)
        found.seen = 0
        return found

    def sweep(self) -> None:
        raise NotImplementedError

    def open_ledger(self, keys: Keys) -> LedgerClient:
        raise NotImplementedError


class LedgerClient:
    """One limiter's ledgers for one key, as this process knows them."""

    __slots__ = (
        "__weakref__",
        "allowance_ns",
        "batchers",
        "bracketed",
        "can_queue",
        "compacted",
        "ends",
        "epoch",
        "expires",
        "frame",
        "governed",
        "governing",
        "halted",
        "held",
        "ident",
        "key",
        "keys",
        "last_loop_batcher",
        "leased",
        "leases",
        "lends",
        "lent_ttl",
        "lookup_keys",
        "over",
        "pause_state",
        "poll_at",
        "registry",
        "release_stream",
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
        "thread_batcher",
        "uses_wall_clock",
        "visited",
        "waiting",
        "was_compacted",
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
        # The server that answered last.
        self.ident = b""
        # The sum of all by which promised slots were moved.
        self.shift = 0.0
        # By which keys its limiter knows it; when it was seen to be unused, if it was not used since (0: it was);
        # whether it was compacted, as it was idle, and is not in its limiter's registry any more; and whether it was
        # restored from a compacted one (`LimiterRegistry.sweep`).
        self.lookup_keys: tuple[str | None, ...] = ()
        self.seen = 0
        self.compacted = self.was_compacted = False
        # Where another process has declared a newer limit: its generation, and the limit of each rule, to be shown.
        self.governed = 0.0
        self.governing: list[Any] | None = None
        # Whether clients hold tokens of it, or did; and for how long without a word, as far as this process was told.
        self.lends = False
        self.lent_ttl = 0.0
        self.begin()
        self.renew(rules)

    def begin(self) -> None:
        """Without requests, waiters and leases; so it is in a forked child."""
        # One for threads (None), and one for each event loop; beside them, the two that were used last.
        self.batchers: dict[Any, Any] = {}
        self.thread_batcher: Any = None
        self.last_loop_batcher: Any = None
        # Waiters in the ledger's queue, sleepers until a promised slot, and permits that are held under a lease.
        self.standing: dict[int, Acquire] = {}
        # When the background worker polls for the waiters, and which of them it has not asked after in this round.
        self.poll_at = UNPLANNED
        self.rota: list[int] = []
        self.sleepers: set[Acquire] = set()
        self.leases: dict[Any, Any] = {}
        self.visited = 0
        self.ends: deque[Request] = deque()
        # How many stood in its queue when it was heard of last.
        self.waiting = 0.0
        # The streams of the client before it, if that was compacted: of commands, and of releases.
        self.spare: list[bytes] | None = None
        self.release_stream: Any = None

    def renew(self, rules: tuple[Any, ...]) -> None:
        """Go by these rules from now on; those of a key may be of other kinds than its limiter's."""
        registry = self.registry
        self.rules = rules
        self.text = registry.text_of(rules)
        self.can_queue = registry.can_queue(rules)
        self.script = registry.script_of(rules, self.can_queue, self.lends)
        # How late after its slot a permit may still be spent; and which ones are held, which of them under a lease.
        self.allowance_ns = registry.allowance_of(rules)
        self.held = any(rule.held for rule in rules)
        self.bracketed = any(rule.bracketed for rule in rules)
        self.leased = [i for i, rule in enumerate(rules) if protocol.kind_of(rule) == CONCURRENCY]
        self.uses_wall_clock = any(rule.uses_wall_clock for rule in rules)
        # Whether what it says with every command is another each time.
        self.restless = self.uses_wall_clock or (self.pause_state is not None and self.pause_state.until > 0)
        records = b"" if self.uses_wall_clock else self.records(0)
        self.frame = CommandFrame(self.script, tuple(dict.fromkeys(self.keys)), records, len(rules))

    def lend(self, ttl: float = 0.0) -> None:
        """Tokens of it are with clients, for as long as `ttl` (ticks): go by the script that knows of leases."""
        if ttl > self.lent_ttl:
            self.lent_ttl = ttl
        if not self.lends:
            self.lends = True
            self.renew(self.rules)

    @property
    def busy(self) -> bool:
        """Whether the background worker has to visit it."""
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

    def apply_reply(self, reply: Reply) -> None:
        """Remember how the ledger stands."""
        if reply.reply_epoch != self.epoch:
            if self.epoch:
                if reply.since < self.replied_at:
                    return  # an answer from before the loss that comes late
                self.forget_promises(reply.reply_epoch)
            self.epoch = reply.reply_epoch
            self.seq = reply.seq
        elif reply.seq > self.seq:
            self.seq = reply.seq
        self.replied_at = reply.since
        # Counted from before it was sent, and short of what the server's clock may be ahead by.
        self.expires = reply.since + int(reply.lives * 0.998) * TICK - 1_000_000
        self.waiting = reply.waiting
        if self.over and (reply.pause > 0 or self.halted):
            self.apply_pause(reply)
        if reply.shift != self.shift:
            self.shift = reply.shift
            for sleeper in list(self.sleepers):
                # One that was denied sleeps until the end that the pause had then: it has no slot that could move.
                if sleeper.verdict == protocol.DENIED or self.counted(sleeper):
                    self.recall(sleeper)
                sleeper.wake()
        if self.compacted:
            self.registry.pass_on(self)

    def merge_from(self, other: LedgerClient) -> None:
        """Learn what another client of the same ledgers has learned, which was compacted while it was still in use."""
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
        """Go on where another client was when it was compacted."""
        epoch, self.seq, self.shift, self.halted, self.expires, self.replied_at = COMPACT.unpack_from(memory)
        self.epoch = epoch if self.expires else b""  # never heard of
        self.ident = ident
        self.was_compacted = True

    def apply_pause(self, reply: Reply) -> None:
        """Until when the limiter is paused; it may be sooner or later than was said."""
        ends = reply.pause_end
        if ends > self.halted:
            self.recall_sleepers()
        elif ends < self.halted and reply.now < self.halted:
            self.recall_waiters()
        self.halted = ends

    def distrust(self) -> None:
        """A script may have ended in the midst of its work: what the ledger says of itself is not to be believed. It is
        refused as one that was lost, since no sequence number is as high as what is expected now."""
        self.seq = protocol.NEVER
        if self.compacted:
            self.registry.pass_on(self)

    def forget_promises(self, epoch: bytes) -> None:
        """The ledger began anew: what it had promised is void, and its waiters have to request again. Not those that
        wait in the new one already: another batcher may have been faster."""
        for request in [*self.sleepers, *self.standing.values()]:
            if request.epoch != epoch:
                self.standing.pop(request.ticket, None)
                request.void = True
                request.wake()

    def recall_sleepers(self, until: int | None = None) -> None:
        """The whole limiter is paused: sleepers give their slots back, and request one after the pause."""
        for acquire in list(self.sleepers):
            if until is None or acquire.slot + self.moved(acquire) < until:
                self.recall(acquire)

    def recall_waiters(self) -> None:
        """A pause of the whole limiter ends sooner than was said: waiters that sleep until then request anew.
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
        # Waiters in the queue may be served now, or are to know for how long not.
        self.visited = 0

    def stand(self, acquire: Acquire, poll_at: int) -> None:
        """Remember a waiter in the ledger's queue, and have it looked after."""
        self.standing[acquire.ticket] = acquire
        self.registry.engine.wait_for(acquire)
        if poll_at < self.poll_at:
            self.registry.engine.worker.plan_poll(self, poll_at)

    def some_waiters(self) -> list[Acquire]:
        """The waiters that a poll asks after: the oldest, as they are served first, and some of the others in turn."""
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
        """Remember a waiter that sleeps until a promised slot, and learn of what may move the slot."""
        self.sleepers.add(acquire)
        self.registry.engine.track(self)
        # What was learned since the promise was told only to waiters that slept by then.
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
        """The releases that wait for a command to travel with; those of a ledger that is no more are dropped. They
        wait while it is found out which one it is."""
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
        """Send a request whose reply no caller waits for."""
        self.registry.engine.post(request)
