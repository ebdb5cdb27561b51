"""Numbers, spans and moments, as servers write them.

A bare reset may be a span in seconds, seconds since 1970 (also with a fraction, also in milliseconds), a Go duration,
a time of RFC 3339 or a date of HTTP. Most vendors do not say which, so a value is read by its form and its magnitude.
Every function here is total: what it cannot read is None, whatever it is. Nothing negative, infinite or absurd comes
out.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

LONGEST: Final = 366 * 86400.0
"""A span above a year is no rate limit but a mistake."""
MOST: Final = 10**15
"""The largest count that is believed."""
MAX_TEXT: Final = 100
"""Characters of a number, a span or a moment."""

_EPOCH: Final = 500_000_000.0
"""From here on a number is a moment: as a span it would be 15 years, as a moment it is in 1985."""
_EPOCH_MS: Final = _EPOCH * 1000

_NUMBER: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}", re.ASCII)
_GO_PART: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?)(ns|us|µs|μs|ms|s|m|h|d)")
_GO: Final = re.compile(rf"(?:{_GO_PART.pattern})+")
_GO_UNITS: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_ISO: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.,]{4,20} ?(?:[Zz]|UTC|[+-][0-9]{2}:?[0-9]{2})?"
)
_FRACTION: Final = re.compile(r"[.,]([0-9]{1,6})[0-9]*")


def number(text: str) -> float | None:
    """A decimal number without a sign.

    >>> number("12"), number("0.5"), number("-1"), number("1e5"), number("nan")
    (12.0, 0.5, None, None, None)
    """
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def count(text: str) -> float | None:
    """How many: a number that may be believed."""
    found = number(text)
    return found if found is not None and found <= MOST else None


def span(text: str) -> float | None:
    """Seconds, as a number or as a Go duration.

    >>> span("30"), span("6m0s"), span("12ms"), span("1h2m3.5s"), span("soon")
    (30.0, 360.0, 0.012, 3723.5, None)
    """
    found = number(text) if len(text) <= MAX_TEXT else None
    if found is None:
        found = _go_duration(text)
    return found if found is not None and found <= LONGEST else None


def _go_duration(text: str) -> float | None:
    text = text.strip()
    if len(text) > MAX_TEXT or not _GO.fullmatch(text):
        return None
    return sum(float(value) * _GO_UNITS[unit] for value, unit in _GO_PART.findall(text))


def moment(text: str) -> float | None:
    """Seconds since 1970: a date of HTTP, a time of RFC 3339, or a number of that magnitude.

    >>> moment("Fri, 31 Dec 1999 23:59:59 GMT"), moment("2026-01-01T00:00:00.25Z"), moment("1767225600")
    (946684799.0, 1767225600.25, 1767225600.0)
    >>> moment("1767225600250"), moment("30")
    (1767225600.25, None)
    """
    text = text.strip()
    if len(text) > MAX_TEXT:
        return None
    value = number(text)
    if value is not None:
        if value < _EPOCH:
            return None
        return value / 1000 if value >= _EPOCH_MS else value
    return _iso_time(text) if _ISO.fullmatch(text) else _http_date(text)


def _iso_time(text: str) -> float | None:
    text = _FRACTION.sub(
        lambda found: f".{found[1]:0<6}", text.upper().replace("UTC", "Z").replace(" Z", "Z"), count=1
    )
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return _timestamp(found)


def _http_date(text: str) -> float | None:
    if not re.search(r"[0-9]:[0-9]", text):
        return None
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return _timestamp(found)


def _timestamp(found: datetime) -> float | None:
    try:
        return max(0.0, (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (OverflowError, ValueError):
        return None


def until(text: str, now: float) -> float | None:
    """Seconds from `now` on, whatever the form; a moment that has passed is 0.

    >>> until("30", 1767225600), until("1767225630", 1767225600), until("2026-01-01T00:00:30Z", 1767225600)
    (30.0, 30.0, 30.0)
    """
    at = moment(text)
    if at is None:
        return span(text)
    left = max(0.0, at - now)
    return left if left <= LONGEST else None
