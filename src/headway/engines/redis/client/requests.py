"""The requests that a ledger knows: how each is encoded, and how its reply is applied.

A request whose caller has gone (`orphan`: its task was cancelled, its thread interrupted) still gets its reply: what it
was granted goes straight back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.engines.redis.client.waiting import next_step
from headway.engines.redis.script import protocol
from headway.engines.redis.script.protocol import TICK, numbers
from headway.forks import on_fork
from headway.outcome import Outcome

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from headway.engines.base import Row, Step
    from headway.engines.redis.client.ledger_client import LedgerClient, Reply

ENTER = 5
"""Beside the outcomes of a permit: a bare one is entered."""

# C values where this file is compiled.
GRANTED, SEVERAL = protocol.GRANTED, protocol.SEVERAL

NOTHING = numbers(protocol.ECHO)
"""A command of no consequence."""
LOOKS: dict[tuple[int, ...], bytes] = {}
MOST_LOOKS = 64
"""Commands of looks that are kept, by costs: nearly all are for one permit."""
NEVER_SAID = -float((1 << 52) + 1)
"""A number that no other command answers with."""
AGAIN = 1_000_000
"""Nanoseconds between two polls for the waiters of one ledger, at least."""

_once = threading.Lock()
_process = os.getpid()


def after_fork() -> None:
    """In a forked child: a thread of its parent may have had the lock, and permits taken so far are the parent's."""
    global _once, _process
    _once = threading.Lock()
    _process = os.getpid()


on_fork(after_fork)

RawRow = tuple[float, float, float, float, float, float, float]
"""Of one rule, in ticks: remaining, wait, time until it is as new, waiting, in flight, whether the wait is exact; and
the generation of the limit that governs, if that is another than this process's."""


def encode_batch(batch: list[Request], tickets: Iterator[int]) -> list[bytes]:
    """The commands of a batch. Equal requests in a row share one command that says how many they are. Their tickets
    follow each other, also when they are sent again."""
    said: list[bytes] = []
    first: Acquire | None = None
    times = 0
    for request in batch:
        if isinstance(request, Acquire):
            acquire = request
            if not acquire.ticket:
                acquire.ticket = next(tickets)
            if first is not None:
                if (
                    acquire.ticket == first.ticket + times
                    and acquire.patience == first.patience
                    and acquire.longest == first.longest
                    and acquire.costs == first.costs
                ):
                    times += 1
                    continue
                said.append(first.encode(tickets, times))
            first, times = acquire, 1
        else:
            if first is not None:
                said.append(first.encode(tickets, times))
                first = None
            said.append(request.command)
    if first is not None:
        said.append(first.encode(tickets, times))
    return said


