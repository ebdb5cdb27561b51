"""What `Adaptive` is compared with, written from public descriptions: AWS's adaptive mode, and AIMD.

Both get a client's best conditions: calls are paced evenly at the rate, and the demand never ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headway.core.adaptive import SECOND, AdaptiveRate


class Controller(Protocol):
    """A client's rate, and what it is told."""

    @property
    def value(self) -> float:
        """Calls per second, now."""

    def sent(self, now: int) -> None: ...
    def ended(self, took: int) -> None: ...
    def accepted(self, now: int) -> None: ...
    def refused(self, now: int) -> None: ...


class AwsAdaptive:
    """The client-side rate of AWS's adaptive retry mode (CUBIC), as its SDKs document it.

    A refusal sets the rate to 0.7 of what was measured, or of the rate if that is less; a success sets it to the cubic
    curve through the rate of the last refusal, at most to twice what is measured. Sent calls are measured in buckets
    of half a second, smoothed by 0.8. The rate is never below 0.5/s. Every refused answer counts by itself. It is off
    until the first refusal; `start` is the rate that the client has by itself until then.

    >>> aws = AwsAdaptive(start=10.0)
    >>> for half in range(1, 9):
    ...     for _ in range(5):
    ...         aws.sent(half * SECOND // 2)
    >>> aws.refused(4 * SECOND)
    >>> round(aws.value, 1)
    7.0
    """

    BETA = 0.7
    SCALE = 0.4
    SMOOTH = 0.8
    LEAST = 0.5

    def __init__(self, start: float) -> None:
        self.start = start
        self.enabled = False
        self.fill = start
        self.last_max = 0.0
        self.throttled = 0.0
        self.window = 0.0
        self.measured = 0.0
        self.bucket: float | None = None
        self.count = 0

    @property
    def value(self) -> float:
        return self.fill

    def sent(self, now: int) -> None:
        bucket = now * 2 // SECOND / 2
        self.count += 1
        if self.bucket is None:
            self.bucket = bucket
        elif bucket > self.bucket:
            rate = self.count / (bucket - self.bucket)
            self.measured = rate * self.SMOOTH + self.measured * (1 - self.SMOOTH)
            self.count = 0
            self.bucket = bucket

    def ended(self, took: int) -> None:
        """It does not look at latency."""

    def accepted(self, now: int) -> None:
        if self.enabled:
            since = now / SECOND - self.throttled
            self._set(self.SCALE * (since - self.window) ** 3 + self.last_max)
        else:
            # Off: nothing holds the client back. It is let double each second, as it would otherwise flood at once.
            self.fill = min(2 * max(self.measured, self.start), 1e5)

    def refused(self, now: int) -> None:
        rate = min(self.measured, self.fill) if self.enabled else self.measured
        self.last_max = rate
        self.window = (self.last_max * (1 - self.BETA) / self.SCALE) ** (1 / 3)
        self.throttled = now / SECOND
        self.enabled = True
        self._set(rate * self.BETA)

    def _set(self, rate: float) -> None:
        self.fill = max(min(rate, 2 * self.measured), self.LEAST)


class Aimd:
    """Additive increase, multiplicative decrease: one call per second more each second; half on a refusal.

    Refusals within a second of the last step are of the same event.

    >>> aimd = Aimd(start=10.0)
    >>> aimd.refused(0); aimd.refused(1000)
    >>> aimd.value
    5.0
    """

    def __init__(self, start: float, step: float = 1.0) -> None:
        self.value = start
        self.step = step
        self.seen: int | None = None
        self.stepped: int | None = None

    def sent(self, now: int) -> None:
        """Only answers count."""

    def ended(self, took: int) -> None:
        """It does not look at latency."""

    def accepted(self, now: int) -> None:
        if self.seen is not None:
            self.value += self.step * min(1.0, (now - self.seen) / SECOND)
        self.seen = now

    def refused(self, now: int) -> None:
        self.seen = now
        if self.stepped is None or now - self.stepped >= SECOND:
            self.stepped = now
            self.value = max(0.5, self.value / 2)


def headway_rate(start: float) -> AdaptiveRate:
    """What `headway.Adaptive` does; its bounds are far away."""
    return AdaptiveRate(start, 0.5, 10_000.0)


CONTENDERS: dict[str, Callable[[float], Controller]] = {
    "headway": headway_rate,
    "AWS": AwsAdaptive,
    "AIMD": Aimd,
}
