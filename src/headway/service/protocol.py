"""uvicorn's protocol for HTTP/1.1, with bounds that it does not have: on the time and the size of a request's head.

Without them a client that sends one byte of a header now and then keeps a connection for ever, and one that sends
headers without end fills the memory. The time counts from the first byte of a request, or from the connection's
begin; a connection that is kept alive between requests has uvicorn's own time-out.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS: Final = 10.0
HEAD_BYTES: Final = 64 * 1024
_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 for clients that may be slow or hostile."""

    _head: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head is None and getattr(self.cycle, "response_complete", False):
            # Between two requests. Empty lines may come before the next one, and end uvicorn's own time-out.
            self._start_head()
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # What came with the head may be a body; only what is still a head is too much.
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_LARGE)

    def on_message_begin(self) -> None:
        self._start_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _start_head(self) -> None:
        self._end_head()
        self._in_head = True
        self._head_bytes = 0
        self._head = self.loop.call_later(HEAD_SECONDS, self._refuse, _SLOW)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _refuse(self, answer: bytes) -> None:
        self._end_head()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
