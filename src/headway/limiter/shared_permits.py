"""A permit from a shared ledger: it knows where it came from, until when it may be spent, and tells the ledger how it
ended.

Its end is posted and not waited for; if it is lost with its process, the lease or `max_transit` covers for it. It is
the permit of the process that took it: what a forked child does with its copy ends nothing.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.engines.redis.requests import ABANDON, CANCEL, COMPLETE, SETTLE, Ask, End
from headway.errands import sleep_to_slot
from headway.errors import PermitExpired, PermitFinished
from headway.outcome import outcome_of
from headway.permit import ENDS, Permit

if TYPE_CHECKING:
    from headway.fleet_desk import FleetDesk


class Lease:
    """Permits that the ledger takes back when their holder falls silent: the keeper speaks for who holds them."""

    __slots__ = (
        "all",
        "ask",
        "cost",
        "dropped",
        "ended",
        "last_words",
        "lost",
        "mark",
        "renewing",
        "rule",
        "until",
    )

    def __init__(self, ask: Ask, rule: int) -> None:
        self.ask = ask
        self.rule = rule
        self.cost = ask.costs[rule]
        self.mark = ask.marks[2 * rule]
        self.until = ask.expires
        self.ended = self.dropped = self.lost = self.renewing = False
        # Of the same permit; and how it ended, if that could not be said yet.
        self.all: list[Lease] = []
        self.last_words: tuple[int, tuple[int, ...] | None] | None = None

    def begin_renewal(self) -> bool:
        """Whether a sign of life is due; until its answer is there, the end of the permit has to wait."""
        with _order:
            if self.ended or self.renewing:
                return False
            self.renewing = True
            return True

    def renewed(self, mark: float, epoch: bytes, sent: int) -> None:
        """The ledger's answer: the mark under which it goes on, or -1 if it has given the permit away."""
        ask = self.ask
        if mark < 0:
            self.lost = True
            ask.account.leases.pop((ask.ticket, self.rule), None)
        else:
            self.mark = mark
            marks = list(ask.marks)
            marks[2 * self.rule] = mark
            ask.marks = tuple(marks)
            ask.epoch = epoch
            self.until = sent + ask.account.allowance_ns
        self.not_renewed()

    def end_dropped(self) -> None:
        """Its permit was dropped without an end."""
        if not self.ended:
            say_end(self.ask, self.all, ABANDON)

    def not_renewed(self) -> None:
        """Nothing is on its way any more."""
        with _order:
            self.renewing = False
            said = self.last_words
            if said is None or any(lease.renewing for lease in self.all):
                return
            for lease in self.all:
                lease.last_words = None
        self.ask.account.post(End(self.ask, *said))


# The collector may come while we have it, and end another permit.
_order = threading.RLock()
_process = os.getpid()


def after_fork() -> None:
    """In a forked child: permits are the parent's, and so is the thread that may have had the lock."""
    global _order, _process
    _order = threading.RLock()
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)


def say_end(ask: Ask, leases: list[Lease] | None, how: int, actual: tuple[int, ...] | None = None) -> None:
    """Tell the ledger how a permit ended.

    A sign of life gives the permit another mark, and permits that were granted in the same moment share one: an end
    that met it on the way would be taken for the end of another. So it goes after the answer.
    """
    if leases:
        with _order:
            wait = any(lease.renewing for lease in leases)
            for lease in leases:
                lease.ended = True
                lease.last_words = (how, actual) if wait else None
        for lease in leases:
            ask.account.leases.pop((ask.ticket, lease.rule), None)
        if wait:
            return
    ask.account.post(End(ask, how, actual))


