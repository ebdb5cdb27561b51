"""A permit from a shared ledger: until when it may be spent, and how its end reaches the ledger.

The end is posted and not waited for. If it is lost with its process, the lease or `max_transit` covers for it. That a
bare permit was entered is posted in the same way: from then on a `Window` counts it until its end. The permit belongs
to the process that took it: what a forked child does with its copy releases nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.errors import PermitExpired
from headway.flows.shared import slot_flow
from headway.limiter.permits import ENTERED, HELD, Permit
from headway.limiter.request_input import Key, settled_cost
from headway.limiter.results import status
from headway.outcome import Outcome, outcome_of
from headway.status import rows_pairs

if TYPE_CHECKING:
    from headway.engines.base import Decision
    from headway.limiter.shared import SharedLimiter
    from headway.status import Snapshot, Status


class SharedPermit(Permit):
    """What `acquire` returns on a shared engine."""

    __slots__ = ("_asked", "_decision", "_limiter")

    _asked: Key
    _decision: Decision
    _limiter: SharedLimiter

    @property
    def cost(self) -> Any:
        """What was taken: a number, or a number for each metric."""
        costs, names = self._decision.costs, self._limiter.table.metrics
        if names[0] is None:
            return costs[0]
        return {name: cost for name, cost in zip(names, costs, strict=True) if cost}

    @property
    def delay(self) -> float:
        """Seconds until a reserved permit may be spent; 0 for others, and when its time has come."""
        return self._decision.wait_ns() / 1e9 if self._slot else 0.0

    @property
    def expires_in(self) -> float:
        """Seconds until it must have been spent; below 0 it has expired."""
        return self._decision.expires_in_ns() / 1e9

    @property
    def status(self) -> Status:
        """How the limit stood for its key after this grant.

        The engine says it with the grant, from the first time on that the status of a permit is read; this first time,
        and where the permit was waited for, the engine is asked.
        """
        limiter = self._limiter
        if self._decision.rows():
            return status(self._decision, limiter.table.metrics)
        limiter.ledgers.report_grants()
        return limiter.run(limiter.peeking(self._asked, self.cost))

    async def status_async(self) -> Status:
        """`status` for a task."""
        limiter = self._limiter
        if self._decision.rows():
            return status(self._decision, limiter.table.metrics)
        limiter.ledgers.report_grants()
        return await limiter.run_async(limiter.peeking(self._asked, self.cost))

    def _rows(self) -> Snapshot:
        """What each rule said with the grant; empty where the engine would have to be asked."""
        return self._decision.rows()

    def _pairs(self, legacy: bool) -> list[tuple[bytes, bytes]]:
        """The headers that a response to this grant gets; none where the engine would have to be asked for them."""
        rows = self._decision.rows()
        return rows_pairs(rows, legacy=legacy) if rows else []

    def check(self) -> None:
        """Raise `PermitExpired` if it is too late to spend it."""
        left = self._decision.expires_in_ns()
        if left < 0 or self._decision.revoked:
            if not self._end:
                self._end_by(Outcome.CANCEL)
            raise PermitExpired(max(0, -left) / 1e9)

    # -- ends --------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """The answer is there: call it as soon as the response's headers are."""
        self._end_as(Outcome.COMPLETE)

    def cancel(self) -> None:
        """It was never dispatched: it goes back as it was, unless a later grant relied on it."""
        self._end_as(Outcome.CANCEL)

    def abandon(self) -> None:
        """The outcome is unknown: it counts until `max_transit` is over."""
        self._end_as(Outcome.ABANDON)

    def settle(self, cost: int | Mapping[str, int]) -> None:
        """It is complete, and cost something else: less is given back, more is paid before the next grant."""
        if self._end:
            raise self._finished(Outcome.SETTLE)
        actual = settled_cost(cost, self._limiter.table.metrics)
        spent = tuple(actual.get(i, taken) for i, taken in enumerate(self._decision.costs))
        self._end_by(Outcome.SETTLE, spent)

    def _resize(self, cost: int) -> None:
        """The ledger is told of a permit once, so it has ended after this."""
        self.settle(cost)

    def _end_as(self, how: int) -> None:
        if self._end:
            raise self._finished(how)
        self._end_by(how)

    def _finish(self, error: BaseException | None, answered: Any = None, not_sent: Any = None) -> None:
        """End it by how the call ended, unless it has been ended already."""
        if not self._end:
            self._end_by(Outcome.COMPLETE if error is None else outcome_of(error, answered, not_sent))

    def _end_by(self, how: int, spent: tuple[int, ...] | None = None) -> None:
        """Tell the ledger first: an interrupt between two steps may lose an event, and never a seat."""
        try:
            self._limiter.ledgers.release(self._decision, how, spent)
        except BaseException:
            # A signal's handler has raised. What was not posted by then is posted now, and nothing twice.
            self._limiter.ledgers.release(self._decision, how, spent)
            self._end = how
            raise
        self._end = how
        self._limiter.ended(self, how)

    # -- reservations ------------------------------------------------------------------------------------

    def __enter__(self) -> Permit:
        if self._slot:
            self.wait()
        self.check()
        self._start_call()
        return self

    async def __aenter__(self) -> Permit:
        if self._slot:
            await self.wait_async()
        self.check()
        self._start_call()
        return self

    def _start_call(self) -> None:
        """A permit that was taken bare brackets a call from now on; the ledger is told without waiting for it."""
        if not self._end and self._limiter.ledgers.enter(self._decision) and not self._held:
            self._held = ENTERED

    def wait(self) -> Permit:
        """Block until the reserved time has come; raises `PermitExpired` if it is over."""
        if self._slot:
            self._limiter.run(slot_flow(self._decision))
            self._arrived_at_slot()
        return self

    async def wait_async(self) -> Permit:
        """Suspend this task until the reserved time has come."""
        if self._slot:
            await self._limiter.run_async(slot_flow(self._decision))
            self._arrived_at_slot()
        return self

    def _arrived_at_slot(self) -> None:
        self._slot = 0
        if self._decision.revoked:
            self._end = self._end or Outcome.CANCEL
            raise PermitExpired(None)


class HeldSharedPermit(SharedPermit):
    """A permit that counts until it is ended: dropped without an end it is abandoned, with a warning."""

    __slots__ = ()

    def __del__(self) -> None:
        # A constructor that failed leaves an object without fields.
        if getattr(self, "_decision", None) is None or self._end or not self._limiter.owns(self._decision):
            return
        self._end = Outcome.ABANDON
        self._decision.drop()
        self._limiter.dropped(self)


def new_shared_permit(
    limiter: SharedLimiter, decision: Decision, key: str | None, asked: Key
) -> SharedPermit:
    """The permit of a decision that granted it; made without a constructor, which would cost as much again."""
    held = decision.held
    permit: SharedPermit = (
        HeldSharedPermit.__new__(HeldSharedPermit) if held else SharedPermit.__new__(SharedPermit)
    )
    permit._limiter = limiter
    permit._decision = decision
    permit._key = key
    permit._asked = asked
    permit._end = 0
    permit._owner = permit._task = permit._slot = 0
    permit._held = HELD if held else 0
    permit._listener = None
    decision.owned = True
    return permit
