"""`POST /json`, as envoyproxy/ratelimit has it: the two messages in protobuf's JSON, 200 within the limits and 429 over
them. A plain function; `json_route` has the route that calls it.

    {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}

Names are read in lower camel case and as in the definition (`hitsAddend`, `hits_addend`); a field that is not known is
an error.
"""

from __future__ import annotations

import json
from typing import Any

from headway.errors import EngineUnavailable, LimiterClosed
from headway.service.envoy.client_codec import encode_request
from headway.service.envoy.codec import MAX_MESSAGE, decode_request
from headway.service.envoy.decide import RateLimitService
from headway.service.envoy.messages import (
    MAX_UINT32,
    Code,
    Descriptor,
    DescriptorStatus,
    Entry,
    LimitOverride,
    MalformedMessage,
    RateLimitRequest,
    RateLimitResponse,
    Unit,
)

SECOND = 1_000_000_000


async def answer_json(service: RateLimitService, body: bytes) -> tuple[int, bytes]:
    """The HTTP status and the body of the answer; raises `MalformedMessage`, `EngineUnavailable`, `LimiterClosed`."""
    try:
        response = await service.decide(read_request(body))
    except MalformedMessage:
        service.stats.malformed += 1
        raise
    except (EngineUnavailable, LimiterClosed):
        service.stats.engine_errors += 1
        raise
    return 429 if response.overall_code == Code.OVER_LIMIT else 200, write_response(response)


# -- requests ------------------------------------------------------------------------------------------------------


def read_request(body: bytes) -> RateLimitRequest:
    """The request in a body of JSON; raises `MalformedMessage`."""
    if len(body) > MAX_MESSAGE:
        raise MalformedMessage(f"a body of {len(body)} bytes; at most {MAX_MESSAGE} are read")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"it is no JSON: {error}") from None
    fields = _object("the request", value, "domain", "descriptors", "hitsAddend")
    try:
        request = RateLimitRequest(
            _text("domain", fields.get("domain", "")),
            tuple(_descriptor(each) for each in _list("descriptors", fields.get("descriptors"))),
            _number("hitsAddend", fields.get("hitsAddend", 0), MAX_UINT32),
        )
        # Through the other form of the same message, whose bounds hold here too.
        return decode_request(encode_request(request))
    except UnicodeEncodeError:
        raise MalformedMessage("a string has half of a surrogate pair") from None


def _descriptor(value: Any) -> Descriptor:
    fields = _object("a descriptor", value, "entries", "limit", "hitsAddend", "isNegativeHits")
    hits, negative = fields.get("hitsAddend"), fields.get("isNegativeHits", False)
    if not isinstance(negative, bool):
        raise MalformedMessage("isNegativeHits is true or false")
    entries = [_object("an entry", each, "key", "value") for each in _list("entries", fields.get("entries"))]
    return Descriptor(
        tuple(
            Entry(_text("key", each.get("key", "")), _text("value", each.get("value", "")))
            for each in entries
        ),
        _override(fields["limit"]) if fields.get("limit") is not None else None,
        None if hits is None else _number("hitsAddend", hits, 2**64 - 1),
        negative,
    )


def _override(value: Any) -> LimitOverride:
    fields = _object("a limit", value, "requestsPerUnit", "unit")
    unit = fields.get("unit", 0)
    if isinstance(unit, str):
        if unit not in Unit.__members__:
            raise MalformedMessage(f"{unit!r} is no unit; the units are {', '.join(Unit.__members__)}")
        unit = Unit[unit]
    return LimitOverride(
        _number("requestsPerUnit", fields.get("requestsPerUnit", 0), MAX_UINT32),
        _number("unit", unit, 2**31 - 1),
    )


def _object(what: str, value: Any, *names: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedMessage(f"{what} is an object")
    known = {name: name for name in names} | {_snake(name): name for name in names}
    for name in value:
        if name not in known:
            raise MalformedMessage(f"{what} has no field {name!r}; it has {', '.join(names)}")
    return {known[name]: field for name, field in value.items()}


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _list(name: str, value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise MalformedMessage(f"{name} is a list")
    return value or []


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedMessage(f"{name} is a string")
    return value


def _number(name: str, value: Any, most: int) -> int:
    """Numbers of 64 bits are strings in protobuf's JSON, so both are read."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise MalformedMessage(f"{name} is a whole number from 0 to {most}")
    return value


# -- responses -----------------------------------------------------------------------------------------------------


def write_response(response: RateLimitResponse) -> bytes:
    """The response in JSON.

    >>> write_response(RateLimitResponse(1, (DescriptorStatus(1, None, 5, 1_500_000_000),)))
    b'{"overallCode": "OK", "statuses": [{"code": "OK", "limitRemaining": 5, "durationUntilReset": "1.500s"}]}'
    """
    return json.dumps(
        {"overallCode": Code(response.overall_code).name, "statuses": list(map(_status, response.statuses))}
    ).encode()


def _status(status: DescriptorStatus) -> dict[str, Any]:
    found: dict[str, Any] = {"code": Code(status.code).name}
    limit = status.current_limit
    if limit is not None:
        found["currentLimit"] = {"requestsPerUnit": limit.requests_per_unit, "unit": Unit(limit.unit).name}
        if limit.name:
            found["currentLimit"]["name"] = limit.name
    if status.limit_remaining:
        found["limitRemaining"] = status.limit_remaining
    if status.duration_until_reset_ns is not None:
        found["durationUntilReset"] = _duration(status.duration_until_reset_ns)
    return found


def _duration(ns: int) -> str:
    """Seconds, with 0, 3, 6 or 9 places."""
    seconds, rest = divmod(ns, SECOND)
    for places in (0, 3, 6, 9):
        if rest % 10 ** (9 - places) == 0:
            break
    return f"{seconds}.{rest // 10 ** (9 - places):0{places}}s" if places else f"{seconds}s"
