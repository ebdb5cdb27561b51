"""Connections, held and used directly: one for a thread at a time, one for all tasks of a loop, one for releases.

redis-py makes them (addresses, TLS, passwords, Sentinel), and its parser reads the replies. But redis-py's client
takes a connection from a pool and packs the arguments with every command, which costs more than the server needs to
decide. So a command is packed here and written to a connection that this module keeps.

A server's identity is read when a connection is made, and is true as long as the connection lives: a server that
restarts or is replaced ends its connections. A server that was promoted continues the history of another, so its
identity names that too.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from functools import partial
from socket import SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET
from struct import pack
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from hiredis import ProtocolError, Reader
from redis.exceptions import ConnectionError as Unconnected
from redis.exceptions import InvalidResponse
from redis.exceptions import ResponseError as Refused
from redis.exceptions import TimeoutError as TooLate

from headway.clock import wake
from headway.engines.redis.script.protocol import command
from headway.interrupts import take_lock

if TYPE_CHECKING:
    from headway.engines.redis.net.pool import ServerPool

T = TypeVar("T")
Flow = Generator[bytes, Any, T]

NONSENSE = (InvalidResponse, ProtocolError)
"""What is raised when the peer does not speak the protocol of Redis."""
CONNECTION_ERRORS = (OSError, Unconnected, TooLate, Refused, *NONSENSE)
"""What is raised when a server cannot be reached, or refuses us: no such database, no right to it."""
BUSY = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a non-blocking socket raises instead of waiting."""

ROOM = 16384
"""Bytes of the buffer for a reply; a longer reply comes in parts."""
NEVER = float("inf")
STALL = 0.02
"""Seconds by which a timer is late if the event loop was busy with something else."""
MOST_PENDING = 64
"""Commands of an event loop that are sent before the first of them is answered."""
MOST_UNDER_WAY = 128
"""Requests in releases that are written before the first of them is answered: the server is to have time for them."""

WHO = command(b"INFO", b"server") + command(b"INFO", b"replication")


def let_kernel_wait(socket: Any, seconds: float) -> None:
    """Bound every read and write, in the kernel: a time-out of Python's costs a system call more for each."""
    if isinstance(socket, ssl.SSLSocket) or not hasattr(socket, "setsockopt"):
        socket.settimeout(seconds)
    else:
        span = pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        socket.settimeout(None)
        socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, span)
        socket.setsockopt(SOL_SOCKET, SO_SNDTIMEO, span)


def new_reader() -> Any:
    """A parser of answers: errors are values, bytes stay bytes."""
    return Reader(notEnoughData=False)


def identity(server: Any, replication: Any) -> bytes:
    """The run id of the server, and the history that it continues; raises for a replica."""
    if isinstance(server, Exception) and str(server).startswith("NOAUTH"):
        raise ConnectionError("Authentication required.")  # the text of redis-py, where it notices
    if isinstance(server, Exception) or isinstance(replication, Exception):
        return b"?"  # no right to read it: restarts and failovers are then noticed by what is missing alone
    lines: list[bytes] = [line for line in (server + replication).splitlines() if b":" in line]
    facts: dict[bytes, bytes] = dict(line.split(b":", 1) for line in lines)
    if facts.get(b"role", b"master").strip() != b"master":
        raise ConnectionError("it is a replica, and takes no writes")
    promoted = facts.get(b"second_repl_offset", b"-1").strip() != b"-1"
    before = facts.get(b"master_replid2", b"").strip() if promoted else b""
    return facts.get(b"run_id", b"?").strip() + before


class Connection:
    """A connection that a thread uses alone."""

    __slots__ = ("connection", "hurried", "ident", "reader", "room", "socket", "until", "usual")

    def __init__(self, pool: ServerPool, timeout: float = 0) -> None:
        whole = int((timeout or pool.engine.timeout) * 1e9)
        began = monotonic_ns()
        # Seconds that it waits for a reply unless it is told otherwise, once it has been put back.
        self.usual = 0.0
        self.connection = connection = pool.connect(timeout)
        # All checks before the first use share the time of one reply. Starting a server does not count.
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
        """Send a command and wait for its reply; an error of the server is a reply too."""
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
        """Wait for replies no longer than this; a connection that is put back has the usual time-out again."""
        # Whether its time-out differs from the engine's.
        self.hurried = True
        self.socket.settimeout(max(0.001, left_ns / 1e9))

    def close(self) -> None:
        self.connection.disconnect()


