"""Limits of single routes of a FastAPI application, as dependencies.

    @app.get("/search", dependencies=[Depends(RateLimit("5/minute"))])
    async def search() -> ...

    @app.post("/chat")
    async def chat(permit: Annotated[Permit, Depends(RateLimit("10000/minute", cost=500))]) -> ...:
        permit.settle(tokens)

One `RateLimit` object is one limit: of all routes that depend on it together. A router and an application take it in
`dependencies` too. Several are asked in their order, and a refusal by one gives back what the others granted.

A dependency does not see the response. So headers are told by the response that FastAPI makes of what a function
returns; `install(app)` once tells them on every response, lets `deduct_when` see its status, and describes the 429 in
the OpenAPI document. The functions of the request get Starlette's `Request` or `WebSocket`.
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations of `RateLimit.__call__`.

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, NoReturn

from fastapi import FastAPI, routing
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from headway import InvalidUse, Permit
from headway.integrations.asgi_request import TOO_MANY, TRY_LATER, with_headers
from headway.integrations.charges import Charges
from headway.integrations.client_address import ClientAddress
from headway.integrations.inbound import Ban, Inbound, Limits
from headway.integrations.refusals import PROBLEM, Refusal, lines_of
from headway.limiter.request_input import Cost

__all__ = ["RateLimit", "Refused", "install"]

CHARGES: Final = "headway.charges"
"""Where the permits of a request are kept in its scope."""
WATCHED: Final = "headway.watched"
"""In the scope of a request whose response is seen."""


class Refused(HTTPException):
    """The request is not admitted: 429, or 503 when the engine is away. `refusal` has headers and problem.

    An application that has an answer of its own: `@app.exception_handler(Refused)`.
    """

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        # FastAPI's own handler makes a problem of it too, of the detail alone.
        headers = {name: value for name, value in refusal.headers.items() if name != "Content-Length"}
        super().__init__(refusal.status, refusal.problem["detail"], headers)


class RateLimit:
    """A limit as a dependency; its value is the permit, or None where the request is not limited.

    >>> from fastapi import Depends, FastAPI
    >>> app = FastAPI(dependencies=[Depends(RateLimit("100/minute"))])

    `limit` is one limit, a `Limiter`, a function of the request that names one, or one for each tier that `tier` names.
    `key`, `cost`, `exempt` and `tier` are functions of the request. The other options are those of
    `headway.integrations.asgi.RateLimit`; `deduct_when`, a function of the status, needs `install(app)`.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        key: Callable[[Any], str | None] | None = None,
        trusted: Iterable[str] = (),
        cost: Cost | Callable[[Any], Cost] = 1,
        exempt: Callable[[Any], bool] | None = None,
        tier: Callable[[Any], str] | None = None,
        deduct_when: Callable[[int], bool] | None = None,
        ban: Ban | None = None,
        headers: bool = True,
        legacy_headers: bool = False,
        **options: Any,
    ) -> None:
        address = ClientAddress(trusted)
        self._inbound = Inbound(
            limit, key=key or (lambda connection: address.of_scope(connection.scope)), cost=cost, exempt=exempt,
            tier=tier, deduct_when=deduct_when, ban=ban, headers=headers, legacy_headers=legacy_headers, **options,
        )  # fmt: skip

    async def __call__(self, connection: HTTPConnection, response: Response) -> AsyncIterator[Permit | None]:
        """Ask for a permit, and end it when the response was sent."""
        scope = connection.scope
        if self._inbound.deduct_when is not None and WATCHED not in scope:
            raise InvalidUse(
                "a dependency does not see the response's status, which deduct_when needs",
                "headway.integrations.fastapi.install(app)",
            )
        charges: Charges = scope.setdefault(CHARGES, Charges())
        permit, refusal, _ = await charges.admit_async(self._inbound, connection)
        if refusal is not None:
            refuse(connection, refusal)
        try:
            if WATCHED not in scope:
                response.headers.update(charges.headers())
            yield permit
        finally:
            # An exception comes by here before its response is made, which `Responses` waits for.
            if WATCHED not in scope and permit is not None and permit.ended is None:
                permit.complete()


def refuse(connection: HTTPConnection, refusal: Refusal) -> NoReturn:
    """End a request that is not admitted."""
    if connection.scope["type"] == "websocket":
        raise WebSocketException(TOO_MANY if refusal.status == 429 else TRY_LATER, refusal.problem["title"])
    # Where the application has no handler of its own, it gets one that sends the whole problem.
    handlers = connection.scope.get("starlette.exception_handlers", ({},))[0]
    if handlers.get(HTTPException) is http_exception_handler:
        handlers.setdefault(Refused, answer)
    raise Refused(refusal)


async def answer(request: Request, error: Refused) -> Response:  # noqa: ARG001 - how handlers are called
    """The response to a request that is not admitted."""
    return Response(error.refusal.body, error.refusal.status, error.refusal.headers)


def install(app: FastAPI) -> None:
    """Show every response to the limits of its route, and tell of them in the OpenAPI document.

    >>> app = FastAPI()
    >>> install(app)
    """
    app.add_middleware(Responses)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        for path, method in _limited(app):
            operation = document.get("paths", {}).get(path, {}).get(method)
            if operation is not None:
                operation.setdefault("responses", {}).setdefault("429", TOO_MANY_REQUESTS)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


class Responses:
    """Pure ASGI middleware: what the limits of a route want of its response."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start" and CHARGES in scope:
                told = scope[CHARGES].responded(message["status"])
                message = with_headers(message, lines_of(told))
            await send(message)

        scope[WATCHED] = True
        try:
            await self._app(scope, receive, sending if scope["type"] == "http" else send)
        finally:
            if CHARGES in scope:
                scope[CHARGES].end()


def _limited(app: FastAPI) -> Iterable[tuple[str, str]]:
    """Path and method of every operation that depends on a limit."""
    contexts = getattr(
        routing, "iter_route_contexts", list
    )  # routers that are included are no routes any more
    route: Any
    for route in contexts(app.routes):
        if _depends(getattr(route, "dependant", None)):
            yield from ((route.path_format, method.lower()) for method in route.methods)


def _depends(dependant: Any) -> bool:
    if dependant is None:
        return False
    return isinstance(dependant.call, RateLimit) or any(map(_depends, dependant.dependencies))


TOO_MANY_REQUESTS: Final = {
    "description": "Too many requests",
    "headers": {
        "Retry-After": {"description": "Seconds until the next request", "schema": {"type": "integer"}},
        "RateLimit": {"description": "How the limit stands", "schema": {"type": "string"}},
        "RateLimit-Policy": {"description": "What the limit is", "schema": {"type": "string"}},
    },
    "content": {
        PROBLEM: {
            "schema": {
                "type": "object",
                "properties": {
                    "type": {"type": "string", "format": "uri"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "violated-policies": {"type": "array", "items": {"type": "string"}},
                },
            }
        }
    },
}
