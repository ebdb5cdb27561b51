"""Limits that response headers state, whatever family they are of.

Vendors agree on little, yet nearly all of their names have one grammar: `[vendor-]ratelimit-`, or `-rate-limit-`, and
then words, of which one is a role (limit, remaining, reset, used) and the others are the name of what is limited:
`x-ratelimit-remaining-tokens`, `anthropic-ratelimit-input-tokens-reset`, `X-RateLimit-Requests-Limit`,
`X-RateLimit-Limit-Minute`. So one reader serves them all, and a profile only says what headers cannot.

`RateLimit` and `RateLimit-Policy` without more words are the fields of the IETF, in three versions: a list of items
with `r` and `t` (draft 10), a dictionary (draft 07), or single numbers, which are the grammar above again (draft 06).
A rate is never inferred from what remains and the time until the reset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headway.feedback.fields import Item, read_dictionary, read_list
from headway.feedback.values import LONGEST, MOST, count, until

MAX_LIMITS: Final = 32


class StatedLimit(NamedTuple):
    """A limit as a server states it; None is what it left out.

    `quota` permits in each `window` of seconds; `remaining` of them now, and more, or all, after `reset` seconds.
    `name` is the server's word for it ("tokens"), "" where it has none. `unit` is "requests" unless it says
    otherwise.
    """

    name: str
    quota: float | None = None
    window: float | None = None
    remaining: float | None = None
    reset: float | None = None
    unit: str = "requests"

    @property
    def says_something(self) -> bool:
        return (self.quota, self.remaining, self.reset) != (None, None, None)

    @property
    def exhausted(self) -> bool:
        """Whether nothing remains, as the server says."""
        return self.remaining is not None and self.remaining < 1


PERIODS: Final = {
    "second": 1.0, "secondly": 1.0, "minute": 60.0, "minutely": 60.0, "hour": 3600.0, "hourly": 3600.0,
    "day": 86400.0, "daily": 86400.0,
}  # fmt: skip
"""Names that are windows."""

_NAME: Final = re.compile(r"(?:[a-z0-9_]+-){0,4}rate-?limit(?:-([a-z0-9_-]{1,80}))?")
_ROLES: Final = {
    "limit": "quota", "max": "quota", "remaining": "remaining", "used": "used", "observed": "used",
    "reset": "reset", "resettime": "reset_time", "after": "reset_after", "interval": "interval",
}  # fmt: skip
_TEXTS: Final = frozenset(
    {"policy", "resource", "scope", "bucket", "global", "reason", "type", "source", "nearlimit"}
)


@dataclass(slots=True)
class _Found:
    """What the headers said of one name so far."""

    quota: float | None = None
    window: float | None = None
    remaining: float | None = None
    used: float | None = None
    reset: float | None = None
    reset_time: float | None = None
    reset_after: float | None = None
    unit: str = "requests"
    ietf: bool = False
    """Whether its name is the server's own, and so tells nothing of its window."""

    def limit(self, name: str) -> StatedLimit:
        remaining = self.remaining
        if remaining is None and self.used is not None and self.quota is not None:
            remaining = max(0.0, self.quota - self.used)
        resets = (self.reset_after, self.reset, self.reset_time)
        reset = next((value for value in resets if value is not None), None)
        counts_requests = self.ietf or name in ("", "requests") or name in PERIODS
        return StatedLimit(
            name, self.quota, self.window, remaining, reset, self.unit if counts_requests else name
        )


def stated_limits(
    headers: Mapping[str, str], now: float, windows: Mapping[str, float] = PERIODS
) -> tuple[StatedLimit, ...]:
    """The limits that headers state; names of headers are in small letters. `now` is the server's clock.

    >>> stated_limits({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225630"}, 1767225600)
    (StatedLimit(name='', quota=None, window=None, remaining=0.0, reset=30.0, unit='requests'),)
    """
    found: dict[str, _Found] = {}
    for name, value in headers.items():
        if name == "ratelimit":
            _ietf(value, found, now)
        elif name == "ratelimit-policy":
            _policy(value, found)
        elif match := _NAME.fullmatch(name):
            _header(match[1] or "limit", value, found, now)
        if len(found) > MAX_LIMITS:
            break
    for name, one in found.items():
        if one.window is None and not one.ietf:
            one.window = windows.get(name)
    limits = [one.limit(name) for name, one in found.items()]
    return _with_common_reset([limit for limit in limits if limit.says_something])


