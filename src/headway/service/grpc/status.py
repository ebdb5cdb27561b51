"""The codes of gRPC that a service here gives, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum

from headway.errors import HeadwayError


class GrpcStatus(IntEnum):
    """The codes of gRPC that are answered here."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class GrpcError(HeadwayError):
    """A call that is answered with a status other than OK.

    >>> raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "the domain is empty")
    Traceback (most recent call last):
    headway.service.grpc.status.GrpcError: the domain is empty (INVALID_ARGUMENT)
    """

    def __init__(self, code: GrpcStatus, message: str) -> None:
        super().__init__(f"{message} ({code.name})")
        self.code = code
        self.message = message
