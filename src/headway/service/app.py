"""The service as one ASGI application: the routes of gates, STOMP over WebSocket at /stomp, and errors as JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from headway.once import Once, stomp_app
from headway.once.stomp.app import StompApp
from headway.service.gates import gate_routes
from headway.service.hosts import HostGuard
from headway.service.problems import PROBLEM_HANDLERS

STOMP_PATH: Final = "/stomp"


def service_app(
    gates: Mapping[str, Once], *, host: str = "127.0.0.1", origins: Collection[str] = (), **stomp: Any
) -> Starlette:
    """What `headway events serve` runs. `host` is the address that it is bound to; `stomp` are options of `stomp_app`.

    >>> app = service_app({"orders": Once("5min")})
    >>> [route.path for route in app.routes][-1]
    '/stomp'

    The gates are closed when it ends.
    """

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for gate in gates.values():
                gate.close()

    return Starlette(
        routes=[*gate_routes(gates), *stomp_routes(gates, **stomp)],
        middleware=[Middleware(HostGuard, host=host, origins=origins)],
        exception_handlers=PROBLEM_HANDLERS,
        lifespan=lifespan,
    )


def stomp_routes(gates: Mapping[str, Once], **options: Any) -> list[BaseRoute]:
    """STOMP over WebSocket at /stomp; `options` are those of `stomp_app`."""
    return routes_of_stomp(stomp_app(gates, **options))


def routes_of_stomp(gates_on_stomp: StompApp) -> list[BaseRoute]:
    """The same, of an application that is there already."""
    return [
        Route(STOMP_PATH, _no_websocket, methods=["GET"]),
        # A mounted application would be reached at /stomp/ alone.
        WebSocketRoute(f"{STOMP_PATH}/", gates_on_stomp),
        WebSocketRoute(STOMP_PATH, gates_on_stomp),
    ]


async def _no_websocket(request: Request) -> Response:  # noqa: ARG001
    raise HTTPException(426, "STOMP is spoken over a WebSocket here", {"Upgrade": "websocket"})
