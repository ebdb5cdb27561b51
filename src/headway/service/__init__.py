"""headway over the network: what a program in another language, a browser or a shell can use.

    app         puts it together: the routes, STOMP at /stomp, the check of hosts; `service_app`
    gates       plain HTTP for gates: submit, look, status, changes; `gate_routes`
    bodies      reads a request's body: bounded, JSON, with the members that are known
    problems    errors as problem+json (RFC 9457): which error of headway is which status
    hosts       which names a request may call this server by
    running     runs an application with uvicorn: an address that is in use, Ctrl-C

It needs the `server` extra. Everything here is a part that a user's own Starlette or FastAPI may take too.
"""

from headway.service.app import service_app
from headway.service.gates import gate_routes
from headway.service.problems import PROBLEM_HANDLERS

__all__ = ["PROBLEM_HANDLERS", "gate_routes", "service_app"]
