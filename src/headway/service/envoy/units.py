"""What a unit of Envoy's means: as a limit of headway, and back.

`requests_per_unit: 100, unit: minute` becomes `Window(100, per=60)`: never more than 100 in *any* minute. In
envoyproxy/ratelimit it is a counter that starts at zero with every minute of the clock, so that 200 can pass within a
second around the edge. Where exactly that is wanted (a contract by the calendar, the same figures as before), `fixed`
makes a `FixedWindow` instead. What differs then: a week begins on Monday and a month on its first day, by UTC, where
envoyproxy/ratelimit counts weeks and months of 7 and 30 days from 1970 on.

A request counts at the decision (`remote=False`): the proxy that asks is ours, and it is not told when the call ends.
"""

from __future__ import annotations

from functools import lru_cache

from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.service.envoy.messages import MAX_UINT32, CurrentLimit, Unit

SECOND = 1_000_000_000

LENGTH_NS = {
    Unit.SECOND: SECOND,
    Unit.MINUTE: 60 * SECOND,
    Unit.HOUR: 3600 * SECOND,
    Unit.DAY: 86_400 * SECOND,
    Unit.WEEK: 7 * 86_400 * SECOND,
    Unit.MONTH: 30 * 86_400 * SECOND,
    Unit.YEAR: 365 * 86_400 * SECOND,
}
"""As envoyproxy/ratelimit counts them: a month has 30 days, a year 365."""

UNITS = {unit.name.lower(): unit for unit in LENGTH_NS}
UNIT_OF_LENGTH = {length: unit for unit, length in LENGTH_NS.items()}


def limit_of(requests_per_unit: int, unit: Unit, *, fixed: bool = False) -> Limit:
    """The limit that is kept for so many requests per unit.

    >>> limit_of(100, Unit.MINUTE), limit_of(100, Unit.DAY, fixed=True)
    (Window(100, per=60, remote=False), FixedWindow(100, per='day'))
    """
    if fixed:
        per = "month" if unit is Unit.MONTH else f"{LENGTH_NS[unit]}ns"
        return FixedWindow(requests_per_unit, per=per)
    return Window(requests_per_unit, per=f"{LENGTH_NS[unit]}ns", remote=False)


@lru_cache(maxsize=4096)
def current_limit(limit: Limit, name: str = "") -> CurrentLimit:
    """A limit as Envoy is told of it. A length that is no unit, such as 10 s, has the unit UNKNOWN.

    >>> current_limit(Window(100, per="minute"))
    CurrentLimit(requests_per_unit=100, unit=<Unit.MINUTE: 2>, name='')
    """
    if isinstance(limit, FixedWindow) and limit.monthly:
        return CurrentLimit(_uint32(limit.count), Unit.MONTH, name)
    if isinstance(limit, Window | FixedWindow | Bucket):
        unit = UNIT_OF_LENGTH.get(limit.per_ns, Unit.UNKNOWN)
        return CurrentLimit(_uint32(limit.count), unit, name)
    if isinstance(limit, Spacing):
        return CurrentLimit(1, UNIT_OF_LENGTH.get(limit.interval_ns, Unit.UNKNOWN), name)
    return CurrentLimit(_uint32(limit.capacity), Unit.UNKNOWN, name)


def has_concurrency(limit: Limit) -> bool:
    """Whether a part of it is held until the end of a call, which no rate limit service is told."""
    return any(
        isinstance(part, Concurrency) for part in (limit.limits if isinstance(limit, AllOf) else (limit,))
    )


def _uint32(value: int) -> int:
    return min(value, MAX_UINT32)
