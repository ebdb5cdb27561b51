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

`converse` is a flow: a generator that yields what is to be sent and gets the answers sent in. It is run by a lane
(`lanes.py`) for threads and for tasks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from struct import Struct
from typing import TYPE_CHECKING, Any

from headway.core.window import WindowRule
from headway.engines.redis import words
from headway.engines.redis.adopt import adopt
from headway.engines.redis.scripts import CONCURRENCY
from headway.engines.redis.words import HEAD, HEADER, OK, TICK, command, framed, numbers, read_numbers
from headway.errors import EngineUnavailable, LimitMismatch

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.requests import Ask, Request
    from headway.engines.redis.spec import Spec

log = logging.getLogger("headway")

Flow = Generator[bytes, Any, None]

HEAD_SIZE = HEAD.size
MEMORY = Struct("<24sdddqq")
"""What is left of an account that is not used: epoch, sequence number, shift, the end of a pause, until when the ledger
lives, and when it was heard of."""
SIZES = tuple(b"$%d\r\n" % size for size in range(512))
"""What stands before an argument of the Redis protocol, by its length."""
ATTEMPTS = 12
PARTS_ARE_MISSING = ("HEADWAY_LOST", "no such key", "index out of range")
SLACK = 1000
"""Ticks by which a clock may be off before it is said to have been set."""
PROMPT = 10_000_000
"""Nanoseconds, or four times what it took last time: within these a command is expected to be there. One that is late
is refused for its time, found to have been late, and asked again with all the time it has; so the clock cannot be set
forward by more without anybody noticing."""
WHY = {
    words.LOST: "its ledger was lost (flushed, evicted or overtaken by a failover)",
    words.MOVED: "another server keeps its ledger now and may have missed the last grants",
    words.CLOCK: "the server's clock was set",
}


class Anchor:
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


class Terms:
    """What every call has to know of its limiter, whatever the key; the rest of it is in `Spec`."""

    __slots__ = (
        "anchors", "clock", "drift", "engine", "generation", "lease", "sharded", "text", "timeout_ns", "usual",
    )  # fmt: skip

    engine: Engine
    clock: Clock
    anchors: dict[bytes, Anchor]
    """Where the clock of each server stood when it was heard of last."""
    drift: float
    lease: float
    generation: float
    sharded: float
    text: bytes
    timeout_ns: int
    usual: tuple[Account, tuple[int, ...]] | None
    """The account and the costs of who has no key and wants one permit, once that has been found out."""


