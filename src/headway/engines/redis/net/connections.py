"""Connections, held and used directly: one for a thread at a time, one for all tasks of a loop, one for what is only
posted.

redis-py makes them (addresses, TLS, passwords, Sentinel), and its parser reads the answers. But its client, which
takes a connection from a pool and packs the arguments with every command, costs more than the server needs to
decide; so a command is packed here and written to a connection that stays ours.

A server's identity is asked for when a connection is made and is true as long as the connection lives: a server that
restarts ends it, and so does one that is replaced. A server that was promoted has the history of another before it,
so its identity names that too.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from socket import SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET
from struct import pack
from time import monotonic_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hiredis import ProtocolError
from redis.exceptions import ConnectionError as Unconnected
from redis.exceptions import InvalidResponse
from redis.exceptions import ResponseError as Refused
from redis.exceptions import TimeoutError as TooLate

from headway.engines.redis.script.protocol import command
from headway.interrupts import take_lock

if TYPE_CHECKING:
    from headway.engines.redis.net.pool import ServerPool

NONSENSE = (InvalidResponse, ProtocolError)
"""What is raised when whoever answers does not speak the protocol of Redis."""
CONNECTION_ERRORS = (OSError, Unconnected, TooLate, Refused, *NONSENSE)
"""What is raised when a server cannot be reached, or will not have us: no such database, no right to it."""
BUSY = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket that never waits says instead."""

ROOM = 16384
"""Bytes to read an answer into; a longer one comes in parts."""
NEVER = float("inf")

WHO = command(b"INFO", b"server") + command(b"INFO", b"replication")


def let_kernel_wait(socket: Any, seconds: float) -> None:
    """Bound every read and write, in the kernel: a time-out of Python's costs a system call more for each."""
    if not isinstance(socket, ssl.SSLSocket) and hasattr(socket, "setsockopt"):
        span = pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        socket.settimeout(None)
        socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, span)
        socket.setsockopt(SOL_SOCKET, SO_SNDTIMEO, span)


def new_reader() -> Any:
    """A parser of answers: errors are values, bytes stay bytes."""
    from hiredis import Reader

    return Reader(notEnoughData=False)


def identity(server: Any, replication: Any) -> bytes:
    """Who serves, and whose history it has; raises for one that only replicates."""
    if isinstance(server, Exception) and str(server).startswith("NOAUTH"):
        raise ConnectionError("Authentication required.")  # as redis-py says it, where it notices
    if isinstance(server, Exception) or isinstance(replication, Exception):
        return b"?"  # not allowed to ask: restarts and failovers are then noticed by what is missing alone
    lines: list[bytes] = [line for line in (server + replication).splitlines() if b":" in line]
    facts: dict[bytes, bytes] = dict(line.split(b":", 1) for line in lines)
    if facts.get(b"role", b"master").strip() != b"master":
        raise ConnectionError("it is a replica, and takes no writes")
    promoted = facts.get(b"second_repl_offset", b"-1").strip() != b"-1"
    before = facts.get(b"master_replid2", b"").strip() if promoted else b""
    return facts.get(b"run_id", b"?").strip() + before


class Connection:
    """A connection that a thread uses alone."""

    __slots__ = ("connection", "hurried", "ident", "reader", "room", "socket", "until")

    def __init__(self, pool: ServerPool, timeout: float = 0) -> None:
        whole = int((timeout or pool.engine.timeout) * 1e9)
        began = monotonic_ns()
        self.connection = connection = pool.connect(timeout)
        # All that is asked before it can be used has the time of one answer. What had to be started took its own.
        self.until = (monotonic_ns() if pool.engine.slow_to_prepare else began) + whole
        try:
            self.socket = connection._sock
            self.reader = new_reader()
            self.room = memoryview(bytearray(ROOM))
            self.limit(self.until - monotonic_ns())
            self.socket.sendall(WHO)
            self.ident = identity(self.read(), self.read())
        except BaseException:
            connection.disconnect()
            raise

    def call(self, payload: bytes) -> Any:
        """Send a command and wait for its answer; what the server calls an error is an answer too."""
        self.socket.sendall(payload)
        return self.read()

    def read(self) -> Any:
        reader = self.reader
        answer = reader.gets()
        while answer is False:
            try:
                size = self.socket.recv_into(self.room)
            except BlockingIOError:
                raise TimeoutError("it did not answer in time") from None
            if not size:
                raise ConnectionError("the server closed the connection")
            reader.feed(self.room, 0, size)
            answer = reader.gets()
        return answer

    def limit(self, left_ns: int) -> None:
        """Wait for answers no longer than this; when it is put back, it waits as long as ever."""
        # Whether it waits for another time than the engine's.
        self.hurried = True
        self.socket.settimeout(max(0.001, left_ns / 1e9))

    def close(self) -> None:
        self.connection.disconnect()