class Request:
    """A request to one key's ledgers."""

    __slots__ = (
        "command",
        "done",
        "epoch",
        "error",
        "ledger",
        "orphan",
        "posted",
        "unknown",
        "void",
        "waiter",
        "waker",
    )

    def __init__(self, ledger: LedgerClient, command: bytes) -> None:
        self.ledger = ledger
        self.command = command
        self.done = False
        self.error: BaseException | None = None
        self.orphan = False
        # Whether it stands where it will be sent from, if it is posted. Set right before that, so that no handler of a
        # signal can run in between: a release that was interrupted is posted once more if it is not, and never twice.
        self.posted = False
        # Whether it is unknown if it was applied.
        self.unknown = False
        # The epoch of the ledger in which it makes sense; empty: any.
        self.epoch = b""
        # Whether a promise does not hold any more, as its ledger has begun anew.
        self.void = False
        self.waker: Any = None
        # The future of the task that waits for the answer.
        self.waiter: Any = None

    def encode(self, tickets: Iterator[int], times: int = 1) -> bytes:
        """The command, for so many equal requests."""
        return self.command

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        """Take one's part of the reply; returns where the next one's begins."""
        self.done = True
        return position

    def fail(self, error: BaseException) -> None:
        """There is no answer in time; one that comes later is ignored."""
        self.orphan = True
        self.error = error
        self.done = True

    def unheard(self) -> None:
        """It was not applied, and never will be."""

    def settle(self) -> None:
        """It was posted, and the server has answered; or there will never be an answer."""

    def withdraw(self) -> None:
        """Its caller has gone."""
        self.orphan = True

    def resolve_waiter(self) -> None:
        """Let the task go on that waits for the answer, if there still is one."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            if self.error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(self.error)
                waiter.exception()  # heard of, also if the loop is closed before the task runs

    def wake(self) -> None:
        if self.waker is not None:
            self.waker.wake()


class Wakeup(NamedTuple):
    """The message that a waiter's turn has come, in the server's time; without marks, when to poll for it."""

    epoch: bytes
    now: float
    slot: float
    marks: tuple[float, ...]


class Acquire(Request):
    """A permit: now, at a promised time, or after standing in the ledger's queue."""

    __slots__ = (
        "__weakref__",
        "asleep",
        "checked",
        "costs",
        "due",
        "ending",
        "entered",
        "expires",
        "halted",
        "held",
        "longest",
        "marks",
        "owned",
        "patience",
        "pause",
        "process",
        "quarantine",
        "raw_rows",
        "renewals",
        "replied_at",
        "resume_at",
        "returned",
        "shift",
        "slot",
        "stood",
        "ticket",
        "verdict",
    )

    def __init__(
        self, ledger: LedgerClient, costs: tuple[int, ...], patience: int, longest: float = protocol.NEVER
    ) -> None:
        # As in `Request`, without the call.
        self.ledger = ledger
        self.command = b""
        self.done = self.orphan = self.unknown = self.void = False
        self.error = self.waker = self.waiter = None
        self.epoch = b""
        self.costs = costs
        self.patience = patience
        self.longest = longest
        # Given when it is sent; 0: not yet.
        self.ticket = 0
        self.verdict = -1
        self.marks: tuple[float, ...] = ()
        self.raw_rows: list[RawRow] = []
        self.renewals: list[Any] | None = None
        self.shift = self.due = self.quarantine = self.pause = self.halted = 0.0
        self.slot = self.expires = self.replied_at = self.resume_at = 0
        self.stood = self.returned = self.asleep = self.checked = False
        # Whether its end has to be sent: one of its rules counts it until then. Known when it is granted.
        self.held = False
        self.process = _process
        # What was sent when it was entered, if it was a bare one; and what says how it ended.
        self.entered: Enter | None = None
        self.ending: Release | None = None
        # Whether there is a permit, which says how it ends.
        self.owned = False

    def __del__(self) -> None:
        # A signal's handler has raised between the answer and the permit: what was granted goes back with the next
        # command, or with the worker's next round. A finalizer neither locks nor sends.
        # One that was interrupted while it was made has no fields.
        owned = self.owned if cython.compiled else getattr(self, "owned", True)
        if owned or self.verdict != GRANTED or self.returned or self.void:
            return
        if self.process != _process:
            return
        self.returned = True
        ledger = self.ledger
        ledger.ends.append(Release(self, Outcome.CANCEL))
        ledger.registry.engine.deferred.add(ledger)
        ledger.registry.engine.worker.wake()

    # -- what the front end sees (`base.Decision`) -------------------------------------------------------

    @property
    def rules(self) -> tuple[Any, ...]:
        return self.ledger.rules

    @property
    def revoked(self) -> bool:
        return self.void

    def spendable(self) -> bool:
        """Whether the permit may be spent now: it is not for later, and the answer was not so late that it expired."""
        if self.verdict != GRANTED or self.slot > self.replied_at:
            return False
        return self.ledger.registry.clock.now() <= self.expires

    def next_step(self) -> Step:
        return next_step(self)

    def wait_ns(self) -> int:
        return max(0, self.slot + self.ledger.moved(self) - self.ledger.registry.clock.now())

    def expires_in_ns(self) -> int:
        until = self.expires + self.ledger.moved(self)
        if self.renewals:
            until = min(0 if renewal.lost else renewal.until for renewal in self.renewals)
        return until - self.ledger.registry.clock.now()

    def flight_ns(self) -> int:
        return max(0, self.ledger.registry.clock.now() - self.slot)

    def late_ns(self) -> int:
        # The deadline was counted from before the question went.
        until = self.expires + self.ledger.moved(self)
        return self.ledger.allowance_ns - (until - self.ledger.registry.clock.now())

    def hand_over(self) -> str:
        self.wake_up()
        # By the server's clock, which all processes share.
        facts = (self.due + self.ledger.shift - self.shift, self.ledger.shift, *self.marks)
        return " ".join([self.epoch.hex(), *(fact.hex() for fact in facts)])

    def reserve_again_ns(self) -> int | None:
        return self.ledger.registry.backoff(self)[0]

    def rows(self) -> list[Row]:
        return rows_said(self.ledger, self.raw_rows)

    def reason(self) -> str:
        if self.quarantine > 0:
            return "quarantine"
        return "paused" if self.pause > 0 else "limit"

    def in_doubt(self) -> float:
        return max(0.0, -self.quarantine) * TICK / 1e9

    def drop(self) -> None:
        # Nothing is sent from a finalizer: a window's permit comes back when its transit is over, and the background
        # worker releases leases that were dropped.
        for renewal in self.renewals or ():
            renewal.dropped = True
            self.ledger.registry.engine.worker.ledgers.add(self.ledger)  # if it was interrupted before that

    # -- waiting -----------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Sleep until a promised slot, and be told of what may move it."""
        self.asleep = True
        self.ledger.sleep(self)

    def wake_up(self) -> None:
        """It does not sleep any more."""
        if self.asleep:
            self.asleep = False
            self.ledger.sleepers.discard(self)

    # -- what the ledger says ----------------------------------------------------------------------------

    def encode(self, tickets: Iterator[int], times: int = 1) -> bytes:
        if not self.ticket:
            self.ticket = next(tickets)
        if cython.compiled:
            said = pack_try(self.ticket, self.patience, self.longest, times, self.costs)  # type: ignore[name-defined] # noqa: F821 - in requests.pxd
        else:
            costs = self.costs
            said = pack(
                f"<{5 + len(costs)}d",
                protocol.ACQUIRE,
                self.ticket,
                self.patience,
                self.longest,
                times,
                *costs,
            )
        return said  # type: ignore[no-any-return]

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        self.quarantine = reply.quarantine
        self.pause = reply.pause
        self.halted = reply.pause_end
        self.replied_at = reply.received
        if not reply.several and said[position] == SEVERAL:
            reply.several, reply.tally = int(said[position + 1]), said[position + 2]
            position += 3
        width = len(self.costs)
        verdict = GRANTED if reply.several else int(said[position])
        if verdict == GRANTED:
            delay = 0.0
            if reply.several:
                reply.several -= 1
                end = position + 1
                marks: tuple[float, ...] = (said[position], reply.tally)
            else:
                delay = said[position + 1]
                end = position + 2 + 2 * width
                marks = said[position + 2 : end]
            self.due = reply.now + delay
            self.grant(delay, marks, reply.shift, reply.reply_epoch, reply.since, reply.received)
            if self.orphan:
                self.give_back()
            # Last, as below: one that was interrupted before is sent again, under its number, and hears the same.
            self.done = True
            return end
        self.verdict = verdict
        end = position + 1
        if verdict == protocol.STANDING:
            self.stands(reply, said[end])
            end += 1
        elif verdict == protocol.DENIED:
            self.shift = reply.shift
            self.raw_rows, end = rows_of(reply, said, end, width)
        self.done = True
        return end

    def stands(self, reply: Reply, wait: float) -> None:
        """It stands in the ledger's queue, which is to be polled after `wait`."""
        ledger = self.ledger
        self.stood = True
        if ledger.standing.get(self.ticket) is self:
            return
        self.epoch = reply.reply_epoch
        if self.orphan:
            ledger.post(Withdraw(self))
        else:
            ledger.stand(self, reply.received + ledger.registry.stretched(wait))
            if self.orphan:
                self.withdraw()  # type: ignore[unreachable] # another thread may have given it up

    def grant(
        self, delay: float, marks: tuple[float, ...], shift: float, epoch: bytes, sent: int, received: int
    ) -> None:
        """The permit is ours from `slot` on our clock, and may be spent until `expires`.

        The slot is counted from when the answer came, the expiry from before the question went: neither can be early or
        late by what it took to travel. A waiter that a poll asks after may have been granted
        it before: then `delay` is below 0.
        """
        ledger = self.ledger
        registry = ledger.registry
        self.marks = marks
        self.held = ledger.held or (ledger.bracketed and self.patience >= protocol.HELD)
        self.shift = shift
        self.epoch = epoch
        self.replied_at = received
        self.slot = received + registry.stretched(delay) if delay > 0 else received
        self.expires = sent + ledger.allowance_ns
        if delay > 0:
            self.expires += int(delay * TICK)
        elif delay < 0:
            self.expires -= registry.stretched(-delay)
        # Last: another thread may look at it just now, to give it back.
        self.verdict = GRANTED

    def called(self, delay: float, marks: tuple[float, ...], epoch: bytes, granted: int, heard: int) -> None:
        """Its turn has come: granted at the earliest at one time on our clock, and heard of at the other."""
        ledger = self.ledger
        if ledger.standing.pop(self.ticket, None) is None:
            return
        self.halted = ledger.halted
        self.grant(delay, marks, ledger.shift, epoch, granted, heard)
        if self.orphan:
            self.give_back()
        else:
            self.wake()

    def give_back(self, again: bool = False) -> None:
        """Cancel what was granted, once: one thread may drop it while another applies its reply. `again`: its caller
        requests anew, and the ledger has to have it by then."""
        with _once:
            if self.returned:
                return
            self.returned = True
        if again:
            # With the very next command, and not posted: the command could overtake it.
            self.ledger.ends.append(Release(self, Outcome.CANCEL))
        else:
            self.ledger.post(Release(self, Outcome.CANCEL))

    def withdraw(self) -> None:
        """Its caller has gone, whatever has become of it."""
        self.orphan = True
        ledger = self.ledger
        self.wake_up()
        if self.verdict == protocol.GRANTED:
            if self.void:
                ledger.registry.engine.flush(
                    ledger
                )  # what it was to say with its next question, if it was recalled
            else:
                self.give_back()
        elif ledger.standing.pop(self.ticket, None) is not None:
            ledger.post(Withdraw(self))