class Account:
    """One limiter's ledgers for one key, as this process knows them."""

    __slots__ = (
        "__weakref__",
        "allowance_ns",
        "box",
        "can_queue",
        "ends",
        "epoch",
        "expires",
        "framed",
        "front",
        "halt",
        "halted",
        "heard",
        "held",
        "ident",
        "key",
        "keys",
        "lanes",
        "leased",
        "leases",
        "opening",
        "over",
        "packed",
        "parts",
        "reduced",
        "reopening",
        "restless",
        "rules",
        "script",
        "seen",
        "seq",
        "shelved",
        "shift",
        "sleepers",
        "spare",
        "spec",
        "standing",
        "task_lane",
        "text",
        "visited",
        "waiting",
        "walled",
        "whose",
        "width",
    )

    def __init__(self, spec: Spec, keys: tuple[bytes, ...], key: str | None, rules: tuple[Any, ...]) -> None:
        self.spec = spec
        self.keys = keys
        self.key = key
        # The root of the limiter's own ledger, whose pause holds every key up, and until when it was heard to do so, on
        # the server's clock (0: not at all); in a cluster, where it may be elsewhere, what this process knows of it.
        self.over = b"" if key is None or spec.metrics or spec.sharded else spec.places((None,))[0]
        self.halted = 0.0
        self.halt = None if key is None else spec.halt
        self.epoch = b""
        self.seq = 0.0
        # Until then, on our clock, the ledger must be there; and when it was heard of last.
        self.expires = 0
        self.heard = 0
        # Who answered last.
        self.ident = b""
        # The sum of all by which promised slots were moved.
        self.shift = 0.0
        # By which keys its limiter knows it; when it was seen to be unused, if it was not used since (0: it was);
        # whether it is not among its limiter's accounts any more, as it was idle; and whether it was so before and is
        # known on the shelf (`Spec.move_hand`).
        self.whose: tuple[str | None, ...] = ()
        self.seen = 0
        self.reduced = self.shelved = False
        self.begin()
        self.renew(rules)

    def begin(self) -> None:
        """Nobody of this process asks, waits or holds; so it is in a forked child."""
        # One for threads (None), and one for each event loop; the last one that a task has used is kept at hand.
        self.lanes: dict[Any, Any] = {}
        self.task_lane: Any = None
        # Who stands in the ledger's queue, who sleeps until a promised slot, and what is held under a lease.
        self.standing: dict[int, Ask] = {}
        self.sleepers: set[Ask] = set()
        self.leases: dict[Any, Any] = {}
        self.visited = 0
        self.ends: deque[Request] = deque()
        # How many stood in its queue when it was heard of last.
        self.waiting = 0.0
        # The streams that the one before it had, if it was reduced: of commands, and of letters.
        self.spare: list[bytes] | None = None
        self.box: Any = None

    def renew(self, rules: tuple[Any, ...]) -> None:
        """Go by these rules from now on; those of a key may be of other kinds than its limiter's."""
        spec = self.spec
        self.rules = rules
        self.text = spec.text_of(rules)
        self.can_queue = spec.can_queue(rules)
        self.script = spec.script_of(rules, self.can_queue)
        # How late after its slot a permit may still be spent; and which ones are held, which of them under a lease.
        self.allowance_ns = spec.allowance_of(rules)
        self.held = any(rule.held for rule in rules)
        self.leased = [i for i, rule in enumerate(rules) if words.kind_of(rule) == CONCURRENCY]
        self.walled = any(rule.walled for rule in rules)
        # Whether what it says with every command is another each time.
        self.restless = self.walled or (self.halt is not None and self.halt.until > 0)
        places = tuple(dict.fromkeys(self.keys))
        self.front = (b"EVALSHA", self.script.sha, str(len(places)).encode(), *places)
        self.packed = b"" if self.walled else self.records(0)
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
            words.record_of(rule, at, now) for rule, at in zip(self.rules, self.whereabouts(), strict=True)
        )

    def whereabouts(self) -> list[int]:
        """Which of the keys each rule's ledger is in, counted from 1; with metrics, the first one is the root."""
        places = {key: place for place, key in enumerate(dict.fromkeys(self.keys), 1)}
        own = self.keys[1:] or self.keys * len(self.rules)
        return [places[key] for key in own]

    def compose(self, talk: Talk, prelude: bytes | None) -> bytes:
        """The whole command for a batch of requests."""
        spec = self.spec
        known = talk.sent < self.expires
        low = high = 0.0
        anchor = spec.anchors.get(talk.ident)
        if anchor is not None:
            low = anchor.least(talk.sent, spec.drift)
            high = anchor.most(talk.sent + talk.expected_ns(anchor), spec.drift)
        seq = self.seq if known else 0.0
        if cython.compiled:
            head = pack_header(  # type: ignore[name-defined] # noqa: F821 - in account.pxd
                spec.engine.fixed_time,
                low,
                high,
                talk.number,
                seq,
                spec.lease,
                spec.generation,
                self.width,
                spec.sharded,
            )
        else:
            head = HEADER.pack(
                spec.engine.fixed_time,
                low,
                high,
                talk.number,
                seq,
                spec.lease,
                spec.generation,
                self.width,
                spec.sharded,
            )
        epoch = talk.epoch or (self.epoch if known else b"")
        # Nearly always the same as last time: only the numbers and the commands are news.
        same = (talk.stream, epoch, talk.ident)
        middle = self.framed.get(same)
        if middle is None or self.restless:
            over = self.over if self.halt is None else self.halt.left(talk.sent)
            middle = b"\r\n" + framed(*same, spec.records(self, talk), self.text, over)
            if len(self.framed) > 8:
                self.framed.clear()
            if not over or over == self.over:
                self.framed[same] = middle
        said = talk.said if prelude is None else [prelude, *talk.said]
        if len(said) == 1 and len(said[0]) < len(SIZES):
            return b"".join((self.opening, head, middle, SIZES[len(said[0])], said[0], b"\r\n"))
        return b"*%d%b%b%b%b" % (self.parts + len(said), self.reopening, head, middle, framed(*said))

    def hear(self, talk: Talk) -> None:  # noqa: C901 - one branch for each thing that may have changed
        """Remember how the ledger stands."""
        if talk.heard_epoch != self.epoch:
            if self.epoch:
                if talk.since < self.heard:
                    return  # an answer from before the loss that comes late
                self.forget_promises(talk.heard_epoch)
            self.epoch = talk.heard_epoch
            self.seq = talk.seq
        elif talk.seq > self.seq:
            self.seq = talk.seq
        self.heard = talk.since
        # Counted from before it was sent, and short of what the server's clock may be ahead by.
        self.expires = talk.since + int(talk.lives * 0.998) * TICK - 1_000_000
        self.waiting = talk.waiting
        if talk.waiting and not self.can_queue:
            self.spec.queue_up()
        if self.over and (talk.pause > 0 or self.halted):
            self.hear_of_pause(talk)
        if talk.shift != self.shift:
            self.shift = talk.shift
            for sleeper in list(self.sleepers):
                if self.counted(sleeper):
                    self.recall(sleeper)
                sleeper.ring()
        if self.reduced:
            self.spec.pass_on(self)

    def hear_from(self, other: Account) -> None:
        """What another one of the same ledgers has heard, which was reduced while somebody still used it."""
        if other.epoch != self.epoch:
            if not other.epoch or other.heard < self.heard:
                return
            if self.epoch:
                self.forget_promises(other.epoch)
            self.epoch = other.epoch
            self.seq = other.seq
        elif other.seq > self.seq:
            self.seq = other.seq
        if other.heard >= self.heard:
            self.heard, self.expires, self.ident = other.heard, other.expires, other.ident

    def remember(self) -> bytes:
        """What has to be known of the ledger to notice its loss."""
        numbers = (self.seq, self.shift, self.halted, self.expires, self.heard)
        return MEMORY.pack(self.epoch, *numbers)

    def recollect(self, memory: bytes, ident: bytes) -> None:
        """Go on where another one was when it was reduced."""
        epoch, self.seq, self.shift, self.halted, self.expires, self.heard = MEMORY.unpack_from(memory)
        self.epoch = epoch if self.expires else b""  # never heard of
        self.ident = ident
        self.shelved = True

    def hear_of_pause(self, talk: Talk) -> None:
        """Until when the limiter is paused; it may be sooner or later than was said."""
        ends = talk.held_up_until()
        if ends > self.halted:
            self.recall_promises()
        elif ends < self.halted and talk.now < self.halted:
            self.recall_waiters()
        self.halted = ends

    def distrust(self) -> None:
        """A script may have ended in the midst of its work: what the ledger says of itself is not to be believed. It is
        refused as one that was lost, since no sequence number is as high as what is expected now."""
        self.seq = words.NEVER
        if self.reduced:
            self.spec.pass_on(self)

    def forget_promises(self, epoch: bytes) -> None:
        """The ledger began anew: what it had promised is void, and whoever waits has to ask again. Not who stands or
        sleeps there already: another lane may have been faster."""
        for request in [*self.sleepers, *self.standing.values()]:
            if request.epoch != epoch:
                self.standing.pop(request.ticket, None)
                request.void = True
                request.ring()

    def recall_promises(self, until: int | None = None) -> None:
        """The whole limiter is paused: who sleeps until a slot gives it back, and asks for one after the pause."""
        for ask in list(self.sleepers):
            if until is None or ask.slot + self.moved(ask) < until:
                self.recall(ask)

    def recall_waiters(self) -> None:
        """A pause of the whole limiter ends sooner than was said: who was to sleep for as long asks anew, and may go.
        What was reserved stays reserved."""
        for ask in list(self.sleepers):
            if ask in self.spec.waiters:
                self.recall(ask)

    def recall(self, ask: Ask) -> None:
        """Have a sleeper give its slot back and ask for another. Void first: one that has risen by then looks for that
        after it has left the sleepers, and either it does not go, or its slot is not given back."""
        ask.void = True
        if ask in self.sleepers and ask.verdict == words.GRANTED:
            ask.give_back(again=True)
        ask.ring()

    def counted(self, ask: Ask) -> bool:
        """Whether its slot is one of a window. When that is moved, what it waits for does not move with it: permits
        cool by their own time, paused or not."""
        rules = zip(self.rules, ask.costs, strict=True)
        return any(cost > 0 and isinstance(rule, WindowRule) for rule, cost in rules)

    def heed(self, lifted: bool) -> None:
        """A pause of the whole limiter has begun, was lifted or has changed."""
        until = 0 if self.halt is None else self.halt.until
        self.restless = self.walled or until > 0
        if lifted:
            self.recall_waiters()
        else:
            self.recall_promises(until)
        # Who stands may be served now, or is to know for how long not.
        self.visited = 0

    def stand(self, ask: Ask) -> None:
        """Remember who stands in the ledger's queue, and have it looked after."""
        self.standing[ask.ticket] = ask
        self.spec.engine.wait_for(ask)

    def sleep(self, ask: Ask) -> None:
        """Remember who sleeps until a promised slot, and learn of what may move it."""
        self.sleepers.add(ask)
        self.spec.engine.look_after(self)
        # What was heard since it was promised, only those were told who slept by then.
        if self.halt is not None:
            self.recall_promises(self.halt.until)
            sooner = ask.pause > 0 and not self.halt.until
        else:
            sooner = bool(self.over) and self.halted < ask.halted
            if (self.over and self.halted > ask.halted) or (self.shift != ask.shift and self.counted(ask)):
                self.recall(ask)
        if sooner and ask in self.spec.waiters:
            self.recall(ask)

    def moved(self, ask: Ask) -> int:
        """By how much a slot was moved since it was promised, in nanoseconds."""
        by = self.shift - ask.shift
        return self.spec.stretched(by) if by > 0 else int(by * TICK)

    def take_ends(self, taken: list[Request] | None = None) -> list[Request]:
        """The ends that wait for a question to travel with; those of a ledger that is no more are nobody's. While it is
        found out which one it is, they wait."""
        taken = [] if taken is None else taken
        while self.epoch and len(taken) < 64:
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
        self.spec.engine.post(request)