class LoopEnded(ConnectionError):
    """The event loop ends, and its connection with it: there is nothing to connect again for."""


class Reply(asyncio.Future):  # type: ignore[type-arg]
    """An answer that somebody awaits; it must be there by `deadline` on the loop's clock."""

    deadline = 0.0

    def on_reply(self, answer: Any) -> None:
        if not self.done():
            self.set_result(answer)

    def on_error(self, error: BaseException) -> None:
        if not self.done():
            self.set_exception(error)
            self.exception()  # heard of, also if nobody waits for it any more


class ReplyProtocol(asyncio.BufferedProtocol):
    """Hears the answers of a loop's connection: straight from the transport, without a stream and a task between.

    The room that answers are read into is kept, where a stream makes a new one of 256 KiB each time.
    """

    def __init__(self, connection: LoopConnection) -> None:
        self.wire = connection
        self.reader = new_reader()
        self.room = memoryview(bytearray(ROOM))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        reader, pending = self.reader, self.wire.pending
        reader.feed(self.room, 0, nbytes)
        try:
            while (answer := reader.gets()) is not False:
                if pending:
                    pending.popleft().on_reply(answer)
        except ProtocolError as error:
            self.wire.broken = error
            self.wire.close()

    def connection_lost(self, error: BaseException | None) -> None:
        if not isinstance(error, CONNECTION_ERRORS):
            error = ConnectionError(str(error) if error else "the server closed the connection")
        self.wire.broken = self.wire.broken or error
        self.wire.close()


