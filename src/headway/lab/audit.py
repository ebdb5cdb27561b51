"""What the remote saw: every window, wherever it starts, by its own clock.

A window that holds too many events can be moved until it begins with one of them. So with the readings in order it is
enough to look at each event and the n-th after it: if the two are at most w apart, n + 1 events share a closed window.
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
    """How often the limit was broken, the fullest window, and how close it came.

    `violations` counts the events that were one too many; `worst` is the largest count in any window, `start` where
    it begins in `readings`; `margin` how much closer (in ns) n + 1 events would have had to be.
    """

    violations: int
    worst: int
    start: int
    margin: int | None
    readings: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in a world; `share` (of the ceiling) means something where nothing goes wrong on purpose.

    `elapsed` is true time in ns; the `log`, where asked for, has (granted, noted or None, ended, how) of each request.
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
    clock, n = world.remote_clock(), world.n
    unit = 1 if world.rr else BILLION
    span = world.per * unit
    read = clock.reading
    readings = [read(t) for t in sorted(arrivals)]
    if world.cost > 1:
        readings = [reading for reading in readings for _ in range(world.cost)]
    apart = list(map(sub, readings[n:], readings))
    if not apart:
        return Verdict(0, len(readings), 0, None, tuple(readings))
    margin = min(apart) - span
    if margin > 0:
        return Verdict(0, 0, 0, margin // unit, tuple(readings))
    worst, start = fullest(readings, span)
    return Verdict(sum(gap <= span for gap in apart), worst, start, margin // unit, tuple(readings))


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
