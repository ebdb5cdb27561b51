"""The counts of one limit, which every decision adds to: plain numbers of the event loop's thread.

They are collected when they are asked for (`headway.service.metrics`).
"""

from __future__ import annotations

from bisect import bisect_left

from headway.integrations.metric_names import BUCKETS

# A C number where this file is compiled: nearly every decision is within the first bucket.
_FIRST = BUCKETS[0]


class LimitFigures:
    """Permits granted, requests denied by why, and how long decisions took.

    >>> figures = LimitFigures()
    >>> figures.observe(0.0001)
    >>> figures.observe(100.0)
    >>> figures.within[0], figures.within[-1]
    (1, 1)
    """

    __slots__ = ("denied", "granted", "seconds", "shadow_denied", "within")

    def __init__(self) -> None:
        self.granted = 0
        self.shadow_denied = 0
        self.denied: dict[str, int] = {}
        self.seconds = 0.0
        # How many took up to each of BUCKETS, and longer than the last, and not up to the one before.
        self.within = [0] * (len(BUCKETS) + 1)

    def observe(self, seconds: float) -> None:
        """A decision took so long."""
        self.seconds += seconds
        self.within[0 if seconds <= _FIRST else bisect_left(BUCKETS, seconds)] += 1

    def grant(self, seconds: float) -> None:
        """A permit was granted."""
        self.granted += 1
        self.observe(seconds)

    def deny(self, reason: str, seconds: float, shadow: bool) -> None:
        """A request was denied, or would have been by a limit that is a shadow."""
        if shadow:
            self.shadow_denied += 1
        else:
            self.denied[reason] = self.denied.get(reason, 0) + 1
        self.observe(seconds)
