"""A limit for every request of an ASGI application: Starlette, FastAPI, Litestar, Quart, or plain.

    app = RateLimit(app, "100/minute")                          # around any application
    app.add_middleware(RateLimit, limit="100/minute")           # Starlette and FastAPI

A request counts for its client's address (`headway.integrations.client_address`), or for what `key` says of its
scope. A WebSocket counts as one request when it is opened; `messages` is a limit of what it sends afterwards, by
the same key: a message that comes too early waits, and the client with it, or ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headway.errors import EngineUnavailable, InvalidArgument, RateLimited
from headway.integrations.asgi_request import TOO_MANY, TRY_LATER, Admitted, begin, begun
from headway.integrations.client_address import ClientAddress
from headway.integrations.inbound import Ban, Inbound, Limits, OneLimit, limiter_of
from headway.limiter.request_input import Cost

__all__ = ["RateLimit"]

Scope = Any


class RateLimit:
    """Pure ASGI middleware.

    >>> async def app(scope, receive, send): ...
    >>> limited = RateLimit(app, "100/minute", exempt=lambda scope: scope["path"] == "/healthz")

    `limit` is one limit, a `Limiter`, a function of the scope that names one, or one for each tier that `tier` names.
    `key`, `cost`, `exempt` and `tier` are functions of the scope; the key is the client's address by default, for which
    `trusted` names the networks of one's own proxies. A response of which `deduct_when(status)` is false costs nothing;
    a cost that is known at the end is settled by the application: `scope["headway.permit"].settle(cost)`.
    `ban=("10/minute", 600)` shuts out, for ten minutes, a key that was refused more than ten times in a minute.
    `messages` is a limit of the messages of WebSockets, and `on_excess` what becomes of one above it: "wait", or
    "close" the connection. `headers` tells every response how the limit stands, `legacy_headers` with the older
    `X-RateLimit-*` too. All other options are those of `Limiter`.
    """

    def __init__(
        self,
        app: Any,
        /,
        limit: Limits,
        *,
        key: Callable[[Scope], str | None] | None = None,
        trusted: Iterable[str] = (),
        cost: Cost | Callable[[Scope], Cost] = 1,
        exempt: Callable[[Scope], bool] | None = None,
        tier: Callable[[Scope], str] | None = None,
        deduct_when: Callable[[int], bool] | None = None,
        ban: Ban | None = None,
        messages: OneLimit = None,
        on_excess: str = "wait",
        headers: bool = True,
        legacy_headers: bool = False,
        **options: Any,
    ) -> None:
        if on_excess not in ("wait", "close"):
            raise InvalidArgument("on_excess", on_excess, "'wait' or 'close'")
        self._app = app
        self._key = ClientAddress(trusted).of_scope if key is None else key
        self._inbound = Inbound(
            limit, key=self._key, cost=cost, exempt=exempt, tier=tier, deduct_when=deduct_when, ban=ban,
            headers=headers, legacy_headers=legacy_headers, **options,
        )  # fmt: skip
        self._messages = limiter_of("messages", messages, options)
        self._waits = on_excess == "wait"

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            await self._app(scope, receive, send)
            return
        found = begin(self._inbound, scope, send)
        what = type(found)
        if what is not Admitted and what is not tuple and found is not None:
            # It is a limiter on a shared engine, which has to be waited for.
            found = begun(self._inbound, await self._inbound.take_async(found, scope), scope, send)
            what = type(found)
        if what is tuple:
            first, second = found
            await send(first)
            if second is not None:
                await send(second)
        elif found is None:
            if kind == "http":
                await self._app(scope, receive, send)
            else:
                await self._websocket(scope, receive, send)
        else:
            try:
                if kind == "http":
                    await self._app(scope, receive, found)
                else:
                    await self._websocket(scope, receive, send)
            finally:
                found.end()

    async def _websocket(self, scope: Scope, receive: Any, send: Any) -> None:
        if self._messages is None:
            await self._app(scope, receive, send)
        else:
            connection = Connection(self._messages, self._key(scope), self._waits, receive, send)
            await self._app(scope, connection.receive, connection.send)


class Connection:
    """A WebSocket whose messages are limited. One that is closed here is told to the application as closed."""

    __slots__ = ("_closed", "_key", "_limiter", "_receive", "_send", "_waits")

    def __init__(self, limiter: Any, key: str | None, waits: bool, receive: Any, send: Any) -> None:
        self._limiter = limiter
        self._key = key
        self._waits = waits
        self._receive = receive
        self._send = send
        self._closed = 0

    async def receive(self) -> Any:
        """The next message, when its time has come."""
        if not self._closed:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return message
            self._closed = await self._judge()
            if not self._closed:
                return message
            await self._send({"type": "websocket.close", "code": self._closed, "reason": ""})
        return {"type": "websocket.disconnect", "code": self._closed, "reason": ""}

    async def _judge(self) -> int:
        """Wait for the permit of a message; or the code to close with."""
        try:
            if self._waits:
                await self._limiter.acquire_async(self._key)
                return 0
            return 0 if await self._limiter.try_acquire_async(self._key) else TOO_MANY
        except RateLimited:
            return TOO_MANY
        except EngineUnavailable:
            return TRY_LATER

    async def send(self, message: Any) -> None:
        """What the application sends; nothing more once the connection was closed here."""
        if not self._closed:
            await self._send(message)
