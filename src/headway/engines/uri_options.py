"""Options in the query of an engine's URI that several engines have: how each is read."""

from __future__ import annotations

import math
from typing import Any

from headway.core.durations import to_ns
from headway.errors import InvalidArgument


def as_lease(name: str, value: Any) -> int:
    ns = to_ns(as_number(value) if isinstance(value, str) else value)
    if ns is None or not 100_000_000 <= ns <= 3_600_000_000_000:
        raise InvalidArgument(name, value, "a number of seconds from 0.1 to 3600")
    return ns


def as_ppm(name: str, value: Any) -> float:
    ppm = as_number(value)
    if not 0 <= ppm <= 100_000:
        raise InvalidArgument(name, value, "a number of parts per million from 0 to 100000")
    return ppm


def as_switch(name: str, value: Any) -> bool:
    if str(value).lower() not in ("0", "1", "true", "false"):
        raise InvalidArgument(name, value, "true or false")
    return str(value).lower() in ("1", "true")


def as_number(value: Any) -> float:
    """A value that is no number becomes NaN, which is in no range, so the error about the range covers it."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
