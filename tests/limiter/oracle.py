"""What should happen, worked out by a simpler program: one queue, one list of numbers, no clock, no tasks.

A `Waiter` comes at a time with a cost and may lose patience; `serve` says which waiters are served and when,
strictly first come first served. Each kind of limit is one class with two methods: the earliest moment at which a cost
can be had, and taking it. Everything is known beforehand (also when permits will be handed back), so nothing here has
to wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

SECOND = 10**9


@dataclass
class Waiter:
    comes: int
    cost: int
    gives_up: int | None = None
    """When it is cancelled, or its time-out ends."""
    keeps: int = 0
    """How long a held permit stays out."""


class Bucket:
    def __init__(self, count, burst):
        self.interval = Fraction(SECOND, count)
        self.burst = burst
        self.full_at = Fraction(-(10**18))

    def earliest(self, now, cost):
        due = self.full_at + (cost - self.burst) * self.interval
        return max(now, math.ceil(due))

    def take(self, at, waiter):
        # The first nanosecond after a fraction of one is on time.
        base = self.full_at if math.ceil(self.full_at) >= at else at
        self.full_at = base + waiter.cost * self.interval


class Window:
    """`usable`: for each permit, when it can be had again."""

    def __init__(self, count, per_ns):
        self.per = per_ns
        self.usable = [-(10**18)] * count

    def earliest(self, now, cost):
        return max(now, sorted(self.usable)[cost - 1])

    def take(self, at, waiter):
        self.usable.sort()
        self.usable[: waiter.cost] = [self.back(at, waiter)] * waiter.cost

    def back(self, at, waiter):
        return at + self.per


class RemoteWindow(Window):
    def __init__(self, count, gap_ns, transit_ns):
        super().__init__(count, gap_ns)
        self.transit = transit_ns

    def back(self, at, waiter):
        return at + min(waiter.keeps, self.transit) + self.per


class Concurrency(Window):
    def __init__(self, count):
        super().__init__(count, 0)

    def back(self, at, waiter):
        return at + waiter.keeps


class Spacing(Window):
    def __init__(self, interval_ns):
        super().__init__(1, interval_ns)


class FixedWindow:
    def __init__(self, count, per_ns):
        self.count, self.per = count, per_ns
        self.used = {}

    def earliest(self, now, cost):
        window = now // self.per
        while self.used.get(window, 0) + cost > self.count:
            window += 1
        return max(now, window * self.per)

    def take(self, at, waiter):
        window = at // self.per
        self.used[window] = self.used.get(window, 0) + waiter.cost


class AllOf:
    def __init__(self, *limits):
        self.limits = limits

    def earliest(self, now, cost):
        while True:
            later = max(limit.earliest(now, cost) for limit in self.limits)
            if later == now:
                return now
            now = later

    def take(self, at, waiter):
        for limit in self.limits:
            limit.take(at, waiter)


def serve(limit, waiters):
    """When each waiter is served, by its index. A waiter that gives up before its turn is not in it."""
    served = {}
    now = 0
    for index, waiter in sorted(enumerate(waiters), key=lambda item: item[1].comes):
        at = limit.earliest(max(now, waiter.comes), waiter.cost)
        if waiter.gives_up is not None and waiter.gives_up < at:
            # It blocked those behind it until then, and not a moment longer.
            now = max(now, waiter.gives_up)
        else:
            limit.take(at, waiter)
            served[index] = now = at
    return served
