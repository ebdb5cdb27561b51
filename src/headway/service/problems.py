"""Errors over HTTP, as problem+json (RFC 9457).

    {"type": "urn:headway:unknown-gate", "title": "there is no such gate", "status": 404, "detail": "..."}

`type` is what a program looks at, `title` says it in words and is the same for all of one type, and `detail` is about
this request. What else an error knows has members of its own, such as `retry_after` in seconds.

    type               status   when                                                        a retry helps
    repeated-event     409      the event is a repeat: it was rejected                      no, this is the answer
    id-reused          409      the id belongs to another event                             no
    unknown-gate       404                                                                  no
    unknown-event      404      no submission with this id is known (any more)              no
    changes-gone       410      changes after `since` are not all kept: take a snapshot     no
    bad-json           400      the body is no JSON object                                  no
    bad-request        422      a member is missing, unknown, too long, or of another type  no
    body-too-large     413                                                                  no
    not-json           415      the content type is not application/json                    no
    wrong-host         421      `Host` is no name of this server (see `hosts`)              no
    wrong-origin       403      a page of another origin                                    no
    gate-full          503      with Retry-After; nothing has changed                       after that time
    engine-unavailable 503      with Retry-After; a submit may have been counted            yes, with the same id
    closing            503      with Retry-After; this server ends                          yes, with the same id
    rate-limited       429      no permit; with Retry-After where the time is known         after that time
    unknown-limit      404                                                                  no
    unknown-permit     404      it was never given out here, or ended long ago              no
    permit-finished    409      it has ended before, in another way                         no
    permit-expired     410      its lease has run out, and it was abandoned                 no
    command-id-reused  409      the id of a command was given to another one                no
    not-limited        409      the limit is unlimited: there is nothing to pause or reset  no
    too-many-limits    409                                                                  no
    bad-limit          422      a limit that cannot be                                      no
    no-token           401      the request has no token, or one that is not known          no
    role-too-low       403      the token's role may not do this                            no
    slow-body          408      the body did not come in time                               yes
    too-many-waiting   503      so many requests wait here already; with Retry-After        after that time
    too-many-permits   503      so many permits are out already; with Retry-After           after that time
    too-many-watchers  503      so many watch this server already; with Retry-After         after that time
    no-rules           404      there is no [envoy] in the file                             no
    bad-descriptors    400      the body is no RateLimitRequest                             no
    misconfigured      500      the gate is kept with another duration or mode              no
    failed             500      a fault of headway; the log has it                          perhaps
    about:blank        other    a path or a method that is not there, and the like          no
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headway.errors import (
    ChangesGone,
    EngineUnavailable,
    GateClosed,
    GateFull,
    HeadwayError,
    IdReused,
    InvalidArgument,
    InvalidKey,
    InvalidLimit,
    LimiterClosed,
    LimitMismatch,
    PermitFinished,
)
from headway.service.encoded import PROBLEM_JSON, Encoded, lines_of
from headway.service.messages import ENCODER

_log = logging.getLogger("headway")

TYPES: Final[dict[str, tuple[int, str]]] = {
    "repeated-event": (409, "the event is a repeat"),
    "id-reused": (409, "the id was given to another event before"),
    "unknown-gate": (404, "there is no such gate"),
    "unknown-event": (404, "no submission with this id is known"),
    "changes-gone": (410, "these changes are not kept any more"),
    "bad-json": (400, "the body is no JSON object"),
    "bad-request": (422, "the request has something that is not accepted"),
    "body-too-large": (413, "the body is too large"),
    "not-json": (415, "the content type is not application/json"),
    "wrong-host": (421, "this server is not called by that name"),
    "wrong-origin": (403, "a page of another origin may not use this server"),
    "gate-full": (503, "the gate is full"),
    "engine-unavailable": (503, "the engine does not answer"),
    "closing": (503, "this server is about to end"),
    "rate-limited": (429, "no permit"),
    "unknown-limit": (404, "there is no such limit"),
    "unknown-permit": (404, "no permit with this id is known"),
    "permit-finished": (409, "the permit has ended in another way"),
    "permit-expired": (410, "the lease of the permit has run out"),
    "command-id-reused": (409, "the id was given to another command before"),
    "not-limited": (409, "the limit is unlimited"),
    "too-many-limits": (409, "there is no room for another limit"),
    "bad-limit": (422, "the limit is not accepted"),
    "no-token": (401, "a token is needed"),
    "role-too-low": (403, "the role of this token may not do that"),
    "slow-body": (408, "the body did not come in time"),
    "unknown-session": (410, "the session is not known"),
    "too-many-sessions": (503, "too many clients have a session"),
    "too-many-waiting": (503, "too many requests are waiting"),
    "too-many-permits": (503, "too many permits are out"),
    "too-many-watchers": (503, "too many watch this server"),
    "no-rules": (404, "no rules for Envoy are served here"),
    "bad-descriptors": (400, "the body is no RateLimitRequest"),
    "misconfigured": (500, "the gate is kept with another duration or mode"),
    "failed": (500, "something failed here"),
}
"""By the last part of their `type`: the status, and the title."""

ENGINE_AWAY: Final = "the engine does not answer; the log of this server says why"
"""All that clients are told: where the engine is, which an error has, is not for those without a token."""
RETRY_AFTER: Final = 1
"""Seconds, where it is not known when the engine is back."""


class Problem(HeadwayError):
    """What a request is answered with instead of a result: a type of the table above, and what it says besides."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        head: bytes = b"",
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        # Lines that are written already, before those of `headers`.
        self.head = head
        self.headers = dict(headers or {})
        self.members = members

    @property
    def status(self) -> int:
        return TYPES[self.kind][0]

    def body(self) -> dict[str, Any]:
        """What is answered, without its headers."""
        status, title = TYPES[self.kind]
        known = {"type": f"urn:headway:{self.kind}", "title": title, "status": status, "detail": str(self)}
        return {**known, **self.members}

    def encoded(self) -> Encoded:
        head = self.head + lines_of(self.headers) if self.headers else self.head
        return Encoded(TYPES[self.kind][0], head, PROBLEM_JSON, ENCODER.encode(self.body()))

    def response(self) -> Response:
        return self.encoded().response()


