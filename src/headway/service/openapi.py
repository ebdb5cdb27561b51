"""The OpenAPI description, made from the table of calls and from the types of their messages."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from headway import __version__
from headway.service import messages as m
from headway.service.api import ENDPOINTS, Endpoint
from headway.service.envoy.json_route import JSON_CALL
from headway.service.gate_calls import GATE_CALLS
from headway.service.live import LIVE_CALLS
from headway.service.problems import TYPES

CALLS = (*ENDPOINTS, *GATE_CALLS, *LIVE_CALLS, JSON_CALL)
REF = "#/components/schemas/{name}"
WITH_BODY = ("bad-json", "bad-request", "body-too-large", "not-json", "slow-body")
WITH_TOKEN = ("no-token", "role-too-low")
ALWAYS = ("wrong-host", "wrong-origin", "failed")

WHOLE = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
QUERY = {"since": WHOLE, "limit": {**WHOLE, "minimum": 1}}
"""What a query may have; a text where nothing is said."""
LINKS = {
    "acquire": {name: {"id": "$response.body#/permit"} for name in ("release", "renew")},
    "submit_event": {"event_status": {"gate": "$request.path.gate", "id": "$response.body#/id"}},
}
"""By the operation: what can be called with its answer."""
LIMIT_HEADERS = {
    "RateLimit": "what is left, and when there is more (IETF draft)",
    "RateLimit-Policy": "the limits (IETF draft)",
    "X-RateLimit-Limit": "the most at once",
    "X-RateLimit-Remaining": "what is left",
    "X-RateLimit-Reset": "seconds until there is more",
}


@cache
def openapi() -> dict[str, Any]:
    """The whole description.

    >>> sorted(openapi()["paths"]["/v1/acquire"]["post"]["responses"])[:3]
    ['200', '400', '401']
    """
    types = [m.ProblemBody, m.Denial]
    for endpoint in CALLS:
        types += [kind for kind in (endpoint.body, endpoint.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in CALLS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headway",
            "version": __version__,
            "description": "Rate limits for every language: take a permit before each call.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {
            "schemas": _with_booleans(components),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _with_booleans(value: Any) -> Any:
    """The same, with a boolean that is always the same one as a `const`: generators know no enum of booleans.

    >>> _with_booleans({"granted": {"enum": [True], "default": True}})
    {'granted': {'type': 'boolean', 'const': True, 'default': True}}
    """
    if isinstance(value, list):
        return [_with_booleans(part) for part in value]
    if not isinstance(value, dict):
        return value
    found = {name: _with_booleans(part) for name, part in value.items()}
    if found.get("enum") in ([True], [False]):
        return {"type": "boolean", "const": found.pop("enum")[0], **found}
    return found


def _key(kind: Any) -> str:
    return str(kind)


def _operation(endpoint: Endpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint, schema_of),
        "security": [] if endpoint.role is None else [{}, {"token": []}],
    }
    if endpoint.role is not None:
        found["description"] = f"Needs the role `{endpoint.role}`, where tokens are configured."
    if endpoint.body is not None:
        schema = schema_of[_key(endpoint.body)]
        # Without a body it is {}.
        needed = endpoint.method == "PUT" or any(
            part.required for part in msgspec.structs.fields(endpoint.body)
        )
        found["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
    return found


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found: list[dict[str, Any]] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": text}
        for part in endpoint.path.split("/")
        if part.startswith("{")
    ]
    long_text = {"type": "string", "maxLength": m.MAX_KEY}
    found += [
        {"name": name, "in": "query", "required": False, "schema": QUERY.get(name, long_text)}
        for name in endpoint.query
    ]
    if endpoint.command:
        about = "the command's id, where its body has none: it is applied once, however often it is sent"
        schema = {"type": "string", "minLength": 1, "maxLength": m.MAX_ID}
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": schema,
                "description": about,
            }
        )
    return found


def _responses(endpoint: Endpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    headers = {
        name: {"description": text, "schema": {"type": "string"}}
        for name, text in (LIMIT_HEADERS if endpoint.limit_headers else {}).items()
    }
    found: dict[str, Any] = {}
    for status in endpoint.statuses:
        content = {endpoint.media_type: {"schema": schema_of[_key(endpoint.answer)]}}
        if endpoint.stream:
            content["text/event-stream"] = {"schema": {"type": "string", "description": endpoint.stream}}
        found[str(status)] = {"description": endpoint.summary, "content": content}
        if headers:
            found[str(status)]["headers"] = headers
        if links := LINKS.get(endpoint.operation):
            found[str(status)]["links"] = {
                name: {"operationId": name, "parameters": parameters} for name, parameters in links.items()
            }
    for status, kinds in sorted(by_status(endpoint).items()):
        denied = "rate-limited" in kinds
        schema = schema_of[_key(m.Denial if denied else m.ProblemBody)]
        text = "; ".join(f"{kind}: {TYPES[kind][1]}" for kind in kinds)
        found[str(status)] = {
            "description": text,
            "content": {"application/problem+json": {"schema": schema}},
        }
        if status in (429, 503):
            retry = {"description": "seconds, where the time is known", "schema": {"type": "string"}}
            found[str(status)]["headers"] = {"Retry-After": retry, **(headers if denied else {})}
    return found


def problems_of(endpoint: Endpoint) -> list[str]:
    """Every problem that a call may be answered with."""
    kinds = [*endpoint.problems, *ALWAYS]
    if endpoint.body is not None:
        kinds += WITH_BODY
    if endpoint.query:
        kinds.append("bad-request")
    if endpoint.command:
        kinds += ["command-id-reused", "bad-request"]
    if endpoint.role is not None:
        kinds += WITH_TOKEN
    return sorted(set(kinds))


def by_status(endpoint: Endpoint) -> dict[int, list[str]]:
    """The same, by the status that they have."""
    found: dict[int, list[str]] = {}
    for kind in problems_of(endpoint):
        found.setdefault(TYPES[kind][0], []).append(kind)
    return found
