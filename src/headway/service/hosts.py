"""Which names a request may call this server by, and which pages may use it.

A server on loopback is not safe from the web. A page that the user visits can connect to it: a WebSocket is open to
every origin, and a name that resolves to 127.0.0.1 makes any address the page's own (DNS rebinding). So two headers
that a browser sets, and a page cannot, are looked at:

    Host      has to be a name of this server. On loopback these are known; on another address any is taken.
    Origin    (sent by browsers alone) has to be this server itself, a page on loopback if this server is there too, or
              one that was allowed by name.

A request without `Origin` comes from no page. Tokens, which say more, are the business of the whole service.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import urlsplit

from headway.printable import printable
from headway.service.problems import Problem

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


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
        problem = self.problem(headers.get(b"host", ""), headers.get(b"origin"))
        if problem is None:
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

    def _allowed(self, origin: str, host: str) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        authority = origin.partition("://")[2]
        return bool(authority) and (authority == host or (self._local and is_loopback(host_of(authority))))