class MachineClock:
    """The machine's monotonic clock, also where a test has put another one in its place."""

    now = staticmethod(monotonic_ns)


def exchange(
    connection: Connection, flow: Flow[T], deadline: int | None = None, clock: Any = MachineClock
) -> T:
    """Run a flow, which yields commands and is given their replies; returns what it returns.

    All commands together have until `deadline`, if there is one.
    """
    try:
        payload = next(flow)
        while True:
            if deadline is not None:
                connection.limit(deadline - clock.now())
            payload = flow.send(connection.call(payload))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def exchange_async(connection: LoopConnection, flow: Flow[T], deadline: float) -> T:
    """The same for a task; the deadline is on the loop's clock."""
    try:
        payload = next(flow)
        while True:
            payload = flow.send(await connection.call(payload, deadline))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class LoopEnded(ConnectionError):
    """The event loop ends, and its connection with it: there is nothing to connect again for."""


class Reply(asyncio.Future):  # type: ignore[type-arg]
    """A reply that a task awaits; it must be there by `deadline` on the loop's clock."""

    deadline = 0.0

    def on_reply(self, answer: Any) -> None:
        if not self.done():
            self.set_result(answer)

    def on_error(self, error: BaseException) -> None:
        if not self.done():
            self.set_exception(error)
            self.exception()  # marked as retrieved, in case no task awaits it any more


