"""Where time comes from.

Everything in headway counts integer nanoseconds and gets them from a clock that is passed in. Three things make
a clock more than a function that returns a number:

*It knows its own faults.* ``resolution`` is the width of its pulse in seconds, ``drift_ppm`` bounds how far its
second may be from a true one. Both widen the gap of a `Window` with a `Remote`, and nothing else.

*It sleeps.* A wait belongs to the clock that measured it: a test that replaces the clock replaces the sleeping
too. Sleeps end early (event loops round their timers) and late (schedulers are busy), so no sleep is trusted:
after every sleep the clock is read again.

*A sleep can be ended.* A waiter may be woken before its time, because a waiter ahead of it gave up. So it does not
call `sleep` but `park`: sleep until a time of this clock, or until the waker is called. A thread's waker is a lock that
is released to wake it, a task's waker is a future that gets a result.
"""

from __future__ import annotations

import time
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from headway.errors import InvalidArgument

try:
    import cython
except ImportError:
    from headway import _cython as cython

if cython.compiled:
    from cython.cimports.posix.time import CLOCK_MONOTONIC, clock_gettime

if TYPE_CHECKING:
    import asyncio
    from _thread import LockType

compiled: bool = cython.compiled
"""Whether this process runs the compiled form of headway."""

SECOND = 1_000_000_000
LONGEST_SLEEP = 86_400.0
SLICE = 0.01


class Clock:
    """What headway asks of a clock; subclass it, or pass any object with the same five members.

    >>> from headway.testing import ManualClock
    >>> clock = ManualClock()
    >>> start = clock.now()
    >>> clock.advance(1.5)
    >>> clock.now() - start
    1500000000
    """

    resolution: float = 1e-9
    drift_ppm: float = 250.0

    def now(self) -> int:
        """Monotonic nanoseconds since some fixed moment."""
        raise NotImplementedError

    def wall(self) -> int:
        """Nanoseconds since the Unix epoch; asked for by `FixedWindow` only."""
        return self.now()

    def sleep(self, seconds: float) -> None:
        """Block this thread for about so long."""
        raise NotImplementedError

    async def sleep_async(self, seconds: float) -> None:
        """Suspend this task for about so long."""
        raise NotImplementedError

    def park(self, waker: LockType, until_ns: int | None) -> None:
        """Sleep until `until_ns` (None: no end) or until `waker` is released, whichever comes first.

        A clock that can only sleep is asked for short naps, between which the waker is looked at.
        """
        while not waker.acquire(blocking=False):
            left = SLICE if until_ns is None else min(SLICE, (until_ns - self.now()) / SECOND)
            if left <= 0:
                return
            self.sleep(left)

    async def park_async(self, waker: asyncio.Future[None], until_ns: int | None) -> None:
        """The same for a task: until `until_ns` or until `bell` has a result."""
        import asyncio

        if until_ns is None:
            await waker
            return
        nap = asyncio.ensure_future(self.sleep_async(max(0.0, (until_ns - self.now()) / SECOND)))
        try:
            await asyncio.wait((waker, nap), return_when=asyncio.FIRST_COMPLETED)
        finally:
            nap.cancel()


class SystemClock(Clock):
    """The machine's monotonic clock; a `headway.testing.virtual_time` block puts another one in its place.

    >>> SystemClock().resolution <= 0.016
    True
    """

    resolution = time.get_clock_info("monotonic").resolution
    drift_ppm = 250.0

    def now(self) -> int:
        if substitute is not None:
            return substitute.now()
        return monotonic()

    def wall(self) -> int:
        return time.time_ns() if substitute is None else substitute.wall()

    def sleep(self, seconds: float) -> None:
        if substitute is not None:
            substitute.sleep(seconds)
        else:
            time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        import asyncio

        if substitute is not None:
            await substitute.sleep_async(seconds)
        else:
            await asyncio.sleep(seconds)

    def park(self, waker: LockType, until_ns: int | None) -> None:
        if substitute is not None:
            substitute.park(waker, until_ns)
        elif until_ns is None:
            waker.acquire()
        else:
            until = until_ns
            left = (until - monotonic()) / 1e9
            if left > 0:
                waker.acquire(True, min(left, LONGEST_SLEEP))

    async def park_async(self, waker: asyncio.Future[None], until_ns: int | None) -> None:
        if substitute is not None:
            await substitute.park_async(waker, until_ns)
            return
        timer = None
        if until_ns is not None:
            left = (until_ns - monotonic()) / SECOND
            timer = waker.get_loop().call_later(min(max(left, 0.0), LONGEST_SLEEP), wake, waker)
        try:
            await waker
        finally:
            if timer is not None:
                timer.cancel()


class BorrowedClock(Clock):
    """A user's own clock object behind our interface."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.resolution = source.resolution
        self.drift_ppm = source.drift_ppm

    def now(self) -> int:
        now: int = self._source.now()
        return now

    def wall(self) -> int:
        wall = getattr(self._source, "wall", self._source.now)
        now: int = wall()
        return now

    def sleep(self, seconds: float) -> None:
        self._source.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        await self._source.sleep_async(seconds)


substitute: Clock | None = None
SYSTEM = SystemClock()


def monotonic() -> int:
    """The system's monotonic clock, read without a Python call where this file is compiled."""
    if cython.compiled:
        clock_gettime(CLOCK_MONOTONIC, cython.address(moment))  # type: ignore[name-defined]  # noqa: F821
        return moment.tv_sec * 1_000_000_000 + moment.tv_nsec  # type: ignore[name-defined, no-any-return]  # noqa: F821
    return monotonic_ns()


def wake(waker: asyncio.Future[None]) -> None:
    if not waker.done():
        waker.set_result(None)


def substitute_system_clock(clock: Clock | None) -> Clock | None:
    """Let `clock` answer for the system's clock, or give it back with None; returns what answered before."""
    global substitute
    before = substitute
    substitute = clock
    if not cython.compiled:
        # Interpreted, a method around the system's function would cost as much as the function.
        SystemClock.now = staticmethod(monotonic_ns if clock is None else clock.now)  # type: ignore[method-assign, assignment]
    return before


def as_clock(clock: Any) -> Clock:
    """The system clock for None, a `Clock` as it is, and anything that looks like one behind an adapter."""
    if clock is None:
        return SYSTEM
    if isinstance(clock, Clock):
        return clock
    missing = [
        name
        for name in ("now", "resolution", "drift_ppm", "sleep", "sleep_async")
        if not hasattr(clock, name)
    ]
    if missing:
        raise InvalidArgument("clock", clock, f"a clock with {', '.join(missing)}; see headway.Clock")
    return BorrowedClock(clock)


substitute_system_clock(None)
