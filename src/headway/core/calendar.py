"""Aligned windows: which day, week, month or hour contains this moment.

The naive way divides the Unix time by 86400 s. That is midnight in UTC only, and a day is not 86400 s long
where clocks change: in Berlin the last Sunday of March has 23 hours and the last Sunday of October has 25.
So days are counted in the calendar, and only their first moments are turned into Unix time. A period of
whole days is counted from Monday, 1 January of the year 1, so weeks begin on Mondays. A period that divides
a day is counted in elapsed time from local midnight and cut at the next one: 3 h windows on a day of 23
hours end with one of 2 hours. Any other period (5 h, 36 h) has no place in a calendar and is counted from
the Unix epoch.

`datetime` knows microseconds only; here it handles whole seconds, and integers do the rest.
"""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

from headway.core.durations import DAY, SECOND

__all__ = ["is_zone", "near_zone", "window_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_SECOND = timedelta(seconds=1)


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    # UTC needs no data base; Windows has none.
    return UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def is_zone(name: object) -> bool:
    """Whether this system knows the time zone.

    >>> is_zone("UTC"), is_zone("Mars/Olympus"), is_zone(2)
    (True, False, False)
    """
    if not isinstance(name, str) or not name:
        return False
    try:
        _zone(name)
    except (
        zoneinfo.ZoneInfoNotFoundError,
        ValueError,
        OSError,
    ):  # OSError: the name of a folder, as "Europe"
        return False
    return True


def near_zone(name: object) -> str:
    """A hint for a misspelt zone, or "" where nothing is near."""
    names = {known.lower(): known for known in (*zoneinfo.available_timezones(), "UTC")}
    near = difflib.get_close_matches(str(name).lower(), names, 1, 0.8)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _midnight(ordinal: int, zone: tzinfo) -> int:
    """The first moment of a local day in ns; of two midnights (clocks set back) the first."""
    day = date.fromordinal(ordinal)
    return (datetime(day.year, day.month, day.day, tzinfo=zone) - _EPOCH) // _ONE_SECOND * SECOND


def _local_day(wall_ns: int, zone: tzinfo) -> int:
    """The ordinal of the day whose midnights enclose the moment.

    The local date nearly always says so at once. But St. John's used to set its clocks back at 00:01, which
    makes the date go back too; the midnights never do.
    """
    moment = _EPOCH + timedelta(seconds=wall_ns // SECOND)
    ordinal = moment.astimezone(zone).toordinal()
    while wall_ns < _midnight(ordinal, zone):
        ordinal -= 1
    while wall_ns >= _midnight(ordinal + 1, zone):
        ordinal += 1
    return ordinal


def window_of(wall_ns: int, per_ns: int | None, tz: str) -> tuple[int, int]:
    """Start and end, in ns since the Unix epoch, of the window that contains `wall_ns`; None is a month.

    >>> window_of(5 * 3600 * SECOND + 1, 3 * 3600 * SECOND, "UTC")
    (10800000000000, 21600000000000)
    """
    zone = _zone(tz)
    if per_ns is None:
        first = date.fromordinal(_local_day(wall_ns, zone)).replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
        return _midnight(first.toordinal(), zone), _midnight(after.toordinal(), zone)
    if per_ns % DAY == 0:
        days = per_ns // DAY
        start_day = (_local_day(wall_ns, zone) - 1) // days * days + 1
        return _midnight(start_day, zone), _midnight(start_day + days, zone)
    if DAY % per_ns == 0:
        day = _local_day(wall_ns, zone)
        midnight, next_midnight = _midnight(day, zone), _midnight(day + 1, zone)
        start = midnight + (wall_ns - midnight) // per_ns * per_ns
        return start, min(start + per_ns, next_midnight)
    start = wall_ns // per_ns * per_ns
    return start, start + per_ns
