"""A permit: what was checked out, to be spent once and ended at most once.

It has four ends. `complete()`: the answer is there. `cancel()`: never dispatched. `abandon()`: outcome unknown.
`settle(cost)`: it cost less or more than was taken. Only *held* permits (of a `Window` with a `Remote`, of
`Concurrency`) have to be ended; for the others leaving them alone is fine, and `cancel` and `settle` give back
what can be given back.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from headway.core.wait_queue import Ticket
from headway.diagnostics import notice_abandoned
from headway.engines.memory.store import ABANDON, ATOMIC, CANCEL, COMPLETE, SETTLE
from headway.errors import InvalidArgument, InvalidUse, PermitFinished
from headway.flows.drive import run, run_async
from headway.flows.local import wait_for_slot
from headway.limiter.request_input import settled_cost
from headway.outcome import outcome_of
from headway.status import Status, status_of

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger
    from headway.engines.memory.store import MemoryStore

ENDS = ("", "complete", "cancel", "abandon", "settle")
# C integers where this file is compiled, which the imported names cannot be.
_COMPLETE, _ATOMIC = COMPLETE, ATOMIC


class Permit:
    """What `acquire` returns: true in a condition, and a context manager around the call that spends it.

    >>> from headway import Limiter
    >>> limiter = Limiter("5 concurrent")
    >>> with limiter.acquire() as permit:
    ...     limiter.peek().in_flight
    1
    >>> limiter.peek().in_flight, permit.ended
    (0, 'complete')
    """

    __slots__ = (
        "_claims",
        "_clock",
        "_cost",
        "_end",
        "_granted_at",
        "_held",
        "_key",
        "_ledger",
        "_listener",
        "_mark",
        "_owner",
        "_slot",
        "_store",
        "_tally",
        "_task",
    )  # fmt: skip

    @property
    def key(self) -> str | None:
        """The key it was taken for."""
        return self._key

    @property
    def cost(self) -> Any:
        """What was taken: a number, or a number for each metric."""
        if self._claims is None:
            return self._cost
        names = self._store.metrics
        if names[0] is None:
            return self._claims[0][2] if self._claims else self._cost
        return {names[claim[0]]: claim[2] for claim in self._claims}

    @property
    def ended(self) -> str | None:
        """How it ended ("complete", "cancel", "abandon", "settle"), or None."""
        return ENDS[self._end] or None

    @property
    def delay(self) -> float:
        """Seconds until a reserved permit may be spent; 0 for others, and when its time has come."""
        return max(0, self._slot - self._store.clock.now()) / 1e9 if self._slot else 0.0

    @property
    def expires_in(self) -> float:
        """Seconds until it must have been spent: `inf`, unless it comes from a shared engine."""
        return float("inf")

    @property
    def status(self) -> Status:
        """How the limit stands for its key after this grant: for the headers of an answer, for instance.

        It is that of the moment at which it is looked at, and consumes nothing.
        """
        store: Any = self._store
        if store is None:  # it has ended, and does not keep its limiter alive
            return self._status_of_ledger()
        names = store.metrics
        if self._claims is None:
            return status_of(store.snapshot((self._key,), (self._cost,)), names)
        keys: list[str | None] = [self._key if name is None else None for name in names]
        costs = [0] * len(names)
        for index, _, cost, _, _, key in self._claims:
            keys[index], costs[index] = key, cost
        return status_of(store.snapshot(tuple(keys), tuple(costs)), names)

    def _status_of_ledger(self) -> Status:
        ledger, now = self._ledger, self._clock.now()
        assert ledger is not None
        wait, exact = ledger.wait(now, 1), ledger.exact(now, 1)
        limit, left = ledger.get_rule().limit, ledger.remaining(now)
        return status_of([(limit, left, wait, ledger.reset_after(now), 0, ledger.in_flight(now), exact)])

    def check(self) -> None:
        """Raise `PermitExpired` if it is too late to spend it, which it never is in memory."""

    # That it returns nothing of use lets type checkers refuse `await` themselves.
    def __await__(self) -> None:
        raise InvalidUse(
            "a permit is there already, and acquire() has blocked the event loop to get it",
            "await limiter.acquire_async()",
        )

    def __bool__(self) -> Literal[True]:
        return True

    def __repr__(self) -> str:
        key = "" if self._key is None else f" for {self._key!r}"
        return f"<Permit{key}: {self.ended or 'out'}>"

    # The fields, for type checkers; their C types are in permit.pxd.
    if TYPE_CHECKING:
        _store: MemoryStore
        _claims: list[tuple[int, Ledger, int, int, int, str | None]] | None
        _clock: Clock
        _cost: int
        _end: int
        _granted_at: int
        _held: bool
        _key: str | None
        _ledger: Ledger | None
        _listener: Any
        _mark: int
        _owner: int
        _slot: int
        _tally: int
        _task: int

    # -- ends --------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """The answer is there: call it as soon as the response's headers are."""
        if self._end:
            raise PermitFinished(ENDS[self._end], "complete")
        self._end = _COMPLETE
        self._hand_back(_COMPLETE)

    def cancel(self) -> None:
        """It was never dispatched: it goes back as it was, as far as nobody relied on it meanwhile."""
        if self._end:
            raise PermitFinished(ENDS[self._end], "cancel")
        self._end = CANCEL
        self._hand_back(CANCEL)

    def abandon(self) -> None:
        """Nobody knows whether it was dispatched: it counts until `max_transit` is over."""
        if self._end:
            raise PermitFinished(ENDS[self._end], "abandon")
        self._end = ABANDON
        self._hand_back(ABANDON)

    def settle(self, cost: int | Mapping[str, int]) -> None:
        """It is complete, and cost something else: less is given back, more is paid before the next grant."""
        if self._end:
            raise PermitFinished(ENDS[self._end], "settle")
        actual = settled_cost(cost, self._store.metrics)
        self._end = SETTLE
        if self._claims is None:
            if self._ledger is not None:
                try:
                    self._store.end(
                        SETTLE, self._ledger, self._cost, self._mark, self._tally, 0, self._key, actual[0]
                    )
                except InvalidArgument:
                    self._end = 0
                    raise
        else:
            for index, ledger, taken, mark, tally, key in self._claims:
                self._store.end(SETTLE, ledger, taken, mark, tally, index, key, actual.get(index, taken))
        self._store.ended += 1
        if self._listener is not None:
            self._listener.emit_end(self, "settled")

    def _hand_back(self, how: int) -> None:
        store = self._store
        ledger = self._ledger
        if self._listener is not None:
            self._listener.emit_end(self, ENDS[how])
        if self._claims is None:
            if ledger is None:
                return
            if how == _COMPLETE:
                store.ended += 1
                if not self._held:
                    return
                # Read before looking: a clock in Python lets others run, who may come to wait for this permit.
                now = store.clock.now()
                if _ATOMIC and store.uncontended:
                    ledger.complete(now, self._cost, self._mark)
                    store.flight_ns += now - self._granted_at
                    if store.ended & 255 == 0:
                        store.check_health()
                    if self._cost == 1 and self._listener is None:
                        # Kept for the next grant, which takes it if nobody else has it by then.
                        self._clock = store.clock
                        self._store = None  # type: ignore[assignment] # looked at by `status` alone
                        store.spare = self
                    return
            self._slow_end(how)
        else:
            self._slow_end(how)

    def _slow_end(self, how: int) -> None:
        store = self._store
        if how == CANCEL:
            store.cancelled += 1
        elif how == ABANDON:
            store.abandoned += 1
            store.ended += 1
        if self._claims is None:
            assert self._ledger is not None
            store.end(how, self._ledger, self._cost, self._mark, self._tally, 0, self._key, 0)
            if how == COMPLETE:
                store.flight_ns += store.clock.now() - self._granted_at
        else:
            store.ended += how == COMPLETE
            for index, ledger, cost, mark, tally, key in self._claims:
                store.end(how, ledger, cost, mark, tally, index, key, 0)
        if how == ABANDON and store.waiting:
            keys = [self._key] if self._claims is None else [claim[5] for claim in self._claims]
            notice_abandoned(store, keys)
        if store.ended & 255 == 0:
            store.check_health()

    def _finish(self, error: BaseException | None, answered: Any = None, not_sent: Any = None) -> None:
        """End it by how the call ended, unless it has been ended already."""
        if self._end:
            return
        if error is None and not self._held and self._claims is None and self._listener is None:
            self._end = _COMPLETE
            self._store.ended += 1
        else:
            self._end = _COMPLETE if error is None else outcome_of(error, answered, not_sent)
            self._hand_back(self._end)

    def __enter__(self) -> Permit:
        if self._slot:
            self.wait()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._finish(error)

    async def __aenter__(self) -> Permit:
        if self._slot:
            await self.wait_async()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._finish(error)

    # -- reservations ------------------------------------------------------------------------------------

    def _promise(self, slot: int) -> None:
        """Note the time from which it may be spent."""
        if slot > self._granted_at:
            self._slot = slot

    def wait(self) -> Permit:
        """Block until the reserved time has come."""
        while not self._arrived():
            ticket = Ticket((), ())
            ticket.granted = True
            run(wait_for_slot(self._slot, self._store.clock.now()), self._store, ticket)
        return self

    async def wait_async(self) -> Permit:
        """Suspend this task until the reserved time has come."""
        while not self._arrived():
            ticket = Ticket((), ())
            ticket.granted = True
            await run_async(wait_for_slot(self._slot, self._store.clock.now()), self._store, ticket)
        return self

    def _arrived(self) -> bool:
        """Whether the slot is there; a late holder before us may move it by what it was late."""
        if self._slot == 0:
            return True
        now = self._store.clock.now()
        if now < self._slot:
            return False
        claims = (
            [(self._ledger, self._mark)] if self._claims is None else [(c[1], c[3]) for c in self._claims]
        )
        self._slot = now + max(ledger.use(now, mark) for ledger, mark in claims if ledger is not None)
        if self._slot <= now:
            self._slot = 0
            return True
        return False


