"""Where permits are handed out: the verbs that are called often, and the one kernel behind them.

Every verb is the same question with another patience. `try_acquire` has none, `acquire` waits up to its
time-out, `with` waits and hands the permit back at the end. All ask `_grant_quickly` first, which decides most
requests at once; only then the paths part.

This file is compiled, and `Limiter` inherits from it: what is here is what users pay for on every call. The
rest of the limiter, which is called once or rarely, is plain Python in `headway.limiter`.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from headway.core.wait_queue import Ticket
from headway.diagnostics import notice_abandoned, notice_wait
from headway.engines.memory.store import ATOMIC
from headway.errors import AcquireTimeout, RateLimited
from headway.flows.drive import run_async, running_loop
from headway.flows.local import DeadlinePassed, wait_in_line
from headway.limiter.permits import Permit
from headway.limiter.request_input import Cost, Key, Timeout, request_of, timeout_to_ns
from headway.status import Denied, seconds, status_of

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has them from desk.pxd, as C functions.
    from sys import getrefcount
    from threading import get_ident as this_thread

    from headway.flows.drive import in_context, run
    from headway.limiter.permits import new_permit


if TYPE_CHECKING:
    from headway.engines.memory.store import MemoryStore
    from headway.limiter.shared import SharedLimiter

# Counts of references mean nothing while other threads run.
_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()

# C values where this file is compiled.
_ATOMIC = ATOMIC

REFUSED = Permit.__new__(Permit)
"""Stands for "no", where None stands for "ask the slow way"."""


def refused(permit: Permit | None) -> bool:
    """Whether the quick way said no."""
    return permit is REFUSED


def current_task() -> int:
    """The identity of the asyncio task that runs in this thread, or 0; costs nothing before asyncio is imported."""
    loop = running_loop()
    return 0 if loop is None else id(sys.modules["asyncio"].current_task(loop))


class LocalLimiter:
    """The hot half of a `Limiter`."""

    __slots__ = (
        "_entered",
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
        # Nobody wants to be told, so the quick way will do where the book has one.
        self._plain = listener is None and shared is None

    # -- verbs -------------------------------------------------------------------------------------------

    def try_acquire(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        """A `Permit` if there is one right now, else a `Denied` that says why; never waits.

        >>> from headway import Limiter
        >>> limiter = Limiter("1/minute")
        >>> bool(limiter.try_acquire("alice")), bool(limiter.try_acquire("alice")), bool(limiter.try_acquire("bob"))
        (True, False, True)
        """
        permit = self._grant_quickly(key, cost)
        if permit is None:
            if self._shared is not None:
                return self._shared.try_acquire(key, cost)
            permit = self._try_locked(key, cost)
            return self._deny(key, cost) if permit is None else permit
        return self._deny(key, cost) if permit is REFUSED else permit

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
        # Where a caller waits already there is no quick way, and no permit is made in vain to learn it.
        permit = self._grant_quickly(key, cost) if self._store.uncontended else None
        if permit is not None and permit is not REFUSED:
            return permit
        ticket, deadline = self._queue(key, cost, timeout)
        try:
            if not ticket.granted:
                notice_abandoned(self._store, ticket.keys)
                run(wait_in_line(ticket, deadline), self._store, ticket)
            return self._waited(ticket)
        except DeadlinePassed:
            raise self._limited(key, cost, "timeout", timeout) from None
        except BaseException:
            # Ctrl-C may come between any two lines: nobody may be left standing in the line.
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
        permit = self._grant_quickly(key, cost)
        if permit is not None and permit is not REFUSED:
            return permit
        ticket, deadline = self._queue(key, cost, timeout)
        if not ticket.granted:
            try:
                notice_abandoned(self._store, ticket.keys)
                await run_async(wait_in_line(ticket, deadline), self._store, ticket)
            except DeadlinePassed:
                raise self._limited(key, cost, "timeout", timeout) from None
            except BaseException:
                self._store.withdraw(ticket)
                raise
        return self._waited(ticket)

    async def try_acquire_async(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        """`try_acquire` for a task: a shared engine has to be asked."""
        if self._shared is not None:
            return await self._shared.try_acquire_async(key, cost)
        return self.try_acquire(key, cost=cost)

    def __enter__(self) -> Permit:
        permit = self._grant_quickly(None, 1)
        if permit is None or permit is REFUSED:
            return self._enter(self.acquire())
        return self._enter(permit)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    async def __aenter__(self) -> Permit:
        return self._enter(await self.acquire_async())

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    # -- the kernel --------------------------------------------------------------------------------------

    def _grant_quickly(self, key: Any, cost: Any) -> Permit | None:
        """One ledger, cost 1, nobody waiting: a permit, or REFUSED. None for whatever is not so simple."""
        store = self._store
        if (
            not self._plain
            or not store.single_rule
            or type(cost) is not int
            or cost != 1
            or (key is not None and type(key) is not str)
        ):
            return None
        if _ATOMIC:
            return self._try_fast(store, key)
        lock = store.lock
        lock.acquire()
        try:
            return self._try_fast(store, key)
        finally:
            lock.release()

    def _try_fast(self, store: MemoryStore, key: str | None) -> Permit | None:
        """Decide, under the lock or atomically.

        The permit is made first: nothing may come between looking and taking. But making and freeing an object
        costs as much as the decision. So a permit that has nothing to be ended stays known here when it is handed
        out, and one that was held is left with the book when it is completed; if nothing else refers to it when the
        next one is needed, it is that one.
        """
        permit: Permit
        held = store.held
        if cython.compiled:
            ours = only_ours(self, store, held)  # type: ignore[name-defined] # noqa: F821 - in desk.pxd
        else:
            ours = getrefcount(store.spare if held else self._spare) == 2 and _GIL
        if ours:
            permit = store.spare if held else self._spare  # type: ignore[assignment]
            if held:
                # Nobody but its holder may have it from here on: a finalizer waits for the last reference.
                store.spare = None
                permit._store = store
            permit._end = 0
            # Mostly it is the same key and the same ledger again, and counting references costs more than looking.
            if permit._key is not key:
                permit._key = key
        else:
            permit = new_permit(held, store, key)
            if not held:
                self._spare = permit
        now = store.clock.now()
        # A clock in Python lets others run: only from here on is it certain that nobody waits.
        if not store.uncontended:
            permit._end = 3  # nothing was taken, nothing to abandon
            return None
        ledger = store.first.default if key is None else store.find_fast(key, now)
        if ledger.wait(now, 1):
            permit._end = 3
            return REFUSED
        permit._mark = ledger.take(now, 1)
        permit._tally = ledger.tally
        if permit._ledger is not ledger:
            permit._ledger = ledger
        permit._granted_at = now
        store.granted += 1
        return permit

    def _try_locked(self, key: Key, cost: Cost) -> Permit | None:
        """Any request, under the lock."""
        keys, costs = self._request(key, cost)
        ticket = Ticket(keys, costs)
        if not self._store.decide(ticket, False):
            return None
        permit = self._permit_for(ticket)
        if self._listener is not None:
            self._listener.emit("granted", key, cost)
        return permit

    def _permit_for(self, ticket: Ticket) -> Permit:
        """The permit of a granted ticket."""
        store = self._store
        if len(ticket.marks) == 1 and len(ticket.keys) == 1:
            ledger, mark, tally = ticket.marks[0]
            permit = new_permit(ledger.get_rule().held, store, ticket.keys[0])
            permit._ledger = ledger
            permit._mark = mark
            permit._tally = tally
        else:
            permit = self._permit_of_several(ticket)
        permit._cost = ticket.costs[0]
        permit._granted_at = store.clock.now()
        permit._listener = self._listener
        # From here on the permit answers for what was taken, and the ticket no more.
        ticket.marks.clear()
        return permit

    def _permit_of_several(self, ticket: Ticket) -> Permit:
        taken = [i for i, cost in enumerate(ticket.costs) if cost and ticket.marks]
        marks = zip(taken, ticket.marks, strict=True)
        claims = [
            (i, ledger, ticket.costs[i], mark, tally, ticket.keys[i]) for i, (ledger, mark, tally) in marks
        ]
        held = any(claim[1].get_rule().held for claim in claims)
        key = next((key for key in ticket.keys if key is not None), None)
        permit = new_permit(held, self._store, key)
        permit._claims = claims
        return permit

    def _request(self, key: Key, cost: Cost) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
        """Key and cost of each rule; raises for what makes no sense, before anything has changed."""
        store = self._store
        return request_of(key, cost, store.metrics, store.rule_for)

    def _deny(self, key: Key, cost: Cost) -> Denied:
        keys, costs = self._request(key, cost)
        store = self._store
        store.denied += 1
        if self._listener is not None:
            self._listener.emit("denied", key, cost)
        reason = "paused" if store.pauses and store.paused(keys) else "limit"
        return Denied(key, store.snapshot(keys, costs), reason, metrics=store.metrics)

    # -- waiting -----------------------------------------------------------------------------------------

    def _queue(self, key: Key, cost: Cost, timeout: Timeout) -> tuple[Ticket, int | None]:
        """A ticket that has been granted or stands in line, and its deadline; raises when waiting cannot help."""
        keys, costs = self._request(key, cost)
        store = self._store
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        deadline = None
        if timeout_ns is not None:
            if max([row[2] for row in store.snapshot(keys, costs)]) > timeout_ns:
                raise self._limited(key, cost, "timeout", timeout)
            deadline = store.clock.now() + timeout_ns
        ticket = Ticket(keys, costs)
        store.decide(ticket, True)
        if not ticket.granted and self._max_waiting is not None and store.waiting > self._max_waiting:
            store.withdraw(ticket)
            raise self._limited(key, cost, "max_waiting", timeout)
        return ticket, deadline

    def _limited(self, key: Key, cost: Cost, reason: str, timeout: Timeout) -> RateLimited:
        store = self._store
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        store.denied += 1
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
            held_up="paused" if store.pauses and store.paused(keys) else "",
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
        else:
            with self._lock or self._store.lock:
                self._push(permit)
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
                permit = self._pop_entered()
        elif self._outer:
            self._entered = self._outer.pop()
        else:
            self._entered = None
        permit._finish(error)

    def _pop_entered(self) -> Permit:
        """Take out the permit that this thread or task entered last.

        A block may be left in another thread than it was entered in (a generator that a thread pool runs in steps);
        then the permit that was entered last is taken for its own.
        """
        owner, task = this_thread(), current_task()
        assert self._entered is not None
        self._outer.append(self._entered)
        chosen = len(self._outer) - 1
        for place in range(chosen, -1, -1):
            permit: Permit = self._outer[place]
            if permit._owner == owner and permit._task == task:
                chosen = place
                break
        permit = self._outer.pop(chosen)
        self._entered = self._outer.pop() if self._outer else None
        return permit
