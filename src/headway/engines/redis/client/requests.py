"""What can be wanted of a ledger, each with its words and with how its answer is heard.

A request that nobody waits for any more (`orphan`: its task was cancelled, its thread interrupted) still gets its
answer: what it was granted goes straight back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.engines.redis import words
from headway.engines.redis.words import TICK, numbers

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from headway.engines.redis.account import Account, Talk

COMPLETE, CANCEL, ABANDON, SETTLE = 1, 2, 3, 4

# C values where this file is compiled.
GRANTED, SEVERAL = words.GRANTED, words.SEVERAL

NOTHING = numbers(words.POLL, 0)
"""A command of no consequence."""

_once = threading.Lock()


def after_fork() -> None:
    """In a forked child: a thread of its parent may have had the lock."""
    global _once
    _once = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)

Row = tuple[float, float, float, float, float, float]
"""Of one rule: remaining, wait, time until it is as new, waiting, in flight, whether the wait is exact."""


def phrases(batch: list[Request], tickets: Iterator[int]) -> list[bytes]:
    """What a batch says. Those who ask for the same, one after the other, say it once and how many they are: their
    tickets follow each other, also when it is said again."""
    said: list[bytes] = []
    first: Ask | None = None
    times = 0
    for request in batch:
        if isinstance(request, Ask):
            ask = request
            if not ask.ticket:
                ask.ticket = next(tickets)
            if first is not None:
                if (
                    ask.ticket == first.ticket + times
                    and ask.patience == first.patience
                    and ask.longest == first.longest
                    and ask.costs == first.costs
                ):
                    times += 1
                    continue
                said.append(first.said(times))
            first, times = ask, 1
        else:
            if first is not None:
                said.append(first.said(times))
                first = None
            said.append(request.command)
    if first is not None:
        said.append(first.said(times))
    return said


class Request:
    """Something to be said to an account's ledger."""

    __slots__ = (
        "account",
        "bell",
        "command",
        "done",
        "doubtful",
        "epoch",
        "error",
        "orphan",
        "void",
        "waiter",
    )

    def __init__(self, account: Account, command: bytes) -> None:
        self.begin(account, command)

    def begin(self, account: Account, command: bytes) -> None:
        self.account = account
        self.command = command
        self.done = False
        self.error: BaseException | None = None
        self.orphan = False
        # Whether nobody knows if it was applied.
        self.doubtful = False
        # The epoch of the ledger in which it makes sense; empty: any.
        self.epoch = b""
        # Whether a promise does not hold any more, as its ledger has begun anew.
        self.void = False
        self.bell: Any = None
        # The future of the task that waits for the answer.
        self.waiter: Any = None

    def hear(self, talk: Talk, said: tuple[float, ...], position: int) -> int:
        """Take one's part of the answer; returns where the next one's begins."""
        self.done = True
        return position

    def fail(self, error: BaseException) -> None:
        """There is no answer in time; one that comes later is nobody's."""
        self.orphan = True
        self.error = error
        self.done = True

    def unheard(self) -> None:
        """It was not applied, and never will be."""

    def withdraw(self) -> None:
        """Nobody waits for it any more."""
        self.orphan = True

    def wake(self) -> None:
        """Let the task go on that waits for the answer, if there still is one."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            if self.error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(self.error)
                waiter.exception()  # heard of, also if the loop is closed before the task runs

    def ring(self) -> None:
        if self.bell is not None:
            self.bell.ring()


class Call(NamedTuple):
    """The message that somebody's turn has come, in the server's time."""

    epoch: bytes
    now: float
    slot: float
    marks: tuple[float, ...]


class Ask(Request):
    """A permit: now, at a promised time, or after standing in the ledger's queue."""

    __slots__ = (
        "__weakref__", "costs", "due", "expires", "halted", "heard", "longest", "marks", "patience", "pause",
        "quarantine", "ready", "returned", "rows", "shift", "slot", "stood", "ticket", "verdict",
    )  # fmt: skip

    def __init__(
        self, account: Account, costs: tuple[int, ...], patience: int, longest: float = words.NEVER
    ) -> None:
        self.begin(account, b"")
        self.costs = costs
        self.patience = patience
        self.longest = longest
        # Given when it is sent; 0: not yet.
        self.ticket = 0
        self.verdict = -1
        self.marks: tuple[float, ...] = ()
        self.rows: list[Row] = []
        self.shift = self.due = self.quarantine = self.pause = self.halted = 0.0
        self.slot = self.expires = self.ready = self.heard = 0
        self.stood = self.returned = False

    def spendable(self) -> bool:
        """Whether it is there now: not denied, not for later, and not for so long ago that it is another's by now."""
        if self.verdict != GRANTED or self.slot > self.heard:
            return False
        now = self.account.spec.clock.now()
        if now <= self.expires:
            return True
        self.heard = now
        return False

    def said(self, times: int) -> bytes:
        """The command, for so many who want the same."""
        if cython.compiled:
            said = pack_try(self.ticket, self.patience, self.longest, times, self.costs)  # type: ignore[name-defined] # noqa: F821 - in requests.pxd
        else:
            said = numbers(words.TRY, self.ticket, self.patience, self.longest, times, *self.costs)
        return said  # type: ignore[no-any-return]

    def hear(self, talk: Talk, said: tuple[float, ...], position: int) -> int:
        self.done = True
        self.quarantine = talk.quarantine
        self.pause = talk.pause
        self.heard = talk.received
        if not talk.several and said[position] == SEVERAL:
            talk.several, talk.tally = int(said[position + 1]), said[position + 2]
            position += 3
        if talk.several:
            talk.several -= 1
            self.got(talk, 0.0, (said[position], talk.tally))
            return position + 1
        width = len(self.costs)
        verdict = int(said[position])
        if verdict == GRANTED:
            end = position + 2 + 2 * width
            self.got(talk, said[position + 1], said[position + 2 : end])
            return end
        self.verdict = verdict
        if verdict == words.STANDING:
            self.stands(talk, said[position + 1])
            return position + 2
        if verdict == words.DENIED:
            self.shift, self.halted = talk.shift, talk.held_up_until()
            self.rows, position = rows_of(said, position + 1, width)
            return position
        return position + 1

    def got(self, talk: Talk, delay: float, marks: tuple[float, ...]) -> None:
        """It was granted."""
        self.due = talk.now + delay
        self.halted = talk.held_up_until()
        self.grant(delay, marks, talk.shift, talk.heard_epoch, talk.since, talk.received)
        if self.orphan:
            self.give_back()

    def stands(self, talk: Talk, wait: float) -> None:
        """It stands in the ledger's queue, and can be expected to be called after `wait`."""
        account = self.account
        self.stood = True
        self.ready = talk.received + account.spec.stretched(wait)
        if self.orphan:
            account.post(Withdraw(self))
        elif account.standing.get(self.ticket) is not self:
            self.epoch = talk.heard_epoch
            account.stand(self)
            if self.orphan:
                self.withdraw()  # type: ignore[unreachable] # another thread may have given it up

    def grant(
        self, delay: float, marks: tuple[float, ...], shift: float, epoch: bytes, sent: int, received: int
    ) -> None:
        """The permit is ours from `slot` on our clock, and may be spent until `expires`.

        The slot is counted from when the answer came, the expiry from before the question went: neither can be early or
        late by what it took to travel. Who is asked after may have been granted it before: then `delay` is below 0.
        """
        spec = self.account.spec
        self.marks = marks
        self.shift = shift
        self.epoch = epoch
        self.heard = received
        self.slot = received + spec.stretched(delay) if delay > 0 else received
        self.expires = sent + self.account.allowance_ns
        if delay > 0:
            self.expires += int(delay * TICK)
        elif delay < 0:
            self.expires -= spec.stretched(-delay)
        # Last: another thread may look at it just now, to give it back.
        self.verdict = GRANTED

    def called(self, delay: float, marks: tuple[float, ...], epoch: bytes, granted: int, heard: int) -> None:
        """Its turn has come: granted at the earliest at one time on our clock, and heard of at the other."""
        account = self.account
        if account.standing.pop(self.ticket, None) is None:
            return
        self.halted = account.halted
        self.grant(delay, marks, account.shift, epoch, granted, heard)
        if self.orphan:
            self.give_back()
        else:
            self.ring()

    def give_back(self, again: bool = False) -> None:
        """Cancel what was granted, once: who drops it and who hears of it may be two threads. `again`: who had it asks
        anew, and the ledger has to have it by then."""
        with _once:
            if self.returned:
                return
            self.returned = True
        if again:
            # With the very next question, and not by letter: that could be overtaken by it.
            self.account.ends.append(End(self, CANCEL))
        else:
            self.account.post(End(self, CANCEL))

    def withdraw(self) -> None:
        """Nobody waits for it any more, whatever has become of it."""
        self.orphan = True
        account = self.account
        account.sleepers.discard(self)
        if self.verdict == words.GRANTED:
            if self.void:
                account.spec.engine.flush(
                    account
                )  # what it was to say with its next question, if it was recalled
            else:
                self.give_back()
        elif account.standing.pop(self.ticket, None) is not None:
            account.post(Withdraw(self))