class LoopConnection:
    """A connection that all tasks of a loop share: answers come in the order of the commands.

    Whoever sends a command has `arrive` for its answer, `miss` for when there will be none, and a `deadline`. One timer
    watches over all deadlines: to set and cancel one for each command would cost more than to send it.

    The connection is to be closed before its loop is, and nobody says when that will be. A task would be told (it is
    cancelled), but too early: others clean up then, and may ask for something. So it is an asynchronous generator that
    waits for the end: `asyncio.run` closes those that are left when all tasks are done.
    """

    __slots__ = (
        "_due", "_end", "_timer", "_writer", "broken", "connection", "ident", "loop", "pending", "pool", "transport",
    )  # fmt: skip

    def __init__(self, pool: ServerPool, loop: asyncio.AbstractEventLoop) -> None:
        self.pool = pool
        self.loop = loop
        self.connection: Any = None
        self.transport: Any = None
        self._writer: Any = None
        self.ident = b""
        self.pending: deque[Any] = deque()
        self.broken: BaseException | None = None
        self._end: AsyncGenerator[None, None] | None = None
        # When the timer looks for those whose time is up; NEVER: nobody waits.
        self._due = NEVER
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, timeout: float, deadline: float) -> None:  # noqa: ASYNC109 - redis-py keeps it
        """Connect, and learn who answers, before `deadline` on the loop's clock."""
        async with asyncio.timeout_at(deadline):
            self.connection = await self.pool.connect_async(timeout)
        # From here on it is ours: redis-py's object must not think that it has something to close. The writer is
        # kept, as it would close the transport when it goes.
        self._writer = self.connection._writer
        self.connection._reader = self.connection._writer = None
        self.transport = self._writer.transport
        self.transport.set_protocol(ReplyProtocol(self))
        self._end = self._until_the_end()
        with suppress(StopIteration):
            self._end.__anext__().send(None)  # it takes no time, so it needs no task
        try:
            first, second = self.reply(deadline), self.reply(deadline)
            self.pending.append(first)
            self.send(WHO, second, deadline)
            self.ident = identity(await first, await second)
        except BaseException:
            self.close()
            raise

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.fail(self.broken or LoopEnded("the event loop has ended"))
            self.transport.abort()

    def reply(self, deadline: float) -> Reply:
        reply = Reply(loop=self.loop)
        reply.deadline = deadline
        return reply

    def call(self, payload: bytes, deadline: float) -> Reply:
        """Send a command; the answer can be awaited."""
        reply = self.reply(deadline)
        self.send(payload, reply, deadline)
        return reply

    def send(self, payload: bytes, hearer: Any, deadline: float) -> None:
        """Send a command; its answer is for `hearer`."""
        if self.broken is not None:
            hearer.on_error(self.broken)
            return
        self.pending.append(hearer)
        if deadline < self._due:
            self._watch(deadline)
        self.transport.write(payload)

    def _watch(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self.loop.call_at(due, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer, self._due = None, NEVER
        if self.pending:
            due = min(hearer.deadline for hearer in self.pending)
            if due <= self.loop.time():
                # Those who asked later have time left, and ask again on another connection.
                self.fail(ConnectionError("it did not answer in time"))
                self.close()
            else:
                self._watch(due)

    def fail(self, error: BaseException) -> None:
        self.broken = self.broken or error
        while self.pending:
            self.pending.popleft().on_error(error)

    def close(self) -> None:
        """Never to be used again; whoever waits for an answer hears that there will be none."""
        self.fail(self.broken or ConnectionError("closed"))
        if self._end is not None and not self.loop.is_closed():
            with suppress(StopIteration):
                self._end.aclose().send(None)


class ReleaseSender:
    """A connection for what nobody waits for: ends of permits. It never blocks and never raises.

    What was written is kept until its answer has been counted. When the connection fails, the keeper opens another and
    writes what is left again, with its old numbers: what had been applied already is not applied twice.
    """

    def __init__(self, pool: ServerPool) -> None:
        self.pool = pool
        self.lock = threading.Lock()
        # The collector may come while we have it, and end a coroutine that was dropped, which has a letter, too.
        self.order = threading.RLock()
        self.wire: Connection | None = None
        self.unheard: deque[Any] = deque()
        # The streams of letters, by account.
        self.streams: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def post(self, release: Any) -> None:
        """Write now if that is possible at once; otherwise the keeper will."""
        with self.order:
            self._box_of(release).line_up(release, self.unheard)
        if self.wire is None:
            self._if_free(self._borrow)
        # Who finds the lock taken leaves its letter to who has it, and that one looks again after giving it back.
        while self.wire is not None and self._unwritten() and self._if_free(self._write):
            pass

    def _if_free(self, do: Callable[[], bool]) -> bool:
        """Do it, unless somebody is about it; whether it was done."""
        mine: list[bool] = []
        try:
            return take_lock(self.lock, mine) and do()
        except BaseException as error:
            if mine and mine[0]:
                self._hang_up()  # nobody knows what was written
            if not isinstance(error, CONNECTION_ERRORS):
                raise
            return False
        finally:
            if mine and mine[0]:
                self.lock.release()

    def _borrow(self) -> bool:
        """Opening a connection may take long, but a thread has mostly put one back by now."""
        if self.wire is None and (spare := self.pool.spare()) is not None:
            self._take_over(spare)
        return self.wire is not None

    def _box_of(self, release: Any) -> Any:
        dropped = self.streams.get(release.ledger)
        return self.streams.setdefault(release.ledger, release.new_box()) if dropped is None else dropped

    def take_in(self, release: Any) -> None:
        """Get one in line that another connection could not deliver; if it may be under way there, under its number."""
        with self.order:
            release.written = False
            if release.copies:
                self.unheard.append(release)
            else:
                self._box_of(release).line_up(release, self.unheard)

    def _begin_streams(self) -> None:
        """Whoever is written from now on for the first time is not to overtake what may be on its way twice."""
        for dropped in list(self.streams.values()):
            dropped.stream = b""

    def _take_over(self, connection: Connection) -> Connection:
        with self.order:
            releases = list(self.unheard)
            again = any(release.copies for release in releases)
            if again:
                self._begin_streams()
            for release in releases:
                release.written = False
                if again and not release.copies:
                    self._box_of(release).stamp(release)
        connection.socket.settimeout(0)
        self.wire = connection
        return connection

    def _unwritten(self) -> bool:
        try:
            return not self.unheard[-1].written
        except IndexError:
            return False

    def _write(self) -> bool:
        """Write what was not; False: that is not possible now, and it is the keeper who tries again."""
        connection = self.wire
        if connection is None:
            return False  # opening one may take long: the keeper's work
        if len(self.unheard) > 1:
            self._count(connection)
        for release in list(self.unheard):
            if not release.written:
                payload = release.payload(connection.ident)
                release.copies += 1
                try:
                    sent = connection.socket.send(payload)
                except BUSY:
                    release.copies -= 1
                    return False
                release.written = True
                if sent < len(payload):
                    connection.socket.settimeout(self.pool.engine.timeout)
                    connection.socket.sendall(payload[sent:])
                    connection.socket.settimeout(0)
        return True

    def _count(self, connection: Connection) -> None:
        """Take the answers that are there."""
        reader = connection.reader
        try:
            data = connection.socket.recv(65536)
        except BUSY:
            return
        if not data:
            raise ConnectionError("the server closed the connection")
        reader.feed(data)
        while (answer := reader.gets()) is not False:
            self.unheard.popleft().answered(answer)

    def flush(self) -> None:
        """By the keeper: open what is closed, write what was not, count what came."""
        if not self.unheard:
            return
        with self.lock:
            try:
                self._count(self.wire or self._take_over(Connection(self.pool)))
                self._write()
            except CONNECTION_ERRORS:
                self._hang_up()

    def _hang_up(self) -> None:
        if self.wire is not None:
            self.wire.close()
            self.wire = None

    def close(self) -> None:
        with self.lock:
            self._hang_up()
