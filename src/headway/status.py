"""What a limiter says of itself: `Status` is how a limit stands, `LimiterStats` what was counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.core.ledger import FOREVER
from headway.core.limits import Limit
from headway.limit_headers import (
    SECOND,
    LimitTexts,
    as_block,
    as_mapping,
    as_pairs,
    texts_of,
    texts_of_several,
)

Snapshot = list[tuple[Any, int, int, int, int, int, bool]]


def seconds(ns: int) -> float:
    """Nanoseconds as seconds; `inf` where no time is known.

    >>> seconds(1_500_000_000), seconds(FOREVER)
    (1.5, inf)
    """
    return math.inf if ns >= FOREVER else ns / SECOND


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """What a limiter with `prefetch` holds of a shared limit, at one moment.

    `tokens` are held here, to be spent until `expires_in` seconds from now; `elsewhere` lay in the shared ledger when
    it answered last (None: it has not yet). The rest is with other clients, or was used.

    >>> LeaseStatus(tokens=5, expires_in=2.5, elsewhere=10)
    LeaseStatus(tokens=5, expires_in=2.5, elsewhere=10)
    """

    tokens: int
    expires_in: float
    elsewhere: int | None


@dataclass(frozen=True, slots=True)
class Status:
    """How a limit stands for a key, at one moment; of several limits, the one that binds.

    `retry_after` is 0 when the request would be granted now. It is a lower bound when `exact` is False: permits are
    out, and the time at which they come back is not known. `in_doubt` is above 0 where a shared ledger was lost and
    `max_quarantine` cut its quarantine short: for so many seconds a window may see more than the limit.

    `parts` has the status of each limit where there are several, and `status["tokens"]` the one of a metric. With
    `prefetch` the figures are of what is held in this process, and `lease` says what that is.

    >>> from headway import Limiter
    >>> status = Limiter("2/minute").peek()
    >>> status.remaining, status.retry_after, status.exact
    (2, 0.0, True)
    >>> status.headers()["X-RateLimit-Limit"]
    '2'
    >>> Limiter({"requests": "5/s", "tokens": "300/minute"}).peek()["tokens"].remaining
    300
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
    metric: str | None = field(default=None, compare=False)
    denied: bool = field(default=False, compare=False)
    lease: LeaseStatus | None = field(default=None, compare=False)

    def __getitem__(self, metric: str) -> Status:
        """The status of one metric; of several limits of that metric, the one that binds."""
        parts = tuple(part for part in self.parts or (self,) if part.metric == metric and metric is not None)
        if not parts:
            known = sorted({part.metric for part in self.parts or (self,) if part.metric is not None})
            have = f"the metrics are {', '.join(known)}" if known else "this limiter has no metrics"
            raise KeyError(f"{metric!r}: {have}")
        return binding(parts)

    def headers(self) -> dict[str, str]:
        """The same as HTTP headers: the IETF draft's `RateLimit` and `RateLimit-Policy`, and the older trio.

        `r` and Remaining are what can be had at once. `t` and Reset are the seconds until more can be had, or, while
        something is left, until all of it can; they are absent where no time is known. `Retry-After` is there for a
        denial, and then equals `t`. In the policy, `q` is the most that passes in any `w` seconds.
        """
        return as_mapping(self._texts(), self.remaining, self.retry_after, self.reset_after, self.denied)

    def header_pairs(self, *, legacy: bool = True) -> list[tuple[bytes, bytes]]:
        """`headers` as ASGI has them; without `legacy`, those of the draft and `Retry-After` alone."""
        return as_pairs(
            self._texts(), self.remaining, self.retry_after, self.reset_after, self.denied, legacy
        )

    def header_block(self) -> bytes:
        """`headers` as the lines of an HTTP/1.1 answer."""
        return as_block(self._texts(), self.remaining, self.retry_after, self.reset_after, self.denied)

    def _texts(self) -> LimitTexts:
        parts = self.parts
        if not parts:
            return texts_of(self.limit)
        index = next((i for i, part in enumerate(parts) if part.limit is self.limit), 0)
        return texts_of_several([part.limit for part in parts], index)


def binding(parts: tuple[Status, ...]) -> Status:
    """The status that holds a request up longest; where none does, the one with the least left."""
    if len(parts) == 1:
        return parts[0]
    first = max(parts, key=lambda part: (part.retry_after, -part.remaining / max(1, part.limit.capacity)))
    return replace(
        first,
        waiting=max(part.waiting for part in parts),
        in_flight=max(part.in_flight for part in parts),
        exact=all(part.exact for part in parts),
        parts=parts,
    )


def status_of(
    snapshot: Snapshot, metrics: Sequence[str | None] = (), in_doubt: float = 0.0, *, denied: bool = False
) -> Status:
    """One status out of what each rule said. `metrics` has the name of each rule's metric, where there are any."""
    names = metrics or [None] * len(snapshot)
    return binding(
        tuple(
            Status(
                limit,
                remaining,
                seconds(wait),
                seconds(reset),
                waiting,
                out,
                exact,
                in_doubt=in_doubt,
                metric=name,
                denied=denied,
            )
            for (limit, remaining, wait, reset, waiting, out, exact), name in zip(
                snapshot, names, strict=True
            )
        )
    )


def rows_pairs(rows: Snapshot, *, denied: bool = False, legacy: bool = True) -> list[tuple[bytes, bytes]]:
    """`Status.header_pairs` of what each rule said. Of one rule no status is built."""
    if len(rows) != 1:
        return status_of(rows, denied=denied).header_pairs(legacy=legacy)
    limit, left, wait, reset, _, _, _ = rows[0]
    return as_pairs(texts_of(limit), left, seconds(wait), seconds(reset), denied, legacy)


def rows_block(rows: Snapshot, *, denied: bool = False) -> bytes:
    """`Status.header_block` of what each rule said. Of one rule no status is built."""
    if len(rows) != 1:
        return status_of(rows, denied=denied).header_block()
    limit, left, wait, reset, _, _, _ = rows[0]
    return as_block(texts_of(limit), left, seconds(wait), seconds(reset), denied)


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
    calls: int = 0
    """Calls to the engine for leases, with `prefetch`."""


def stats_of(store: Any) -> LimiterStats:
    """What a store of the memory engine has counted."""
    counts = store.counts
    return LimiterStats(
        granted=counts.granted,
        denied=counts.denied,
        waiting=len(store.queues.waiters),
        completed=counts.ended - counts.abandoned,
        cancelled=counts.cancelled,
        abandoned=counts.abandoned,
        keys=sum(len(keyed.ledgers) for keyed in store.keyed_ledgers),
    )
