"""The service on grpcio, which is there on every platform. Messages are bytes to it; `calls` reads and writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from headway.service.envoy.calls import (
    HEALTH_CHECK,
    SHOULD_RATE_LIMIT,
    Reply,
    check_health,
    should_rate_limit,
)
from headway.service.envoy.codec import MAX_MESSAGE
from headway.service.envoy.decide import RateLimitService
from headway.service.envoy.grpc_server import no_address
from headway.service.grpc.server import Guard
from headway.service.grpc.status import GrpcError, GrpcStatus

CODES = {int(code.value[0]): code for code in grpc.StatusCode}

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.so_reuseport", 0),  # a second server on this port is a mistake, and not a share of the requests
)


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio comes without types
    def __init__(self, service: RateLimitService, guard: Guard | None) -> None:
        self.rate_limits = service
        self.guard = guard
        self.serving = True
        self._handlers = {
            SHOULD_RATE_LIMIT: grpc.unary_unary_rpc_method_handler(self._should_rate_limit),
            HEALTH_CHECK: grpc.unary_unary_rpc_method_handler(self._check_health),
        }

    def service(self, call: Any) -> Any:
        return self._handlers.get(call.method)

    async def _should_rate_limit(self, data: bytes, context: Any) -> bytes:
        if self.guard is not None:
            metadata = dict(context.invocation_metadata() or ())
            try:
                self.guard(metadata.get("authorization"))
            except GrpcError as error:
                await context.abort(CODES[error.code], error.message)
        return await _sent(await should_rate_limit(self.rate_limits, data), context)

    async def _check_health(self, data: bytes, context: Any) -> bytes:
        return await _sent(check_health(data, serving=self.serving), context)


async def _sent(reply: Reply, context: Any) -> bytes:
    if reply.status is not GrpcStatus.OK:
        await context.abort(CODES[reply.status], reply.details)
    return reply.message


class GrpcioServer:
    """A `grpc_server.GrpcServer`."""

    def __init__(self, server: Any, calls: _Calls, port: int) -> None:
        self._server = server
        self._calls = calls
        self.port = port

    @property
    def serving(self) -> bool:
        return self._calls.serving

    @serving.setter
    def serving(self, serving: bool) -> None:
        self._calls.serving = serving

    async def stop(self, grace: float = 5.0) -> None:
        self.serving = False
        await self._server.stop(grace)


async def start(
    service: RateLimitService,
    host: str,
    port: int,
    tls: tuple[Path, Path] | None,
    guard: Guard | None = None,
) -> GrpcioServer:
    """Serve on an address."""
    calls = _Calls(service, guard)
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((calls,))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            chain, key = (file.read_bytes() for file in tls)
            bound = server.add_secure_port(address, grpc.ssl_server_credentials([(key, chain)]))
    except RuntimeError as error:
        raise no_address(host, port, error) from None
    await server.start()
    return GrpcioServer(server, calls, bound)
