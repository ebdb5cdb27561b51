"""Pub/sub: the channels on which a process learns that a waiter's turn has come.

On one server that is one subscription for the whole process: `<namespace>:wake:<process>`, and `<namespace>:news` for
what concerns every process (pauses, losses). A cluster has more channels, see `cluster/pubsub.py`.

A `PubSubConnection` is one connection that listens, and a `Subscription` has one. One thread uses it, the listener of
`client/background.py`; only `follow` is called from other threads. A connection that was silent for a while sends a
PING, because a server that was stopped does not end its connections. If no reply comes, all connections to that
server are discarded, so that no other caller waits for it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from headway.engines.redis.net.connections import CONNECTION_ERRORS, new_reader
from headway.engines.redis.script.protocol import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.net.pool import ServerPool

Message = dict[str, Any]

QUIET = 1.0
"""Seconds of silence after which a PING is sent."""
PATIENCE = 2.0
"""Seconds that the reply may take."""


class Rejected(ConnectionError):
    """The server answers, but refuses this subscription."""


class PubSubConnection:
    """A connection that listens."""

    def __init__(self, pool: ServerPool) -> None:
        self.pool = pool
        self.connection = pool.connect()
        self.socket: socket.socket = self.connection._sock
        self.timeout = pool.engine.timeout
        self.reader = new_reader()
        self.replied_at = self.asked = time.monotonic()
        # Channels that were asked for and not yet confirmed, in order.
        self.expected: deque[bytes] = deque()
        self.socket.settimeout(0)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, *parts: bytes) -> None:
        self.socket.settimeout(max(self.timeout, 0.05))
        try:
            self.socket.sendall(command(*parts))
        finally:
            self.socket.settimeout(0)

    def receive(self) -> Iterator[Any]:
        """What has come; raises when the connection has ended."""
        while True:
            try:
                data = self.socket.recv(65536)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # A TLS socket has its own errors for "nothing to read".
                if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                    return
                raise
            if not data:
                raise ConnectionError("the server closed the subscription")
            self.replied_at = time.monotonic()
            self.reader.feed(data)
            while (answer := self.reader.gets()) is not False:
                yield answer

    def check(self, now: float) -> None:
        """Check that a silent server is alive."""
        if now - self.replied_at < QUIET:
            return
        if self.asked > self.replied_at:
            if now - self.asked > PATIENCE:
                raise ConnectionError("the subscription is silent")
        else:
            self.asked = now
            self.send(b"PING")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.disconnect()


class Subscription:
    """The channels of this process on one server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.messages: deque[Message] = deque()
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> Subscription:
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, PubSubConnection):
                key.data.close()
        self.selector.close()

    def begin(self) -> None:
        """Listen; returns when the server has confirmed it."""
        engine = self.engine
        self.ear = self.open_connection(engine.pools()[0], engine.wake, engine.news)
        end = time.monotonic() + max(engine.timeout, 0.05)
        while self.ear.expected:
            if time.monotonic() > end:
                raise TimeoutError("the subscription was not confirmed in time")
            self.wait(0.05)

    def open_connection(self, pool: ServerPool, *channels: bytes) -> PubSubConnection:
        pubsub = PubSubConnection(pool)
        try:
            if channels:
                pubsub.expected.extend(channels)
                pubsub.send(b"SUBSCRIBE", *channels)
        except BaseException:
            pubsub.close()
            raise
        self.selector.register(pubsub, selectors.EVENT_READ, pubsub)
        return pubsub

    def follow(self, ledger: LedgerClient) -> None:
        """Listen for wake-ups of this ledger's waiters: one channel serves all ledgers."""

    def get_message(self, ignore_subscribe_messages: bool = True, timeout: float = 1.0) -> Message | None:  # noqa: ARG002
        """The next message, or None if there is none in time."""
        end = time.monotonic() + timeout
        while not self.messages and (left := end - time.monotonic()) > 0:
            self.wait(left)
        return self.messages.popleft() if self.messages else None

    def wait(self, seconds: float) -> None:
        """Read messages; returns at the first ones, or when the time is over."""
        try:
            if not self.selector.select(min(seconds, QUIET)):
                self.ear.check(time.monotonic())
            else:
                self.listen_to(self.ear)
        except Rejected:
            raise
        except CONNECTION_ERRORS as error:
            # Otherwise every caller would find out by itself, each after a time-out.
            self.ear.pool.discard_connections(error)
            raise

    def listen_to(self, pubsub: PubSubConnection) -> None:
        for answer in pubsub.receive():
            if isinstance(answer, Exception):
                self.refused(pubsub, answer)
            elif answer[0] in (b"message", b"smessage"):
                self.messages.append({"channel": answer[1], "data": answer[2]})
            elif answer[0] in (b"subscribe", b"ssubscribe"):
                if pubsub.expected:
                    pubsub.expected.popleft()
                self.confirmed(answer[1])
            elif answer[0] == b"sunsubscribe":
                self.ended(pubsub, answer[1])

    def refused(self, pubsub: PubSubConnection, error: Exception) -> None:  # noqa: ARG002
        raise Rejected(f"the subscription was refused: {error}")

    def confirmed(self, channel: bytes) -> None: ...

    def ended(self, pubsub: PubSubConnection, channel: bytes) -> None: ...
