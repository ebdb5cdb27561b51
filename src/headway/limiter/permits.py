"""A permit: what was checked out, to be spent once and ended at most once.

It has four ends. `complete()`: the answer is there. `cancel()`: never dispatched. `abandon()`: outcome unknown.
`settle(cost)`: it cost less or more than was taken. Only *held* permits (of a `Window` that they bracket a call of, or
that has a `Remote`; of `Concurrency`) have to be ended; for the others leaving them alone is fine, and `cancel` and
`settle` give back what can be given back.

A bare permit of a `Window`, which counts at its decision, becomes a held one when it is entered. The block that enters
it also leaves it, so that no finalizer has to look after it.

An end may fail or be interrupted, and must not lose what the permit holds. So the ledger is told first, then the permit
is marked as ended, and then the event is emitted. If the ledger could not be told, the permit can be ended again, and a
held one that is dropped is ended by its finalizer, which does nothing that can fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from headway.core.ledger import LONG_AGO
from headway.core.wait_queue import Ticket
from headway.diagnostics import check_health, notice_abandoned, notice_drop
from headway.engines.memory.store import ATOMIC
from headway.errors import InvalidUse, PermitExpired, PermitFinished
from headway.flows.drive import run, run_async
from headway.flows.local import wait_for_slot
from headway.limiter.request_input import settled_cost
from headway.outcome import Outcome, outcome_of
from headway.status import Snapshot, Status, rows_pairs, status_of

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has them from permits.pxd, as C functions.
    from headway.limit_headers import pairs_until, texts_of, until_of_ns

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger
    from headway.engines.memory.store import Claim, MemoryStore

# Out since its grant, or since it was entered.
HELD, ENTERED = 1, 2

# C integers where this file is compiled, which the imported names cannot be.
_ATOMIC, _HELD = ATOMIC, HELD
_COMPLETE, _CANCEL, _ABANDON, _SETTLE = (int(how) for how in Outcome)


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
        return Outcome(self._end).verb if self._end else None

    @property
    def delay(self) -> float:
        """Seconds until a reserved permit may be spent; 0 for others, and when its time has come."""
        return max(0, self._slot - self._store.clock.now()) / 1e9 if self._slot else 0.0

    @property
    def expires_in(self) -> float:
        """Seconds until it must have been spent: `inf`, unless it comes from a shared engine or a lease of one."""
        stop = self._stop()
        return float("inf") if stop is None else max(0, stop - self._store.clock.now()) / 1e9

    def _stop(self) -> int | None:
        """When the lease of its tokens is over, where they are borrowed and it has not ended."""
        if self._end or not self._store.leased:
            return None
        ledgers = [self._ledger] if self._claims is None else [claim[1] for claim in self._claims]
        return min(
            [stop for ledger in ledgers if (stop := getattr(ledger, "stop", None)) is not None], default=None
        )

    @property
    def status(self) -> Status:
        """How the limit stands for its key after this grant: for the headers of an answer, for instance.

        It is that of the moment at which it is looked at, and consumes nothing.
        """
        store: Any = self._store
        return status_of(self._rows(), () if store is None else store.metrics)

    async def status_async(self) -> Status:
        """`status` for a task: a shared engine may have to be asked."""
        return self.status

    def _rows(self) -> Snapshot:
        """What each rule says after this grant: what a `status` is made of, and headers without one."""
        store: MemoryStore | None = self._store
        if store is None:  # it has ended, and does not keep its limiter alive
            assert self._ledger is not None
            return [_row(self._ledger, self._clock.now(), 1)]
        if self._claims is None:
            if _ATOMIC and store.single_rule:
                now = store.clock.now()
                # No request waits and nothing is paused, so the ledger says all; no other thread comes between.
                if store.uncontended:
                    return [_row(store.first.peek(self._key), now, self._cost)]
            return store.snapshot((self._key,), (self._cost,))
        names = store.metrics
        keys: list[str | None] = [self._key if name is None else None for name in names]
        costs = [0] * len(names)
        for index, _, cost, _, _, key in self._claims:
            keys[index], costs[index] = key, cost
        return store.snapshot(tuple(keys), tuple(costs))

    def _pairs(self, legacy: bool) -> list[tuple[bytes, bytes]]:
        """The headers that a response to this grant gets; none where an engine would have to be asked for them.

        They say what `_rows` would; where one ledger says all, they are written of it directly.
        """
        store: MemoryStore | None = self._store
        if _ATOMIC and store is not None and self._claims is None and store.single_rule:
            now = store.clock.now()
            if store.uncontended:
                ledger = store.first.peek(self._key)
                return pairs_until(
                    texts_of(ledger.get_rule().limit),
                    ledger.remaining(now),
                    until_of_ns(ledger.wait(now, self._cost), ledger.reset_after(now)),
                    legacy,
                )
        rows = self._rows()
        return rows_pairs(rows, legacy=legacy) if rows else []

    def check(self) -> None:
        """Raise `PermitExpired` if it is too late to spend it, which it never is in memory."""
        stop = self._stop()
        if stop is not None and (late := self._store.clock.now() - stop) >= 0:
            self.cancel()
            raise PermitExpired(late / 1e9 if stop > LONG_AGO else None)

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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a permit cannot be copied or pickled: it is spent once")

    # The fields, for type checkers; their C types are in permits.pxd.
    if TYPE_CHECKING:
        _store: MemoryStore
        _claims: list[Claim] | None
        _clock: Clock
        _cost: int
        _end: int
        _granted_at: int
        _held: int
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
            raise self._finished(_COMPLETE)
        self._hand_back(_COMPLETE)

    def cancel(self) -> None:
        """It was never dispatched: it goes back as it was, as far as no other request relied on it meanwhile."""
        if self._end:
            raise self._finished(_CANCEL)
        self._hand_back(_CANCEL)

    def abandon(self) -> None:
        """It is not known whether it was dispatched: it counts until `max_transit` is over."""
        if self._end:
            raise self._finished(_ABANDON)
        self._hand_back(_ABANDON)

    def settle(self, cost: int | Mapping[str, int]) -> None:
        """It is complete, and cost something else: less is given back, more is paid before the next grant."""
        if self._end:
            raise self._finished(_SETTLE)
        self._end_locked(_SETTLE, settled_cost(cost, self._store.metrics))

    def _resize(self, cost: int) -> None:
        """Like `settle`, without an end: it turns out to cost less, or more, and may do so again. Only of a permit that
        is not held."""
        self.settle(cost)
        if self._claims is not None:
            self._claims = [
                (place, part, cost, mark, tally, key) for place, part, _, mark, tally, key in self._claims
            ]
        self._cost = cost
        self._end = 0

    def _finished(self, how: int) -> PermitFinished:
        return PermitFinished(Outcome(self._end).verb, Outcome(how).verb)

    def _hand_back(self, how: int) -> None:
        """Tell the ledger, mark the permit as ended, and then emit the event."""
        store = self._store
        ledger = self._ledger
        if how == _COMPLETE and self._claims is None and self._listener is None:
            if ledger is None or not self._held:
                self._end = how
                store.counts.ended += 1
                return
            if _ATOMIC:
                # Read before looking: a clock in Python lets other threads run, which may come to wait for it.
                now = store.clock.now()
                if store.uncontended and not self._end:
                    ledger.complete(now, self._cost, self._mark)
                    self._end = how
                    store.counts.ended += 1
                    store.counts.flight_ns += now - self._granted_at
                    if store.counts.ended & 255 == 0:
                        check_health(store)
                    if self._held != _HELD:
                        self._held = 0  # used again, it is bare again
                    elif self._cost == 1:
                        # Kept for the next grant, which takes it if nothing else refers to it by then.
                        self._clock = store.clock
                        self._store = None  # type: ignore[assignment] # looked at by `status` alone
                        store.spare = self
                    return
        self._end_locked(how, None)

    def _end_locked(self, how: int, actual: dict[int, int] | None) -> None:
        """Any end, under the store's lock."""
        store = self._store
        claims = self._claims
        if claims is None:
            claims = []
            if self._ledger is not None:
                claims.append((0, self._ledger, self._cost, self._mark, self._tally, self._key))
        try:
            if not store.end(self, how, claims, actual):
                raise self._finished(how)
        except BaseException:
            # Interrupted, perhaps after the ledger was told and before its waiters were.
            store.tidy()
            raise
        if not cython.compiled and type(self) is HeldPermit:
            self.__class__ = Permit  # type: ignore[assignment] # it has no finalizer any more
        if how == Outcome.ABANDON and store.queues.waiters:
            notice_abandoned(store, [claim[5] for claim in claims])
        if self._listener is not None:
            self._listener.emit_end(self, how)

    def _finish(self, error: BaseException | None, answered: Any = None, not_sent: Any = None) -> None:
        """End it by how the call ended, unless it has been ended already."""
        if self._end:
            return
        if error is None and not self._held and self._claims is None and self._listener is None:
            self._end = _COMPLETE
            self._store.counts.ended += 1
        else:
            self._hand_back(_COMPLETE if error is None else outcome_of(error, answered, not_sent))

    def __enter__(self) -> Permit:
        if self._slot:
            self.wait()
        if not self._end and self._store.bracketed:
            self._start_here()
        return self

    def _start_here(self) -> None:
        """What was taken without a bracket has one now."""
        store = self._store
        ledger = self._ledger
        if self._claims is None:
            if ledger is None or self._mark >= 0 or not ledger.get_rule().bracketed:
                return
            now = store.clock.now()
            # An idle ledger may have been forgotten, and another be in its place.
            if _ATOMIC and store.uncontended and not ledger.idle(now):
                self._mark = ledger.enter(now, self._cost, self._mark, self._tally, now)
            else:
                self._ledger, self._mark = store.start_call(
                    ledger, self._cost, self._mark, self._tally, 0, self._key
                )
            self._entered_at(now)
            return
        claims = self._claims
        for place, (index, part, cost, mark, tally, key) in enumerate(claims):
            if mark < 0 and part.get_rule().bracketed:
                kept, mark = store.start_call(part, cost, mark, tally, index, key)  # noqa: PLW2901
                claims[place] = (index, kept, cost, mark, tally, key)
                self._entered_at(store.clock.now())

    def _entered_at(self, now: int) -> None:
        self._granted_at = now
        if not self._held:
            self._held = ENTERED

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._finish(error)

    async def __aenter__(self) -> Permit:
        if self._slot:
            await self.wait_async()
        if not self._end and self._store.bracketed:
            self._start_here()
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
    """A permit that others wait for: dropped without an end it is abandoned, with a warning.

    Interpreted, a permit is of this class only while it is out: what a signal handler raises inside of a finalizer is
    lost, and a finalizer that has nothing to do should not be in its way.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if self._end:
            return
        store = self._store
        if self._claims is None:
            claim: Any = (0, self._ledger, self._cost, self._mark, self._tally, self._key)
            store.drop(claim)
        else:
            for claim in self._claims:
                store.drop(claim)
        # What was dropped is kept in the store now: if anything below fails, nothing is lost by it.
        self._end = _ABANDON
        store.counts.abandoned += 1
        store.counts.ended += 1
        store.tidy()
        if self._listener is not None:
            self._listener.emit_end(self, _ABANDON)
        notice_drop(store, self)


def new_permit(held: bool, store: MemoryStore, key: str | None) -> Permit:
    """A permit to be filled, by a function and not a constructor with arguments, which would be the slowest part of a
    decision.

    It counts as ended until it has been granted: whatever comes between, its finalizer gives nothing back.
    """
    permit: Permit
    if cython.compiled:
        # Its fields are 0 and None by themselves.
        permit = HeldPermit.__new__(HeldPermit) if held else Permit.__new__(Permit)
    else:
        permit = Permit()
        permit._claims = permit._ledger = permit._listener = None
        permit._mark = permit._owner = permit._slot = permit._tally = permit._task = 0
    permit._end = _ABANDON
    permit._store = store
    permit._key = key
    permit._cost = 1
    permit._held = _HELD if held else 0
    return permit


def _row(ledger: Ledger, now: int, cost: int) -> tuple[Any, int, int, int, int, int, bool]:
    """What one ledger says of another request like this."""
    return (
        ledger.get_rule().limit,
        ledger.remaining(now),
        ledger.wait(now, cost),
        ledger.reset_after(now),
        0,
        ledger.in_flight(now),
        ledger.exact(now, cost),
    )
