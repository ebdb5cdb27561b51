"""What a request is answered with that is not admitted: a status, headers, and a problem (RFC 9457).

A request above its limit is a 429 of type quota-exceeded, with the policies that it violates by the names that the
`RateLimit-Policy` header has for them. A request that could not be decided is a 503 of type
temporary-reduced-capacity. Both types are of the IETF's draft of the RateLimit headers.

Under attack most answers are refusals, and those of a limit differ only in their seconds: so they are kept.
"""

from __future__ import annotations

import json
from typing import Any, Final

from headway import HeadwayError
from headway.core.limits import Limit
from headway.denied import Denied
from headway.limit_headers import LimitTexts, as_mapping, texts_of
from headway.status import seconds

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has it from refusals.pxd, as a C function.
    from headway.limit_headers import until_of_ns

QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM: Final = "application/problem+json"
LEGACY: Final = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
ENGINE_RETRY: Final = 1
"""Seconds until a client may ask again whose request could not be decided."""
KEPT: Final = 512


class Refusal:
    """An answer: its status, its headers (also as ASGI has them), its body as a mapping and as bytes."""

    __slots__ = ("body", "headers", "limit", "lines", "problem", "status", "until")

    def __init__(
        self,
        status: int,
        headers: dict[str, str],
        lines: list[tuple[bytes, bytes]],
        problem: dict[str, Any],
        body: bytes,
    ) -> None:
        self.status = status
        self.headers = headers
        self.lines = lines
        self.problem = problem
        self.body = body
        # Of which limit it tells that it stands so until then; it keeps the limit, so that no other gets its identity.
        self.limit: Limit | None = None
        self.until = -1

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

    __slots__ = ("_headers", "_kept", "_last", "_legacy")

    def __init__(self, headers: bool, legacy: bool) -> None:
        self._headers = headers
        self._legacy = legacy
        self._kept: dict[tuple[int, int, int, str], Refusal] = {}
        # The latest one of a limit that decides alone: mostly the next one is the same.
        self._last: Refusal | None = None

    def of(self, denied: Denied) -> Refusal:
        """The answer to a request for which there is no permit."""
        if denied._snapshot is None:  # of one ledger, of which nothing remains
            t = until_of_ns(denied._wait, denied._reset)
            last = self._last
            if last is None or last.limit is not denied._limit or last.until != t:
                last = self._last = self._of_row(denied._limit, 0, denied._wait, denied._reset, denied.reason)
            return last
        rows = denied._rows()
        if len(rows) != 1:
            status = denied.status
            left, retry, reset = status.remaining, status.retry_after, status.reset_after
            return self._build(status._texts(), left, retry, reset, denied.reason)
        limit, left, wait, rest, _, _, _ = rows[0]
        return self._of_row(limit, left, wait, rest, denied.reason)

    def _of_row(self, limit: Limit, left: int, wait: int, rest: int, reason: str) -> Refusal:
        t = until_of_ns(wait, rest)
        which = id(limit), left, t, reason
        found = self._kept.get(which)
        if found is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            found = self._build(texts_of(limit), left, seconds(wait), seconds(rest), reason)
            found.limit, found.until = limit, t
            self._kept[which] = found
        return found

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
