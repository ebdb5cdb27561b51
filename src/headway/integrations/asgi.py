"""A limit for every request of an ASGI application: Starlette, FastAPI, Litestar, Quart, or plain.

    app = RateLimit(app, "100/minute")                          # around any application
    app.add_middleware(RateLimit, limit="100/minute")           # Starlette and FastAPI

A request counts for its client's address (`headway.integrations.client_address`), or for what `key` says of its
scope. A WebSocket counts as one request when it is opened; `messages` is a limit of what it sends afterwards, by
the same key: a message that comes too early waits, and the client with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headway.errors import EngineUnavailable, InvalidArgument
from headway.integrations.client_address import ClientAddress
from headway.integrations.inbound import Ban, Inbound, Limits, Refusal, limiter_of
from headway.limiter.request_input import Cost

__all__ = ["RateLimit"]

Scope = Any
TOO_MANY = 1008
"""The code that a WebSocket is closed with: a policy was violated."""


class RateLimit:
    """Pure ASGI middleware.

    >>> async def app(scope, receive, send): ...
    >>> limited = RateLimit(app, "100/minute", exempt=lambda scope: scope["path"] == "/healthz")

    `limit` is one limit, a `Limiter`, or one for each tier that `tier` names. `key`, `cost`, `exempt` and `tier`
    are functions of the scope; the key is the client's address by default, for which `trusted` names the networks
    of one's own proxies. A response of which `deduct_when(status)` is false costs nothing. `ban=("10/minute", 600)`
    shuts out, for ten minutes, a key that was refused more than ten times in a minute. `headers` tells every
    response how the limit stands, `legacy_headers` with the older `X-RateLimit-*` too. All other options are those
    of `Limiter`.
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
        messages: Any = None,
        headers: bool = True,
        legacy_headers: bool = False,
        **options: Any,
    ) -> None:
        if deduct_when is not None and not callable(deduct_when):
            raise InvalidArgument("deduct_when", deduct_when, "a function of the response's status, or None")
        self._app = app
        self._key = ClientAddress(trusted).of_scope if key is None else key
        self._inbound = Inbound(
            limit, key=self._key, cost=cost, exempt=exempt, tier=tier, ban=ban, headers=headers,
            legacy_headers=legacy_headers, **options,
        )  # fmt: skip
        self._deduct_when = deduct_when
        self._messages = limiter_of("messages", messages, options)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        permit, refusal = await self._inbound.admit_async(scope)
        if refusal is not None:
            await refuse(refusal, scope, send)
        elif kind == "websocket":
            await self._websocket(permit, scope, receive, send)
        elif permit is None:
            await self._app(scope, receive, send)
        else:
            await self._http(permit, scope, receive, send)

    async def _http(self, permit: Any, scope: Scope, receive: Any, send: Any) -> None:
        told = None
        if self._inbound.headers:
            told = [(name.lower().encode(), value.encode()) for name, value in self._told(permit).items()]
        deduct_when = self._deduct_when

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                if deduct_when is not None and permit.ended is None and not deduct_when(message["status"]):
                    permit.cancel()
                elif told is not None:
                    message = {**message, "headers": [*message.get("headers", ()), *told]}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            if permit.ended is None:
                permit.complete()

    def _told(self, permit: Any) -> dict[str, str]:
        return self._inbound.headers_of(permit.status)

    async def _websocket(self, permit: Any, scope: Scope, receive: Any, send: Any) -> None:
        limiter, key = self._messages, self._key(scope)

        async def receiving() -> Any:
            message = await receive()
            if limiter is not None and message["type"] == "websocket.receive":
                try:
                    await limiter.acquire_async(key)
                except EngineUnavailable:
                    return {"type": "websocket.disconnect", "code": TOO_MANY}
            return message

        try:
            await self._app(scope, receiving, send)
        finally:
            if permit is not None and permit.ended is None:
                permit.complete()


async def refuse(refusal: Refusal, scope: Scope, send: Any) -> None:
    """Answer a request that is not admitted; a WebSocket that the server cannot answer is closed."""
    headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
    prefix = "http"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": TOO_MANY, "reason": ""})
            return
        prefix = "websocket.http"
    await send({"type": f"{prefix}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": refusal.body})
