"""One request of an ASGI application within a limit: how it begins, what its response tells, how it ends.

Every request passes here, and every message of every response, so this file is compiled. What is handed on is what the
application sent, but for the start of a response, which is copied: an application may send the same message again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headway.integrations.refusals import Refusal

if TYPE_CHECKING:
    from headway.integrations.inbound import Inbound
    from headway.limiter.permits import Permit

PERMIT: Final = "headway.permit"
"""Where the application finds the request's permit in its scope, to settle it for instance."""
TOO_MANY: Final = 1008
"""The code that a WebSocket is closed with: a policy was violated."""
TRY_LATER: Final = 1013
"""The code that a WebSocket is closed with when the limit is not known."""

_PERMIT = PERMIT


class Admitted:
    """A request that has a permit; called, it is `send` for the application.

    A response that is not to be charged for ends the permit. Another one gets headers, unless they are not wanted.
    """

    __slots__ = ("_inbound", "_permit", "_send")

    # The fields, for type checkers; their C types are in asgi_request.pxd.
    if TYPE_CHECKING:
        _inbound: Inbound
        _permit: Permit
        _send: Any

    def __call__(self, message: Any) -> Any:
        if message["type"] == "http.response.start":
            inbound, permit = self._inbound, self._permit
            if inbound.deduct_when is not None and not inbound.deduct_when(message["status"]):
                if not permit._end:
                    permit.cancel()
            elif inbound.headers:
                message = with_headers(message, permit._pairs(inbound.legacy_headers))
        return self._send(message)

    def end(self) -> None:
        """The response has ended, or the application has failed: what the permit held is free again."""
        self._permit._finish(None)


def begin(inbound: Inbound, scope: Any, send: Any) -> Any:
    """Decide a request: what `begun` returns; or its limiter, on a shared engine, which has to be waited for."""
    limiter = inbound.limiter_for(scope)
    if limiter is None:
        return None
    if limiter._shared is not None:
        return limiter
    return begun(inbound, inbound.take(limiter, scope), scope, send)


def begun(inbound: Inbound, found: Permit | Refusal | None, scope: Any, send: Any) -> Any:
    """A request of which this was decided: `Admitted`, or the two messages of a refusal; None: it is not limited."""
    if found is None:
        return None
    if isinstance(found, Refusal):
        return refused(found, scope)
    scope[_PERMIT] = found
    made: Admitted = Admitted.__new__(Admitted)
    made._inbound = inbound
    made._permit = found
    made._send = send
    return made


def refused(refusal: Refusal, scope: Any) -> tuple[Any, Any]:
    """The messages of a refusal, in mappings and a list of their own: what is around this application may change them.
    A WebSocket that the server cannot answer is closed, with one message and None."""
    if scope["type"] == "http":
        return (
            {"type": "http.response.start", "status": refusal.status, "headers": [*refusal.lines]},
            {"type": "http.response.body", "body": refusal.body},
        )
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        code = TOO_MANY if refusal.status == 429 else TRY_LATER
        return {"type": "websocket.close", "code": code, "reason": ""}, None
    return (
        {"type": "websocket.http.response.start", "status": refusal.status, "headers": [*refusal.lines]},
        {"type": "websocket.http.response.body", "body": refusal.body},
    )


def with_headers(message: Any, told: Sequence[tuple[bytes, bytes]]) -> Any:
    """The start of a response with these headers, unless a limit within the application has told its own.

    >>> with_headers({"type": "http.response.start", "headers": []}, [(b"ratelimit", b"...")])
    {'type': 'http.response.start', 'headers': [(b'ratelimit', b'...')]}
    """
    headers = [*message.get("headers", ())]
    for name, _ in headers:
        if name == b"ratelimit":
            return message
    headers += told
    return {**message, "headers": headers}