def taken_here(acquire: Acquire) -> bool:
    """Whether this process took the permit. What a forked child does with its copy of a permit releases nothing."""
    return acquire.process == _process


class Receipt:
    """What has to be known of a spent permit to give it back. There may be a hundred thousand of them for hours, so the
    collector does not look at them: none refers to anything that could refer to it."""

    __slots__ = ("costs", "epoch", "ledger", "mark", "process", "tally")

    if TYPE_CHECKING:
        ledger: LedgerClient
        costs: tuple[int, ...]
        epoch: bytes
        mark: float
        tally: float
        process: int

    def decision(self) -> Acquire:
        """The decision, as far as its end needs it."""
        acquire = Acquire(self.ledger, self.costs, protocol.NOW)
        acquire.owned = True
        acquire.marks = (self.mark, self.tally)
        acquire.epoch = self.epoch
        acquire.process = self.process
        acquire.done = True
        acquire.verdict = GRANTED
        return acquire


def receipt_of(acquire: Acquire) -> Receipt | None:
    """A receipt for a permit of one rule that counts by itself, granted at once; None for all others."""
    if len(acquire.marks) != 2 or acquire.held or acquire.stood or acquire.void or acquire.verdict != GRANTED:
        return None
    receipt: Receipt = Receipt.__new__(Receipt)
    receipt.ledger = ledger = acquire.ledger
    receipt.costs = acquire.costs
    # The same object for all of a ledger, where it is the same name.
    receipt.epoch = ledger.epoch if ledger.epoch == acquire.epoch else acquire.epoch
    receipt.mark, receipt.tally = acquire.marks
    receipt.process = acquire.process
    acquire.owned = True
    return receipt


