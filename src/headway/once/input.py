"""What a user gives to a gate, checked."""

from __future__ import annotations

from typing import Any

from headway.core.durations import MAX, count_of, span_of, to_ns
from headway.core.once import OnceRule
from headway.errors import InvalidArgument

MODES = ("only", "strict")
LONGEST_EVENT = 65536
LONGEST_ID = 1024
"""Bytes of UTF-8, for an event or a value, and for an id."""


def rule_of(duration: Any, mode: Any, max_pending: Any, retention: Any) -> OnceRule:
    """The rule of a gate, in nanoseconds; whole microseconds, as shared engines count them."""
    if mode not in MODES:
        raise InvalidArgument("mode", mode, "'only' or 'strict'")
    # A string that is no duration says itself where it is wrong.
    duration_ns = to_ns(duration)
    if duration_ns is None or not 1 <= duration_ns <= MAX:
        raise InvalidArgument("duration", duration, "a duration above 0: seconds, a timedelta, or '5min'")
    retention_ns = span_of(retention)
    if retention_ns is None or not 0 <= retention_ns <= MAX:
        raise InvalidArgument("retention", retention, "seconds from 0 up, or a timedelta")
    room = count_of(max_pending)
    if room is None or not 1 <= room <= 2**40:
        raise InvalidArgument("max_pending", max_pending, "an integer from 1 up")
    return OnceRule(-(-duration_ns // 1000) * 1000, mode == "strict", room, -(-retention_ns // 1000) * 1000)


def timeout_ns_of(timeout: Any) -> int:
    """How long the engine has for an answer."""
    ns = span_of(timeout)
    if ns is None or not 1_000_000 <= ns <= 3_600_000_000_000:
        raise InvalidArgument("engine_timeout", timeout, "seconds from 0.001 to 3600, or a timedelta")
    return ns


def checked_event(event: Any) -> str:
    return _text("event", event, LONGEST_EVENT)


def checked_value(value: Any) -> str | None:
    return None if value is None else _text("value", value, LONGEST_EVENT, ", or None")


def checked_id(id: Any) -> str:
    text = _text("id", id, LONGEST_ID)
    if not text:
        raise InvalidArgument("id", id, "a str that is not empty, or None for a new one")
    return text


def _text(argument: str, value: Any, most: int, other: str = "") -> str:
    if type(value) is str and value.isascii() and len(value) <= most:  # nearly always, and quickly told
        return value
    accepted = f"a str of at most {most} bytes in UTF-8{other}"
    if not isinstance(value, str):
        raise InvalidArgument(argument, value, accepted)
    # A character has one byte at least: a very long text is not even encoded.
    shown = value if len(value) <= 100 else f"{value[:100]}..."
    if len(value) > most:
        raise InvalidArgument(argument, shown, accepted)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(argument, shown, f"{accepted}: a lone surrogate has none") from error
    if size > most:
        raise InvalidArgument(argument, shown, accepted)
    return str(value)


def checked_clock(since: Any) -> int:
    """A value of the scalar clock."""
    clock = count_of(since)
    if clock is None or not 0 <= clock < 2**53:
        raise InvalidArgument("since", since, "a value of the gate's clock: an integer from 0 up")
    return clock


def checked_limit(limit: Any) -> int | None:
    """How many changes are wanted at most."""
    if limit is None:
        return None
    most = count_of(limit)
    if most is None or most < 1:
        raise InvalidArgument("limit", limit, "an integer from 1 up, or None for all")
    return most
