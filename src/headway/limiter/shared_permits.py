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

from headway.engines.redis.client.requests import Acquire, Release
from headway.errors import PermitExpired
from headway.flows.shared import sleep_to_slot
from headway.forks import on_fork
from headway.limiter.permits import Permit
from headway.outcome import Outcome, outcome_of

if TYPE_CHECKING:
    from headway.limiter.shared_calls import SharedCalls


class Lease:
    """Permits that the ledger takes back when their holder falls silent: the keeper speaks for who holds them."""

    __slots__ = (
        "call",
        "cost",
        "dropped",
        "ended",
        "last_words",
        "lost",
        "mark",
        "parts",
        "renewing",
        "rule",
        "until",
    )

    def __init__(self, acquire: Acquire, rule: int) -> None:
        self.call = acquire
        self.rule = rule
        self.cost = acquire.costs[rule]
        self.mark = acquire.marks[2 * rule]
        self.until = acquire.expires
        self.ended = self.dropped = self.lost = self.renewing = False
        # Of the same permit; and how it ended, if that could not be said yet.
        self.parts: list[Lease] = []
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
        acquire = self.call
        if mark < 0:
            self.lost = True
            acquire.ledger.leases.pop((acquire.ticket, self.rule), None)
        else:
            self.mark = mark
            marks = list(acquire.marks)
            marks[2 * self.rule] = mark
            acquire.marks = tuple(marks)
            acquire.epoch = epoch
            self.until = sent + acquire.ledger.allowance_ns
        self.not_renewed()

    def end_dropped(self) -> None:
        """Its permit was dropped without an end."""
        if not self.ended:
            say_end(self.call, self.parts, Outcome.ABANDON)

    def not_renewed(self) -> None:
        """Nothing is on its way any more."""
        with _order:
            self.renewing = False
            said = self.last_words
            if said is None or any(lease.renewing for lease in self.parts):
                return
            for lease in self.parts:
                lease.last_words = None
        self.call.ledger.post(Release(self.call, *said))


# The collector may come while we have it, and end another permit.
_order = threading.RLock()
_process = os.getpid()


def after_fork() -> None:
    """In a forked child: permits are the parent's, and so is the thread that may have had the lock."""
    global _order, _process
    _order = threading.RLock()
    _process = os.getpid()


on_fork(after_fork)


def say_end(
    acquire: Acquire, leases: list[Lease] | None, how: int, actual: tuple[int, ...] | None = None
) -> None:
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
            acquire.ledger.leases.pop((acquire.ticket, lease.rule), None)
        if wait:
            return
    acquire.ledger.post(Release(acquire, how, actual))