class Release(Request):
    """The end of a permit, one of four."""

    __slots__ = ()

    def __init__(self, acquire: Acquire, how: int, actual: tuple[int, ...] | None = None) -> None:
        # What was granted to a waiter in the queue is kept there until its release.
        ticket = acquire.ticket if acquire.stood else 0
        if cython.compiled:
            said = pack_end(how, ticket, acquire.costs, acquire.marks, actual)  # type: ignore[name-defined] # noqa: F821
        else:
            parts: list[float] = [protocol.RELEASE, how, ticket]
            for i, cost in enumerate(acquire.costs):
                parts += (
                    cost,
                    acquire.marks[2 * i],
                    acquire.marks[2 * i + 1],
                    cost if actual is None else actual[i],
                )
            said = numbers(*parts)
        Request.__init__(self, acquire.ledger, said)
        self.epoch = acquire.epoch

    def unheard(self) -> None:
        # It travelled with a command that did not arrive. No caller waits for it, so it is sent again on its own.
        self.orphan = False
        self.ledger.registry.engine.post_now(self)


class Enter(Release):
    """A bare permit was entered: its ledger counts it until it ends.

    The end of the permit waits until the ledger has heard of this. One that was faster would not be found there, and
    the permit would be out until its transit is over. So it also waits while the outcome of this is unknown: either the
    ledger has heard of it, or it is posted again.
    """

    __slots__ = ("last", "settled")

    def __init__(self, acquire: Acquire, since: tuple[int, ...]) -> None:
        self.last: Release | None = None
        self.settled = False
        Release.__init__(self, acquire, ENTER, since)

    def follow(self, end: Release) -> None:
        """Post the end of the permit, now or as soon as it may go."""
        with _once:
            if not self.settled:
                self.last = end
                return
        self.ledger.post(end)

    def settle(self) -> None:
        with _once:
            self.settled = True
            end, self.last = self.last, None
        if end is not None:
            self.ledger.post(end)

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        self.done = True
        self.settle()
        return position


