"""What a server said of its limits, read from one answer.

`read` is pure and total: a time goes in, and whatever the server sent, no exception comes out. It answers one
question first: was this a refusal for the sake of a limit, and for how long shall no call be made? In order of
precedence, the wait is

1. what `Retry-After` says, or one of its kin in milliseconds; only of a refusal, for a redirect may carry one too,
2. what the body says, in the forms that a profile knows,
3. the longest reset of a limit of which nothing remains; that holds for an answer that was no refusal as well,
4. what the vendor's documentation asks for.

A refusal without any of these has no wait, and its caller has to back off by itself.

Moments are compared with the server's own `Date`, where there is one, and so a clock of ours that is wrong by minutes
does no harm. `Date` has no fractions, so the wait is up to a second too long and never too short. An answer from a
cache (`Age`) says nothing of today's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headway.errors import InvalidArgument
from headway.feedback.bodies import parse
from headway.feedback.fields import MAX_FIELD
from headway.feedback.profiles import Profile, find
from headway.feedback.stated import StatedLimit, stated_limits
from headway.feedback.values import LONGEST, moment, number, until

MAX_WAIT: Final = 3600.0
"""Seconds: a header must not stop a fleet for a year."""
MAX_HEADERS: Final = 500
MAX_SCOPE: Final = 100

_IN_MS: Final = ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after")
_SCOPES: Final = ("x-ratelimit-scope", "x-ratelimit-resource", "ratelimit-reason")


class Feedback(NamedTuple):
    """What a server said.

    `refused`: the call was refused for the sake of a limit. `wait`: seconds for which no call is to be made; None
    where nothing was said. `limits`: every limit that was stated. `remaining` and `reset` are those of the scarcest
    of them. `scope`: what is limited, in the server's words ("global", "search"), or "".
    """

    refused: bool
    wait: float | None
    limits: tuple[StatedLimit, ...] = ()
    remaining: float | None = None
    reset: float | None = None
    scope: str = ""


def read(
    status: int,
    headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    body: object = None,
    *,
    profile: str | None = None,
    now: float,
    max_wait: float = MAX_WAIT,
) -> Feedback | None:
    """What an answer says of limits, or None if it says nothing; `now` is in seconds since 1970.

    >>> read(429, {"Retry-After": "30"}, now=1767225600)
    Feedback(refused=True, wait=30.0, limits=(), remaining=None, reset=None, scope='')
    >>> headers = {"RateLimit": '"day";r=0;t=60', "RateLimit-Policy": '"day";q=1000;w=86400'}
    >>> said = read(200, headers, now=1767225600)
    >>> said.refused, said.wait, said.limits[0].quota
    (False, 60.0, 1000.0)
    >>> read(403, {"X-RateLimit-Remaining": "0"}, profile="github", now=1767225600).refused
    True
    >>> read(200, {"Content-Type": "text/html"}, now=1767225600) is None
    True

    `profile` is the name of a vendor (`profile_of(host)` knows it). A wait is never longer than `max_wait` seconds.
    """
    vendor = find(profile)
    if not max_wait >= 0:
        raise InvalidArgument("max_wait", max_wait, "seconds from 0 up")
    found = fold(headers)
    content = parse(body) if vendor.reads_bodies or status in vendor.statuses else None
    refused = status in vendor.statuses or (
        vendor.refuses is not None and vendor.refuses(status, found, content)
    )
    clock = _server_clock(found, now)
    limits = () if _from_cache(found) else _limits(vendor, found, content, clock)
    exhausted = [limit for limit in limits if limit.exhausted]
    wait = _wait(vendor, found, content, exhausted, clock) if refused else _pause(vendor, exhausted)
    if not refused and wait is None and not limits:
        return None
    remaining, reset = _scarcest(limits)
    bounded = None if wait is None else min(wait, max_wait)
    return Feedback(refused, bounded, limits, remaining, reset, _scope(vendor, found))


def fold(headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """Headers with names in small letters, and the values of one name joined; what is no text is left out."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: dict[str, str] = {}
    for pair in pairs:
        if len(found) >= MAX_HEADERS:
            break
        try:
            name, value = pair
        except (TypeError, ValueError):
            continue
        name, value = _text(name).lower(), _text(value)
        if name and len(value) <= MAX_FIELD:
            before = found.get(name)
            found[name] = value if before is None else f"{before}, {value}"
    return found


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _server_clock(headers: Mapping[str, str], now: float) -> float:
    date = moment(headers.get("date", ""))
    return now if date is None else date


def _from_cache(headers: Mapping[str, str]) -> bool:
    return bool(number(headers.get("age", "")))


def _limits(
    vendor: Profile, headers: Mapping[str, str], content: Any, clock: float
) -> tuple[StatedLimit, ...]:
    limits = stated_limits(headers, clock, vendor.windows)
    part = headers.get(vendor.part_of, "").strip()[:MAX_SCOPE]
    if part and part.isprintable() and part != "core":
        # A search may be made 30 times a minute where other calls are 5000 an hour: neither is the limit of both.
        limits = tuple(
            limit if limit.name else limit._replace(name=part, window=None, unit=part) for limit in limits
        )
    return limits if vendor.more is None else (*limits, *vendor.more(headers, content, clock))


def _wait(
    vendor: Profile, headers: Mapping[str, str], content: Any, exhausted: list[StatedLimit], clock: float
) -> float | None:
    """How long to wait after a refusal."""
    stated = retry_after(headers, clock)
    if stated is None and vendor.body_wait is not None:
        stated = vendor.body_wait(content)
    if stated is None:
        # A reset of 0 may belong to another limit than the one that refused: it does not mean "again at once".
        stated = max((limit.reset for limit in exhausted if limit.reset), default=None)
    return vendor.wait if stated is None else stated


def _pause(vendor: Profile, exhausted: list[StatedLimit]) -> float | None:
    """How long to wait after an answer that took the last permit."""
    if vendor.full_refill:
        return None
    return max((limit.reset for limit in exhausted if limit.reset), default=None)


def retry_after(headers: Mapping[str, str], clock: float) -> float | None:
    """What `Retry-After` says, or one of its kin in milliseconds, which are more exact."""
    for name in _IN_MS:
        milliseconds = number(headers.get(name, ""))
        if milliseconds is not None and milliseconds <= LONGEST * 1000:
            return milliseconds / 1000
    return until(headers.get("retry-after", ""), clock)


def _scarcest(limits: tuple[StatedLimit, ...]) -> tuple[float | None, float | None]:
    """What remains of the limit of which the smallest part remains, and its reset."""
    known = [limit for limit in limits if limit.remaining is not None]
    if not known:
        return None, max((limit.reset for limit in limits if limit.reset is not None), default=None)
    least = min(known, key=_part)
    return least.remaining, least.reset


def _part(limit: StatedLimit) -> tuple[float, float]:
    remaining = limit.remaining or 0.0
    return remaining / limit.quota if limit.quota else remaining, -(limit.reset or 0.0)


def _scope(vendor: Profile, headers: Mapping[str, str]) -> str:
    if headers.get("x-ratelimit-global", "").strip().lower() == "true":
        return "global"
    for name in (*vendor.scope, *_SCOPES):
        text = headers.get(name, "").strip()[:MAX_SCOPE]
        if text and text.isprintable():
            return text
    return ""
