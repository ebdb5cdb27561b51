"""The service as an ASGI application: the table of calls as routes, gates and STOMP beside them, tokens around all.

A call that waits ends when its client disconnects: the application listens for that while the call is decided, and
cancels it. A permit that was granted in that moment goes back, unless the command has an id: then its client is
expected to ask again, and gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.engines.wire import EVENTS_PATH, PATH
from headway.errors import HeadwayError
from headway.once import stomp_app
from headway.service.api import ENDPOINTS, Answer, Endpoint
from headway.service.app import STOMP_PATH, routes_of_stomp
from headway.service.bodies import json_bytes
from headway.service.calls import ApiCall, Asked
from headway.service.console import console_routes, is_console
from headway.service.counted import COUNTED, AnswerCounter
from headway.service.encoded import Encoded
from headway.service.envoy.json_route import json_route
from headway.service.gates import gate_routes
from headway.service.hosts import HostGuard
from headway.service.live import Sampler, live_routes
from headway.service.openapi import CALLS
from headway.service.problems import PROBLEM_HANDLERS
from headway.service.remote.routes import ROLE, remote_routes
from headway.service.service import Service
from headway.service.tokens import TokenGuard

CLIENT_GONE: Final = 499
"""In the figures: the client has gone before it was answered."""

_PATTERNS = [(endpoint.method, endpoint.pattern(), endpoint.role) for endpoint in CALLS]
_LABELS = list({endpoint.path: (endpoint.pattern(), endpoint.path) for endpoint in CALLS}.values())


def web_app(service: Service, *, origins: Collection[str] = ()) -> Starlette:
    """What `headway serve` runs. The service is started before, and closed when the application ends."""

    gates_on_stomp = stomp_app(service.gates)
    sampler = Sampler(service, gates_on_stomp.subscribers)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        sampler.start()
        try:
            yield
        finally:
            await sampler.close()
            await service.close()

    routes: list[Any] = [
        Route(call.path, _endpoint(service, call), methods=[call.method])
        for call in ENDPOINTS
        if call.handler is not None
    ]
    routes += [*gate_routes(service.gates), *routes_of_stomp(gates_on_stomp), *live_routes(service, sampler)]
    routes += [*console_routes(), json_route(service)]
    routes += remote_routes(service.remote, service.config.server.max_body)
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(AnswerCounter, label_of=label_of, count=service.metrics.answered),
            Middleware(HostGuard, host=service.host, origins=origins),
            Middleware(TokenGuard, tokens=service.tokens, role_of=role_of),
        ],
        exception_handlers={**PROBLEM_HANDLERS, 405: _wrong_method},
        lifespan=lifespan,
    )


def role_of(method: str, path: str) -> str | None:
    """The role that a request needs, also where there is no such path: what is there is told to no stranger.

    >>> role_of("POST", "/v1/acquire"), role_of("GET", "/healthz"), role_of("PUT", "/v1/limits/api")
    ('use', None, 'admin')
    >>> role_of("POST", "/v1/gates/orders/events"), role_of("GET", "/v1/gates"), role_of("GET", "/nothing")
    ('use', 'read', 'read')
    >>> role_of("GET", "/"), role_of("GET", "/console/console.js"), role_of("GET", "/console/other.js")
    (None, None, 'read')
    """
    if is_console(path):
        return None
    if path.startswith(PATH):
        return ROLE
    known = [(own, role) for own, pattern, role in _PATTERNS if pattern.fullmatch(path)]
    for own, role in known:
        if own == method or (method == "HEAD" and own == "GET"):
            return role
    return "use" if method == "WEBSOCKET" else "read"


def label_of(path: str) -> str:
    """What the answers of a path are counted under.

    >>> label_of("/v1/limits/api/pause"), label_of("/console/console.js"), label_of("/invented")
    ('/v1/limits/{name}/pause', '/', 'other')
    """
    if is_console(path):
        return "/"
    if path in (PATH, EVENTS_PATH, STOMP_PATH):
        return path
    return next((known for pattern, known in _LABELS if pattern.fullmatch(path)), "other")


async def _wrong_method(request: Request, error: Exception) -> Response:
    """405, with every method that the path has: the framework names those of one route alone."""
    response: Response = await PROBLEM_HANDLERS[HTTPException](request, error)
    known = {method for method, pattern, _ in _PATTERNS if pattern.fullmatch(request.url.path)}
    if known:
        response.headers["Allow"] = ", ".join(sorted(known | ({"HEAD"} if "GET" in known else set())))
    return response


def _endpoint(service: Service, endpoint: Endpoint) -> Callable[[Request], Any]:
    call = ApiCall(service, endpoint)

    async def answer(request: Request) -> Response:
        request.scope[COUNTED] = True
        found = await call.answered(respond(request))
        return found.response()

    async def respond(request: Request) -> Encoded:
        raw = await _body(request, service.config.server.max_body) if call.has_body else b""
        asked = Asked(
            token=request.scope.get("headway.token", ""),
            method=request.method,
            path=request.url.path,
            params=request.path_params,
            query=request.query_params,
            idempotency_key=request.headers.get("idempotency-key"),
        )

        async def unless_gone(work: Awaitable[Answer], has_id: bool) -> Answer:
            return await _unless_gone(request, service, work, has_id)

        try:
            return await call.carried_out(
                asked, raw, call.decoded(raw) if call.has_body else None, unless_gone
            )
        except _ClientGoneError:
            return Encoded(CLIENT_GONE, b"", "", b"")

    return answer


async def _body(request: Request, most: int) -> bytes:
    headers = request.headers
    announced = [name in headers for name in ("content-type", "transfer-encoding")]
    if not any(announced) and headers.get("content-length", "0") == "0":
        return b""  # the same as {}
    return await json_bytes(request, most)


async def _unless_gone(request: Request, service: Service, work: Any, has_id: bool) -> Answer:
    """The answer of a call, which is cancelled when its client disconnects."""
    task = asyncio.ensure_future(work)
    gone: asyncio.Task[Any] | None = None
    try:
        await asyncio.sleep(0)  # most calls are decided in one turn of the loop, or soon
        if not task.done():
            gone = asyncio.ensure_future(_disconnected(request))
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
        answer: Answer = await task
    except asyncio.CancelledError:
        if gone is not None and gone.done() and not gone.cancelled():
            raise _ClientGoneError from None
        task.cancel()
        raise
    finally:
        if gone is not None and not gone.done():
            gone.cancel()
    if gone is not None and gone.done() and not has_id:
        service.decider.give_back(answer.granted)
        raise _ClientGoneError
    return answer


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _ClientGoneError(HeadwayError):
    """No client reads the answer."""