def post_end(acquire: Acquire, how: int, actual: tuple[int, ...] | None = None) -> None:
    """Tell the ledger how a permit ended."""
    end = acquire.ending
    if end is None:
        end = acquire.ending = Release(acquire, how, actual)
    if end.posted:
        return  # before it was interrupted
    if acquire.entered is None:
        acquire.ledger.post(end)
    else:
        acquire.entered.follow(end)


class Withdraw(Request):
    """Give one's place in the queue back, or what was granted meanwhile."""

    __slots__ = ()

    def __init__(self, acquire: Acquire) -> None:
        Request.__init__(self, acquire.ledger, numbers(protocol.WITHDRAW, acquire.ticket, *acquire.costs))
        self.epoch = acquire.epoch

    def unheard(self) -> None:
        # As above: its place would be served, and the permit held in vain.
        self.orphan = False
        self.ledger.registry.engine.post_now(self)


class PollQueue(Request):
    """What has become of waiters; also a sign of life, and a look at pauses and losses. It asks after some of them, and
    serves all: the rest is called by messages, or is among the oldest next time."""

    __slots__ = ("asks",)

    def __init__(self, ledger: LedgerClient) -> None:
        self.asks = ledger.some_waiters()
        Request.__init__(
            self, ledger, numbers(protocol.POLL, len(self.asks), *[acquire.ticket for acquire in self.asks])
        )

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        self.done = True
        missed = False
        for acquire in self.asks:
            verdict = said[position]
            if verdict == protocol.GRANTED:
                end = position + 2 + 2 * len(acquire.costs)
                epoch, sent, received = reply.reply_epoch, reply.since, reply.received
                missed = True
                # Not one that gave its place back meanwhile: that finds what was granted.
                acquire.called(said[position + 1], said[position + 2 : end], epoch, sent, received)
                position = end
            elif verdict == protocol.STANDING:
                position += 1
            else:
                position += 1
                # Not there and not granted, unless the listener was faster: it has to ask again.
                if self.ledger.standing.pop(acquire.ticket, None) is not None:
                    acquire.void = True
                    acquire.wake()
        ledger = self.ledger
        if ledger.standing:
            # If messages were missed, the waiters that are the oldest now may have been granted theirs, too.
            wait = 0 if missed else max(AGAIN, ledger.registry.stretched(said[position]))
            ledger.registry.engine.worker.plan_poll(ledger, reply.received + wait)
        return position + 1


