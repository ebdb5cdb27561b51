"""A limit that follows what the remote states, downwards only.

The configured limit is the most that the user wants to be used, and what a header says never raises it. A stated
limit that is lower takes its place, part by part, until a higher one is stated. A stated limit belongs to a part if
it has the same window. One that tells no window belongs to the only part that has a rate; where there are two, it is
not clear which is meant, and nothing changes. A rate is never inferred from anything but a quota and its window.

A bucket and a spacing are rates, so any window can be compared with them. After a bucket was lowered, its burst and
what it earns in a window together fit the quota: any time d admits `burst + rate * d`, and so the stated quota holds
in every window, not only on average. Of an adaptive limit, the highest rate is lowered. Nothing is lowered to 0: a
remote that states 0 refuses, and a refusal is a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headway.core.adaptive_limit import Adaptive
from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Limit, Spacing, Window

BURST_PART: Final = 10
"""A lowered bucket saves up the tenth part of the quota at most."""


class Stated(NamedTuple):
    """So many in each window; None: the window was not told. `at_once`: so many at the same time."""

    quota: int
    per_ns: int | None = None
    at_once: bool = False


def followed(configured: Limit, stated: Sequence[Stated]) -> Limit:
    """The configured limit, lowered where the remote states less.

    >>> followed(Window(100, per=60), [Stated(50, 60 * 10**9)]), followed(Window(100, per=60), [Stated(50)])
    (Window(50, per=60), Window(50, per=60))
    >>> followed(Window(100, per=60), [Stated(500, 60 * 10**9), Stated(5, 10**9)])
    Window(100, per=60)
    >>> followed(AllOf("10/s", "5 concurrent"), [Stated(2, at_once=True)])
    AllOf(Window(10, per=1), Concurrency(2))
    """
    if not isinstance(configured, AllOf):
        return _part(configured, stated, alone=True)
    rates = sum(not isinstance(part, Concurrency) for part in configured.limits)
    return AllOf(*(_part(part, stated, alone=rates == 1) for part in configured.limits))


def _part(part: Limit, stated: Sequence[Stated], *, alone: bool) -> Limit:
    for said in stated:
        quota = max(1, said.quota)
        if isinstance(part, Concurrency):
            if said.at_once and quota < part.count:
                part = Concurrency(quota)
        elif not said.at_once and (said.per_ns is not None or alone):
            part = _rate(part, quota, said.per_ns)
    return part


def _rate(part: Limit, quota: int, per_ns: int | None) -> Limit:
    if isinstance(part, Window):
        if per_ns in (None, part.per_ns) and quota < part.count:
            return Window(quota, per=f"{part.per_ns}ns", remote=part.remote)
    elif isinstance(part, FixedWindow):
        if per_ns in (None, part.per_ns) and quota < part.count:
            return FixedWindow(quota, per="month" if part.monthly else f"{part.per_ns}ns", tz=part.tz)
    elif isinstance(part, Bucket):
        return _bucket(part, quota, part.per_ns if per_ns is None else per_ns)
    elif isinstance(part, Adaptive):
        if per_ns is not None and quota * 10**9 < part.most * per_ns:
            return part.lowered_to(quota, per_ns)
    elif isinstance(part, Spacing) and per_ns is not None and per_ns > part.interval_ns * quota:
        expire_after = None if part.expire_after_ns is None else f"{part.expire_after_ns}ns"
        return Spacing(
            f"{-(-per_ns // quota)}ns",
            max_reserved=part.max_reserved,
            expire_after=expire_after,
            strict=part.strict,
        )
    return part


def _bucket(part: Bucket, quota: int, per_ns: int) -> Bucket:
    if quota * part.per_ns >= part.count * per_ns:
        return part
    burst = max(1, min(part.burst, quota // BURST_PART))
    return Bucket((max(1, quota - burst), f"{per_ns}ns"), burst=burst)
