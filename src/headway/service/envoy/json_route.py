"""`POST /json` of the service: the route, and its types for the OpenAPI description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.service.api import Endpoint
from headway.service.bodies import json_bytes
from headway.service.problems import Problem

if TYPE_CHECKING:
    from headway.service.service import Service

Unit = Literal["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"]
Verdict = Literal["OK", "OVER_LIMIT"]
Count = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]


class EntryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A key and its value."""

    key: str = ""
    value: str = ""


class OverrideBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A limit that a descriptor brings along."""

    requests_per_unit: Count
    unit: Literal["SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"]


class DescriptorBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What is to be limited."""

    entries: list[EntryBody] = []
    limit: OverrideBody | None = None
    hits_addend: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None
    is_negative_hits: bool = False


class RateLimitBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Envoy's `RateLimitRequest`."""

    domain: Annotated[str, Meta(min_length=1)]
    descriptors: Annotated[list[DescriptorBody], Meta(min_length=1)]
    hits_addend: Count = 0


class CurrentLimitBody(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The limit that decided."""

    requests_per_unit: int
    unit: Unit
    name: str = ""


class StatusBody(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What was decided for one descriptor."""

    code: Verdict
    current_limit: CurrentLimitBody | None = None
    limit_remaining: int = 0
    duration_until_reset: str = ""


class RateLimitAnswer(Struct, frozen=True, rename="camel"):
    """Envoy's `RateLimitResponse`; 429 where the request is over a limit."""

    overall_code: Verdict
    statuses: list[StatusBody]


JSON_CALL = Endpoint(
    "POST", "/json", "use", None, "Decide as for an Envoy: 200, or 429 over a limit", RateLimitAnswer,
    ("no-rules", "bad-descriptors", "engine-unavailable", "closing"), RateLimitBody, statuses=(200, 429),
    name="should_rate_limit",
)  # fmt: skip


def json_route(service: Service) -> Route:
    """The route, which is there also where no rules are served: then it says so."""

    async def answer(request: Request) -> Response:
        body = await json_bytes(request, service.config.server.max_body)
        if service.envoy is None:
            raise Problem("no-rules", "this server has no [envoy] in its file")
        from headway.service.envoy.json_call import answer_json
        from headway.service.envoy.messages import MalformedMessage

        try:
            status, said = await answer_json(service.envoy.service, body)
        except MalformedMessage as error:
            raise Problem("bad-descriptors", str(error)) from None
        return Response(said, status, media_type="application/json")

    return Route(JSON_CALL.path, answer, methods=["POST"])
