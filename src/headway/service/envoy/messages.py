"""What an Envoy asks and what it is answered: `RateLimitRequest` and `RateLimitResponse` of
`envoy.service.ratelimit.v3`, as plain values with the names of Envoy's own definition.

Codes and units are plain integers: a client may send a unit that this file does not know yet, and it must arrive as it
is. Times are nanoseconds. `dynamic_metadata` is an encoded `google.protobuf.Struct`, which is passed on unread.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from headway.errors import HeadwayError

MAX_UINT32 = (1 << 32) - 1


class MalformedMessage(HeadwayError, ValueError):
    """Bytes that are not the message that they were sent as, or more of it than is accepted.

    >>> print(MalformedMessage("the message ends within a varint", at=7))
    the message ends within a varint, at byte 7
    """

    def __init__(self, problem: str, *, at: int | None = None) -> None:
        self.problem = problem
        self.at = at
        super().__init__(problem if at is None else f"{problem}, at byte {at}")


class Code(IntEnum):
    """What was decided: for one descriptor, and for a request."""

    UNKNOWN = 0
    OK = 1
    OVER_LIMIT = 2


class Unit(IntEnum):
    """The unit of a limit. An override in a request cannot say WEEK."""

    UNKNOWN = 0
    SECOND = 1
    MINUTE = 2
    HOUR = 3
    DAY = 4
    MONTH = 5
    YEAR = 6
    WEEK = 7


# -- requests ------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A key and its value, such as remote_address and 10.0.0.1."""

    key: str
    value: str = ""


class LimitOverride(NamedTuple):
    """A limit that the request itself brings along."""

    requests_per_unit: int
    unit: int


class Descriptor(NamedTuple):
    """What is to be limited. `hits_addend` is None where the request's own counts; 0 asks without taking.

    `is_negative_hits`: the hits are given back.
    """

    entries: tuple[Entry, ...]
    limit: LimitOverride | None = None
    hits_addend: int | None = None
    is_negative_hits: bool = False


class RateLimitRequest(NamedTuple):
    """The descriptors of one call, all of which have to be within their limits. `hits_addend` 0 means 1."""

    domain: str
    descriptors: tuple[Descriptor, ...] = ()
    hits_addend: int = 0


# -- responses -----------------------------------------------------------------------------------------------------


class CurrentLimit(NamedTuple):
    """The limit that decided: `RateLimitResponse.RateLimit`."""

    requests_per_unit: int = 0
    unit: int = Unit.UNKNOWN
    name: str = ""


class Quota(NamedTuple):
    """Requests that a client may let pass without asking. `valid_until_ns` is since 1970."""

    requests: int = 0
    valid_until_ns: int | None = None
    id: str = ""


class DescriptorStatus(NamedTuple):
    """What was decided for one descriptor."""

    code: int = Code.UNKNOWN
    current_limit: CurrentLimit | None = None
    limit_remaining: int = 0
    duration_until_reset_ns: int | None = None
    quota: Quota | None = None


class Header(NamedTuple):
    """A header to be added; `raw_value` in the place of a value that is not UTF-8."""

    key: str
    value: str = ""
    raw_value: bytes = b""


class RateLimitResponse(NamedTuple):
    """The answer: one status for each descriptor, in their order."""

    overall_code: int = Code.UNKNOWN
    statuses: tuple[DescriptorStatus, ...] = ()
    response_headers_to_add: tuple[Header, ...] = ()
    request_headers_to_add: tuple[Header, ...] = ()
    raw_body: bytes = b""
    dynamic_metadata: bytes | None = None
    quota: Quota | None = None
