"""The codes of gRPC that a service here gives, and the error that carries one."""

from __future__ import annotations

from typing import Final

from headway.errors import HeadwayError

OK: Final = 0
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16


class GrpcError(HeadwayError):
    """A call that is answered with a status other than OK.

    >>> raise GrpcError(INVALID_ARGUMENT, "the domain is empty")
    Traceback (most recent call last):
    headway.service.grpc.status.GrpcError: the domain is empty (gRPC status 3)
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (gRPC status {code})")
        self.code = code
        self.message = message
