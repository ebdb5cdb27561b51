"""Which names a request may call this server by, and which pages may use it.

A server on loopback is not safe from the web. A page that the user visits can connect to it: a WebSocket is open to
every origin, and a name that resolves to 127.0.0.1 makes any address the page's own (DNS rebinding). So two headers
that a browser sets, and a page cannot, are looked at:

    Host      has to be a name of this server. On loopback these are known; on another address any is taken.
    Origin    (sent by browsers alone) has to be this server itself, a page on loopback if this server is there too, or
              one that was allowed by name.

A request without `Origin` comes from no page. Tokens, which say more, are the business of the whole service.

A page of an origin that was allowed by name may also read what is answered: a browser asks for that (CORS), first with
a request of its own where a call has a token or a body of JSON.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.responses import Response

from headway.printable import printable
from headway.service.problems import Problem

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key",
    "Access-Control-Max-Age": "600",
}
EXPOSED: Final = (
    "Retry-After, RateLimit, RateLimit-Policy, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"
)


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine alone.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(authority: str) -> str:
    """The host of a `Host` header or of an origin, without its port; empty if it has none.

    >>> host_of("localhost:8080"), host_of("[::1]:8080"), host_of("a b")
    ('localhost', '::1', '')
    """
    try:
        return (urlsplit(f"//{authority}").hostname or "") if " " not in authority else ""
    except ValueError:
        return ""


class HostGuard:
    """Around an ASGI application. `host` is the address that it is bound to; `origins` are allowed besides."""

    def __init__(self, app: Any, host: str = "127.0.0.1", origins: Collection[str] = ()) -> None:
        self._app = app
        self._host = host.strip("[]").lower()
        self._local = is_loopback(host)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin")
        problem = self.problem(headers.get(b"host", ""), origin)
        if problem is None and scope["type"] == "http" and origin is not None and self._named(origin.lower()):
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                await Response(status_code=204, headers=PREFLIGHT | readable_by(origin))(scope, receive, send)
            else:
                await self._app(scope, receive, _with_headers(send, readable_by(origin)))
        elif problem is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await problem.response()(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": ""})  # before it is accepted: 403

    def problem(self, host: str, origin: str | None) -> Problem | None:
        """Why a request is refused; None if it is not.

        >>> guard = HostGuard(None)
        >>> guard.problem("localhost:8080", None), guard.problem("127.0.0.1:8080", "http://localhost:9000")
        (None, None)
        >>> print(guard.problem("evil.example", None))
        this server is on loopback, and 'evil.example' is no name of it
        >>> print(guard.problem("localhost:8080", "https://evil.example"))
        a page of 'https://evil.example' may not use this server, unless it is started with --origin
        """
        name = host_of(host)
        if self._local and name not in LOOPBACK and name != self._host:
            text = f"this server is on loopback, and {printable(host[:100])!r} is no name of it"
            return Problem("wrong-host", text)
        if origin is None or self._allowed(origin.lower(), host.lower()):
            return None
        text = f"a page of {printable(origin[:100])!r} may not use this server, unless it is started with --origin"
        return Problem("wrong-origin", text)

    def _named(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def _allowed(self, origin: str, host: str) -> bool:
        if self._named(origin):
            return True
        authority = origin.partition("://")[2]
        return bool(authority) and (authority == host or (self._local and is_loopback(host_of(authority))))


def readable_by(origin: str) -> dict[str, str]:
    """The headers with which a page of this origin may read an answer."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": EXPOSED,
        "Vary": "Origin",
    }


def _with_headers(send: Any, headers: Mapping[str, str]) -> Any:
    added = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return sending
