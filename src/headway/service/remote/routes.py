"""The two routes of the protocol: batches of commands, and the answer that does not end.

    POST /v1/engine             {"session": ..., "commands": [[number, verb, ...], ...], ...}
    GET  /v1/engine/events      ?session=...&after=N: messages as lines, [number, kind, ...]

A client declares limits, so its token needs the role `admin`.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headway.engines.wire import EVENTS_PATH, PATH
from headway.errors import HeadwayError
from headway.service.bodies import json_bytes
from headway.service.problems import Problem, problem_of
from headway.service.remote.sessions import Sessions

ROLE = "admin"
MEMBERS = ("session", "lease", "new", "answered", "heard", "forget", "withdraw", "drop", "close", "commands")


def remote_routes(sessions: Sessions, max_body: int) -> list[Route]:
    """Routes for `Starlette(routes=...)`."""

    async def commands(request: Request) -> Response:
        try:
            batch = _read(await json_bytes(request, max_body))
            session = await sessions.find(batch)
            said = await session.answer(batch)
        except HeadwayError as error:
            return problem_of(error).response()
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            detail = f"the batch was not understood: {type(error).__name__}"
            return Problem("bad-request", detail).response()
        return Response(json.dumps(said, separators=(",", ":")), media_type="application/json")

    async def events(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        try:
            session = sessions.get(request.query_params.get("session", ""))
            if not (after.isascii() and after.isdecimal() and len(after) <= 18):
                raise Problem("bad-request", "after is a number", member="after")
        except HeadwayError as error:
            return problem_of(error).response()
        return StreamingResponse(session.stream(int(after)), media_type="application/x-ndjson")

    return [Route(PATH, commands, methods=["POST"]), Route(EVENTS_PATH, events, methods=["GET"])]


def _read(raw: bytes) -> dict[str, Any]:
    try:
        batch = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Problem("bad-json", f"the body is no JSON: {error}") from None
    if not isinstance(batch, dict) or any(name not in batch for name in MEMBERS):
        raise Problem("bad-request", f"a batch is an object with {', '.join(MEMBERS)}")
    return batch