class FleetPermit(Permit):
    """What `acquire` returns on a shared engine."""

    __slots__ = ("_ask", "_leases", "_limiter", "_taken_by")

    _ask: Ask
    _leases: list[Lease] | None
    _limiter: FleetDesk
    _taken_by: int

    def _lease(self, rules: list[int]) -> None:
        """Have somebody speak for its holder as long as it is held."""
        ask = self._ask
        self._leases = [Lease(ask, rule) for rule in rules if ask.costs[rule]]
        for lease in self._leases:
            lease.all = self._leases
            ask.account.leases[ask.ticket, lease.rule] = lease
        ask.account.spec.engine.look_after(ask.account)

    @property
    def cost(self) -> Any:
        """What was taken: a number, or a number for each metric."""
        costs, names = self._ask.costs, self._ask.account.spec.names
        if names[0] is None:
            return costs[0]
        return {name: cost for name, cost in zip(names, costs, strict=True) if cost}

    @property
    def delay(self) -> float:
        """Seconds until a reserved permit may be spent; 0 for others, and when its time has come."""
        ask = self._ask
        if not self._slot:
            return 0.0
        return max(0, ask.slot + ask.account.moved(ask) - self._limiter._clock.now()) / 1e9

    @property
    def expires_in(self) -> float:
        """Seconds until it must have been spent; below 0 it has expired."""
        return (self._until() - self._limiter._clock.now()) / 1e9

    def _until(self) -> int:
        if self._leases:
            return min(0 if lease.lost else lease.until for lease in self._leases)
        return self._ask.expires + self._ask.account.moved(self._ask)

    def check(self) -> None:
        """Raise `PermitExpired` if it is too late to spend it."""
        late = self._limiter._clock.now() - self._until()
        if late > 0 or self._ask.void:
            if not self._end:
                self._end = CANCEL
                self._hand_back(CANCEL)
            raise PermitExpired(max(0, late) / 1e9)

    # -- ends --------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """The answer is there: call it as soon as the response's headers are."""
        self._finish(COMPLETE)

    def cancel(self) -> None:
        """It was never dispatched: it goes back as it was, as far as nobody relied on it meanwhile."""
        self._finish(CANCEL)

    def abandon(self) -> None:
        """Nobody knows whether it was dispatched: it counts until `max_transit` is over."""
        self._finish(ABANDON)

    def settle(self, cost: int | Mapping[str, int]) -> None:
        """It is complete, and cost something else: less is given back, more is paid before the next grant."""
        if self._end:
            raise PermitFinished(ENDS[self._end], "settle")
        costs = self._ask.costs
        actual = self._actual(cost)
        self._end = SETTLE
        self._limiter._ended(self, SETTLE)
        if self._slot:
            self._ask.account.sleepers.discard(self._ask)
        spent = tuple(actual.get(i, taken) for i, taken in enumerate(costs))
        if self._taken_by == _process:
            say_end(self._ask, self._leases, SETTLE, spent)

    def _finish(self, how: int) -> None:
        if self._end:
            raise PermitFinished(ENDS[self._end], ENDS[how])
        self._end = how
        self._hand_back(how)

    def _hand_back(self, how: int) -> None:
        self._limiter._ended(self, how)
        if self._slot:
            self._ask.account.sleepers.discard(self._ask)  # reserved, and its holder did not wait here
        # Completing tells the ledger something only where permits are held; giving back always does.
        if (self._held or how == CANCEL) and not self._ask.void and self._taken_by == _process:
            say_end(self._ask, self._leases, how)

    def finish(self, error: BaseException | None, answered: Any = None, not_sent: Any = None) -> None:
        """End it by how the call ended, unless it has been ended already."""
        if self._end:
            return
        self._end = COMPLETE if error is None else outcome_of(error, answered, not_sent)
        self._hand_back(self._end)

    # -- reservations ------------------------------------------------------------------------------------

    def __enter__(self) -> Permit:
        if self._slot:
            self.wait()
        self.check()
        return self

    async def __aenter__(self) -> Permit:
        if self._slot:
            await self.wait_async()
        self.check()
        return self

    def promise(self, slot: int) -> None:
        """Note the time from which it may be spent."""
        self._slot = slot
        self._ask.account.sleep(self._ask)

    def wait(self) -> Permit:
        """Block until the reserved time has come; raises `PermitExpired` if it is over."""
        if self._slot:
            self._limiter._run(sleep_to_slot(self._ask))
            self._arrived_at_slot()
        return self

    async def wait_async(self) -> Permit:
        """Suspend this task until the reserved time has come."""
        if self._slot:
            await self._limiter._run_async(sleep_to_slot(self._ask))
            self._arrived_at_slot()
        return self

    def _arrived_at_slot(self) -> None:
        self._slot = 0
        if self._ask.void:
            self._end = self._end or CANCEL
            raise PermitExpired(None)


class HeldFleetPermit(FleetPermit):
    """A permit that somebody waits for: dropped without an end it is abandoned, with a warning."""

    __slots__ = ()

    def __del__(self) -> None:
        # A constructor that failed leaves an object without fields.
        if getattr(self, "_ask", None) is None or self._end or self._taken_by != _process:
            return
        self._end = ABANDON
        # Nothing is sent from a finalizer: a window's permit comes back when its transit is over, and the keeper ends
        # leases that were dropped.
        for lease in self._leases or ():
            lease.dropped = True
        self._book.abandoned += 1
        self._book.ended += 1
        listener = self._limiter._listener
        if listener is not None:
            listener.tell_drop(self)
        warnings.warn(
            f"{self!r} was dropped without an end and counts as abandoned: "
            "use `with limiter.hold():`, or call complete(), cancel() or abandon()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


def new_fleet_permit(limiter: FleetDesk, ask: Ask) -> FleetPermit:
    """What was granted to `ask`, counted; made without a constructor, as one call in two would be that."""
    account = ask.account
    held = account.held
    permit: FleetPermit = (
        HeldFleetPermit.__new__(HeldFleetPermit) if held else FleetPermit.__new__(FleetPermit)
    )
    book = limiter._book
    book.granted += 1
    permit._limiter = limiter
    permit._ask = ask
    permit._key = account.key
    permit._end = 0
    permit._owner = permit._task = permit._slot = 0
    permit._leases = None
    permit._taken_by = _process
    permit._book = book
    permit._held = held
    if account.leased:
        permit._lease(account.leased)
    return permit
