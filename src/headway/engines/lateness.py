"""How late a waiter may be for its slot of a `Spacing`, where the ledger is on another machine."""

from __future__ import annotations

from collections.abc import Callable

from headway.core.limits import AllOf, Limit, Spacing
from headway.errors import InvalidArgument, seconds_text


def late_spacing(limit: Limit, least_ns: Callable[[], int], address: str, usual_ns: int = 3_000_000) -> Limit:
    """A strict `Spacing` with an allowance of at least `least_ns`, and of `usual_ns` where the user names none; every
    other limit as it is, and an `AllOf` of such.

    >>> late_spacing(Spacing(1), lambda: 20_000_000, "redis://db")
    Spacing(1, expire_after=0.02)
    >>> late_spacing(Spacing(1, expire_after="1ms"), lambda: 20_000_000, "redis://db")
    Traceback (most recent call last):
    headway.errors.InvalidArgument: expire_after=0.001 is not accepted; give at least 0.02 s, twice the round trip to \
redis://db: with less, every slot has expired before its holder hears of it
    """
    if isinstance(limit, AllOf):
        return AllOf(*(late_spacing(part, least_ns, address, usual_ns) for part in limit.limits))
    if not isinstance(limit, Spacing) or not limit.strict:
        return limit
    least = least_ns()
    if limit.expire_after_ns is None:
        allowance = max(limit.interval_ns // 100, least, usual_ns)
        return Spacing(
            f"{limit.interval_ns}ns", max_reserved=limit.max_reserved, expire_after=f"{allowance}ns"
        )
    if limit.expire_after_ns < least:
        raise InvalidArgument(
            "expire_after",
            limit.expire_after_ns / 1e9,
            f"at least {seconds_text(least / 1e9)}, twice the round trip to {address}: "
            "with less, every slot has expired before its holder hears of it",
        )
    return limit
