"""Where permits are handed out: the verbs that are called often, and the one kernel behind them.

Every verb is the same question with another patience. `try_acquire` has none, `acquire` waits up to its
time-out, `with` waits and hands the permit back at the end. All ask `_grant_quickly` first, which decides most
requests at once; only then the paths part. `with`, `hold` and `throttle` take by `_acquire_held`: their permit brackets
a call, and a `Window` counts it until the call is over.

This file is compiled, and `Limiter` inherits from it: what is here is what users pay for on every call. The
rest of the limiter, which is called once or rarely, is plain Python in `headway.limiter`.

A signal handler may raise between any two lines (`headway.interrupts`). What a request was granted is at every moment
either in its ticket, which is then withdrawn, or in its permit, whose finalizer gives it back, and never in both. There
is one gap: interpreted, what is raised at the very beginning of `__exit__` leaves the permit of `with limiter` with the
limiter. `with limiter.hold()` has no such gap, nor has the compiled form.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from headway.core.wait_queue import Ticket
from headway.denied import Denied
from headway.diagnostics import notice_abandoned, notice_wait
from headway.engines.memory.store import ATOMIC
from headway.errors import AcquireTimeout, EngineUnavailable, LimiterClosed, RateLimited
from headway.flows.drive import run_async, running_loop
from headway.flows.local import DeadlinePassed, wait_in_line
from headway.limiter.permits import Permit
from headway.limiter.request_input import Cost, Key, Timeout, request_of, timeout_to_ns
from headway.outcome import Outcome
from headway.status import seconds, status_of

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has them from local.pxd, as C functions.
    from sys import getrefcount
    from threading import get_ident as this_thread

    from headway.denied import new_denied
    from headway.flows.drive import in_context, run
    from headway.limiter.permits import HeldPermit, new_permit


if TYPE_CHECKING:
    from headway.core.ledger import Ledger
    from headway.engines.memory.store import MemoryStore
    from headway.limiter.shared import SharedLimiter

# Counts of references mean nothing while other threads run.
_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()

# C values where this file is compiled.
_ATOMIC = ATOMIC
_ABANDON = int(Outcome.ABANDON)
# There is one object for each small integer, and it is faster to compare than a type and a value; True is another.
_ONE = 1

REFUSED = Permit.__new__(Permit)
"""Stands for "no", where None stands for "ask under the lock"."""


def refused(permit: Permit | None) -> bool:
    """Whether the fast path said no."""
    return permit is REFUSED


def current_task() -> int:
    """The identity of the asyncio task that runs in this thread, or 0; costs nothing before asyncio is imported."""
    loop = running_loop()
    return 0 if loop is None else id(sys.modules["asyncio"].current_task(loop))


class LocalLimiter:
    """The hot half of a `Limiter`."""

    __slots__ = (
        "_closed",
        "_entered",
        "_leases",
        "_listener",
        "_lock",
        "_max_waiting",
        "_outer",
        "_plain",
        "_shared",
        "_spare",
        "_store",
        "_timeout_ns",
    )

    def __init__(
        self,
        store: MemoryStore | None,
        shared: SharedLimiter | None,
        timeout_ns: int | None,
        max_waiting: int | None,
        listener: Any,
    ) -> None:
        # One of the two: the ledgers are in this process, or every verb is passed on.
        self._store: Any = store
        self._shared = shared
        # Around the permits that are entered, where there is no store whose lock can serve.
        self._lock = threading.RLock() if store is None else None
        self._timeout_ns = timeout_ns
        self._max_waiting = max_waiting
        self._listener = listener
        # The permit that was entered last, and those below it.
        self._entered: Permit | None = None
        self._outer: list[Permit] = []
        self._spare: Permit | None = None
        self._closed = False
        # What its ledgers are borrowed through, where they are.
        self._leases: Any = None
        # No listener is to be told, so the fast path will do where the store has one.
        self._plain = listener is None and shared is None

    # -- verbs -------------------------------------------------------------------------------------------

    def try_acquire(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        """A `Permit` if there is one right now, else a `Denied` that says why; never waits.

        >>> from headway import Limiter
        >>> limiter = Limiter("1/minute")
        >>> bool(limiter.try_acquire("alice")), bool(limiter.try_acquire("alice")), bool(limiter.try_acquire("bob"))
        (True, False, True)
        """
        return self._try(key, cost)

    def _try(self, key: Key, cost: Cost) -> Permit | Denied:
        """The same without named arguments, for what is compiled too."""
        answer = self._decide_quickly(key, cost, False, True)
        if answer is not None:
            return answer  # type: ignore[no-any-return]
        if self._shared is not None:
            return self._shared.try_acquire(key, cost)
        return self._try_locked(key, cost)

    def acquire(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        """Wait for a permit, first come first served; raises `AcquireTimeout` when `timeout` seconds are not
        enough, at once where that is certain.

        >>> from headway import Limiter
        >>> limiter = Limiter("1/minute")
        >>> permit = limiter.acquire()
        >>> limiter.acquire(timeout=0.1)
        Traceback (most recent call last):
        headway.errors.AcquireTimeout: rate limited: 1/minute; would have to wait 60 s, longer than timeout=0.1 s
        """
        if self._shared is not None:
            return self._shared.acquire(key, cost, timeout)
        if timeout is not ... and not _plausible(timeout):
            timeout_to_ns(timeout)
        # Where a request waits already there is no fast path, and no permit is made in vain to learn it.
        permit = self._grant_quickly(key, cost, False) if self._store.uncontended else None
        if permit is not None and permit is not REFUSED:
            return permit
        return self._wait(key, cost, timeout, False)

    def _acquire_held(self, key: Key, cost: Cost, timeout: Timeout) -> Permit:
        """`acquire` for what brackets a call."""
        if self._shared is not None:
            return self._shared.acquire(key, cost, timeout, True)
        if timeout is not ... and not _plausible(timeout):
            timeout_to_ns(timeout)
        permit = self._grant_quickly(key, cost, True) if self._store.uncontended else None
        if permit is not None and permit is not REFUSED:
            return permit
        return self._wait(key, cost, timeout, True)

    def _wait(self, key: Key, cost: Cost, timeout: Timeout, held: bool) -> Permit:
        ticket = self._ticket(key, cost, held)
        deadline: int | None = None
        try:
            deadline = self._queue(ticket, key, cost, timeout)
            if not ticket.granted:
                notice_abandoned(self._store, ticket.keys)
                run(wait_in_line(ticket, deadline), self._store, ticket)
            return self._waited(ticket)
        except DeadlinePassed:
            raise self._limited(key, cost, "timeout", timeout) from None
        except EngineUnavailable as error:
            self._store.withdraw(ticket)
            instead, left = self._leases.instead(error, key, cost), self._left(deadline)
            if held:
                return instead._acquire_held(key, cost, left)  # type: ignore[no-any-return]
            return instead.acquire(key, cost=cost, timeout=left)  # type: ignore[no-any-return]
        except BaseException:
            if ticket.number:
                self._store.withdraw(ticket)
            raise

    async def acquire_async(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        """`acquire` for a task.

        >>> import asyncio
        >>> from headway import Limiter
        >>> bool(asyncio.run(Limiter("1/minute").acquire_async()))
        True
        """
        if self._shared is not None:
            return await self._shared.acquire_async(key, cost, timeout)
        if timeout is not ... and not _plausible(timeout):
            timeout_to_ns(timeout)
        permit = self._grant_quickly(key, cost, False)
        if permit is not None and permit is not REFUSED:
            return permit
        return await self._wait_async(key, cost, timeout, False)

    async def _acquire_held_async(self, key: Key, cost: Cost, timeout: Timeout) -> Permit:
        if self._shared is not None:
            return await self._shared.acquire_async(key, cost, timeout, True)
        if timeout is not ... and not _plausible(timeout):
            timeout_to_ns(timeout)
        permit = self._grant_quickly(key, cost, True)
        if permit is not None and permit is not REFUSED:
            return permit
        return await self._wait_async(key, cost, timeout, True)

    async def _wait_async(self, key: Key, cost: Cost, timeout: Timeout, held: bool) -> Permit:
        ticket = self._ticket(key, cost, held)
        deadline: int | None = None
        try:
            deadline = self._queue(ticket, key, cost, timeout)
            if not ticket.granted:
                notice_abandoned(self._store, ticket.keys)
                await run_async(wait_in_line(ticket, deadline), self._store, ticket)
            return self._waited(ticket)
        except DeadlinePassed:
            raise self._limited(key, cost, "timeout", timeout) from None
        except EngineUnavailable as error:
            self._store.withdraw(ticket)
            instead, left = self._leases.instead(error, key, cost), self._left(deadline)
            if held:
                return await instead._acquire_held_async(key, cost, left)  # type: ignore[no-any-return]
            return await instead.acquire_async(key, cost=cost, timeout=left)  # type: ignore[no-any-return]
        except BaseException:
            if ticket.number:
                self._store.withdraw(ticket)
            raise

    async def try_acquire_async(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        """`try_acquire` for a task: a shared engine has to be asked."""
        if self._shared is not None:
            return await self._shared.try_acquire_async(key, cost)
        return self.try_acquire(key, cost=cost)

    def __enter__(self) -> Permit:
        permit = self._grant_quickly(None, 1, True)
        if permit is None or permit is REFUSED:
            return self._enter(self._acquire_held(None, 1, ...))
        return self._enter(permit)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if _ATOMIC:
            self._leave(error)
            return
        permit = None
        try:
            with self._lock or self._store.lock:
                # The last line makes no call: either nothing has changed, or the permit is ours alone.
                permit, outer, entered = self._without_own()
                self._outer, self._entered = outer, entered
            permit._finish(error)
        except BaseException:
            if permit is None:
                self._leave(error)
            raise

    async def __aenter__(self) -> Permit:
        return self._enter(await self._acquire_held_async(None, 1, ...))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    # -- the kernel --------------------------------------------------------------------------------------

    def _grant_quickly(self, key: Any, cost: Any, bracket: bool) -> Permit | None:
        """One ledger, cost 1, an empty queue: a permit, or REFUSED. None for whatever is not so simple.

        `bracket`: for a call that is bracketed.
        """
        return self._decide_quickly(key, cost, bracket, False)  # type: ignore[no-any-return]

    def _decide_quickly(self, key: Any, cost: Any, bracket: bool, explain: bool) -> Any:
        """The same; `explain`: a `Denied` instead of REFUSED."""
        store = self._store
        if (
            not self._plain
            or not store.single_rule
            or cost is not _ONE
            or (key is not None and type(key) is not str)
        ):
            return None
        if _ATOMIC:
            return self._try_fast(store, key, bracket, explain)
        # The lock is taken by the step of the loop: see `headway.interrupts`.
        for _ in store.taking:
            try:
                return self._try_fast(store, key, bracket, explain)
            except BaseException:
                # Interrupted in the middle of looking or taking.
                store.first.peek(key).mend(store.clock.now())
                raise
            finally:
                store.lock.release()
        return None  # never: every step takes the lock

    def _try_fast(self, store: MemoryStore, key: str | None, bracket: bool, explain: bool) -> Any:  # noqa: C901 - calls cost
        """Decide, under the lock or atomically.

        The permit is made first: nothing may come between looking and taking. But making and freeing an object
        costs as much as the decision. So a permit that has nothing to be ended stays known here when it is handed
        out, and one that was held is left with the store when it is completed; if nothing else refers to it when the
        next one is needed, it is that one.
        """
        permit: Permit
        held = store.held or (bracket and store.bracketed)
        if cython.compiled:
            ours = only_ours(self, store, held)  # type: ignore[name-defined] # noqa: F821 - in local.pxd
        else:
            ours = getrefcount(store.spare if held else self._spare) == 2
        if ours:
            permit = store.spare if held else self._spare  # type: ignore[assignment]
            if held:
                # Only its holder may have it from here on: a finalizer waits for the last reference. Nothing was taken
                # yet, so if an exception comes before that, there is nothing to be given back.
                store.spare = None
                permit._store = store
                permit._end = _ABANDON
            # Mostly it is the same key and the same ledger again, and counting references costs more than looking.
            if permit._key is not key:
                permit._key = key
        else:
            permit = new_permit(held, store, key)
            if not held and _GIL:
                self._spare = permit
        now = store.clock.now()
        # A clock in Python lets other threads run: only from here on is it certain that the queue is empty.
        if not store.uncontended:
            return None
        ledger = store.first.default if key is None else store.find_fast(key, now)
        wait = ledger.wait(now, 1)
        if wait:
            if not explain:
                return REFUSED
            if store.leased and not ledger.may_refuse():
                return None  # told under the lock if the lender is away
            store.counts.denied += 1
            denied = new_denied(key, store.metrics, ledger, now, wait)
            if store.leased:
                ledger.asked(now, 1)
            return denied
        permit._mark = ledger.take_held(now, 1) if held else ledger.take(now, 1)
        # From here on without a call: what was taken is the permit's, which is to be ended.
        permit._tally = ledger.tally
        if permit._ledger is not ledger:
            permit._ledger = ledger
        permit._granted_at = now
        permit._end = 0
        if held:  # noqa: SIM102 - the inner one is decided when this file is compiled
            if not cython.compiled:
                permit.__class__ = HeldPermit
        store.counts.granted += 1
        if store.leased:
            ledger.asked(now, 1)
        return permit

    def _ticket(self, key: Key, cost: Cost, held: bool) -> Ticket:
        """A request, checked."""
        if self._closed:
            raise LimiterClosed(self._store.name)
        keys, costs = self._request(key, cost)
        return Ticket(keys, costs, held, self)

    def _try_locked(self, key: Key, cost: Cost) -> Permit | Denied:
        """Any request, under the lock."""
        ticket = self._ticket(key, cost, False)
        store = self._store
        try:
            denial = store.attempt(ticket)
            if denial is None:
                permit = self._permit_for(ticket)
                if self._listener is not None:
                    self._listener.emit("granted", key, cost)
                return permit
        except EngineUnavailable as error:
            store.withdraw(ticket)
            return self._leases.instead(error, key, cost).try_acquire(key, cost=cost)  # type: ignore[no-any-return]
        except BaseException:
            store.withdraw(ticket)
            raise
        store.counts.denied += 1
        if self._listener is not None:
            self._listener.emit("denied", key, cost)
        reason, rows = denial
        return Denied(key, rows, reason, metrics=store.metrics)

    def _permit_for(self, ticket: Ticket) -> Permit:
        """The permit of a granted ticket."""
        store = self._store
        if len(ticket.marks) == 1 and len(ticket.keys) == 1:
            ledger, mark, tally = ticket.marks[0]
            permit = new_permit(self._holds(ledger, ticket.held), store, ticket.keys[0])
            permit._ledger = ledger
            permit._mark = mark
            permit._tally = tally
        else:
            permit = self._permit_of_several(ticket)
        permit._cost = ticket.costs[0]
        permit._granted_at = store.clock.now()
        permit._listener = self._listener
        # Without a call in between: the permit answers for what was taken from here on, and the ticket no more.
        ticket.marks = []
        permit._end = 0
        if permit._held:  # noqa: SIM102 - the inner one is decided when this file is compiled
            if not cython.compiled:
                permit.__class__ = HeldPermit
        return permit

    def _permit_of_several(self, ticket: Ticket) -> Permit:
        taken = [i for i, cost in enumerate(ticket.costs) if cost and ticket.marks]
        marks = zip(taken, ticket.marks, strict=True)
        claims = [
            (i, ledger, ticket.costs[i], mark, tally, ticket.keys[i]) for i, (ledger, mark, tally) in marks
        ]
        held = any(self._holds(claim[1], ticket.held) for claim in claims)
        key = next((key for key in ticket.keys if key is not None), None)
        permit = new_permit(held, self._store, key)
        permit._claims = claims
        return permit

    def _holds(self, ledger: Ledger, bracket: bool) -> bool:
        """Whether what was taken from this ledger is out until it ends."""
        rule = ledger.get_rule()
        return rule.held or (bracket and rule.bracketed)

    def _request(self, key: Key, cost: Cost) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
        """Key and cost of each rule; raises for what makes no sense, before anything has changed."""
        store = self._store
        return request_of(key, cost, store.metrics, store.rule_for)

    # -- waiting -----------------------------------------------------------------------------------------

    def _queue(self, ticket: Ticket, key: Key, cost: Cost, timeout: Timeout) -> int | None:
        """Have the ticket granted, or let it wait in the queue; its deadline. Raises when waiting cannot help."""
        store = self._store
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        deadline = None
        if timeout_ns is not None:
            rows = store.snapshot(ticket.keys, ticket.costs)
            # Of borrowed tokens more may come at any time, unless the wait is exact.
            if max([row[2] for row in rows if row[6] or not store.leased], default=0) > timeout_ns:
                raise self._limited(key, cost, "timeout", timeout)
            deadline = store.clock.now() + timeout_ns
        store.decide(ticket, True)
        if (
            not ticket.granted
            and self._max_waiting is not None
            and len(store.queues.waiters) > self._max_waiting
        ):
            store.withdraw(ticket)
            raise self._limited(key, cost, "max_waiting", timeout)
        return deadline

    def _left(self, deadline: int | None) -> float | None:
        """Seconds until a deadline."""
        return None if deadline is None else max(0, deadline - self._store.clock.now()) / 1e9

    def _limited(self, key: Key, cost: Cost, reason: str, timeout: Timeout) -> RateLimited:
        store = self._store
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        store.counts.denied += 1
        keys, costs = self._request(key, cost)
        status = status_of(store.snapshot(keys, costs), store.metrics, denied=True)
        if self._listener is not None:
            self._listener.emit("denied", key, cost)
        if reason == "timeout" and status.retry_after == float("inf"):
            reason = "never"
        kind = AcquireTimeout if reason == "timeout" else RateLimited
        return kind(
            float("inf") if reason == "never" else status.retry_after,
            limit=status.limit,
            key=key if key is None or isinstance(key, str) else str(dict(key)),
            status=status,
            reason=reason,
            timeout=None if timeout_ns is None else seconds(timeout_ns),
            max_waiting=self._max_waiting,
            held_up="paused" if store.paused(keys) else "",
        )

    def _waited(self, ticket: Ticket) -> Permit:
        permit = self._permit_for(ticket)
        if ticket.waker is not None:
            notice_wait(self._store, self._store.clock.now() - ticket.since)
        if self._listener is not None:
            self._listener.emit_wait(permit, ticket)
        return permit

    def _enter(self, permit: Permit) -> Permit:
        """Remember whose permit it is: `with limiter` is per thread or task, and may be nested."""
        permit._owner = this_thread()
        permit._task = current_task() if in_context() else 0
        if _ATOMIC:
            self._push(permit)
            return permit
        try:
            with self._lock or self._store.lock:
                self._push(permit)
        except BaseException:
            # The block is not entered, and nothing else would take the permit out again.
            with self._lock or self._store.lock:
                self._outer = [entered for entered in self._outer if entered is not permit]
                if self._entered is permit:
                    self._entered = self._outer.pop() if self._outer else None
            raise
        return permit

    def _push(self, permit: Permit) -> None:
        if self._entered is not None:
            self._outer.append(self._entered)
        self._entered = permit

    def _leave(self, error: BaseException | None) -> None:
        """End the permit that this thread or task entered last."""
        permit = self._entered
        assert permit is not None
        if not _ATOMIC or permit._owner != this_thread() or (permit._task and permit._task != current_task()):
            with self._lock or self._store.lock:
                permit, self._outer, self._entered = self._without_own()
        elif self._outer:
            self._entered = self._outer.pop()
        else:
            self._entered = None
        permit._finish(error)

    def _without_own(self) -> tuple[Permit, list[Permit], Permit | None]:
        """The permit that this thread or task entered last, and what is left without it: those below, and the last.

        A block may be left in another thread than it was entered in (a generator that a thread pool runs in steps);
        then the permit that was entered last is taken for its own.
        """
        owner, task = this_thread(), current_task()
        assert self._entered is not None
        entered = [*self._outer, self._entered]
        chosen = len(entered) - 1
        for place in range(chosen, -1, -1):
            permit: Permit = entered[place]
            if permit._owner == owner and permit._task == task:
                chosen = place
                break
        permit = entered.pop(chosen)
        return permit, entered, entered.pop() if entered else None


def _plausible(timeout: Any) -> bool:
    """Whether a time-out is of the usual kinds and needs no closer look."""
    return timeout is None or ((type(timeout) is float or type(timeout) is int) and timeout >= 0)
