"""The HTTP API as one table: every call with its path, role, types and the problems that it may have.

Routes are made from the table, and so is the OpenAPI description. A call's function gets the service and a `Call`
(which is no request of a web framework) and returns an `Answer`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.service import messages as m
from headway.service import metrics
from headway.service.acquire import Decided
from headway.service.config import LIMIT, ConfigError, read_limit
from headway.service.config_values import A_NAME, NAME, Place
from headway.service.problems import Problem
from headway.service.served_limit import ServedLimit
from headway.service.service import Service


@dataclass(frozen=True, slots=True)
class Call:
    """A call: what its path and query name, and its body."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call is answered with. `granted`: permits that go back if the client has gone before it got them."""

    body: Any
    status: int = 200
    head: bytes = b""
    """Lines of headers."""
    media_type: str = "application/json"
    granted: tuple[Decided, ...] = ()


Handler = Callable[[Service, Call], Answer | Awaitable[Answer]]
"""One that is no coroutine never waits, and its call may be answered in the turn of the loop in which it came."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One call of the API. `role` is None where no token is needed."""

    method: str
    path: str
    role: str | None
    handler: Handler | None
    summary: str
    answer: Any
    problems: tuple[str, ...] = ()
    body: Any = None
    query: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)
    media_type: str = "application/json"
    limit_headers: bool = False
    waits: bool = False
    """Whether it may take long, and ends when its client has gone."""
    stream: str = ""
    """Of a call that is also answered as server-sent events: what they are."""
    name: str = ""
    """Of a call that is answered elsewhere, and only described here: it has no handler."""

    @property
    def operation(self) -> str:
        return self.name if self.handler is None else self.handler.__name__

    @property
    def command(self) -> bool:
        """Whether it changes something, and so may carry an id."""
        return self.method != "GET" and self.handler is not None

    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(self.path)))


# -- permits ---------------------------------------------------------------------------------------------


async def acquire(service: Service, call: Call) -> Answer:
    found = await service.decider.acquire(call.body)
    return Answer(found.grant, head=found.head, granted=(found,))


async def acquire_each(service: Service, call: Call) -> Answer:
    _check_batch(service, call.body.requests)
    answer, granted = await service.decider.acquire_each(call.body)
    return Answer(answer, granted=tuple(granted))


async def acquire_all(service: Service, call: Call) -> Answer:
    _check_batch(service, call.body.requests)
    answer, granted = await service.decider.acquire_all(call.body)
    return Answer(answer, granted=tuple(granted))


def _check_batch(service: Service, requests: list[Any]) -> None:
    most = service.config.server.max_batch
    if len(requests) > most:
        raise Problem("bad-request", f"a batch has {most} requests at most", member="requests")


def release(service: Service, call: Call) -> Answer:
    id, body = call.path["id"], call.body
    if body.cost is not None and body.how != "settle":
        raise Problem("bad-request", 'only "how": "settle" has a cost', member="cost")
    how: Any = service.permits.release(id, body.how, body.cost)
    return Answer(m.Ended(permit=id, ended=how))


def renew(service: Service, call: Call) -> Answer:
    id = call.path["id"]
    return Answer(m.Renewed(permit=id, expires_in=service.permits.renew(id, call.body.lease)))


# -- limits ----------------------------------------------------------------------------------------------


async def list_limits(service: Service, call: Call) -> Answer:  # noqa: ARG001
    return Answer(m.LimitList(limits=[_info(service, served) for served in service.limits]))


async def get_limit(service: Service, call: Call) -> Answer:
    return Answer(_info(service, service.limits.find(call.path["name"])))


async def put_limit(service: Service, call: Call) -> Answer:
    name = call.path["name"]
    if NAME.fullmatch(name) is None:
        raise Problem("bad-limit", f"a name has {A_NAME}", member="name")
    # Null is what is not there, as in a file.
    given = {key: value for key, value in msgspec.to_builtins(call.body).items() if value is not None}
    try:
        config = read_limit(name, given, Place("", f"limits.{name}"))
        new = await service.limits.put(config, "api")
    except ConfigError as error:
        raise Problem("bad-limit", str(error), member=error.key, accepted=error.accepted) from None
    return Answer(_info(service, service.limits.find(name)), 201 if new else 200)


async def delete_limit(service: Service, call: Call) -> Answer:
    name = call.path["name"]
    await service.limits.delete(name)
    service.metrics.forget_gone(service.limits)
    return Answer(m.Done(limit=name))


async def limit_status(service: Service, call: Call) -> Answer:
    served, key = service.limits.find(call.path["name"]), call.query.get("key")
    if key is not None and len(key) > m.MAX_KEY:
        raise Problem("bad-request", f"a key has {m.MAX_KEY} characters at most", member="key")
    if served.limiter is None:
        return Answer(m.StatusAnswer(limit=served.name, key=key, status=None))
    status = await served.limiter.peek_async(key)
    said = m.StatusAnswer(limit=served.name, key=key, status=m.status_message(status))
    return Answer(said, head=status.header_block())