class SharedPermit(Permit):
    """What `acquire` returns on a shared engine."""

    __slots__ = ("_call", "_leases", "_limiter", "_taken_by")

    _call: Acquire
    _leases: list[Lease] | None
    _limiter: SharedCalls
    _taken_by: int

    def _lease(self, rules: list[int]) -> None:
        """Have somebody speak for its holder as long as it is held."""
        acquire = self._call
        self._leases = [Lease(acquire, rule) for rule in rules if acquire.costs[rule]]
        for lease in self._leases:
            lease.parts = self._leases
            acquire.ledger.leases[acquire.ticket, lease.rule] = lease
        acquire.ledger.registry.engine.track(acquire.ledger)

    @property
    def cost(self) -> Any:
        """What was taken: a number, or a number for each metric."""
        costs, names = self._call.costs, self._call.ledger.registry.names
        if names[0] is None:
            return costs[0]
        return {name: cost for name, cost in zip(names, costs, strict=True) if cost}

    @property
    def delay(self) -> float:
        """Seconds until a reserved permit may be spent; 0 for others, and when its time has come."""
        acquire = self._call
        if not self._slot:
            return 0.0
        return max(0, acquire.slot + acquire.ledger.moved(acquire) - self._limiter._clock.now()) / 1e9

    @property
    def expires_in(self) -> float:
        """Seconds until it must have been spent; below 0 it has expired."""
        return (self._until() - self._limiter._clock.now()) / 1e9

    def _until(self) -> int:
        if self._leases:
            return min(0 if lease.lost else lease.until for lease in self._leases)
        return self._call.expires + self._call.ledger.moved(self._call)

    def check(self) -> None:
        """Raise `PermitExpired` if it is too late to spend it."""
        late = self._limiter._clock.now() - self._until()
        if late > 0 or self._call.void:
            if not self._end:
                self._end = Outcome.CANCEL
                self._hand_back(Outcome.CANCEL)
            raise PermitExpired(max(0, late) / 1e9)

    # -- ends --------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """The answer is there: call it as soon as the response's headers are."""
        self._finish(Outcome.COMPLETE)

    def cancel(self) -> None:
        """It was never dispatched: it goes back as it was, as far as nobody relied on it meanwhile."""
        self._finish(Outcome.CANCEL)

    def abandon(self) -> None:
        """Nobody knows whether it was dispatched: it counts until `max_transit` is over."""
        self._finish(Outcome.ABANDON)

    def settle(self, cost: int | Mapping[str, int]) -> None:
        """It is complete, and cost something else: less is given back, more is paid before the next grant."""
        if self._end:
            raise self._finished(Outcome.SETTLE)
        costs = self._call.costs
        actual = self._actual(cost)
        self._end = Outcome.SETTLE
        self._limiter._ended(self, Outcome.SETTLE)
        if self._slot:
            self._call.ledger.sleepers.discard(self._call)
        spent = tuple(actual.get(i, taken) for i, taken in enumerate(costs))
        if self._taken_by == _process:
            say_end(self._call, self._leases, Outcome.SETTLE, spent)

    def _finish(self, how: int) -> None:
        if self._end:
            raise self._finished(how)
        self._end = how
        self._hand_back(how)

    def _hand_back(self, how: int) -> None:
        self._limiter._ended(self, how)
        if self._slot:
            self._call.ledger.sleepers.discard(self._call)  # reserved, and its holder did not wait here
        # Completing tells the ledger something only where permits are held; giving back always does.
        if (self._held or how == Outcome.CANCEL) and not self._call.void and self._taken_by == _process:
            say_end(self._call, self._leases, how)

    def finish(self, error: BaseException | None, answered: Any = None, not_sent: Any = None) -> None:
        """End it by how the call ended, unless it has been ended already."""
        if self._end:
            return
        self._end = Outcome.COMPLETE if error is None else outcome_of(error, answered, not_sent)
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
        self._call.ledger.sleep(self._call)

    def wait(self) -> Permit:
        """Block until the reserved time has come; raises `PermitExpired` if it is over."""
        if self._slot:
            self._limiter._run(sleep_to_slot(self._call))
            self._arrived_at_slot()
        return self

    async def wait_async(self) -> Permit:
        """Suspend this task until the reserved time has come."""
        if self._slot:
            await self._limiter._run_async(sleep_to_slot(self._call))
            self._arrived_at_slot()
        return self

    def _arrived_at_slot(self) -> None:
        self._slot = 0
        if self._call.void:
            self._end = self._end or Outcome.CANCEL
            raise PermitExpired(None)


class HeldSharedPermit(SharedPermit):
    """A permit that somebody waits for: dropped without an end it is abandoned, with a warning."""

    __slots__ = ()

    def __del__(self) -> None:
        # A constructor that failed leaves an object without fields.
        if getattr(self, "_call", None) is None or self._end or self._taken_by != _process:
            return
        self._end = Outcome.ABANDON
        # Nothing is sent from a finalizer: a window's permit comes back when its transit is over, and the keeper ends
        # leases that were dropped.
        for lease in self._leases or ():
            lease.dropped = True
        self._store.counts.abandoned += 1
        self._store.counts.ended += 1
        listener = self._limiter._listener
        if listener is not None:
            listener.emit_end(self, Outcome.ABANDON)
        warnings.warn(
            f"{self!r} was dropped without an end and counts as abandoned: "
            "use `with limiter.hold():`, or call complete(), cancel() or abandon()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


def new_shared_permit(limiter: SharedCalls, acquire: Acquire) -> SharedPermit:
    """What was granted to `ask`, counted; made without a constructor, as one call in two would be that."""
    ledger = acquire.ledger
    held = ledger.held
    permit: SharedPermit = (
        HeldSharedPermit.__new__(HeldSharedPermit) if held else SharedPermit.__new__(SharedPermit)
    )
    store = limiter._store
    store.counts.granted += 1
    permit._limiter = limiter
    permit._call = acquire
    permit._key = ledger.key
    permit._end = 0
    permit._owner = permit._task = permit._slot = 0
    permit._leases = None
    permit._taken_by = _process
    permit._store = store
    permit._held = held
    if ledger.leased:
        permit._lease(ledger.leased)
    return permit
