"""The service on libnghttp2: see `headway.service.grpc`.

A decision in memory waits for nothing, so it is made where the request is read, and its answer leaves with the others
of the same read. No task is made for it: the coroutine is begun on the spot, and nearly always that is all. The usual
request on a shared engine needs none either: its answer is written where the engine's is read. What else waits goes on
in a task.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Coroutine, Generator
from pathlib import Path
from typing import Any

from headway.service.envoy.calls import (
    HEALTH_CHECK,
    SHOULD_RATE_LIMIT,
    Reply,
    check_health,
    replied,
    should_rate_limit,
)
from headway.service.envoy.codec import MAX_MESSAGE
from headway.service.envoy.decide import RateLimitService
from headway.service.envoy.grpc_server import no_address
from headway.service.envoy.shared_quick import Answerable
from headway.service.grpc.server import Call, Cancellable, GrpcServer, Guard
from headway.service.grpc.status import GrpcError, GrpcStatus


class NgHttp2Server:
    """A `grpc_server.GrpcServer`."""

    def __init__(self, service: RateLimitService, guard: Guard | None = None) -> None:
        self.service = service
        self.serving = True
        handlers = {SHOULD_RATE_LIMIT: self._should_rate_limit, HEALTH_CHECK: self._check_health}
        at_once = None if service.quick is None else (SHOULD_RATE_LIMIT, service.quick)
        soon = None if service.shared_quick is None else (SHOULD_RATE_LIMIT, self._begin)
        self.server = GrpcServer(
            handlers,
            guard=guard,
            unguarded=(HEALTH_CHECK,),
            at_once=at_once,
            soon=soon,
            max_message=MAX_MESSAGE,
        )

    @property
    def port(self) -> int:
        return self.server.port

    async def stop(self, grace: float = 5.0) -> None:
        self.serving = False
        await self.server.stop(grace)

    def _should_rate_limit(self, data: bytes) -> bytes | Awaitable[bytes]:
        call = should_rate_limit(self.service, data)
        if self.service.shared:
            return _sent_later(call)
        try:
            waits_for = call.send(None)
        except StopIteration as end:
            return _sent(end.value)
        return _sent_later(Begun(call, waits_for))

    def _begin(self, data: bytes, call: Call) -> Cancellable | None:
        usual = self.service.shared_quick
        return None if usual is None else usual.begin(data, call, self._otherwise)

    def _otherwise(self, call: Answerable, answer: Awaitable[bytes]) -> Cancellable:
        return asyncio.get_running_loop().create_task(self._answer(call, answer))

    async def _answer(self, call: Answerable, answer: Awaitable[bytes]) -> None:
        try:
            call.answer(await _sent_later(replied(self.service, answer)))
        except Exception as error:  # noqa: BLE001 - told to the peer, or logged
            call.fail(error)

    def _check_health(self, data: bytes) -> bytes:
        return _sent(check_health(data, serving=self.serving))


async def start(
    service: RateLimitService,
    host: str,
    port: int,
    tls: tuple[Path, Path] | None,
    guard: Guard | None = None,
) -> NgHttp2Server:
    """Serve on an address."""
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
    server = NgHttp2Server(service, guard)
    try:
        await server.server.start(host, port, context)
    except OSError as error:
        raise no_address(host, port, error) from None
    return server


def _sent(reply: Reply) -> bytes:
    if reply.status is not GrpcStatus.OK:
        raise GrpcError(reply.status, reply.details)
    return reply.message


async def _sent_later(reply: Awaitable[Reply]) -> bytes:
    return _sent(await reply)


class Begun:
    """The rest of a coroutine whose first step was taken outside of a task: what it waits for is waited for here."""

    def __init__(self, call: Coroutine[Any, Any, Reply], waits_for: Any) -> None:
        self.call = call
        self.waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Reply]:
        try:
            while True:
                try:
                    yield self.waits_for
                except BaseException as error:  # noqa: BLE001 - it is the coroutine's to deal with
                    self.waits_for = self.call.throw(error)
                else:
                    self.waits_for = self.call.send(None)
        except StopIteration as end:
            found: Reply = end.value
            return found
