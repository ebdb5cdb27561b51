"""headway over the network: what a program in another language, a browser or a shell can use.

    app         puts it together: the routes, STOMP at /stomp, the check of hosts; `service_app`
    gates       plain HTTP for gates: submit, look, status, changes; `gate_routes`
    bodies      reads a request's body: bounded, JSON, with the members that are known
    problems    errors as problem+json (RFC 9457): which error of headway is which status
    hosts       which names a request may call this server by
    grpc        gRPC on libnghttp2, for calls with one message each way
    envoy       Envoy's rate limit service: its messages, its configuration, what it is answered
    running     runs an application with uvicorn: an address that is in use, Ctrl-C
    client      the other side of the plain HTTP, by the standard library
    watching    the other side of STOMP: a gate's state and changes, through lost connections

and for `headway serve`:

    config      headway.toml as a value; `config_values` reads and refuses single values, `config_changes` is what a
                changed file means
    limits      the limits that are served, and how they change; `keys` bounds how many keys they have
    acquire     the decision: a parsed request in, a permit or a problem out; knows nothing of HTTP
    permits     permits that clients hold, with leases
    answers     commands that are sent again are applied once
    messages    bodies and answers as types; `api` every call as one table, `openapi` its description
    tokens      which client it is, and what it may do
    live        what it does now, for those that watch; `console` the page that shows it
    metrics     figures for Prometheus
    service     all of it as one object, and reloads
    web         the same as an ASGI application; `protocol` and `server` run it

All but the client needs the `server` extra, so what this package offers is imported when it is first used. A user's own
Starlette or FastAPI may take single parts: `gate_routes`, with `PROBLEM_HANDLERS` for its errors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.service.app import service_app
    from headway.service.gates import gate_routes
    from headway.service.problems import PROBLEM_HANDLERS

__all__ = ["PROBLEM_HANDLERS", "gate_routes", "service_app"]

_WHERE = {"PROBLEM_HANDLERS": "problems", "gate_routes": "gates", "service_app": "app"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
