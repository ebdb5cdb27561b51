"""What the remote saw: every window, wherever it starts, by its own clock.

A window that holds too many events can be moved until it begins with one of them. So with the readings in order it is
enough to look at each event and the n-th after it: if the two are at most w apart, n + 1 events share a closed window.
A request of weight c is c events at once, so of these n // c fit, and that is how far apart two are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import sub
from typing import TYPE_CHECKING

from headway.lab.clocks import BILLION

if TYPE_CHECKING:
    from headway.lab.worlds import World


@dataclass(frozen=True, slots=True)
class Verdict:
    """How often the limit was broken, the fullest window, and how narrow the margin was.

    `violations` counts the requests that were one too many. `worst` is the largest count of events in any window, and
    `start` the index of its first reading in `readings`, which has one for each request. `margin` is how many ns closer
    two requests would have had to be for a violation.
    """

    violations: int
    worst: int
    start: int
    margin: int | None
    readings: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in a world; `share` (of the ceiling) is meaningful only in a world without faults.

    `elapsed` is true time in ns. The `log`, if it was asked for, has (granted, noted or None, ended, how) of each
    request.
    """

    world: World
    events: int
    verdict: Verdict
    share: float
    elapsed: int
    log: list[tuple[int, int | None, int, str]] | None


def audit(world: World, arrivals: list[int]) -> Verdict:
    """Look at every window in which these arrivals (true times) may have been counted.

    >>> from headway.lab.worlds import World
    >>> world = World(seed=0, n=2, per=100, rr=10)
    >>> audit(world, [0, 50, 109]).violations, audit(world, [0, 50, 110]).violations, audit(world, [0, 50, 119]).margin
    (1, 0, 10)
    """
    unit = 1 if world.rr else BILLION
    span = world.per * unit
    readings = world.remote_clock().readings(sorted(arrivals))
    apart = list(map(sub, readings[world.n // world.cost :], readings))
    if not apart:
        return Verdict(0, len(readings) * world.cost, 0, None, tuple(readings))
    margin = min(apart) - span
    if margin > 0:
        return Verdict(0, 0, 0, margin // unit, tuple(readings))
    worst, start = fullest(readings, span)
    too_many = sum(gap <= span for gap in apart)
    return Verdict(too_many, worst * world.cost, start, margin // unit, tuple(readings))


def fullest(readings: list[int], span: int) -> tuple[int, int]:
    """The largest number of readings in a closed window of `span`, and the place of the first of them.

    >>> fullest([0, 5, 6, 7, 20], 2)
    (3, 1)
    """
    worst, start, first = 0, 0, 0
    for last, reading in enumerate(readings):
        while reading - readings[first] > span:
            first += 1
        if last - first + 1 > worst:
            worst, start = last - first + 1, first
    return worst, start
