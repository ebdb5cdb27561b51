"""`RateLimitRequest` and `RateLimitResponse` as protobuf bytes, and back.

The naive way is protobuf's runtime with generated classes. The published packages of Envoy's definitions lag behind
Envoy (one that does not know `is_negative_hits` charges a refund), pull in hundreds of messages, and cannot always
share an environment with others. Two messages are needed here, so they are read and written by hand. What comes in is
read as protobuf's readers do: unknown fields are skipped, the last value of a field counts, and a message that comes
twice is merged.

What comes in is bounded, since it comes from a network: in its length, in the number of descriptors and entries, and in
the length of each string. Whatever is wrong with it is a `MalformedMessage`, and never another exception.

A server reads requests and writes responses, and that is what is here; the other two directions, for clients and for
tests, are in `client_codec`.
"""

from __future__ import annotations

from functools import lru_cache

from headway.service.envoy.messages import (
    CurrentLimit,
    Descriptor,
    DescriptorStatus,
    Entry,
    Header,
    LimitOverride,
    MalformedMessage,
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
    read_length,
    read_tag,
    read_text,
    read_varint,
    skip_field,
    text_field,
)

MAX_MESSAGE = 256 * 1024
"""Bytes of a request. Envoy keeps all headers of a call below 60 KiB, and descriptors are made of them."""
MAX_DESCRIPTORS = 100
MAX_ENTRIES = 100
MAX_TEXT = 16 * 1024
"""Bytes of a domain, a key or a value."""

SECOND = 1_000_000_000

_DOMAIN, _DESCRIPTORS, _HITS = 1 << 3 | LENGTH, 2 << 3 | LENGTH, 3 << 3 | VARINT
_ENTRIES, _LIMIT, _OWN_HITS, _NEGATIVE = 1 << 3 | LENGTH, 2 << 3 | LENGTH, 3 << 3 | LENGTH, 4 << 3 | VARINT
_KEY, _VALUE = 1 << 3 | LENGTH, 2 << 3 | LENGTH


# -- requests ------------------------------------------------------------------------------------------------------


def decode_request(data: bytes) -> RateLimitRequest:
    """The request; raises `MalformedMessage`.

    >>> decode_request(bytes.fromhex("0a0473686f70"))
    RateLimitRequest(domain='shop', descriptors=(), hits_addend=0)
    """
    at, end = 0, len(data)
    if end > MAX_MESSAGE:
        raise MalformedMessage(f"a request of {end} bytes; at most {MAX_MESSAGE} are read")
    domain = ""
    hits = 0
    descriptors: list[Descriptor] = []
    while at < end:
        tag, at = read_tag(data, at, end)
        if tag == _DESCRIPTORS:
            start, at = read_length(data, at, end)
            if len(descriptors) >= MAX_DESCRIPTORS:
                raise MalformedMessage(f"more than {MAX_DESCRIPTORS} descriptors", at=start)
            descriptors.append(_decode_descriptor(data, start, at))
        elif tag == _DOMAIN:
            start, at = read_length(data, at, end)
            domain = _bounded_text(data, start, at)
        elif tag == _HITS:
            hits, at = read_varint(data, at, end)
            hits &= MASK32
        else:
            at = skip_field(data, at, end, tag)
    return RateLimitRequest(domain, tuple(descriptors), hits)


def _decode_descriptor(data: bytes, at: int, end: int) -> Descriptor:
    entries: list[Entry] = []
    limit: LimitOverride | None = None
    hits: int | None = None
    negative = False
    while at < end:
        tag, at = read_tag(data, at, end)
        if tag == _ENTRIES:
            start, at = read_length(data, at, end)
            if len(entries) >= MAX_ENTRIES:
                raise MalformedMessage(f"more than {MAX_ENTRIES} entries in a descriptor", at=start)
            entries.append(_decode_entry(data, start, at))
        elif tag == _LIMIT:
            start, at = read_length(data, at, end)
            limit = _decode_override(data, start, at, limit)
        elif tag == _OWN_HITS:
            start, at = read_length(data, at, end)
            hits = _decode_wrapper(data, start, at, hits or 0)
        elif tag == _NEGATIVE:
            value, at = read_varint(data, at, end)
            negative = value != 0
        else:
            at = skip_field(data, at, end, tag)
    return Descriptor(tuple(entries), limit, hits, negative)


