"""uvicorn's protocol for HTTP/1.1, with bounds that it does not have: on what one client can make the server keep.

Without them a client that sends one byte of a header now and then keeps a connection for ever, one that sends headers
without end fills the memory, and one that opens connections takes them from all others. What is bounded:

    a head          in time and in bytes, from the first byte of a request or from the connection's begin
    a body          in time, also where its call was answered without it; and what is sent around it (chunk headers,
                    trailers), in bytes. How large it may be is the business of the call
    requests that   in number: a client that sends many without waiting for answers is not read from until they are
    are pipelined   answered, and disconnected if too many come at once
    an answer       in time: a client that does not read it is disconnected, and not read from meanwhile
    connections     in number. Where no more fit, those without a request under way are closed; where there are none,
                    the new one is told to come back

A connection that is kept alive between requests has uvicorn's own time-out. While the server itself does not read,
since an earlier request of the same connection is not answered yet, no time counts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway.service.bodies import BODY_SECONDS

HEAD_SECONDS: Final = 10.0
HEAD_BYTES: Final = 64 * 1024
ANSWER_SECONDS: Final = 30.0
"""How long a client may leave an answer in the server's buffer."""
FRAMING_BYTES: Final = 512 * 1024
"""What may be sent around a body: a chunk of one byte has five around it, so eight for each byte are added."""
MAX_PIPELINED: Final = 100
"""Requests that may come on one connection while another one is answered."""
MAX_CONNECTIONS: Final = 20_000

READ_ON: Final = 8
"""With so many requests pipelined it is still read from, since a client that leaves is noticed by that."""

_GRACE: Final = 5.0
"""After `BODY_SECONDS` the call itself answers; so much later the connection ends, whatever the call does."""
_MADE_ROOM: Final = 8
"""Where no more connections fit, one part in so many is closed: a pass over all of them is for many new ones."""


def _refusal(status: str, more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nconnection: close\r\n{more}content-length: 0\r\n\r\n".encode()


_SLOW: Final = _refusal("408 Request Timeout")
_LARGE: Final = _refusal("431 Request Header Fields Too Large")
_FULL: Final = _refusal("503 Service Unavailable", "retry-after: 1\r\n")


BETWEEN: Final = 0
"""No part of a request has come yet, or the last one has come whole."""
HEAD: Final = 1
BODY: Final = 2


class _Flow(FlowControl):
    """Reads only when answers are read.

    uvicorn reads on after every answer, also where hundreds of requests wait for theirs already: a client that
    pipelines fills the memory with them.
    """

    def __init__(self, transport: asyncio.Transport, backlog: Callable[[], int]) -> None:
        super().__init__(transport)
        self._backlog = backlog

    def resume_reading(self) -> None:
        if not self.write_paused and self._backlog() <= READ_ON:
            super().resume_reading()


class _TooManyError(Exception):
    """More requests came at once than are kept."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 for clients that may be slow or hostile."""

    _running: Any = None

    _phase = BETWEEN
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _framing = 0

    def __init__(self, *arguments: Any, max_connections: int = MAX_CONNECTIONS, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.max_connections = max_connections

    # -- connections -------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = _Flow(transport, self.backlog)
        if len(self.connections) > self.max_connections:
            self._make_room()
            if len(self.connections) > self.max_connections:
                self._refuse(_FULL)
                return
        self._enter(HEAD)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(BETWEEN)
        self._stop_unread()
        # uvicorn tells only the request that came last, and not the one that is being answered.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def backlog(self) -> int:
        """How many requests wait for their turn to be answered."""
        return len(self.pipeline)

    @property
    def idle(self) -> bool:
        """Whether no request is under way and all answers have left, so that it may be closed at any time."""
        cycle: Any = self.cycle
        return (cycle is None or cycle.response_complete) and not self.transport.get_write_buffer_size()

    def _make_room(self) -> None:
        """Close connections that are idle."""
        found: list[BoundedProtocol] = [
            one
            for one in self.connections
            if isinstance(one, BoundedProtocol) and one is not self and one.idle
        ]
        for one in found[: math.ceil(self.max_connections / _MADE_ROOM)]:
            self.connections.discard(one)  # it is lost only in a later turn of the loop
            one.transport.abort()

    # -- requests ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._phase == BETWEEN:
            # Empty lines may come before a request, and end uvicorn's own time-out.
            self._enter(HEAD)
        self._head_bytes += len(data)
        self._framing = max(0, self._framing) + len(data)
        super().data_received(data)
        if self._phase == BETWEEN or self.transport.is_closing():
            return
        # What came with the head may be a body; only what is still a head is too much.
        many, most = (self._head_bytes, HEAD_BYTES) if self._phase == HEAD else (self._framing, FRAMING_BYTES)
        if many > most:
            self._refuse(_LARGE)
        elif self._timer is None:  # a request that comes whole, as nearly all do, needs none
            self._start_timer()

    def on_message_begin(self) -> None:
        self._enter(HEAD)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == HEAD:  # and not a trailer: no call here wants one
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.check_backlog()
        self._enter(BODY)
        super().on_headers_complete()

    def check_backlog(self) -> None:
        if self.backlog() >= MAX_PIPELINED:
            raise _TooManyError  # it ends the parser, which would go on with all that has come

    def on_body(self, body: bytes) -> None:
        self._framing -= 9 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._enter(BETWEEN)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.idle:
            super().send_400_response(msg)
        else:
            self.transport.abort()  # it would be taken for the answer to an earlier request

    def handle_websocket_upgrade(self) -> None:
        self._enter(BETWEEN)  # from now on another protocol has the connection
        super().handle_websocket_upgrade()

    def _enter(self, phase: int) -> None:
        self._phase = phase
        self._head_bytes = self._framing = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        seconds = HEAD_SECONDS if self._phase == HEAD else BODY_SECONDS + _GRACE
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self.flow.read_paused or (self._phase == HEAD and not self.idle):
            # An earlier request is not answered yet.
            self._start_timer()
        else:
            self._refuse(_SLOW)

    def _refuse(self, answer: bytes) -> None:
        self._enter(BETWEEN)
        if not self.transport.is_closing():
            # In the middle of another answer it would be read as a part of that.
            cycle: Any = self.cycle
            if cycle is None or cycle.response_complete or not cycle.response_started:
                self.transport.write(answer)
            self.transport.close()

    # -- answers -----------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()
        self._stop_unread()
        self._unread = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()
        self.flow.resume_reading()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
