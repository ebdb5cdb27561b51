"""The alarms of a clock: a heap of integer nanoseconds.

An event loop keeps its timers as floats of seconds, and that is enough for a network. It is not enough to test that a
promised wait is exact: at 1.1 + 2.2 seconds a float is already 4e-16 off, and after a few months of virtual time it
can no longer tell neighbouring nanoseconds apart. So all sleepers of a `ManualClock`, threads, tasks and the timers of
a `VirtualLoop` alike, stand in this one heap, ordered by (due, order of arrival): equal times wake first come first
served, on every run the same.

Threads are woken one at a time, even when several are due at once: the next one when the one before is at rest again.
Tasks of a loop cannot run at the same time anyway, so all that are due are woken together, and their loop runs them in
this order.

A cancelled alarm is marked and skipped (removing it from the middle of a heap costs a search). Marked ones at the head
go at once, the others when they are the majority, so a million time-outs that never happened leave nothing behind.
"""

from __future__ import annotations

import heapq
import itertools
import math
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from headway.clock import SECOND
from headway.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

Seconds: TypeAlias = float | timedelta
"""A duration at the public edge: seconds as an int or a float, or a timedelta."""

NEVER = 2**62
"""Due times from here on (146 years) never come; the compiled core counts in C int64."""


def to_ns(seconds: Seconds, argument: str = "seconds") -> int:
    """Nanoseconds, rounded up; what is whole but for a float's own error counts as whole.

    >>> to_ns(1.1 + 2.2), to_ns(1e-12), to_ns(timedelta(microseconds=1))
    (3300000000, 1, 1000)
    """
    if isinstance(seconds, timedelta):
        return (seconds.days * 86_400 + seconds.seconds) * SECOND + seconds.microseconds * 1000
    if isinstance(seconds, int):
        return seconds * SECOND
    if math.isnan(seconds):
        raise InvalidArgument(argument, seconds, "a number of seconds, or a timedelta")
    if math.isinf(seconds):
        return NEVER if seconds > 0 else -NEVER
    numerator, denominator = seconds.as_integer_ratio()
    whole = (2 * numerator * SECOND + denominator) // (2 * denominator)
    above = (numerator * SECOND - whole * denominator) / denominator
    return whole + (above > 2 * math.ulp(seconds) * SECOND)


class Alarm:
    """One sleeper: `wake` is called once, when the clock has reached `due`, unless it was cancelled before."""

    __slots__ = ("due", "is_thread", "over", "rung", "wake")

    def __init__(self, due: int, wake: Callable[[], None], is_thread: bool) -> None:
        self.due = due
        self.wake = wake
        self.is_thread = is_thread
        self.rung = False
        self.over = False  # rung or cancelled: no longer counted


class Alarms:
    """The heap. It has no lock: its owner has one."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._arrivals = itertools.count()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, due: int, wake: Callable[[], None], *, is_thread: bool = False) -> Alarm:
        alarm = Alarm(due, wake, is_thread)
        if due < NEVER:
            heapq.heappush(self._heap, (due, next(self._arrivals), alarm))
        else:
            alarm.over = True
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Remove an alarm; nothing happens if it rang or was cancelled before."""
        if alarm.over:
            return
        alarm.over = True
        self._cancelled += 1
        if self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if not entry[2].over]
            heapq.heapify(self._heap)
            self._cancelled = 0
        else:
            self._clear_head()

    def head(self) -> int | None:
        """When the next alarm is due."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> list[Alarm]:
        """Remove the alarms to ring next, all due at one time: that of one thread, or those of all tasks."""
        due = self._heap[0][0]
        popped: list[Alarm] = []
        while self._heap and self._heap[0][0] == due:
            is_thread = self._heap[0][2].is_thread
            if popped and (is_thread or popped[0].is_thread):
                break
            alarm = heapq.heappop(self._heap)[2]
            alarm.over = alarm.rung = True
            popped.append(alarm)
            self._clear_head()
        return popped

    def _clear_head(self) -> None:
        while self._heap and self._heap[0][2].over:
            heapq.heappop(self._heap)
            self._cancelled -= 1
