"""Clocks that are as wrong as they may be, in exact arithmetic.

A clock of the lab is a step function of true time (integer nanoseconds). Its pulses are as wide as its tick, its rate
lies within its drift, and may change now and then, so between any two pulse starts it keeps the bound that the proof
assumes, exactly: rates are whole parts per billion, and what has passed on the clock is counted in billionths of a
nanosecond. Nothing is rounded but by the tick.

`Skewed` answers two questions: what does it show at a moment, and at which moment does it first show so much. It is not
a `headway.Clock`: it has no sleep. `LocalClock` is one, for limiters: the simulator sets what it shows.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from headway.clock import SECOND, Clock

if TYPE_CHECKING:
    import asyncio

    from headway.testing import ManualClock

BILLION = 10**9


class Skewed:
    """A clock that ticks in `tick` ns (0: it does not tick) and runs at `rates`, (from when, parts per billion).

    >>> slow = Skewed(tick=10, phase=0, rates=((0, 500_000_000),))    # half as fast as true time
    >>> [slow.reading(t) for t in (0, 19, 20, 41)]
    [0, 0, 10, 20]
    >>> slow.when(20), slow.when(21)
    (40, 60)
    """

    __slots__ = ("base", "den", "end", "rate", "segments", "start", "tick")

    def __init__(self, tick: int, phase: int, rates: tuple[tuple[int, int], ...]) -> None:
        self.tick = tick
        self.den = tick * BILLION
        # Each segment: from when, until when, and the line `base + rate * t` that counts what has passed.
        self.segments: list[tuple[int, int, int, int]] = []
        base, before = phase, 0
        for i, (start, rate) in enumerate(rates):
            base += start * (before - rate)
            end = rates[i + 1][0] if i + 1 < len(rates) else 1 << 200
            self.segments.append((start, end, base, rate))
            before = rate
        self.start, self.end, self.base, self.rate = self.segments[0]

    def _turn(self, t: int) -> None:
        found = next(segment for segment in self.segments if t < segment[1])
        self.start, self.end, self.base, self.rate = found

    def reading(self, t: int) -> int:
        """What it shows at the true time `t`; without ticks, in billionths of a nanosecond."""
        if not self.start <= t < self.end:
            self._turn(t)
        passed = self.base + self.rate * t
        return passed // self.den * self.tick if self.tick else passed

    def readings(self, times: list[int]) -> list[int]:
        """What it shows at each of these times, which are in order: one segment after the other, without a call each.

        >>> Skewed(tick=10, phase=0, rates=((0, 500_000_000), (20, 10**9))).readings([0, 19, 20, 41])
        [0, 0, 10, 30]
        """
        tick, den, shown, at = self.tick, self.den, [], 0
        for _, end, base, rate in self.segments:
            upto = bisect_left(times, end, at)
            if tick:
                shown += [(base + rate * t) // den * tick for t in times[at:upto]]
            else:
                shown += [base + rate * t for t in times[at:upto]]
            at = upto
        return shown

    def when(self, reading: int) -> int:
        """The first true time at which it shows `reading` or more."""
        passed = -(-reading // self.tick) * self.den
        t = -((self.base - passed) // self.rate)
        if self.start <= t < self.end:
            return t
        for start, end, base, rate in self.segments:
            t = max(start, -((base - passed) // rate))
            if t < end:
                return t
        raise AssertionError("the last segment has no end")


class LocalClock(Clock):
    """What a limiter in the lab reads: a number that the simulator sets."""

    def __init__(self, resolution_ns: int, drift_ppm: float) -> None:
        self.resolution = resolution_ns / SECOND
        self.drift_ppm = drift_ppm
        self.shown = 0

    def now(self) -> int:
        return self.shown


class TaskClock(Clock):
    """The same for limiters that wait in tasks: a skewed clock over the true time of a `ManualClock`.

    A sleep ends at the pulse that it waited for, or `nap_error(t)` ns earlier or later.
    """

    def __init__(self, true: ManualClock, skewed: Skewed, drift_ppm: float, naps: list[int]) -> None:
        self.resolution = skewed.tick / SECOND
        self.drift_ppm = drift_ppm
        self._true = true
        self._skewed = skewed
        self._naps = naps
        self._count = 0

    def now(self) -> int:
        return self._skewed.reading(self._true.now())

    async def sleep_async(self, seconds: float) -> None:
        await self._true.sleep_async(seconds)

    async def park_async(self, waker: asyncio.Future[None], until_ns: int | None) -> None:
        due = None
        if until_ns is not None:
            self._count += 1
            error = self._naps[self._count % len(self._naps)]
            # At least a nanosecond: after a sleep that does not move time the limiter would sleep again, for ever.
            due = max(self._true.now() + 1, self._skewed.when(until_ns) + error)
        await self._true.park_async(waker, due)
