"""`GET /v1/live`: the state as JSON, or, for a client that accepts `text/event-stream`, as server-sent events.

    event: hello    the role of the token, and the server's version (`LiveHello`)
    event: state    the whole state (`LiveState`): first, and whenever a client was too slow for a change
    event: change   what is different since

A token that is taken out of the file ends the streams that it has opened. So does the end of the server; a client
connects again after a while.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headway import __version__
from headway.service.api import Endpoint
from headway.service.live.messages import LiveHello, LiveState
from headway.service.live.sampler import Sampler
from headway.service.problems import Problem

if TYPE_CHECKING:
    from headway.service.service import Service

EVENTS: Final = "text/event-stream"
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
RETRY: Final = b"retry: 1000\n\n"

LIVE_CALLS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET", "/v1/live", "read", None, "What the server does now", LiveState, ("too-many-watchers", "closing"),
        stream="events `hello`, `state` (a LiveState) and `change` (a LiveState with what differs)", name="live",
    ),
)  # fmt: skip


def live_routes(service: Service, sampler: Sampler) -> list[Route]:
    """The route of the call."""

    async def live(request: Request) -> Response:
        if service.decider.closing:
            raise Problem("closing", "this server is about to end", headers={"Retry-After": "1"})
        if not wants_events(request.headers.get("accept", "")):
            return Response(await sampler.state(), headers=HEADERS, media_type="application/json")
        authorization = request.headers.get("authorization")
        # The first message now: a problem is an answer of its own, and not the end of a stream.
        messages = sampler.watch()
        first = await anext(messages)
        stream = _events(service, authorization, first, messages)
        return StreamingResponse(stream, headers=HEADERS, media_type=EVENTS)

    return [Route("/v1/live", live, methods=["GET"])]


def wants_events(accept: str) -> bool:
    """Whether a client asks for server-sent events.

    >>> wants_events("text/event-stream"), wants_events("*/*"), wants_events("")
    (True, False, False)
    """
    return any(part.partition(";")[0].strip().lower() == EVENTS for part in accept.split(","))


async def _events(
    service: Service,
    authorization: str | None,
    first: tuple[str, bytes],
    messages: AsyncIterator[tuple[str, bytes]],
) -> AsyncIterator[bytes]:
    try:
        token = service.tokens.check(authorization, "read")
        role = cast("Any", token.role)
        hello = LiveHello(role=role, token=token.name, version=__version__)
        yield RETRY + event("hello", msgspec.json.encode(hello)) + event(*first)
        async for kind, data in messages:
            if service.tokens.check(authorization, "read") != token:
                return  # it has another role now, and the client is told at its next attempt
            yield event(kind, data)
    except Problem:
        return  # the token is not known any more
    finally:
        await messages.aclose()  # type: ignore[attr-defined]


def event(kind: str, data: bytes) -> bytes:
    """A server-sent event; JSON has no line end in it.

    >>> event("hello", b"{}")
    b'event: hello\\ndata: {}\\n\\n'
    """
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
