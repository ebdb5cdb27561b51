"""What a request is answered with that is not admitted: a status, headers, and a problem (RFC 9457).

A request above its limit is a 429 of type quota-exceeded, with the policies that it violates by the names that the
`RateLimit-Policy` header has for them. A request that could not be decided is a 503 of type
temporary-reduced-capacity. Both types are of the IETF's draft of the RateLimit headers.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from headway import Denied, HeadwayError
from headway.status import Status

QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM: Final = "application/problem+json"
ENGINE_RETRY: Final = 1
"""Seconds until a client may ask again whose request could not be decided."""


class Refusal(NamedTuple):
    """An answer: its status, its headers, its body as a mapping and as bytes."""

    status: int
    headers: dict[str, str]
    problem: dict[str, Any]
    body: bytes

    @property
    def line(self) -> str:
        """The status as WSGI wants it.

        >>> unavailable().line
        '503 Service Unavailable'
        """
        return "429 Too Many Requests" if self.status == 429 else "503 Service Unavailable"

    @property
    def retry_after(self) -> float | None:
        """Seconds until the client may ask again, where that is known."""
        found = self.headers.get("Retry-After")
        return None if found is None else float(found)


def exceeded(denied: Denied, headers: dict[str, str]) -> Refusal:
    """The answer to a request for which there is no permit."""
    problem = {
        "type": QUOTA_EXCEEDED,
        "title": "Too many requests",
        "status": 429,
        "detail": str(denied).strip("<>"),
        "violated-policies": [policy_of(denied.status)],
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


def retry_after(status: Status) -> dict[str, str]:
    """The one header of a refusal where the others are not wanted."""
    found = status.headers().get("Retry-After")
    return {} if found is None else {"Retry-After": found}


def policy_of(status: Status) -> str:
    """The name of the policy that refused, as the header has it."""
    return status.headers()["RateLimit"].split('"')[1]


def explained(refusal: Refusal, detail: str) -> Refusal:
    """The same in other words."""
    headers = {name: value for name, value in refusal.headers.items() if not name.startswith("Content-")}
    return _refusal(refusal.status, headers, {**refusal.problem, "detail": detail})


def _refusal(status: int, headers: dict[str, str], problem: dict[str, Any]) -> Refusal:
    body = json.dumps(problem).encode()
    sized = {**headers, "Content-Type": PROBLEM, "Content-Length": str(len(body))}
    return Refusal(status, sized, problem, body)
