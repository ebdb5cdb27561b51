"""Gates in this process: the core's gate, a lock, and the waiters that are woken when its clock moves.

There is no thread. Every command lets time act first, and a waiter sleeps until the next event is due, looks, and so
publishes it. A gate that no thread looks at stands still: what is due is published by the next look, however late.

Gates of one name on one clock are one, as they would be on a server. A forked child has none of its parent's events:
both would publish them. Its gates begin anew, and the first use of each says so in a warning.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from headway.clock import SYSTEM
from headway.core.once import OnceGate
from headway.diagnostics import outside
from headway.engines.base import GateLog, GateTerms, GateView
from headway.errors import LimitMismatch
from headway.forks import on_fork

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.once import EventStatus, OnceRule, Submission
    from headway.core.wait_queue import Waker

GateAside = list[tuple["SharedGate", OnceGate, int, int]]

_gates: weakref.WeakSet[SharedGate] = weakref.WeakSet()
_named: dict[tuple[str, int], SharedGate] = {}
_lock = threading.Lock()


class SharedGate:
    """A gate, and what all front ends of its name share."""

    def __init__(self, name: str | None, clock: Clock, rule: OnceRule) -> None:
        self.name = name
        self.clock = clock
        self.lock = threading.Lock()
        self.wakers: dict[int, Waker] = {}
        self.users = 0
        self.forked = False
        self.begin(rule)
        _gates.add(self)

    def begin(self, rule: OnceRule) -> None:
        """Without events, and as another gate than before."""
        self.core = OnceGate(rule)
        # Decisions go by the monotonic clock, and what is shown is Unix time: they differ by a constant.
        self.offset = self.clock.wall() - self.clock.now()
        self.began = self.now()

    def now(self) -> int:
        """In whole microseconds, as shared engines count: a float of seconds since 1970 can say that exactly."""
        return (self.clock.now() + self.offset) // 1000 * 1000

    def wake_all(self) -> None:
        """The clock has moved; called with the lock."""
        for key, waker in list(self.wakers.items()):
            if waker.alive():
                with suppress(RuntimeError):  # another thread has woken it just now
                    waker.wake()
            else:
                self.wakers.pop(key, None)

    def warn_forked(self) -> None:
        self.forked = False
        whose = "a gate" if self.name is None else f"gate {self.name!r}"
        warnings.warn(
            f"{whose} was forked: parent and child now have a gate each, so an event may pass both: "
            "share one (engine='embedded://DIR')",
            RuntimeWarning,
            stacklevel=outside(),
        )


class MemoryGate:
    """`base.Gate` in this process."""

    def __init__(self, shared: SharedGate) -> None:
        self._shared = shared
        self._closed = False

    def _enter(self) -> SharedGate:
        shared = self._shared
        if shared.forked:
            shared.warn_forked()
        return shared

    # -- commands ----------------------------------------------------------------------------------------

    def submit(self, event: str, id: str, value: str | None) -> Submission:
        shared = self._enter()
        with shared.lock:
            before = shared.core.clock
            try:
                return shared.core.submit(shared.now(), event, id, value)
            finally:
                if shared.core.clock != before:
                    shared.wake_all()

    def status(self, id: str) -> EventStatus | None:
        shared = self._enter()
        with shared.lock:
            self._advance(shared)
            return shared.core.status(shared.core.now, id)

    def changes(self, since: int) -> GateLog:
        shared = self._enter()
        with shared.lock:
            self._advance(shared)
            core = shared.core
            return GateLog(shared.began, core.clock, core.clock - len(core.log), core.changes(since))

    def snapshot(self) -> GateView:
        shared = self._enter()
        with shared.lock:
            self._advance(shared)
            return GateView(shared.began, shared.core.snapshot(shared.core.now))

    def _advance(self, shared: SharedGate) -> None:
        before = shared.core.clock
        shared.core.advance(shared.now())
        if shared.core.clock != before:
            shared.wake_all()

    # No command waits for anything, so a task runs the same.

    async def submit_async(self, event: str, id: str, value: str | None) -> Submission:
        return self.submit(event, id, value)

    async def status_async(self, id: str) -> EventStatus | None:
        return self.status(id)

    async def changes_async(self, since: int) -> GateLog:
        return self.changes(since)

    async def snapshot_async(self) -> GateView:
        return self.snapshot()

    # -- waiting -----------------------------------------------------------------------------------------

    def watch(self, waker: Waker) -> None:
        with self._shared.lock:
            self._shared.wakers[id(waker)] = waker

    def unwatch(self, waker: Waker) -> None:
        with self._shared.lock:
            self._shared.wakers.pop(id(waker), None)

    def news(self, since: int) -> GateLog | None:
        return self.changes(since)

    def next_look_ns(self) -> int | None:
        shared = self._shared
        with shared.lock:
            due = shared.core.next_due()
            return None if due is None else max(0, due - shared.now())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        shared = self._shared
        with _lock:
            shared.users -= 1
            if shared.users == 0 and shared.name is not None:
                _named.pop((shared.name, id(shared.clock)), None)


def open_gate(terms: GateTerms) -> MemoryGate:
    """The gate of a name on this clock, or a new one of its own. Of `max_pending` and `retention` the newest count."""
    with _lock:
        place = None if terms.name is None else (terms.name, id(terms.clock))
        shared = None if place is None else _named.get(place)
        if shared is None:
            shared = SharedGate(terms.name, terms.clock, terms.rule)
            if place is not None:
                _named[place] = shared
        else:
            with shared.lock:
                kept = shared.core.rule
                if (kept.duration, kept.strict) != (terms.rule.duration, terms.rule.strict):
                    raise LimitMismatch(terms.name, str(kept), str(terms.rule))
                shared.core.rule = terms.rule
        shared.users += 1
    return MemoryGate(shared)


def set_aside_gates() -> GateAside:
    """Let every gate on the system's clock begin anew, for a block in which that is another one; returns the old."""
    token: GateAside = []
    for shared in list(_gates):
        if shared.clock is SYSTEM:
            with shared.lock:
                token.append((shared, shared.core, shared.offset, shared.began))
    return token


def begin_gates_anew() -> None:
    """The system's clock is another one now."""
    for shared in list(_gates):
        if shared.clock is SYSTEM:
            with shared.lock:
                shared.begin(shared.core.rule)
                shared.wake_all()


def bring_back_gates(token: GateAside) -> None:
    """Put what `set_aside_gates` returned back in its place; what was made meanwhile begins anew."""
    begin_gates_anew()
    for shared, core, offset, began in token:
        with shared.lock:
            shared.core, shared.offset, shared.began = core, offset, began


def after_fork() -> None:
    """In a forked child: the lock and the waiters belong to threads that do not exist here."""
    global _lock
    _lock = threading.Lock()
    for shared in list(_gates):
        shared.lock = threading.Lock()
        shared.wakers.clear()
        shared.begin(shared.core.rule)
        shared.forked = True


on_fork(after_fork)
