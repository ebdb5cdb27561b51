"""A clock that a test moves.

`ManualClock` counts integer nanoseconds and stands still. `advance` moves it, and not in one leap: it goes from sleeper
to sleeper, in order of time, so that each wakes at its own nanosecond and can sleep again before the next one is due.

- *Threads*: after each thread that it wakes, `advance` waits (in real time) until all threads have come to rest by the
  rule in `crew.py`: asleep again, ended, or away from the clock for `grace`. Then it goes on.
- *Tasks* cannot run while `advance` holds their loop. They are called in order and run after it has returned, when the
  clock shows the end of the advance. `await clock.advance_async(...)` lets them run at each stop; a task that
  must see its own nanosecond wants that, or `headway.testing.run`.

With `autojump=True` no call of `advance` is needed: when every thread and task sleeps, the clock jumps to the next
alarm. For threads, `crew.py` decides whether all of them sleep; on a `VirtualLoop` that is exact; on an ordinary event
loop the clock checks between callbacks whether anything is ready (`idle.py`), and the loop's own timers and its
executor stay on real time. A thread that parks without an end waits for its bell and does not hold time back.

A parked thread's bell is the caller's lock. Blocking on it would hide the moment between the ring and the wake-up, in
which time must not jump. So a parked thread checks its bell at least every millisecond of real time, and only the clock
wakes it directly.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headway.clock import SECOND, Clock, wake
from headway.errors import InvalidArgument
from headway.testing.alarms import NEVER, Alarms, Seconds, to_ns
from headway.testing.crew import SLICE, Crew
from headway.testing.idle import Watch, let_others_run

if TYPE_CHECKING:
    from _thread import LockType

__all__ = ["ManualClock"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONDAY = datetime(2024, 1, 1, tzinfo=UTC)
_FIRST_LOOK = SLICE / 16


class ManualClock(Clock):
    """A clock for tests: it stands still, `advance` moves it, and sleepers wake exact to the nanosecond.

    `start` is what the clock shows first, in seconds. `wall` is the wall-clock time at that moment: seconds since the
    Unix epoch or an aware datetime, by default Monday, 1 January 2024, 00:00 UTC, where every calendar window begins.

    `time()` is in seconds, `now()` in the nanoseconds that every clock of headway counts.

    >>> clock = ManualClock()
    >>> clock.advance(0.1)
    >>> clock.time(), clock.now()
    (0.1, 100000000)
    >>> jumping = ManualClock(autojump=True)
    >>> jumping.sleep(3600)  # returns at once
    >>> jumping.time()
    3600.0
    """

    grace: float = 0.01
    """Real seconds that a thread may be away from the clock before a jump no longer waits for it."""

    def __init__(
        self,
        start: Seconds = 0,
        *,
        wall: float | datetime = _MONDAY,
        autojump: bool = False,
        resolution: float = 1e-9,
        drift_ppm: float = 0.0,
    ) -> None:
        for name, value in (("resolution", resolution), ("drift_ppm", drift_ppm)):
            if not 0 <= value < math.inf:
                raise InvalidArgument(name, value, "a number from 0 up")
        self.resolution = resolution
        self.drift_ppm = drift_ppm
        self.autojump = autojump
        self._now = to_ns(start, "start")
        if not -NEVER < self._now < NEVER:
            raise InvalidArgument("start", start, "less than 146 years")
        self._wall_minus_now = _wall_ns(wall) - self._now
        # Re-entrant, because a destructor that cancels a wait may run anywhere, also inside this lock.
        self._lock = threading.RLock()
        self._turn = threading.RLock()
        self._alarms = Alarms()
        self._crew = Crew()
        self._watches: dict[asyncio.AbstractEventLoop, Watch] = {}

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now / SECOND:.9g} s, sleepers: {self.sleepers}>"

    @property
    def sleepers(self) -> int:
        """How many threads, tasks and timers wait for a time of this clock."""
        with self._lock:
            return len(self._alarms)

    def now(self) -> int:
        """Nanoseconds: what limiters read."""
        return self._now

    def time(self) -> float:
        """The same in seconds, as a test writes them; like `time()` of an event loop.

        >>> clock = ManualClock(start=10)
        >>> clock.advance(0.25)
        >>> clock.time()
        10.25
        """
        return self._now / SECOND

    def wall(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return self._now + self._wall_minus_now

    # Moving time.

    def advance(self, seconds: Seconds) -> None:
        """Let so much time pass, and wake every sleeper that becomes due, in order of time."""
        self.advance_ns(to_ns(seconds))

    def advance_ns(self, ns: int) -> None:
        """The same, in nanoseconds; time never goes backward."""
        with self._turn:
            target = self._target(ns)
            while (woke_thread := self._step_towards(target)) is not None:
                if woke_thread:
                    self.settle()

    async def advance_async(self, seconds: Seconds) -> None:
        """The same from inside a task: the loop's other tasks run at each stop, at their own time."""
        target = self._target(to_ns(seconds))
        await let_others_run()
        while (woke_thread := self._step_towards(target)) is not None:
            if woke_thread:
                self.settle()
            await let_others_run()
        await let_others_run()

    def settle(self) -> None:
        """Wait, in real time, until all other threads sleep on this clock, have ended, or do not use it.

        For a test that starts threads and wants them asleep before it calls `advance`.
        """
        while wait := self._obstacle():
            time.sleep(wait)

    def _obstacle(self) -> float:
        with self._lock:
            return self._crew.obstacle(self.grace, patient=False)

    def _target(self, ns: int) -> int:
        target = self._now + ns
        if ns < 0 or target >= NEVER:
            raise InvalidArgument("advance", ns / SECOND, "seconds from 0 up, less than 146 years")
        return target

    def _step_towards(self, target: int) -> bool | None:
        """Go to the next alarm and say whether a thread was woken; None: there was none, `target` is reached."""
        with self._lock:
            due = self._alarms.head()
            if due is not None and due <= target:
                return self._step()
            self._now = max(self._now, target)
            return None

    def _step(self) -> bool:
        """Go to the next alarm; whether it woke a thread. Under the lock."""
        alarms = self._alarms.pop()
        self._now = max(self._now, alarms[0].due)
        self._crew.stir()
        for alarm in alarms:
            alarm.wake()
        return alarms[0].is_thread

    def _try_jump(self) -> float | None:
        """Jump to the next alarm if no thread is awake.

        0: jumped. A number: a thread is awake, try again after so many real seconds. None: there is no alarm.
        """
        with self._lock:
            if wait := self._crew.obstacle(self.grace):
                return wait
            if self._alarms.head() is None:
                return None
            self._step()
            return 0.0

    # Sleeping.

    def sleep(self, seconds: Seconds) -> None:
        """Block this thread until exactly so much time has passed on this clock."""
        self._wait(None, self._now + to_ns(seconds))

    async def sleep_async(self, seconds: Seconds) -> None:
        """Suspend this task until exactly so much time has passed on this clock."""
        await self.park_async(asyncio.get_running_loop().create_future(), self._now + to_ns(seconds))

    def park(self, waker: LockType, until_ns: int | None) -> None:
        self._wait(waker, until_ns)

    async def park_async(self, waker: asyncio.Future[None], until_ns: int | None) -> None:
        if until_ns is None:
            await waker
            return
        with self._lock:
            late = until_ns <= self._now
            alarm = None if late else self._alarms.add(until_ns, lambda: _ring_anywhere(waker))
        if alarm is None:
            wake(waker)
            await asyncio.sleep(0)
            return
        watch = self._watch(waker.get_loop())
        try:
            await waker
        finally:
            with self._lock:
                self._alarms.cancel(alarm)
            if watch is not None:
                watch.leave()

    def _wait(self, waker: LockType | None, until_ns: int | None) -> None:
        nudge = threading.Lock()
        nudge.acquire()
        with self._lock:
            due = NEVER if until_ns is None else until_ns
            if due <= self._now or (waker is not None and waker.acquire(blocking=False)):
                return
            alarm = self._alarms.add(due, nudge.release, is_thread=True)
            self._crew.lie_down(lambda: alarm.rung or (waker is not None and not waker.locked()))
        look = _FIRST_LOOK
        try:
            while not alarm.rung and (waker is None or waker.locked()):
                wait = self._try_jump() if self.autojump else None
                if wait != 0:
                    nudge.acquire(timeout=look if wait is None else min(look, wait))
                    look = min(look * 2, SLICE)
        finally:
            with self._lock:
                self._alarms.cancel(alarm)
                # Taken only now: a thread that held its own bell and was not yet up would look like a sleeper.
                if waker is not None:
                    waker.acquire(blocking=False)
                self._crew.get_up()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> Watch | None:
        """The watch that notices when an ordinary loop is idle; a `VirtualLoop` on this clock needs none."""
        if not self.autojump or getattr(loop, "clock", None) is self:
            return None
        for closed in [other for other in self._watches if other.is_closed()]:
            del self._watches[closed]
        watch = self._watches.setdefault(loop, Watch(self._try_jump, loop))
        watch.join()
        return watch


def _ring_anywhere(waker: asyncio.Future[None]) -> None:
    """Ring from the loop's own thread or from another one; nothing happens if the loop is closed."""
    loop = waker.get_loop()
    if asyncio._get_running_loop() is loop:
        wake(waker)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(wake, waker)


def _wall_ns(wall: float | datetime) -> int:
    if not isinstance(wall, datetime):
        return to_ns(wall, "wall")
    if wall.tzinfo is None:
        raise InvalidArgument("wall", wall, "seconds since the epoch, or a datetime with a time zone")
    return to_ns(wall - _EPOCH)