class Talk:
    """One round trip: a batch of requests on its way, with its number in a stream."""

    __slots__ = (
        "account", "batch", "epoch", "first", "heard_epoch", "ident", "lives", "now", "number", "pause", "quarantine",
        "received", "said", "sent", "seq", "several", "shift", "since", "slow", "status", "stream", "tally",
        "timeout_ns", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        account: Account,
        batch: list[Request],
        said: list[bytes],
        stream: bytes,
        number: int,
        ident: bytes,
        timeout_ns: int,
        first: int = 0,
    ) -> None:
        self.account = account
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
        self.heard_epoch = b""
        self.status = self.now = self.seq = self.lives = self.quarantine = self.pause = self.shift = (
            self.waiting
        ) = 0.0

    def open(self, prelude: bytes | None = None) -> bytes:
        """What to send."""
        account = self.account
        self.sent = account.spec.clock.now()
        return account.compose(self, prelude)

    def held_up_until(self) -> float:
        """The end of the pause that the answer tells of, on the server's clock; 0 if there is none."""
        return self.now + self.pause if self.pause > 0 else 0.0

    def expected_ns(self, anchor: Anchor) -> int:
        """How long it may take until the server has it."""
        if self.slow:
            return self.timeout_ns
        return min(self.timeout_ns, max(PROMPT, 4 * (anchor.received - anchor.sent)))

    def settle(self, reply: Any) -> bool:
        """Take an answer that says what the batch wanted to know; False: something has to be cleared up first."""
        account = self.account
        spec = account.spec
        self.received = spec.clock.now()
        if type(reply) is not bytes or len(reply) < HEAD.size:
            return False
        self.read(reply)
        if self.status != OK:
            return False
        if not self.first:
            self.since = self.sent
            # A new one each time: other threads read it.
            spec.anchors[self.ident] = Anchor(self.now, self.sent, self.received)
        else:
            self.since = self.first
            if self.ident not in spec.anchors:
                spec.anchors[self.ident] = Anchor(self.now, self.first, self.received)
        account.ident = self.ident
        account.hear(self)
        if cython.compiled:
            said = numbers_from(reply, HEAD_SIZE)  # type: ignore[name-defined] # noqa: F821 - in account.pxd
        else:
            said = read_numbers(reply, HEAD.size)
        position = 0
        for request in self.batch:
            position = request.hear(self, said, position)
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
            self.heard_epoch = reply[64:88]
        else:
            (
                self.status, self.now, self.seq, self.lives, self.quarantine, self.pause, self.shift, self.waiting,
                self.heard_epoch,
            ) = HEAD.unpack_from(reply)  # fmt: skip

    def converse(self, reply: Any) -> Flow:  # noqa: C901 - one branch for each answer there is
        """Clear up what the first answer was about, until the batch has been heard; raises what cannot be helped."""
        account = self.account
        spec = account.spec
        prelude: bytes | None = None
        for _ in range(ATTEMPTS):
            if isinstance(reply, Exception):
                if any(text in str(reply) for text in PARTS_ARE_MISSING):
                    self.status = words.LOST
                    prelude = yield from self.judge()
                elif not words.no_script(reply):
                    raise reply
                else:
                    yield command(b"SCRIPT", b"LOAD", account.script.text)
            elif len(reply) < HEAD.size:
                # STALE: a later command of this stream was faster, so this one is nobody's any more.
                raise EngineUnavailable(spec.engine.address, "an answer was overtaken; ask again")
            elif self.status == words.EDGES:
                spec.server_time(self.now, self.received)
            elif self.status == words.ADOPT:
                yield from adopt(account)
            elif self.status == words.MISMATCH:
                existing = yield command(b"HGET", account.keys[0], b"l")
                text = existing.decode() if isinstance(existing, bytes) else "another kind of limit"
                raise LimitMismatch(spec.name, text, account.text.decode())
            elif self.status == words.VERSION:
                raise LimitMismatch(
                    spec.name, f"format {self.lives:.0f}", "format 1 of this version of headway"
                )
            elif self.status == words.CLOCK and not self.lives and self.plausible():
                self.slow = True
            else:
                prelude = yield from self.judge()
            reply = yield self.open(prelude)
            if self.settle(reply):
                return
        raise EngineUnavailable(spec.engine.address, "the ledger changes faster than it can be read")

    def plausible(self) -> bool:
        """Whether the clock was not set, but the command was on its way for longer than it was worth."""
        spec = self.account.spec
        anchor = spec.anchors.get(self.ident)
        if anchor is None:
            return True
        return bool(anchor.least(self.sent, spec.drift) <= self.now <= anchor.most(self.received, spec.drift))

    def judge(self) -> Generator[bytes, Any, bytes | None]:
        """Grants may have been forgotten: what to say first when the batch is sent again."""
        account = self.account
        spec = account.spec
        if self.status == words.CLOCK:
            spec.anchors.pop(self.ident, None)
        if spec.on_loss == "trust":
            account.epoch, account.expires = b"", 0
            if self.status == words.CLOCK and self.lives:
                return numbers(words.QUARANTINE, 0, 0)  # what it has noted lies in the future now
            return numbers(words.TRUST) if self.status == words.MOVED else None
        if self.status == words.MOVED and (yield from complete_file()):
            return numbers(words.TRUST)
        if self.status == words.LOST and not account.epoch:
            return None
        ticks, whole = spec.quarantine(account, self.now)
        log.error(
            "limiter %r: %s; nothing is granted for %.3g s%s",
            spec.name,
            WHY[int(self.status)],
            ticks / 1e6,
            ", then it is trusted (max_quarantine), so a longer window may see more than its limit"
            if whole
            else "",
        )
        spec.tell("quarantine", account, ticks / 1e6)
        return numbers(words.QUARANTINE, ticks, whole)


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