class OutcomeProbe(Request):
    """Of no consequence itself, under the number of a command whose answer was lost: that comes, or one of its own.

    Not every command has something to say (ends have not), so an empty answer would not tell: its own is a number that
    no other command says.
    """

    __slots__ = ("batch",)

    def __init__(self, ledger: LedgerClient, batch: list[Request]) -> None:
        Request.__init__(self, ledger, numbers(protocol.ECHO, NEVER_SAID))
        self.batch = batch

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        self.done = True
        for request in self.batch:
            if said != (NEVER_SAID,):
                position = request.apply_reply(reply, said, position)
            else:
                request.unheard()
        return position


class Renew(Request):
    """The heartbeat of a holder of permits under a lease."""

    __slots__ = ("lease",)

    def __init__(self, ledger: LedgerClient, lease: Any) -> None:
        self.lease = lease
        Request.__init__(self, ledger, numbers(protocol.RENEW, lease.rule + 1, lease.cost, lease.mark))

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        self.done = True
        self.lease.renewed(said[position], reply.reply_epoch, reply.since)
        return position + 1

    def unheard(self) -> None:
        self.lease.not_renewed()


class Peek(Request):
    """How things stand."""

    __slots__ = ("quarantine", "raw_rows", "width")

    def __init__(self, ledger: LedgerClient, costs: tuple[int, ...]) -> None:
        said = LOOKS.get(costs)
        if said is None:
            said = numbers(protocol.PEEK, *costs)
            if len(LOOKS) < MOST_LOOKS:
                LOOKS[costs] = said
        Request.__init__(self, ledger, said)
        self.width = len(costs)
        self.raw_rows: list[RawRow] = []
        self.quarantine = 0.0

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        self.done = True
        self.quarantine = reply.quarantine
        self.raw_rows, position = rows_of(reply, said, position, self.width)
        return position

    def rows(self) -> list[Row]:
        return rows_said(self.ledger, self.raw_rows)

    def reason(self) -> str:
        return "quarantine" if self.quarantine > 0 else "limit"

    def in_doubt(self) -> float:
        return max(0.0, -self.quarantine) * TICK / 1e9


class GrantStatus(Peek):
    """How things stand after the grants of a batch: travels at its end, and gives what it hears to the requests."""

    __slots__ = ("acquires",)

    def __init__(self, acquires: list[Acquire]) -> None:
        Peek.__init__(self, acquires[0].ledger, acquires[0].costs)
        self.acquires = acquires

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        end = Peek.apply_reply(self, reply, said, position)
        for acquire in self.acquires:
            if acquire.verdict == GRANTED:
                acquire.raw_rows = self.raw_rows
        return end


def grant_status(batch: list[Request]) -> list[Request]:
    """The batch, and what says how the limit stands after it. One says it for all that want to know the same."""
    if len(batch) == 1 and isinstance(batch[0], Acquire):
        return [batch[0], GrantStatus([batch[0]])]
    by_costs: dict[tuple[int, ...], list[Acquire]] = {}
    for request in batch:
        if isinstance(request, Acquire):
            by_costs.setdefault(request.costs, []).append(request)
    return [*batch, *map(GrantStatus, by_costs.values())]


def rows_of(reply: Reply, said: tuple[float, ...], position: int, width: int) -> tuple[list[RawRow], int]:
    end = position + 7 * width
    rows = [said[at : at + 7] for at in range(position, end, 7)]
    reply.governed = max(reply.governed, *[row[6] for row in rows])
    return rows, end  # type: ignore[return-value]


def rows_said(ledger: LedgerClient, raw_rows: list[RawRow]) -> list[Row]:
    """How every rule stands, as a ledger in memory would say it; empty where the answer had no numbers."""
    rows: list[Row] = []
    for index, (remaining, wait, reset, waiting, out, exact, governs) in enumerate(raw_rows):
        limit = ledger.governing[index] if governs and ledger.governing else None
        rows.append(
            (
                limit or ledger.rules[index].limit,
                int(remaining),
                0 if wait <= 0 else ledger.registry.stretched(wait) if wait < protocol.NEVER else 1 << 62,
                int(reset * TICK),
                int(waiting),
                int(out),
                exact == 1,
            )
        )
    return rows
