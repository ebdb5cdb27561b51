"""Gates over plain HTTP: for programs that have no STOMP client, and for a shell.

    POST /v1/gates/{gate}/events        {"event": ..., "id": ..., "value": ...}: submit an event
                                            200 accepted   409 a repeat; both with the submission as JSON
    GET  /v1/gates/{gate}/events/{id}   what became of a submission
    GET  /v1/gates/{gate}               a key frame: what is pending, at one value of the clock
    GET  /v1/gates/{gate}/changes       ?since=CLOCK&limit=N: what happened after it; 410 if that is not kept any more
    GET  /v1/gates                      the gates that are served

**A client that retries gives an `id`.** Then a POST whose answer was lost can be sent again and gets the same answer,
accepted or rejected, and counts once. That is also what to do after 503. Without an id each POST is a submission of
its own, and a retry is a repeat.

A rejected event is 409: the request was understood, and conflicts with an event that came before it. What the answer
says is a problem (`headway.service.problems`) with the members of a `Submission` besides, so a client may look at the
status alone, or at `accepted` alone.

Times are seconds since 1970 by the engine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.once import Once
from headway.once.input import checked_event, checked_id, checked_value
from headway.once.stomp.wire import body_of
from headway.printable import printable
from headway.service.bodies import json_object
from headway.service.problems import Problem

MEMBERS: Final = ("event", "id", "value")
PAGE: Final = 1000
"""Changes in one answer, at most."""

Answer = Callable[[Once, str, Request], Coroutine[Any, Any, Response]]


def gate_routes(gates: Mapping[str, Once], prefix: str = "/v1") -> list[Route]:
    """The routes of gates, by the names that they have in a path; for `Starlette(routes=...)`.

    >>> [route.path for route in gate_routes({"orders": Once("5min")})][:2]
    ['/v1/gates', '/v1/gates/{gate}']
    """

    def of_a_gate(answer: Answer) -> Any:
        async def endpoint(request: Request) -> Response:
            name = request.path_params["gate"]
            gate = gates.get(name)
            if gate is None:
                raise Problem("unknown-gate", f"there is no gate {printable(name[:100])!r} here")
            return await answer(gate, name, request)

        return endpoint

    async def all_gates(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse({"gates": [_about(gate, name) for name, gate in gates.items()]})

    base = f"{prefix}/gates"
    return [
        Route(base, all_gates, methods=["GET"]),
        Route(f"{base}/{{gate}}", of_a_gate(_snapshot), methods=["GET"]),
        Route(f"{base}/{{gate}}/events", of_a_gate(_submit), methods=["POST"]),
        Route(f"{base}/{{gate}}/events/{{id:path}}", of_a_gate(_status), methods=["GET"]),
        Route(f"{base}/{{gate}}/changes", of_a_gate(_changes), methods=["GET"]),
    ]


def _about(gate: Once, name: str) -> dict[str, Any]:
    return {"gate": name, "mode": gate.mode, "duration": gate.duration}


async def _submit(gate: Once, name: str, request: Request) -> Response:
    body = await json_object(request, MEMBERS)
    if "event" not in body:
        raise Problem(
            "bad-request", 'the member "event" is missing: it is what must not repeat', member="event"
        )
    event, value = checked_event(body["event"]), checked_value(body.get("value"))
    id = body.get("id")
    found = await gate.submit_async(event, None if id is None else checked_id(id), value)
    said = {**_about(gate, name), **found._asdict()}
    if found.accepted:
        return JSONResponse(said)
    why = f"it repeats the event with id {printable(found.conflict or '')!r}"
    raise Problem("repeated-event", f"the event was rejected: {why}", **said)


async def _status(gate: Once, name: str, request: Request) -> Response:
    id = request.path_params["id"]
    status = await gate.status_async(id)
    if status is None:
        raise Problem("unknown-event", "it was never submitted, or is not kept any more")
    return JSONResponse({"gate": name, "id": id, "status": status.name})


async def _snapshot(gate: Once, name: str, request: Request) -> Response:  # noqa: ARG001
    return JSONResponse({"gate": name, **body_of(await gate.snapshot_async(), gate)})


async def _changes(gate: Once, name: str, request: Request) -> Response:
    since, limit = _number(request, "since", 0), min(PAGE, _number(request, "limit", PAGE))
    found = await gate.changes_async(since, limit)
    clock = found[-1].clock if found else since
    changes = [body_of(change, gate) for change in found]
    # Fewer than were asked for: there are no more.
    return JSONResponse({"gate": name, "clock": clock, "more": len(found) == limit, "changes": changes})


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) < 1 << 53):
        raise Problem(
            "bad-request", f"{name}={text[:40]!r} is no whole number from 0 to 2**53 - 1", member=name
        )
    return int(text)
