"""A server that keeps ledgers: how to connect to it, and the connections that are open.

A standalone server, a Sentinel's primary or an embedded server is one pool; a cluster has one for each of its nodes.
Threads take a connection and put it back; the tasks of an event loop share one; releases have their own.

A connection may break although the server is alive. So a command that failed on an existing connection is retried at
once on a new one. If no connection can be made, the server is `Unreachable`. An immediate retry would only add load
then; the engine may know of another server (`Engine.on_unreachable`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from headway.engines.redis.net.busy_time import BusyTime
from headway.engines.redis.net.connections import (
    CONNECTION_ERRORS,
    NONSENSE,
    STALL,
    Connection,
    LoopConnection,
    ReleaseSender,
    exchange,
    let_kernel_wait,
)

if TYPE_CHECKING:
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.net.connections import Flow, T
    from headway.engines.redis.net.connectors import Connector

MOST_AGAIN = 2
"""How often a connection is tried again that was late because the event loop was."""
NO_TLS = "if the server does not speak TLS on this port, its URI begins with redis://"
ONLY_TLS = "if the server speaks only TLS on this port, its URI begins with rediss://"
NOT_A_HANDSHAKE = ("WRONG_VERSION_NUMBER", "record layer failure", "UNEXPECTED_EOF")
"""What OpenSSL says of a peer that answers in plain text, or ends the connection."""
ENDED = ("reset by peer", "Connection lost", "onnection closed", "closed the connection")
"""What is said of a server that accepted a connection and ended it before its first reply."""


class Unreachable(ConnectionError):
    """No connection could be made."""


class ServerPool:
    """One server, and the open connections to it."""

    def __init__(self, engine: Engine, connector: Connector) -> None:
        self.engine = engine
        self.way = connector
        # Why a connection was ended while it was made, until one is made.
        self._ended: str | None = None
        self.reset()

    def reset(self) -> None:
        """Start without connections: a forked child must not use those of its parent."""
        self._idle: deque[Connection] = deque()
        # One for each event loop and time-out, or the task that makes it. A command that times out closes its
        # connection, and must not close it for commands that have more time.
        self._wires: dict[tuple[asyncio.AbstractEventLoop, int], Any] = {}
        self.release_sender = ReleaseSender(self)

    def __repr__(self) -> str:
        return f"<place {self.way.name}>"

    # -- threads -----------------------------------------------------------------------------------------

    def connect(self, timeout: float = 0) -> Any:
        """A new connection of redis-py's, within so many seconds (0: the engine's time-out) and without its retries."""
        self.engine.prepare()
        try:
            return self.way.connect(timeout or self.engine.timeout)
        except CONNECTION_ERRORS as error:
            raise self._unreachable(error) from error

    def take(self, timeout: float = 0) -> Connection:
        """A connection for one thread; to be put back, or closed when it has failed."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make(timeout)

    def spare(self) -> Connection | None:
        """A connection that is open and not used just now."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _close_idle(self) -> None:
        while (
            connection := self.spare()
        ) is not None:  # not asked before: another thread may take the last one
            connection.close()

    def _make(self, timeout: float) -> Connection:
        try:
            connection = Connection(self, timeout)
            try:
                self.engine.check_server(connection)
            except BaseException:
                connection.close()
                raise
        except CONNECTION_ERRORS as error:
            raise self._unreachable(error) from error
        self._ended = None
        return connection

    def call(self, *payloads: bytes) -> list[Any]:
        """Send one command after the other; an error of the server is a reply."""
        connection = self.take()
        try:
            answers = [connection.call(payload) for payload in payloads]
        except BaseException:
            connection.close()
            raise
        self.put_back(connection)
        return answers

    def exchange(self, flow: Flow[T], timeout_ns: int = 0) -> T:
        """Run a flow on one connection, within so long (0: each command has the engine's time-out); what it returns."""
        connection = self.take(timeout_ns / 1e9)
        try:
            result = exchange(connection, flow, monotonic_ns() + timeout_ns if timeout_ns else None)
        except ReplyError:
            self.put_back(connection)  # it was a reply
            raise
        except BaseException:
            connection.close()
            raise
        self.put_back(connection)
        return result

    def put_back(self, connection: Connection | None) -> None:
        if connection is not None:
            if connection.hurried:
                connection.hurried = False
                connection.usual = self.engine.timeout
                let_kernel_wait(connection.socket, connection.usual)
            self._idle.append(connection)

    def _unreachable(self, error: BaseException) -> Unreachable:
        """What is raised from this error. A server that ended a connection again and again until the time was up says
        more by that than by the last attempt, which had no time left."""
        found = unreachable(error, self.way)
        if was_cut(error):
            self._ended = str(found)
        elif self._ended is not None and is_timeout(error):
            return Unreachable(self._ended)
        return found

    def again(self, error: BaseException) -> bool:
        """Whether an immediate retry may help."""
        self.discard_connections(error)
        if is_timeout(error) or (isinstance(error, Unreachable) and not was_cut(error)):
            return self.engine.on_unreachable(self, error)
        return True

    def discard_connections(self, error: BaseException, *, alive: bool = False) -> None:
        """Use none of the open connections any more.

        A connection with pending replies notices by itself, unless the server is alive.
        """
        self._close_idle()
        for connection in list(self._wires.values()):
            if (
                isinstance(connection, LoopConnection)
                and connection.broken is None
                and (alive or not connection.pending)
            ):
                connection.broken = error
                close_soon(connection)
        # The next write or flush of releases finds this connection dead, and goes on with another.
        posting = self.release_sender.wire
        if posting is not None:
            with contextlib.suppress(OSError):
                posting.socket.shutdown(socket.SHUT_RDWR)

    # -- tasks -------------------------------------------------------------------------------------------

    async def connect_async(self, timeout: float) -> Any:  # noqa: ASYNC109 - redis-py keeps it
        try:
            return await self.way.connect_async(timeout)
        except CONNECTION_ERRORS as error:
            raise self._unreachable(error) from error

    def connection_of(self, loop: asyncio.AbstractEventLoop, timeout_ns: int) -> LoopConnection | None:
        connection: LoopConnection | None = self._wires.get((loop, timeout_ns))
        return (
            connection
            if connection is not None and type(connection) is LoopConnection and connection.broken is None
            else None
        )

    async def open_connection(
        self, loop: asyncio.AbstractEventLoop, timeout_ns: int, deadline: float
    ) -> LoopConnection:
        """The connection of this loop; tasks that need it while it is being made wait for it."""
        making = self._wires.get((loop, timeout_ns))
        if not isinstance(making, asyncio.Task) or making.done():
            for whose in list(self._wires):
                if whose[0].is_closed():
                    self._wires.pop(whose, None)
            making = loop.create_task(self._make_connection(loop, timeout_ns, deadline))
            self._wires[loop, timeout_ns] = making
            # The tasks that waited for it may be gone by then.
            making.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(making)

    async def _make_connection(
        self, loop: asyncio.AbstractEventLoop, timeout_ns: int, deadline: float
    ) -> LoopConnection:
        if self.engine.slow_to_prepare:
            # Starting a server does not count for the deadline.
            await asyncio.to_thread(self.engine.prepare)
            deadline = max(deadline, loop.time() + self.engine.timeout)
        else:
            self.engine.prepare()
        again = 0
        while True:
            began, busy = loop.time(), BusyTime(loop)
            try:
                return await self._connected(loop, timeout_ns, deadline)
            except CONNECTION_ERRORS as error:
                again += 1
                late = loop.time() >= deadline + STALL and is_timeout(error)
                # Where the loop could wait for most of the time, the server has had its time.
                if not late or 2 * busy.seconds() < deadline - began or again > MOST_AGAIN:
                    raise self._unreachable(error) from error
                # The loop was busy with something else, and not the server. On a busy machine that may be so each time.
                deadline = loop.time() + timeout_ns / 1e9
            finally:
                busy.end()

    async def _connected(
        self, loop: asyncio.AbstractEventLoop, timeout_ns: int, deadline: float
    ) -> LoopConnection:
        connection = LoopConnection(self, loop)
        connection.made_by = deadline
        await connection.open(timeout_ns / 1e9, deadline)
        try:
            await self.engine.check_server_async(connection, deadline)
        except BaseException:
            connection.close()
            raise
        self._wires[loop, timeout_ns] = connection
        self._ended = None
        return connection

    def close(self) -> None:
        """Close what is not in use; a loop's connection is closed by its loop."""
        self._close_idle()
        self.release_sender.close()
        for connection in list(self._wires.values()):
            if isinstance(connection, LoopConnection):
                close_soon(connection)


def close_soon(connection: LoopConnection) -> None:
    """In its loop, from any thread; a loop that was closed has nothing left to close."""
    with contextlib.suppress(RuntimeError):
        connection.loop.call_soon_threadsafe(connection.close)


def unreachable(error: BaseException, connector: Connector) -> Unreachable:
    """What is raised from this error: another object, so that no error is its own cause."""
    text = str(error) or type(error).__name__
    if isinstance(error, Unreachable):
        pass
    elif is_timeout(error):
        text = "no connection in time"
        if connector.tls:
            # A server that waits for the end of what it takes for a command says nothing at all.
            text = f"no TLS connection in time; {NO_TLS}"
    elif text == "Authentication required.":
        text = "it asks for a password: redis://:password@host, or redis://user:password@host"
    elif isinstance(error, NONSENSE):
        text = f"what answers there is no Redis ({text})"
    elif connector.tls and any(sign in text for sign in NOT_A_HANDSHAKE):
        text = f"{text.rstrip('.')}; {NO_TLS}"
    elif not connector.tls and "path" not in connector.options and any(sign in text for sign in ENDED):
        text = f"{text.rstrip('.')}; {ONLY_TLS}"
    return Unreachable(text)


def was_cut(error: BaseException) -> bool:
    """Whether a server accepted the connection and closed it before the first reply."""
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, ConnectionResetError | BrokenPipeError) or "reset by peer" in str(one):
            return True
        one = one.__cause__
    return False


def is_timeout(error: BaseException) -> bool:
    """Of Python or of redis-py."""
    return isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError"
