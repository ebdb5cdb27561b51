"""The other side of `codec`: requests to bytes, and responses from bytes, for clients and for tests."""

from __future__ import annotations

from headway.service.envoy.codec import SECOND
from headway.service.envoy.messages import (
    CurrentLimit,
    Descriptor,
    DescriptorStatus,
    Header,
    Quota,
    RateLimitRequest,
    RateLimitResponse,
)
from headway.service.envoy.wire import (
    LENGTH,
    MASK32,
    VARINT,
    bytes_field,
    fields,
    int32,
    number_field,
    read_text,
    text_field,
)


def encode_request(request: RateLimitRequest) -> bytes:
    """The request as bytes.

    >>> from headway.service.envoy.codec import decode_request
    >>> decode_request(encode_request(RateLimitRequest("shop", hits_addend=2)))
    RateLimitRequest(domain='shop', descriptors=(), hits_addend=2)
    """
    descriptors = b"".join(bytes_field(2, _encode_descriptor(each)) for each in request.descriptors)
    return text_field(1, request.domain) + descriptors + number_field(3, request.hits_addend)


def _encode_descriptor(descriptor: Descriptor) -> bytes:
    out = b"".join(
        bytes_field(1, text_field(1, entry.key) + text_field(2, entry.value)) for entry in descriptor.entries
    )
    limit, hits = descriptor.limit, descriptor.hits_addend
    if limit is not None:
        out += bytes_field(2, number_field(1, limit.requests_per_unit) + number_field(2, limit.unit))
    if hits is not None:
        out += bytes_field(3, number_field(1, hits))
    return out + number_field(4, int(descriptor.is_negative_hits))


def decode_response(data: bytes) -> RateLimitResponse:
    """The response; raises `MalformedMessage`."""
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(1, 8)}
    code = 0
    for number, kind, value, stop in fields(data, 0, len(data)):
        if number == 1 and kind == VARINT:
            code = int32(value)
        elif number in found and kind == LENGTH:
            found[number].append((value, stop))
    quota: Quota | None = None
    for place in found[7]:
        quota = _decode_quota(data, *place, quota)
    return RateLimitResponse(
        code,
        tuple(_decode_status(data, *place) for place in found[2]),
        tuple(_decode_header(data, *place) for place in found[3]),
        tuple(_decode_header(data, *place) for place in found[4]),
        next((data[start:stop] for start, stop in reversed(found[5])), b""),
        # Encoded messages that follow each other are one message, merged.
        b"".join(data[start:stop] for start, stop in found[6]) if found[6] else None,
        quota,
    )


def _decode_status(data: bytes, at: int, end: int) -> DescriptorStatus:
    code = remaining = 0
    limit: CurrentLimit | None = None
    reset: tuple[int, int] | None = None
    quota: Quota | None = None
    for number, kind, value, stop in fields(data, at, end):
        if kind == VARINT and number == 1:
            code = int32(value)
        elif kind == VARINT and number == 3:
            remaining = value & MASK32
        elif kind == LENGTH and number == 2:
            limit = _decode_limit(data, value, stop, limit)
        elif kind == LENGTH and number == 4:
            reset = _decode_time(data, value, stop, reset)
        elif kind == LENGTH and number == 5:
            quota = _decode_quota(data, value, stop, quota)
    return DescriptorStatus(code, limit, remaining, _nanoseconds(reset), quota)


def _decode_limit(data: bytes, at: int, end: int, before: CurrentLimit | None) -> CurrentLimit:
    count, unit, name = before or CurrentLimit()
    for number, kind, value, stop in fields(data, at, end):
        if kind == VARINT and number == 1:
            count = value & MASK32
        elif kind == VARINT and number == 2:
            unit = int32(value)
        elif kind == LENGTH and number == 3:
            name = read_text(data, value, stop)
    return CurrentLimit(count, unit, name)


def _decode_quota(data: bytes, at: int, end: int, before: Quota | None) -> Quota:
    requests, until_ns, id = before or Quota()
    until = None if until_ns is None else divmod(until_ns, SECOND)
    for number, kind, value, stop in fields(data, at, end):
        if kind == VARINT and number == 1:
            requests = value & MASK32
        elif kind == LENGTH and number == 2:
            until = _decode_time(data, value, stop, until)
        elif kind == LENGTH and number == 3:
            id = read_text(data, value, stop)
    return Quota(requests, _nanoseconds(until), id)


def _decode_header(data: bytes, at: int, end: int) -> Header:
    key = value = ""
    raw = b""
    for number, kind, start, stop in fields(data, at, end):
        if kind == LENGTH and number == 1:
            key = read_text(data, start, stop)
        elif kind == LENGTH and number == 2:
            value = read_text(data, start, stop)
        elif kind == LENGTH and number == 3:
            raw = data[start:stop]
    return Header(key, value, raw)


def _decode_time(data: bytes, at: int, end: int, before: tuple[int, int] | None) -> tuple[int, int]:
    seconds, nanos = before or (0, 0)
    for number, kind, value, _ in fields(data, at, end):
        if kind == VARINT and number == 1:
            seconds = value - (1 << 64) if value >> 63 else value
        elif kind == VARINT and number == 2:
            nanos = int32(value)
    return seconds, nanos


def _nanoseconds(time: tuple[int, int] | None) -> int | None:
    return None if time is None else time[0] * SECOND + time[1]
