"""A small HTTP/1.1 client on sockets: one request at a time on a connection that is kept, or one answer that streams.

It speaks to `headway serve` and to proxies in front of it, so it reads what HTTP/1.1 allows a server to send: a body of
a known length, or in chunks. `http.client` parses every head as an e-mail, and a thread that reads from it an answer
that does not end cannot be woken by closing it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.engines.http.address import Address

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024
CONNECTION_ERRORS = (OSError, EOFError)
"""What goes wrong with a connection; `ssl.SSLError` and time-outs are `OSError`."""


class BadAnswer(OSError):
    """The server does not speak HTTP, or not as it should."""


def _context(address: Address) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=address.ca_certs)
    except OSError as error:
        raise BadAnswer(f"ssl_ca_certs={address.ca_certs} cannot be used: {error}") from None


class Connection:
    """One connection; whatever goes wrong, it is closed and another is made."""

    def __init__(self, address: Address, host: tuple[str, int], timeout: float) -> None:
        name = f"[{host[0]}]" if ":" in host[0] else host[0]
        lines = [f"Host: {name}:{host[1]}", "Content-Type: application/json"]
        if address.token is not None:
            lines.append(f"Authorization: Bearer {address.token}")
        self._headers = "\r\n".join(lines)
        self._left = b""
        plain = socket.create_connection(host, timeout=timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                self.socket: socket.socket = _context(address).wrap_socket(plain, server_hostname=host[0])
            else:
                self.socket = plain
        except BaseException:
            plain.close()
            raise

    def close(self) -> None:
        """Close it; a thread that reads from it is woken with an error."""
        with suppress(OSError):  # it was closed by the other side
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def forget(self) -> None:
        """In a forked child: close this copy, and leave the parent's alone."""
        self.socket.close()

    def post(self, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Send a request; the status of its answer, and the body."""
        self.socket.settimeout(timeout)
        head = f"POST {path} HTTP/1.1\r\n{self._headers}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)
        status, headers = self._head()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return status, b"".join(self._chunks())
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise BadAnswer("an answer of no length")
        return status, self._exactly(int(length))

    def stream(self, path: str, timeout: float) -> Iterator[bytes]:
        """Send a request whose answer does not end; its parts as they come. `BadAnswer` unless the status is 200."""
        self.socket.settimeout(timeout)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\n{self._headers}\r\n\r\n".encode())
        status, headers = self._head()
        if status != 200 or headers.get("transfer-encoding", "").lower() != "chunked":
            raise BadAnswer(f"it answered {status}")
        return self._chunks()

    # -- reading -----------------------------------------------------------------------------------------

    def _head(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self._left:
            if len(self._left) > MAX_HEAD:
                raise BadAnswer("a head without end")
            self._more()
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if not first.startswith("HTTP/1.1 ") or len(parts) < 2 or not parts[1].isdecimal():
            raise BadAnswer("it does not speak HTTP/1.1")
        pairs = (line.partition(":") for line in lines)
        return int(parts[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _exactly(self, length: int) -> bytes:
        if len(self._left) < length:
            parts, have = [self._left], len(self._left)
            while have < length:
                part = self._receive()
                parts.append(part)
                have += len(part)
            self._left = b"".join(parts)
        found, self._left = self._left[:length], self._left[length:]
        return found

    def _chunks(self) -> Iterator[bytes]:
        while True:
            while b"\r\n" not in self._left:
                self._more()
            size, _, self._left = self._left.partition(b"\r\n")
            try:
                length = int(size.partition(b";")[0], 16)
            except ValueError:
                raise BadAnswer("a chunk of no length") from None
            if length > MAX_BODY:
                raise BadAnswer("a chunk that is too long")
            chunk = self._exactly(length + 2)[:-2]
            if not length:
                return
            yield chunk

    def _more(self) -> None:
        self._left += self._receive()

    def _receive(self) -> bytes:
        part = self.socket.recv(262_144)
        if not part:
            raise EOFError("the server has closed the connection")
        return part
