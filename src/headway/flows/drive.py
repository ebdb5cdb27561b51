"""How it is done: two small loops that run a flow, one for threads and one for tasks.

Both do the same: hand each effect of the flow to the engine or to the clock, until there are no more. Whatever ends
the flow before its ticket is granted (an error, a cancellation, Ctrl-C) takes the ticket out of the line.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headway.clock import wake
from headway.diagnostics import warn_blocking
from headway.errors import UnsupportedAsync
from headway.flows.local import Decide, Flow, Park

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has it from drive.pxd, as a C function.
    def in_context() -> bool:
        return True


if TYPE_CHECKING:
    import asyncio

    from headway.core.wait_queue import Ticket
    from headway.engines.memory.store import MemoryStore


_find_loop: Any = None


class ThreadWaker:
    """Wakes a thread: a lock that is released to ring."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.lock.acquire()

    def wake(self) -> None:
        if self.lock.locked():
            self.lock.release()

    def alive(self) -> bool:
        return True

    def rearm(self) -> None:
        self.lock.acquire(blocking=False)


class TaskWaker:
    """Wakes a task, from its own loop or from any other thread: a future that gets a result."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        if running_loop() is self.loop:
            wake(self.future)
        else:
            # A loop that was closed has no task left to wake.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(wake, self.future)

    def alive(self) -> bool:
        return not self.loop.is_closed()

    def rearm(self) -> None:
        if self.future.done():
            self.future = self.loop.create_future()


def running_loop() -> Any:
    """The event loop that runs in this thread, or None; asyncio is not imported for it."""
    global _find_loop
    if _find_loop is None:
        # Half imported, by another thread, asyncio lacks the function; then no loop runs here either.
        _find_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
        if _find_loop is None:
            return None
    return _find_loop()


def need_loop() -> asyncio.AbstractEventLoop:
    """The running asyncio loop, or an error that says what runs instead."""
    loop = running_loop()
    if loop is None:
        raise UnsupportedAsync("trio" if "trio" in sys.modules else None)
    return loop  # type: ignore[no-any-return]


def run(flow: Flow, store: MemoryStore, ticket: Ticket) -> None:
    """Run a flow in this thread."""
    try:
        ticket.waker = waker = ThreadWaker()
        if in_context() and running_loop() is not None:
            warn_blocking(store)
        for effect in flow:
            if type(effect) is Decide:
                store.decide(ticket, True)
            else:
                park: Park = effect  # type: ignore[assignment]
                # The bell is not rearmed: a ring that comes after the sleep cuts the next one short, no more.
                store.clock.park(waker.lock, park.until)
                park.woke = store.clock.now()
    except BaseException:
        # Ctrl-C may come even after the grant: what was taken and cannot be handed over goes back.
        store.withdraw(ticket)
        raise


async def run_async(flow: Flow, store: MemoryStore, ticket: Ticket) -> None:
    """Run a flow in this task."""
    try:
        ticket.waker = waker = TaskWaker(need_loop())
        for effect in flow:
            if type(effect) is Decide:
                store.decide(ticket, True)
            else:
                park: Park = effect  # type: ignore[assignment]
                await store.clock.park_async(waker.future, park.until)
                waker.rearm()
                park.woke = store.clock.now()
    except BaseException:
        # Ctrl-C may come even after the grant: what was taken and cannot be handed over goes back.
        store.withdraw(ticket)
        raise