def _with_common_reset(limits: list[StatedLimit]) -> tuple[StatedLimit, ...]:
    """A reset without a limit of its own is that of the limits of which nothing remains."""
    common = [one.reset for one in limits if one.name == "" and one.quota is None and one.remaining is None]
    if not common or not any(one.exhausted for one in limits):
        return tuple(limits)
    return tuple(
        one._replace(reset=common[0]) if one.exhausted and one.reset is None else one
        for one in limits
        if one.name
    )


def _header(words: str, value: str, found: dict[str, _Found], now: float) -> None:
    """One header: its words after `ratelimit-`, and its value."""
    parts = [part for part in words.split("-") if part]
    if not _TEXTS.isdisjoint(parts):
        return
    roles = [_ROLES[part] for part in parts if part in _ROLES]
    name = "-".join(part for part in parts if part not in _ROLES)
    if not roles:
        if name not in PERIODS:
            return
        roles = ["quota"]  # X-HubSpot-RateLimit-Daily
    role = "reset_after" if "reset_after" in roles else roles[0]
    if role == "interval":  # X-HubSpot-RateLimit-Interval-Milliseconds belongs to the limit without a name
        milliseconds = count(value)
        if name == "milliseconds" and milliseconds:
            found.setdefault("", _Found()).window = milliseconds / 1000
    elif role.startswith("reset"):
        setattr(found.setdefault(name, _Found()), role, until(value, now))
    elif role == "quota":
        _quota(name, value, found)
    else:
        items = list(_numbers(value))
        if items:
            setattr(found.setdefault(name, _Found()), role, items[0][0])


def _quota(name: str, value: str, found: dict[str, _Found]) -> None:
    """`100`, `100;w=60`, or `10, 10;w=1;name="per-ip", 1000;w=3600`: the first is the one that counts."""
    items = list(_numbers(value))
    if not items:
        return
    first = found.setdefault(name, _Found())
    first.quota, parameters = items[0]
    first.window = _seconds(parameters.get("w")) or first.window
    for quota, policy in items[1:]:
        window, title = _seconds(policy.get("w")), policy.get("name")
        if quota == first.quota and first.window is None:
            first.window = window
        elif window is not None and len(found) <= MAX_LIMITS:
            title = title if isinstance(title, str) else f"{quota:g};w={window:g}"
            found.setdefault(title, _Found(quota=quota, window=window, ietf=True))


def _numbers(value: str) -> Iterator[tuple[float, dict[str, object]]]:
    for item in read_list(value) or ():
        if (number := _number(item.value)) is not None:
            yield number, dict(item.parameters)


# -- the IETF's fields -------------------------------------------------------------------------------------------


def _ietf(value: str, found: dict[str, _Found], now: float) -> None:
    members = read_dictionary(value)
    if members is not None and "remaining" in members:  # draft 07
        one = found.setdefault("", _Found())
        one.remaining = _number(members["remaining"].value)
        one.quota = _number(members["limit"].value) if "limit" in members else one.quota
        if "reset" in members and (reset := _number(members["reset"].value)) is not None:
            one.reset = until(f"{reset:.3f}", now)
        return
    for item in (read_list(value) or ())[:MAX_LIMITS]:  # draft 10
        remaining = _number(item.parameters.get("r"))
        if isinstance(item.value, str) and remaining is not None:
            one = found.setdefault(item.value, _Found(ietf=True))
            one.remaining, one.reset = remaining, _seconds(item.parameters.get("t"), zero=True)


def _policy(value: str, found: dict[str, _Found]) -> None:
    for item in (read_list(value) or ())[:MAX_LIMITS]:
        window = _seconds(item.parameters.get("w"))
        if isinstance(item.value, str):
            quota = _number(item.parameters.get("q"))
            if quota is not None:
                one = found.setdefault(item.value, _Found(ietf=True))
                one.quota, one.window, one.unit = quota, window, _unit(item)
        elif (quota := _number(item.value)) is not None:  # up to draft 07: 100;w=60
            one = found.setdefault("", _Found())
            if one.quota in (None, quota):
                one.quota, one.window = quota, window or one.window


def _unit(item: Item) -> str:
    unit = item.parameters.get("qu")
    return unit if isinstance(unit, str) else "requests"


def _number(value: object) -> float | None:
    """A count; a number of structured fields is a float, and may be below 0."""
    return value if isinstance(value, float) and 0 <= value <= MOST else None


def _seconds(value: object, *, zero: bool = False) -> float | None:
    found = _number(value)
    return found if found is not None and found <= LONGEST and (found > 0 or zero) else None