async def pause(service: Service, call: Call) -> Answer:
    served = service.limits.find(call.path["name"])
    await _limiter(served).pause_async(call.body.seconds, call.body.key)
    if call.body.key is None:
        until = service.now() + call.body.seconds
        served.paused_until = max(until, served.paused_until) if call.body.seconds else 0.0
    return Answer(m.Done(limit=served.name))


async def reset(service: Service, call: Call) -> Answer:
    served = service.limits.find(call.path["name"])
    await _limiter(served).reset_async(call.body.key)
    return Answer(m.Done(limit=served.name))


def _limiter(served: ServedLimit) -> Any:
    if served.limiter is None:
        raise Problem("not-limited", "there is nothing to pause or to reset", limit=served.name)
    return served.limiter


def _info(service: Service, served: ServedLimit) -> m.LimitInfo:
    return m.LimitInfo(
        name=served.name,
        limit=served.config.text,
        source=served.source,
        ledgers=served.config.ledgers,
        granted=served.granted,
        denied=served.denied,
        waiting=served.waiting,
        in_flight=service.permits.out(served.name),
        keys=len(served.keys),
        config=served.config.table(),
    )


# -- the server itself -----------------------------------------------------------------------------------


def healthz(service: Service, call: Call) -> Answer:  # noqa: ARG001
    return Answer(m.Health())


async def readyz(service: Service, call: Call) -> Answer:  # noqa: ARG001
    if service.decider.closing:
        raise Problem("closing", "this server is about to end", headers={"Retry-After": "1"})
    await service.check()
    return Answer(m.Health())


async def figures(service: Service, call: Call) -> Answer:  # noqa: ARG001
    text = service.metrics.text(service.limits, service.permits)
    if service.envoy is not None:
        text += service.envoy.service.stats.text().encode()
    return Answer(text, media_type=metrics.CONTENT_TYPE)


async def description(service: Service, call: Call) -> Answer:  # noqa: ARG001
    from headway.service.openapi import openapi

    return Answer(openapi())


# -- the table -------------------------------------------------------------------------------------------

DECIDING = (
    "unknown-limit",
    "rate-limited",
    "too-many-waiting",
    "too-many-permits",
    "engine-unavailable",
    "closing",
)
ENDING = ("unknown-permit", "permit-finished", "permit-expired")
ADMIN = ("unknown-limit", "engine-unavailable", "not-limited")
NAMED = "/v1/limits/{name}"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST", "/v1/acquire", "use", acquire, "Take a permit, now or after a wait", m.Grant, DECIDING, m.Acquire,
        limit_headers=True, waits=True,
    ),
    Endpoint(
        "POST", "/v1/acquire/each", "use", acquire_each, "Take several permits, each by itself", m.EachAnswer,
        ("closing",), m.AcquireEach, waits=True,
    ),
    Endpoint(
        "POST", "/v1/acquire/all", "use", acquire_all, "Take several permits, all or none", m.AllAnswer, DECIDING,
        m.AcquireAll, waits=True,
    ),
    Endpoint("POST", "/v1/permits/{id}/release", "use", release, "End a permit", m.Ended, ENDING, m.Release),
    Endpoint("POST", "/v1/permits/{id}/renew", "use", renew, "Keep a permit", m.Renewed, ENDING, m.Renew),
    Endpoint("GET", "/v1/limits", "read", list_limits, "All limits", m.LimitList),
    Endpoint("GET", NAMED, "read", get_limit, "One limit", m.LimitInfo, ("unknown-limit",)),
    Endpoint(
        "PUT", NAMED, "admin", put_limit, "Serve a limit from now on", m.LimitInfo, ("bad-limit", "too-many-limits"),
        m.LimitBody, statuses=(200, 201),
    ),
    Endpoint("DELETE", NAMED, "admin", delete_limit, "Serve a limit no more", m.Done, ("unknown-limit",)),
    Endpoint(
        "GET", f"{NAMED}/status", "read", limit_status, "How a limit stands for a key; consumes nothing",
        m.StatusAnswer, ("unknown-limit", "engine-unavailable"), query=("key",), limit_headers=True,
    ),
    Endpoint("POST", f"{NAMED}/pause", "admin", pause, "Grant nothing for a while", m.Done, ADMIN, m.Pause),
    Endpoint("POST", f"{NAMED}/reset", "admin", reset, "Let a key start anew", m.Done, ADMIN, m.Reset),
    Endpoint("GET", "/healthz", None, healthz, "Whether the server answers", m.Health),
    Endpoint(
        "GET", "/readyz", None, readyz, "Whether the engine answers too", m.Health, ("engine-unavailable", "closing")
    ),
    Endpoint("GET", "/metrics", "read", figures, "Figures for Prometheus", str, media_type="text/plain"),
    Endpoint("GET", "/openapi.json", None, description, "This description", dict[str, Any]),
)  # fmt: skip

assert set(m.LimitBody.__struct_fields__) == set(LIMIT)
