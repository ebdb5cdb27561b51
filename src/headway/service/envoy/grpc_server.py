"""The service on grpcio, which is there on every platform. Messages are bytes to it; `calls` reads and writes them."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from headway.errors import InvalidArgument
from headway.service.envoy.calls import (
    HEALTH_CHECK,
    SHOULD_RATE_LIMIT,
    GrpcStatus,
    Reply,
    check_health,
    should_rate_limit,
)
from headway.service.envoy.codec import MAX_MESSAGE
from headway.service.envoy.decide import RateLimitService

CODES = {int(code.value[0]): code for code in grpc.StatusCode}

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.so_reuseport", 0),  # a second server on this port is a mistake, and not a share of the requests
)


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio comes without types
    def __init__(self, service: RateLimitService) -> None:
        self.rate_limits = service
        self.serving = True
        self._handlers = {
            SHOULD_RATE_LIMIT: grpc.unary_unary_rpc_method_handler(self._should_rate_limit),
            HEALTH_CHECK: grpc.unary_unary_rpc_method_handler(self._check_health),
        }

    def service(self, call: Any) -> Any:
        return self._handlers.get(call.method)

    async def _should_rate_limit(self, data: bytes, context: Any) -> bytes:
        return await _sent(await should_rate_limit(self.rate_limits, data), context)

    async def _check_health(self, data: bytes, context: Any) -> bytes:
        return await _sent(check_health(data, serving=self.serving), context)


async def _sent(reply: Reply, context: Any) -> bytes:
    if reply.status is not GrpcStatus.OK:
        await context.abort(CODES[reply.status], reply.details)
    return reply.message


class GrpcServer:
    """A server that listens; `start` makes one. `port` is the one that it has, also where 0 was asked for."""

    def __init__(self, server: Any, calls: _Calls, port: int) -> None:
        self._server = server
        self._calls = calls
        self.port = port

    async def stop(self, grace: float | None = 5.0) -> None:
        """Say NOT_SERVING, take no new calls, and let those that are under way end within `grace` seconds."""
        self._calls.serving = False
        await self._server.stop(grace)


async def start(
    service: RateLimitService, *, host: str = "127.0.0.1", port: int = 0, credentials: Any = None
) -> GrpcServer:
    """Serve on an address; `credentials` are grpcio's `ssl_server_credentials(...)`, None for plain text."""
    calls = _Calls(service)
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((calls,))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise InvalidArgument("port", address, f"an address that can be bound ({error})") from None
    await server.start()
    return GrpcServer(server, calls, bound)
