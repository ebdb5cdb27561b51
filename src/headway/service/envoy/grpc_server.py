"""Envoy's rate limit service over gRPC, on whichever transport is there.

    nghttp2    HTTP/2 by libnghttp2 (`headway.service.grpc`): needs the compiled form of headway, and the library
    grpcio     everywhere else, at some fiftieth of the speed

Both give the same answers: the same tests run on both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Protocol

from headway.errors import InvalidArgument
from headway.service.envoy.decide import RateLimitService
from headway.service.grpc import on_nghttp2
from headway.service.grpc.server import Guard

Transport = Literal["nghttp2", "grpcio"]


class GrpcServer(Protocol):
    """A server that listens."""

    serving: bool
    """What a health check is told."""

    @property
    def port(self) -> int:
        """The port that it has, also where 0 was asked for."""

    async def stop(self, grace: float = 5.0) -> None:
        """Say NOT_SERVING, take no new calls, and let those that are under way end within `grace` seconds."""


async def start(
    service: RateLimitService,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: tuple[Path, Path] | None = None,
    transport: Transport | None = None,
    guard: Guard | None = None,
) -> GrpcServer:
    """Serve on an address. `tls` is a certificate chain and its key, in PEM; without it the port is plain text.

    `guard` gets the metadatum `authorization` of each call but health checks, and raises `GrpcError` to refuse it.

    `transport` is chosen where it is None: nghttp2 if it can be used here.
    """
    if transport not in (None, "nghttp2", "grpcio"):
        raise InvalidArgument(
            "transport", transport, "'nghttp2', 'grpcio', or None for the best one that is here"
        )
    if transport == "nghttp2" and not on_nghttp2():
        accepted = "'grpcio': headway is not compiled here, or libnghttp2 is missing"
        raise InvalidArgument("transport", transport, accepted)
    if transport == "nghttp2" or (transport is None and on_nghttp2()):
        from headway.service.envoy import nghttp2_server

        return await nghttp2_server.start(service, host, port, tls, guard)
    from headway.service.envoy import grpcio_server

    return await grpcio_server.start(service, host, port, tls, guard)


def no_address(host: str, port: int, error: Exception) -> InvalidArgument:
    """What is said of an address that cannot be listened on."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    number = error.errno if isinstance(error, OSError) else None
    why = str(error) if number is None else os.strerror(number)
    accepted = f"an address that can be bound ({why}), by --grpc-port or [envoy] port; 0 is any that is free"
    return InvalidArgument("grpc_port", address, accepted)
