"""What a limiter says of itself: `Status` to look at, `Denied` for who got nothing, `LimiterStats` for who counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.core.ledger import FOREVER
from headway.core.limits import Limit
from headway.errors import seconds_text

SECOND = 1_000_000_000

Survey = list[tuple[Any, int, int, int, int, int, bool]]


def seconds(ns: int) -> float:
    """Nanoseconds as seconds; `inf` where nobody knows.

    >>> seconds(1_500_000_000), seconds(FOREVER)
    (1.5, inf)
    """
    return math.inf if ns >= FOREVER else ns / SECOND


@dataclass(frozen=True, slots=True)
class Status:
    """How a limit stands for a key, at one moment; of several limits, the one that binds.

    `retry_after` is 0 when the request would be granted now, and a lower bound when `exact` is False: permits
    are out, and nobody knows when they come back. `in_doubt` is above 0 where a shared ledger was lost and
    `max_quarantine` cut its quarantine short: for so many seconds a window may see more than the limit.

    >>> from headway import Limiter
    >>> status = Limiter("2/minute").peek()
    >>> status.remaining, status.retry_after, status.exact
    (2, 0.0, True)
    >>> status.headers()["X-RateLimit-Limit"]
    '2'
    """

    limit: Limit
    remaining: int
    retry_after: float
    reset_after: float
    waiting: int
    in_flight: int
    exact: bool
    parts: tuple[Status, ...] = field(default=(), compare=False)
    in_doubt: float = field(default=0.0, compare=False)

    def headers(self) -> dict[str, str]:
        """The same as HTTP headers: the IETF draft's, the older trio, and `Retry-After` for a denial."""
        reset = "0" if self.reset_after == 0 else str(math.ceil(min(self.reset_after, 1e9)))
        parts = self.parts or (self,)
        policies = ", ".join(f'"{part.limit.kind}-{i}";{_policy(part.limit)}' for i, part in enumerate(parts))
        index = next((i for i, part in enumerate(parts) if part.limit is self.limit), 0)
        headers = {
            "RateLimit": f'"{self.limit.kind}-{index}";r={self.remaining};t={reset}',
            "RateLimit-Policy": policies,
            "X-RateLimit-Limit": str(self.limit.capacity),
            "X-RateLimit-Remaining": str(self.remaining),
            "X-RateLimit-Reset": reset,
        }
        if self.retry_after > 0 and math.isfinite(self.retry_after):
            headers["Retry-After"] = str(math.ceil(self.retry_after))
        return headers


def _policy(limit: Limit) -> str:
    per_ns = getattr(limit, "per_ns", getattr(limit, "interval_ns", None))
    window = f";w={math.ceil(per_ns / SECOND)}" if per_ns else ""
    return f"q={limit.capacity}{window}"


def status_of(snapshot: Survey, in_doubt: float = 0.0) -> Status:
    """One status out of what each rule said: the rule with the longest wait binds, then the one with the least left."""
    parts = tuple(
        Status(limit, remaining, seconds(wait), seconds(reset), waiting, out, exact, in_doubt=in_doubt)
        for limit, remaining, wait, reset, waiting, out, exact in snapshot
    )
    if len(parts) == 1:
        return parts[0]
    binding = max(parts, key=lambda part: (part.retry_after, -part.remaining / max(1, part.limit.capacity)))
    return Status(
        binding.limit,
        binding.remaining,
        binding.retry_after,
        binding.reset_after,
        max(part.waiting for part in parts),
        max(part.in_flight for part in parts),
        all(part.exact for part in parts),
        parts,
        in_doubt,
    )


class Denied:
    """No permit, and why: false in a condition, with the facts as attributes.

    >>> from headway import Limiter
    >>> limiter = Limiter("1/minute")
    >>> bool(limiter.try_acquire())
    True
    >>> denied = limiter.try_acquire()
    >>> bool(denied), 59 < denied.retry_after <= 60, str(denied.limit)
    (False, True, '1/minute')
    """

    __slots__ = ("_in_doubt", "_status", "_survey", "key", "reason")

    def __init__(self, key: Any, snapshot: Survey, reason: str = "limit", in_doubt: float = 0.0) -> None:
        self.key = key
        self.reason = reason
        self._survey = snapshot
        self._in_doubt = in_doubt
        self._status: Status | None = None

    @property
    def status(self) -> Status:
        """How things stood when it was denied."""
        if self._status is None:
            self._status = status_of(self._survey, self._in_doubt)
        return self._status

    @property
    def retry_after(self) -> float:
        """Seconds until it may be worth to ask again; a lower bound where `status.exact` is False."""
        return self.status.retry_after

    @property
    def limit(self) -> Limit:
        """The limit that denied."""
        return self.status.limit

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        why = (
            f", {self.reason}"
            if self.reason in ("paused", "quarantine")
            else ", in doubt"
            if self._in_doubt
            else ""
        )
        return f"<Denied: {self.limit}, {self._when()}{why}{key}>"

    def _when(self) -> str:
        """When to ask again; of permits that are out nobody knows it, and the least that it can be says nothing."""
        wait = self.retry_after
        if math.isinf(wait):
            return "never granted" if self.limit.capacity == 0 else "it is not known when to retry"
        if self.status.exact or wait >= 0.001:
            return f"retry after {seconds_text(wait)}{'' if self.status.exact else ' or more'}"
        return "permits are out"


@dataclass(frozen=True, slots=True)
class LimiterStats:
    """What a limiter has done so far.

    >>> from headway import Limiter
    >>> limiter = Limiter("1/minute")
    >>> for _ in range(3): _ = limiter.try_acquire()
    >>> limiter.stats().granted, limiter.stats().denied
    (1, 2)
    """

    granted: int
    denied: int
    waiting: int
    completed: int
    cancelled: int
    abandoned: int
    keys: int
