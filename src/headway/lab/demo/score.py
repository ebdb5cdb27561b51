"""The figures of a crowd: how much got through, how long it waited, how near it came to what can be proved.

The ceiling: a permit is out while its call is (`latency`), and rests until the remote has certainly forgotten it
(`gap`), so n permits make at most n / (gap + latency) calls a second. The use of the ceiling is the share of the
permits' time in which they were out or resting.

The rate has to be counted in the same way. The naive rate, calls divided by seconds, exceeds the ceiling: the first n
calls go at once, and at the end of the run the last n have not rested yet. So a call counts as far as its latency and
its rest lie within the run. Then rate = use * ceiling, whenever one looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway import Remote, SystemClock
from headway.core.remote import gap_ns

if TYPE_CHECKING:
    from headway import Window
    from headway.lab.demo.crowd import Crowd, Visit


class Score:
    """What is shown of a crowd at one moment."""

    def __init__(self, crowd: Crowd, limit: Window) -> None:
        visits = crowd.visits
        clock = SystemClock()
        resolution_ns = math.ceil(clock.resolution * 1e9)
        self.name = crowd.name
        self.elapsed = crowd.elapsed
        self.in_flight = crowd.in_flight
        self.waiting = crowd.waiting
        self.report = crowd.report
        self.answered = sum(not visit.refused for visit in visits)
        self.refused = len(visits) - self.answered
        self.gap = gap_ns(limit.per_ns, limit.remote or Remote(), resolution_ns, clock.drift_ppm) / 1e9
        self.latency = sum(visit.done - visit.sent for visit in visits) / len(visits) if visits else 0.0
        self.ceiling = limit.count / (self.gap + self.latency)
        answered = [visit for visit in visits if not visit.refused]
        self.use = (
            busy(visits, self.gap, self.elapsed) / (limit.count * self.elapsed) if self.elapsed else 0.0
        )
        self.rate = rate(answered, self.elapsed, self.gap, self.latency)
        waits = sorted(visit.sent - visit.asked for visit in visits)
        self.wait_p50, self.wait_p99 = quantile(waits, 0.50), quantile(waits, 0.99)


def busy(visits: Sequence[Visit], gap: float, elapsed: float) -> float:
    """The seconds, of all permits together, in which they were out or resting."""
    return sum(min(elapsed, visit.done + gap) - visit.sent for visit in visits if visit.sent < elapsed)


def rate(visits: Sequence[Visit], elapsed: float, gap: float, latency: float) -> float:
    """Calls a second; a call whose permit still rests at the end counts in part.

    >>> from headway.lab.demo.crowd import Visit
    >>> rate([Visit(0, at, at, False) for at in (0, 0, 1, 1, 2, 2)], elapsed=2.5, gap=1.0, latency=0.0)
    2.0
    """
    return busy(visits, gap, elapsed) / (elapsed * (gap + latency)) if elapsed else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed.

    >>> quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.99), quantile([], 0.5)
    (2, 4, 0.0)
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