class HeldPermit(Permit):
    """A permit that somebody waits for: dropped without an end it is abandoned, with a warning."""

    __slots__ = ()

    def __del__(self) -> None:
        if self._end:
            return
        self._end = ABANDON
        store = self._store
        store.abandoned += 1
        store.ended += 1
        if self._claims is None:
            if self._ledger is not None:
                store.drop(self._ledger, self._cost, self._mark, 0, self._key)
        else:
            for index, ledger, cost, mark, _, key in self._claims:
                store.drop(ledger, cost, mark, index, key)
        if self._listener is not None:
            self._listener.emit_drop(self)
        warnings.warn(
            f"{self!r} was dropped without an end and counts as abandoned: "
            "use `with limiter.hold():`, or call complete(), cancel() or abandon()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


def new_permit(held: bool, store: MemoryStore, key: str | None) -> Permit:
    """A permit to be filled; a constructor with arguments would be the slowest part of a decision."""
    permit: Permit
    if cython.compiled:
        # Its fields are 0 and None by themselves.
        permit = HeldPermit.__new__(HeldPermit) if held else Permit.__new__(Permit)
    else:
        permit = HeldPermit() if held else Permit()
        permit._claims = permit._ledger = permit._listener = None
        permit._end = permit._mark = permit._owner = permit._slot = permit._tally = permit._task = 0
    permit._store = store
    permit._key = key
    permit._cost = 1
    permit._held = held
    return permit