class End(Request):
    """The end of a permit, one of four."""

    __slots__ = ()

    def __init__(self, ask: Ask, how: int, actual: tuple[int, ...] | None = None) -> None:
        # What was granted to who stood in the queue is kept there until it has been heard of.
        ticket = ask.ticket if ask.stood else 0
        if cython.compiled:
            said = pack_end(how, ticket, ask.costs, ask.marks, actual)  # type: ignore[name-defined] # noqa: F821
        else:
            parts: list[float] = [words.END, how, ticket]
            for i, cost in enumerate(ask.costs):
                parts += (cost, ask.marks[2 * i], ask.marks[2 * i + 1], cost if actual is None else actual[i])
            said = numbers(*parts)
        Request.__init__(self, ask.account, said)
        self.epoch = ask.epoch

    def unheard(self) -> None:
        # It travelled with a question that did not arrive: nobody waits for it, so it is said again on its own.
        self.orphan = False
        self.account.spec.engine.post_now(self)


class Withdraw(Request):
    """Give one's place in the queue back, or what was granted meanwhile."""

    __slots__ = ()

    def __init__(self, ask: Ask) -> None:
        Request.__init__(self, ask.account, numbers(words.WITHDRAW, ask.ticket, *ask.costs))
        self.epoch = ask.epoch

    def unheard(self) -> None:
        # As above: its place would be called, and what it is given held for nobody.
        self.orphan = False
        self.account.spec.engine.post_now(self)