def _decode_entry(data: bytes, at: int, end: int) -> Entry:
    key = value = ""
    while at < end:
        tag, at = read_tag(data, at, end)
        if tag == _KEY:
            start, at = read_length(data, at, end)
            key = _bounded_text(data, start, at)
        elif tag == _VALUE:
            start, at = read_length(data, at, end)
            value = _bounded_text(data, start, at)
        else:
            at = skip_field(data, at, end, tag)
    return Entry(key, value)


def _decode_override(data: bytes, at: int, end: int, before: LimitOverride | None) -> LimitOverride:
    count, unit = (0, 0) if before is None else before
    for number, kind, value, _ in fields(data, at, end):
        if kind == VARINT and number == 1:
            count = value & MASK32
        elif kind == VARINT and number == 2:
            unit = int32(value)
    return LimitOverride(count, unit)


def _decode_wrapper(data: bytes, at: int, end: int, before: int) -> int:
    """A `google.protobuf.UInt64Value`, which is 0 where it is there and empty."""
    for number, kind, value, _ in fields(data, at, end):
        if number == 1 and kind == VARINT:
            before = value
    return before


def _bounded_text(data: bytes, start: int, end: int) -> str:
    if end - start > MAX_TEXT:
        raise MalformedMessage(
            f"a string of {end - start} bytes; domains, keys and values have at most {MAX_TEXT}", at=start
        )
    return read_text(data, start, end)


# -- responses -----------------------------------------------------------------------------------------------------


def encode_response(response: RateLimitResponse) -> bytes:
    """The response as bytes.

    >>> encode_response(RateLimitResponse(1, (DescriptorStatus(1),))).hex()
    '080112020801'
    """
    code, statuses, headers, request_headers, body, metadata, quota = response
    out = number_field(1, code)
    for status in statuses:
        out += bytes_field(2, _encode_status(status))
    for header in headers:
        out += bytes_field(3, _encode_header(header))
    for header in request_headers:
        out += bytes_field(4, _encode_header(header))
    if body:
        out += bytes_field(5, body)
    if metadata is not None:
        out += bytes_field(6, metadata)
    return out if quota is None else out + bytes_field(7, _encode_quota(quota))


def _encode_status(status: DescriptorStatus) -> bytes:
    code, limit, remaining, reset_ns, quota = status
    out = number_field(1, code)
    if limit is not None:
        out += encode_current_limit(limit)
    out += number_field(3, remaining)
    if reset_ns is not None:
        out += bytes_field(4, _encode_time(reset_ns))
    return out if quota is None else out + bytes_field(5, _encode_quota(quota))


@lru_cache(maxsize=4096)
def encode_current_limit(limit: CurrentLimit) -> bytes:
    """The field `current_limit`; a server has few different ones."""
    return bytes_field(
        2, number_field(1, limit.requests_per_unit) + number_field(2, limit.unit) + text_field(3, limit.name)
    )


def _encode_header(header: Header) -> bytes:
    raw = bytes_field(3, header.raw_value) if header.raw_value else b""
    return text_field(1, header.key) + text_field(2, header.value) + raw


def _encode_quota(quota: Quota) -> bytes:
    until = b"" if quota.valid_until_ns is None else bytes_field(2, _encode_time(quota.valid_until_ns))
    return number_field(1, quota.requests) + until + text_field(3, quota.id)


def _encode_time(ns: int) -> bytes:
    """A `google.protobuf.Duration` or `Timestamp`."""
    return number_field(1, ns // SECOND) + number_field(2, ns % SECOND)