def _response(
    kind: str,
    title: str,
    status: int,
    detail: str,
    members: Mapping[str, Any],
    headers: Mapping[str, str] | None,
) -> Response:
    body = {"type": kind, "title": title, "status": status, "detail": detail, **members}
    return Encoded(status, lines_of(headers or {}), PROBLEM_JSON, ENCODER.encode(body)).response()


def problem_of(error: HeadwayError) -> Problem:
    """What an error of headway is over HTTP.

    >>> problem = problem_of(GateFull(1000, 2.5))
    >>> problem.kind, problem.headers, problem.members
    ('gate-full', {'Retry-After': '3'}, {'max_pending': 1000, 'retry_after': 2.5})
    """
    if isinstance(error, Problem):
        return error
    text = str(error)
    match error:
        case InvalidArgument():
            return Problem("bad-request", text, member=error.argument, expected=error.accepted)
        case IdReused():
            return Problem("id-reused", text, id=error.id, event=error.event)
        case ChangesGone():
            return Problem("changes-gone", text, since=error.since, oldest=error.oldest)
        case GateFull():
            wait = error.retry_after
            return later("gate-full", text, wait, max_pending=error.max_pending)
        case EngineUnavailable():
            return later("engine-unavailable", ENGINE_AWAY, RETRY_AFTER)
        case GateClosed():
            return later("closing", text, RETRY_AFTER)
        case LimitMismatch():
            return Problem("misconfigured", text)
    return _of_a_limit(error, text)


def _of_a_limit(error: HeadwayError, text: str) -> Problem:
    match error:
        case LimiterClosed():
            return later("closing", "this server is about to end", RETRY_AFTER)
        case PermitFinished():
            return Problem("permit-finished", text, ended=error.ended)
        case InvalidLimit() | InvalidKey():
            return Problem("bad-request", text)
    _log.error("a request failed", exc_info=error)
    return Problem("failed", "the log of this server has more")


def later(kind: str, detail: str, seconds: float, **members: Any) -> Problem:
    """A problem that is over after so many seconds."""
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return Problem(kind, detail, headers=headers, **members, retry_after=seconds)


async def _of_headway(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, HeadwayError)
    return problem_of(error).response()


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (204, 304):
        return Response(status_code=error.status_code, headers=error.headers)
    title = error.detail.lower()
    detail = f"{request.method} {request.url.path}: {title}"
    return _response("about:blank", title, error.status_code, detail, {}, error.headers)


async def _of_a_fault(request: Request, error: Exception) -> Response:  # noqa: ARG001
    # The program that runs the application logs it.
    return Problem("failed", "the log of this server has more").response()


PROBLEM_HANDLERS: Final[Mapping[Any, Any]] = {
    HeadwayError: _of_headway,
    HTTPException: _of_http,
    Exception: _of_a_fault,
}
"""For `Starlette(exception_handlers=...)` or `FastAPI(exception_handlers=...)`."""
