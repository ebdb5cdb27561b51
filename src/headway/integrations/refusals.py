"""What a request is answered with that is not admitted: a status, headers, and a problem (RFC 9457).

A request above its limit is a 429 of type quota-exceeded, with the policies that it violates by the names that the
`RateLimit-Policy` header has for them. A request that could not be decided is a 503 of type
temporary-reduced-capacity. Both types are of the IETF's draft of the RateLimit headers.

Under attack most answers are refusals, and those of a limit differ only in their seconds: so they are kept.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from headway import Denied, HeadwayError
from headway.core.limits import Limit
from headway.limit_headers import LimitTexts, as_mapping, texts_of, until
from headway.status import seconds

QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM: Final = "application/problem+json"
LEGACY: Final = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
ENGINE_RETRY: Final = 1
"""Seconds until a client may ask again whose request could not be decided."""
KEPT: Final = 512


class Refusal(NamedTuple):
    """An answer: its status, its headers (also as ASGI has them), its body as a mapping and as bytes."""

    status: int
    headers: dict[str, str]
    lines: list[tuple[bytes, bytes]]
    problem: dict[str, Any]
    body: bytes

    @property
    def reason(self) -> str:
        """The status as WSGI wants it.

        >>> unavailable().reason
        '503 Service Unavailable'
        """
        return "429 Too Many Requests" if self.status == 429 else "503 Service Unavailable"

    @property
    def retry_after(self) -> float | None:
        """Seconds until the client may ask again, where that is known."""
        found = self.headers.get("Retry-After")
        return None if found is None else float(found)


class Refusals:
    """The answers to requests above their limits; `headers` and `legacy` say what they tell of the limit."""

    __slots__ = ("_headers", "_kept", "_legacy")

    def __init__(self, headers: bool, legacy: bool) -> None:
        self._headers = headers
        self._legacy = legacy
        self._kept: dict[tuple[int, int, int, str], tuple[Limit, Refusal]] = {}

    def of(self, denied: Denied) -> Refusal:
        """The answer to a request for which there is no permit."""
        rows = denied._rows()
        if len(rows) != 1:
            status = denied.status
            left, retry, reset = status.remaining, status.retry_after, status.reset_after
            return self._build(status._texts(), left, retry, reset, denied.reason)
        limit, left, wait, rest, _, _, _ = rows[0]
        retry, reset = seconds(wait), seconds(rest)
        which = id(limit), left, until(retry, reset), denied.reason
        found = self._kept.get(which)
        if found is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            # The limit is kept too, so that no other one gets its identity.
            found = self._kept[which] = limit, self._build(texts_of(limit), left, retry, reset, denied.reason)
        return found[1]

    def _build(self, texts: LimitTexts, left: int, retry: float, reset: float, reason: str) -> Refusal:
        headers = as_mapping(texts, left, retry, reset, True)
        when = headers.get("Retry-After")
        if not self._headers:
            headers = {} if when is None else {"Retry-After": when}
        elif not self._legacy:
            headers = {name: value for name, value in headers.items() if name not in LEGACY}
        why = "" if reason == "limit" else f", {reason}"
        problem = {
            "type": QUOTA_EXCEEDED,
            "title": "Too many requests",
            "status": 429,
            "detail": f"{texts.text}{why}: "
            + (f"retry after {when} s" if when else "it is not known when to retry"),
            "violated-policies": [texts.name.strip('"')],
        }
        return _refusal(429, headers, problem)


def too_costly(error: HeadwayError) -> Refusal:
    """The answer to a request that costs more than its limit can ever grant; there is no time to come back at."""
    problem = {"type": QUOTA_EXCEEDED, "title": "Too many requests", "status": 429, "detail": str(error)}
    return _refusal(429, {}, problem)


def unavailable() -> Refusal:
    """The answer to a request that could not be decided."""
    problem = {
        "type": REDUCED_CAPACITY,
        "title": "Temporarily unavailable",
        "status": 503,
        "detail": "the limit is not known now",
    }
    return _refusal(503, {"Retry-After": str(ENGINE_RETRY)}, problem)


def explained(refusal: Refusal, detail: str) -> Refusal:
    """The same in other words."""
    headers = {name: value for name, value in refusal.headers.items() if not name.startswith("Content-")}
    return _refusal(refusal.status, headers, {**refusal.problem, "detail": detail})


def lines_of(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def _refusal(status: int, headers: dict[str, str], problem: dict[str, Any]) -> Refusal:
    body = json.dumps(problem).encode()
    sized = {**headers, "Content-Type": PROBLEM, "Content-Length": str(len(body))}
    return Refusal(status, sized, lines_of(sized), problem, body)