class ReplyProtocol(asyncio.BufferedProtocol):
    """Reads the replies of a loop's connection: straight from the transport, without a stream and a task between.

    The buffer is kept, where a stream makes a new one of 256 KiB each time.
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
        if self.wire.backlog:
            self.wire.resume()

    def connection_lost(self, error: BaseException | None) -> None:
        if not isinstance(error, CONNECTION_ERRORS):
            error = ConnectionError(str(error) if error else "the server closed the connection")
        self.wire.broken = self.wire.broken or error
        self.wire.close()


class LoopConnection:
    """A connection that all tasks of a loop share: replies come in the order of the commands.

    The sender of a command has `on_reply` for its reply, `on_error` for when there will be none, and a `deadline`. One
    timer watches over all deadlines: to set and cancel a timer for each command would cost more than to send it.

    The connection must be closed before its loop, and asyncio has no hook for that moment. A task would be cancelled,
    but too early: other tasks clean up then, and may make requests. So an asynchronous generator waits for the end:
    `asyncio.run` closes the generators that are left when all tasks are done.
    """

    __slots__ = (
        "_due", "_end", "_late", "_timer", "_writer", "backlog", "broken", "connection", "ident", "loop", "made_by",
        "pending", "pool", "transport",
    )  # fmt: skip

    def __init__(self, pool: ServerPool, loop: asyncio.AbstractEventLoop) -> None:
        self.pool = pool
        self.loop = loop
        self.connection: Any = None
        self.transport: Any = None
        self._writer: Any = None
        self.ident = b""
        # Until when it has to be made, on the loop's clock.
        self.made_by = 0.0
        self.pending: deque[Any] = deque()
        # What to call when there is room for another command.
        self.backlog: deque[Callable[[], object]] = deque()
        self.broken: BaseException | None = None
        self._end: AsyncGenerator[None, None] | None = None
        # When the timer checks the deadlines; NEVER: no command is pending.
        self._due = NEVER
        self._timer: asyncio.TimerHandle | None = None
        # Whose time was up when the loop had been busy.
        self._late: Any = None

    async def open(self, timeout: float, deadline: float) -> None:  # noqa: ASYNC109 - redis-py keeps it
        """Connect, and read the server's identity, before `deadline` on the loop's clock."""
        async with asyncio.timeout_at(deadline):
            self.connection = await self.pool.connect_async(timeout)
        # From here on the transport is ours: redis-py's object must not close it. The writer is kept, as it would
        # close the transport when it is freed.
        self._writer = self.connection._writer
        self.connection._reader = self.connection._writer = None
        self.transport = self._writer.transport
        self.transport.set_protocol(ReplyProtocol(self))
        self._end = self._until_the_end()
        with suppress(StopIteration):
            self._end.__anext__().send(None)  # it never waits, so it needs no task
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
        """Send a command; the reply can be awaited."""
        reply = self.reply(deadline)
        self.send(payload, reply, deadline)
        return reply

    def send(self, payload: bytes, hearer: Any, deadline: float) -> None:
        """Send a command; its reply goes to `hearer`."""
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
            due, now = min(hearer.deadline for hearer in self.pending), self.loop.time()
            if due + STALL < now and self._late is not self.pending[0]:
                # The loop was busy, and the answer may be there already: it is read first.
                self._late = self.pending[0]
                self._watch(now + STALL)
            elif due <= now:
                # Later commands have time left, and are sent again on another connection.
                self.fail(ConnectionError("it did not answer in time"))
                self.close()
            else:
                self._watch(due)

    @property
    def full(self) -> bool:
        """Whether as much is under way as the server can answer soon: a time-out begins when a command is sent."""
        return len(self.pending) >= MOST_PENDING

    async def room(self) -> None:
        """Wait until there is room for another command, or until the connection has failed."""
        while self.full and self.broken is None:
            free = self.loop.create_future()
            self.backlog.append(partial(wake, free))
            await free

    def resume(self) -> None:
        """Answers came: let as many send as there is room for."""
        for _ in range(min(len(self.backlog), MOST_PENDING - len(self.pending))):
            self.backlog.popleft()()
        if self.backlog and not self.full:
            # Some send in their own turn of the loop, and some had nothing to send any more.
            self.loop.call_soon(self.resume)

    def fail(self, error: BaseException) -> None:
        self.broken = self.broken or error
        while self.pending:
            self.pending.popleft().on_error(error)
        while self.backlog:
            with suppress(RuntimeError):  # the loop was closed
                self.loop.call_soon(self.backlog.popleft())

    def close(self) -> None:
        """Never to be used again; every pending command fails."""
        self.fail(self.broken or ConnectionError("closed"))
        if self._end is not None and not self.loop.is_closed():
            with suppress(StopIteration):
                self._end.aclose().send(None)


class ReleaseSender:
    """A connection for releases, for which no caller waits. It never blocks and never raises.

    A release is kept until its reply has been counted. When the connection fails, the background worker opens another
    and writes what is left again, under the old numbers: what was applied already is not applied twice. Each is written
    again only when the one before it has its reply: if one is refused (a restarted server refuses until a client says
    that its ledger is complete) and a later number of its stream is applied, the script cannot tell any more what has
    become of the refused one, and it would be lost.
    """

    def __init__(self, pool: ServerPool) -> None:
        self.pool = pool
        self.lock = threading.Lock()
        # Re-entrant: the collector may run while it is held, and end a coroutine that was dropped and has a release,
        # too.
        self.order = threading.RLock()
        self.wire: Connection | None = None
        # Not answered yet: written on this connection, or not at all.
        self.unheard: deque[Any] = deque()
        # Written on a connection that has failed: they may have arrived.
        self.again: deque[Any] = deque()
        # How many requests are under way on this connection.
        self.under_way = 0
        # The streams of releases, by client.
        self.streams: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @property
    def outstanding(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self.unheard or self.again)

    def post(self, release: Any) -> None:
        """Write now if that is possible at once; otherwise the background worker will."""
        with self.order:
            if not (self.unheard and self.unheard[-1].join(release)):
                self._box_of(release).line_up(release, self.unheard)
        if self.wire is None:
            self._if_free(self._borrow)
        # A thread that finds the lock taken leaves its release to the thread that has it; that one checks again after
        # releasing the lock.
        while self.wire is not None and self._unwritten() and self._if_free(self._write):
            pass

    def _if_free(self, do: Callable[[], bool]) -> bool:
        """Do it, unless another thread is doing it; whether it was done."""
        mine: list[bool] = []
        try:
            return take_lock(self.lock, mine) and do()
        except BaseException as error:
            if mine and mine[0]:
                self._hang_up()  # how much was written is unknown
            if not isinstance(error, CONNECTION_ERRORS):
                raise
            return False
        finally:
            if mine and mine[0]:
                self.lock.release()

    def _borrow(self) -> bool:
        """Take an idle connection: to open one may take long, but a thread has mostly put one back by now."""
        if self.wire is None and (spare := self.pool.spare()) is not None:
            self._take_over(spare)
        return self.wire is not None

    def _box_of(self, release: Any) -> Any:
        dropped = self.streams.get(release.ledger)
        return self.streams.setdefault(release.ledger, release.new_box()) if dropped is None else dropped

    def take_in(self, release: Any) -> None:
        """Queue a release that another connection could not deliver; if it may be in flight there, under its number."""
        with self.order:
            if release.copies:
                self.again.append(release)
            else:
                self._box_of(release).line_up(release, self.unheard)

    def _begin_streams(self) -> None:
        """New streams: a release that is written for the first time must not overtake one that is in flight twice."""
        for dropped in list(self.streams.values()):
            dropped.stream = b""

    def _end_stream(self, release: Any) -> None:
        """This one was refused, and so would be all that follow it in its stream."""
        with self.order:
            dropped = self.streams.get(release.ledger)
            if dropped is not None and dropped.stream == release.stream:
                dropped.stream = b""

    def _take_over(self, connection: Connection) -> None:
        connection.socket.settimeout(0)
        self.wire, self.under_way = connection, 0

    def _deliver_again(self, connection: Connection) -> None:
        """What may have arrived before, one after the other. When one is refused, the worker first finds out what
        becomes of it, and of those behind it in its stream."""
        refused: set[bytes] = set()
        while self.again:
            release = self.again[0]
            if release.stream in refused:
                release.resolve_unknown()
            else:
                release.copies += 1
                connection.limit(int(self.pool.engine.timeout * 1e9))
                if release.answered(connection.call(release.payload(connection.ident))):
                    refused.add(release.stream)
            self.again.popleft()

    def _unwritten(self) -> bool:
        try:
            return not self.unheard[-1].written
        except IndexError:
            return False

    def _write(self) -> bool:
        """Write what was not; False: that is not possible now, and the background worker will try again."""
        connection = self.wire
        if connection is None:
            return False  # to open one may take long: the background worker does it
        if len(self.unheard) > 1:
            self._count(connection)
        for release in list(self.unheard):
            if not release.written:
                if self.under_way >= MOST_UNDER_WAY:
                    return False
                with self.order:
                    release.copies += 1  # from now on it takes no other along
                payload = release.payload(connection.ident)
                try:
                    sent = connection.socket.send(payload)
                except BUSY:
                    release.copies -= 1
                    return False
                release.written = True
                self.under_way += len(release.requests)
                if sent < len(payload):
                    connection.socket.settimeout(self.pool.engine.timeout)
                    connection.socket.sendall(payload[sent:])
                    connection.socket.settimeout(0)
        return True

    def _count(self, connection: Connection) -> None:
        """Read the replies that are there."""
        reader = connection.reader
        try:
            data = connection.socket.recv(65536)
        except BUSY:
            return
        if not data:
            raise ConnectionError("the server closed the connection")
        reader.feed(data)
        while (answer := reader.gets()) is not False:
            release = self.unheard.popleft()
            self.under_way -= len(release.requests)
            if release.answered(answer):
                self._end_stream(release)

    @property
    def waits(self) -> bool:
        """Whether there is a release that can only be written when others have their replies."""
        return self.wire is not None and self._unwritten()

    def flush(self) -> None:
        """By the background worker: connect if needed, write what was not, count the replies."""
        if not self.outstanding:
            return
        with self.lock:
            try:
                if self.again or self.wire is None:
                    self._reopen()
                if self.wire is not None:
                    self._count(self.wire)
                self._write()
            except CONNECTION_ERRORS:
                self._hang_up()

    def _reopen(self) -> None:
        connection = Connection(self.pool)
        try:
            self._deliver_again(connection)
        except BaseException:
            connection.close()
            raise
        if self.wire is None:
            self._take_over(connection)
        else:
            self.pool.put_back(connection)

    def _hang_up(self) -> None:
        if self.wire is None:
            return
        self.wire.close()
        self.wire = None
        with self.order:
            if not any(release.copies for release in list(self.unheard)):
                return
            self._begin_streams()
            for _ in range(len(self.unheard)):  # the collector may come, and with it one more, which stays
                release = self.unheard.popleft()
                if release.copies:
                    self.again.append(release)
                else:
                    self._box_of(release).line_up(release, self.unheard)

    def close(self) -> None:
        with self.lock:
            self._hang_up()
