"""A gRPC server for calls with one message each way, on an event loop: HTTP/2 by `http2`, sockets by asyncio.

    server = GrpcServer({"/pkg.Service/Method": handler})
    await server.start("127.0.0.1", 8081)
    await server.stop()

A handler takes the message as bytes and returns the answer as bytes. It may return an awaitable instead, which becomes
a task: a decision in memory needs none. It raises `GrpcError` for a status other than OK; any other exception is
logged, and the peer is told INTERNAL and no more. A `guard` is asked before all handlers but the `unguarded` ones.

`at_once` is a path and a function that may know the answer without a handler, or return None: it is asked where the
request is read, before anything in Python sees it.

`soon` is a path and a function that is given the message and a `Call`, and answers the call later: no task is made for
that. It returns what is cancelled if the peer goes or its time is over; or None, and then a handler is asked.

Requests that came in one read are answered in one write. Answers of tasks leave together at the end of the loop's turn.

A peer that does not read is not read from either, so what waits for it is bounded by the transport's buffer. One that
says nothing to begin with, or falls silent in the middle of a request, is closed after `patience` seconds; one that is
idle between requests is not, up to `max_connections`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol, cast

from headway.service.grpc.status import GrpcError, GrpcStatus

if TYPE_CHECKING:
    from headway.service.grpc.http2 import Connection

log = logging.getLogger("headway")

Handler = Callable[[bytes], bytes | Awaitable[bytes]]
Guard = Callable[[str | None], None]
"""Gets the metadatum `authorization` of a call, and raises `GrpcError` where that is not enough."""

MAX_CONNECTIONS: Final = 10_000
TOO_LATE: Final = "the call's time is over"
GRACE: Final = 0.1
"""Seconds between the word that no more streams are taken and the end of taking them."""


class Cancellable(Protocol):
    """What works on an answer: a task, or what a `Soon` has begun."""

    def cancel(self) -> object:
        """The answer is not wanted any more."""


class Call:
    """A call that is answered later, once: what comes after its end is dropped."""

    __slots__ = ("begun", "over", "protocol", "stream", "timer")

    def __init__(self, protocol: GrpcProtocol, stream: int) -> None:
        self.protocol = protocol
        self.stream = stream
        self.over = False
        self.begun: Cancellable | None = None
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, message: bytes) -> None:
        """Answer with a message."""
        if self._end():
            self.protocol.http2.answer(self.stream, message)
            self.protocol.flush_soon()

    def fail(self, error: Exception) -> None:
        """Answer with the status of a `GrpcError`; another exception is logged, and the peer is told INTERNAL."""
        if self._end():
            self.protocol._fail(self.stream, error)
            self.protocol.flush_soon()

    def time_is_over(self) -> None:
        begun = self.begun
        self.fail(GrpcError(GrpcStatus.DEADLINE_EXCEEDED, TOO_LATE))
        if begun is not None:
            begun.cancel()

    def _end(self) -> bool:
        if self.over:
            return False
        self.over = True
        self.protocol.tasks.pop(self.stream, None)
        if self.timer is not None:
            self.timer.cancel()
        # They refer to each other.
        self.timer = self.begun = None
        return True


Soon = Callable[[bytes, Call], Cancellable | None]


class GrpcServer:
    """Handlers by path, and the connections on which they are asked for."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        guard: Guard | None = None,
        unguarded: Collection[str] = (),
        at_once: tuple[str, Callable[[bytes], bytes | None]] | None = None,
        soon: tuple[str, Soon] | None = None,
        max_message: int = 1 << 20,
        max_streams: int = 1000,
        max_connections: int = MAX_CONNECTIONS,
        patience: float = 10.0,
    ) -> None:
        from headway.service.grpc.http2 import Connection  # which need not be there, see `on_nghttp2`

        self.handlers = {path.encode(): handler for path, handler in handlers.items()}
        self.guard = guard
        self.unguarded = {path.encode() for path in unguarded}
        self.at_once = None if at_once is None else (at_once[0].encode(), at_once[1])
        self.soon_path = b"" if soon is None else soon[0].encode()
        self.soon: Soon | None = None if soon is None else soon[1]
        self.max_message = max_message
        self.max_streams = max_streams
        self.max_connections = max_connections
        self.patience = patience
        self.connections: set[GrpcProtocol] = set()
        self._connection = Connection
        self._server: asyncio.Server | None = None
        self._left = asyncio.Event()  # a connection has ended

    def new_connection(self) -> Connection:
        return self._connection(
            self.max_message, max_streams=self.max_streams, guard=self.guard, at_once=self.at_once
        )

    def leave(self, connection: GrpcProtocol) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        self._left.set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return cast(int, self._server.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen. TLS needs ALPN, by which a client knows that this is HTTP/2."""
        loop = asyncio.get_running_loop()
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._server = await loop.create_server(lambda: GrpcProtocol(self, loop), host, port, ssl=tls)

    async def stop(self, within: float = 5.0) -> None:
        """Take no more requests, answer those that are there, and end; what is not answered in time is dropped."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.announce_end()
        await asyncio.sleep(GRACE)
        for connection in list(self.connections):
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.connections:
                    self._left.clear()
                    await self._left.wait()
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()
        self._server = None


class GrpcProtocol(asyncio.Protocol):
    """One connection: bytes of a transport to requests, and answers to bytes."""

    def __init__(self, server: GrpcServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.http2 = server.new_connection()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        # What works on an answer, by stream.
        self.tasks: dict[int, Cancellable] = {}
        self.writable = True
        self.flush_planned = False
        self.silent: asyncio.TimerHandle | None = None

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if len(self.server.connections) >= self.server.max_connections:
            log.warning("gRPC: a connection was refused, there are %d", self.server.max_connections)
            transport.close()
            return
        self.server.connections.add(self)
        self._expect()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - whatever it was, it is over
        self.server.leave(self)
        self._expect_nothing()
        for task in list(self.tasks.values()):
            task.cancel()

    def data_received(self, data: bytes) -> None:
        http2 = self.http2
        try:
            requests = http2.receive(data)
        except ValueError as error:
            log.debug("gRPC: a connection ends: %s", error)
            self._flush()
            self.transport.close()
            return
        for stream, path, message, timeout in requests:
            self._handle(stream, path, message, timeout)
        for stream in http2.take_gone():
            task = self.tasks.pop(stream, None)
            if task is not None:
                task.cancel()
        if http2.incomplete:
            self._expect()
        else:
            self._expect_nothing()
        self._flush()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        self.transport.resume_reading()
        self._flush()

    # -- requests

    def _handle(self, stream: int, path: bytes, message: bytes, timeout: int | None) -> None:
        handler = self.server.handlers.get(path)
        if handler is None:
            self.http2.fail(
                stream, GrpcStatus.UNIMPLEMENTED, f"there is no method {path.decode(errors='replace')}"
            )
            return
        guard = self.server.guard
        try:
            if guard is not None and path not in self.server.unguarded:
                guard(self.http2.authorization(stream))
            soon = self.server.soon
            if soon is not None and path == self.server.soon_path:
                call = Call(self, stream)
                begun = soon(message, call)
                if begun is not None:
                    if not call.over:
                        call.begun = self.tasks[stream] = begun
                        if timeout is not None:
                            call.timer = self.loop.call_later(timeout / 1e9, call.time_is_over)
                    return
            answer = handler(message)
        except Exception as error:  # noqa: BLE001 - told to the peer, or logged
            self._fail(stream, error)
            return
        if type(answer) is bytes:
            self.http2.answer(stream, answer)
        else:
            task = self.loop.create_task(self._await(stream, cast(Awaitable[bytes], answer), timeout))
            self.tasks[stream] = task

    async def _await(self, stream: int, answer: Awaitable[bytes], limit_ns: int | None) -> None:
        try:
            if limit_ns is None:
                found = await answer
            else:
                async with asyncio.timeout(limit_ns / 1e9):
                    found = await answer
            self.http2.answer(stream, found)
        except TimeoutError:
            self.http2.fail(stream, GrpcStatus.DEADLINE_EXCEEDED, TOO_LATE)
        except Exception as error:  # noqa: BLE001 - told to the peer, or logged
            self._fail(stream, error)
        self.tasks.pop(stream, None)
        self.flush_soon()

    def _fail(self, stream: int, error: Exception) -> None:
        if isinstance(error, GrpcError):
            self.http2.fail(stream, error.code, error.message)
        else:
            log.error("gRPC: a call failed", exc_info=error)
            self.http2.fail(stream, GrpcStatus.INTERNAL, "the call failed; the server's log says why")

    # -- writing

    def flush_soon(self) -> None:
        """At the end of the loop's turn, with what else is answered until then."""
        if not self.flush_planned:
            self.flush_planned = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self.flush_planned = False
        if self.writable and not self.transport.is_closing():
            data = self.http2.take()
            if data:
                self.transport.write(data)
            if self.http2.ended:
                self.transport.close()

    # -- time, and the end

    def _expect(self) -> None:
        """More has to come soon."""
        if self.silent is None:
            self.silent = self.loop.call_later(self.server.patience, self.abort)

    def _expect_nothing(self) -> None:
        if self.silent is not None:
            self.silent.cancel()
            self.silent = None

    def announce_end(self) -> None:
        self.http2.announce_end()
        self._flush()

    def end(self) -> None:
        self.http2.close()
        self._flush()

    def abort(self) -> None:
        """Close it whatever is under way."""
        for stream, task in list(self.tasks.items()):
            task.cancel()
            self.http2.fail(stream, GrpcStatus.UNAVAILABLE, "the server ends")
        self._flush()
        self.transport.abort()