class Poll(Request):
    """What has become of those who stand; also a sign of life, and a look at pauses and losses."""

    __slots__ = ("asks",)

    def __init__(self, account: Account) -> None:
        self.asks = list(account.standing.values())
        Request.__init__(
            self, account, numbers(words.POLL, len(self.asks), *[ask.ticket for ask in self.asks])
        )

    def hear(self, talk: Talk, said: tuple[float, ...], position: int) -> int:
        self.done = True
        for ask in self.asks:
            verdict = said[position]
            if verdict == words.GRANTED:
                end = position + 2 + 2 * len(ask.costs)
                epoch, sent, received = talk.heard_epoch, talk.since, talk.received
                ask.called(said[position + 1], said[position + 2 : end], epoch, sent, received)
                if (ask.orphan or ask.void) and ask.verdict == words.STANDING:
                    # It gave its place back or asked anew, but not before it was called: what it was given is with us,
                    # not in the ledger.
                    ask.grant(said[position + 1], said[position + 2 : end], talk.shift, epoch, sent, received)
                    ask.give_back()
                position = end
            elif verdict == words.STANDING:
                before = ask.ready
                ask.ready = talk.received + self.account.spec.stretched(said[position + 1])
                if ask.ready < before:
                    ask.ring()  # it sleeps until the time that it knew
                position += 2
            else:
                position += 1
                # Not there and not granted, unless the listener was faster: it has to ask again.
                if self.account.standing.pop(ask.ticket, None) is not None:
                    ask.void = True
                    ask.ring()
        return position


class Echo(Request):
    """Of no consequence itself, under the number of a command whose answer was lost: that comes, or one of its own.

    Not every command has something to say (ends have not), so an empty answer would not tell. It asks after tickets
    that nobody has, and hears as many zeros: one more than the batch asked after, as those may be gone, too.
    """

    __slots__ = ("batch", "own")

    def __init__(self, account: Account, batch: list[Request]) -> None:
        tickets = 1 + sum(len(request.asks) for request in batch if isinstance(request, Poll))
        Request.__init__(self, account, numbers(words.POLL, tickets, *(0,) * tickets))
        self.batch = batch
        self.own = (0.0,) * tickets

    def hear(self, talk: Talk, said: tuple[float, ...], position: int) -> int:
        self.done = True
        for request in self.batch:
            if said != self.own:
                position = request.hear(talk, said, position)
            else:
                request.unheard()
        return position


class Renew(Request):
    """A sign of life of one who holds permits under a lease."""

    __slots__ = ("lease",)

    def __init__(self, account: Account, lease: Any) -> None:
        self.lease = lease
        Request.__init__(self, account, numbers(words.RENEW, lease.rule + 1, lease.cost, lease.mark))

    def hear(self, talk: Talk, said: tuple[float, ...], position: int) -> int:
        self.done = True
        self.lease.renewed(said[position], talk.heard_epoch, talk.since)
        return position + 1

    def unheard(self) -> None:
        self.lease.not_renewed()


class Look(Request):
    """How things stand."""

    __slots__ = ("quarantine", "rows", "width")

    def __init__(self, account: Account, costs: tuple[int, ...]) -> None:
        Request.__init__(self, account, numbers(words.LOOK, *costs))
        self.width = len(costs)
        self.rows: list[Row] = []
        self.quarantine = 0.0

    def hear(self, talk: Talk, said: tuple[float, ...], position: int) -> int:
        self.done = True
        self.quarantine = talk.quarantine
        self.rows, position = rows_of(said, position, self.width)
        return position


def rows_of(said: tuple[float, ...], position: int, width: int) -> tuple[list[Row], int]:
    end = position + 6 * width
    return [said[at : at + 6] for at in range(position, end, 6)], end  # type: ignore[misc]
