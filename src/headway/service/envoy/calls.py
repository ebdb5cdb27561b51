"""A gRPC call as bytes in and bytes out, for whatever transport carries it. No exception leaves this file.

    the request cannot be read, or makes no sense    INVALID_ARGUMENT
    the engine does not answer, and `on_engine_error` is "closed"; the service has been closed    UNAVAILABLE
    a mistake of ours                                INTERNAL, and the log has the rest

An Envoy that gets an error lets the request pass, unless its filter has `failure_mode_deny`. So with "closed" it is
that setting that decides while the engine is away.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import NamedTuple

from headway.errors import EngineUnavailable, LimiterClosed
from headway.service.envoy.codec import decode_request, encode_response
from headway.service.envoy.decide import RateLimitService
from headway.service.envoy.messages import MalformedMessage
from headway.service.envoy.wire import LENGTH, fields, number_field, read_text
from headway.service.grpc.status import GrpcStatus

log = logging.getLogger("headway")

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
SHOULD_RATE_LIMIT = f"/{SERVICE}/ShouldRateLimit"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

SERVING, NOT_SERVING = 1, 2


class Reply(NamedTuple):
    """A status, what it is about, and the message where it is OK."""

    status: GrpcStatus
    details: str = ""
    message: bytes = b""


async def should_rate_limit(service: RateLimitService, data: bytes) -> Reply:
    """`RateLimitService/ShouldRateLimit`."""
    return await replied(service, _decided(service, data))


async def _decided(service: RateLimitService, data: bytes) -> bytes:
    usual = service.shared_quick
    part = None if usual is None else usual.find(data)
    if usual is not None and part is not None:
        return await usual.decide(part)
    return encode_response(await service.decide(decode_request(data)))


async def replied(service: RateLimitService, answer: Awaitable[bytes]) -> Reply:
    """An answer that is on its way, or what is said where there will be none."""
    try:
        return Reply(GrpcStatus.OK, message=await answer)
    except MalformedMessage as error:
        service.stats.malformed += 1
        return Reply(GrpcStatus.INVALID_ARGUMENT, str(error))
    except EngineUnavailable:
        service.stats.engine_errors += 1
        # Where the engine is, is not for clients.
        return Reply(GrpcStatus.UNAVAILABLE, "the engine does not answer; the log of the server says why")
    except LimiterClosed as error:
        service.stats.engine_errors += 1
        return Reply(GrpcStatus.UNAVAILABLE, str(error))
    except Exception:
        log.exception("headway: a request of Envoy could not be decided")
        return Reply(GrpcStatus.INTERNAL, "the request could not be decided; the log of the server says why")


def check_health(data: bytes, *, serving: bool) -> Reply:
    """`grpc.health.v1.Health/Check`, of the server ("") or of the one service that it has.

    >>> check_health(b"", serving=True).message.hex()
    '0801'
    """
    try:
        name = ""
        for number, kind, start, stop in fields(data, 0, len(data)):
            if number == 1 and kind == LENGTH:
                name = read_text(data, start, stop)
    except MalformedMessage as error:
        return Reply(GrpcStatus.INVALID_ARGUMENT, str(error))
    if name not in ("", SERVICE):
        return Reply(GrpcStatus.NOT_FOUND, f"there is no such service; there is {SERVICE}")
    return Reply(GrpcStatus.OK, message=number_field(1, SERVING if serving else NOT_SERVING))
