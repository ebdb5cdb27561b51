"""Commands to a gate on a server, and their answers as bytes: numbers in front, then texts with their lengths.

Every command may be sent twice: a submission has an id, by which the server knows it again, and all others only look.
So a command whose answer was lost is simply sent again, at once on another connection, and no outcome is unknown for
longer than a caller retries.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from struct import unpack, unpack_from
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from hiredis import ReplyError

from headway.core.once import Change, EventStatus, Pending, Submission
from headway.engines.redis.client.reconfigure import run_plain
from headway.engines.redis.client.registry import escape
from headway.engines.redis.net.connections import CONNECTION_ERRORS, LoopEnded, exchange_async
from headway.engines.redis.script.protocol import TICK, framed, numbers
from headway.engines.redis.script.scripts import plain_script
from headway.errors import GateFull, IdReused, LimitMismatch, UnsupportedAsync

if TYPE_CHECKING:
    from headway.engines.base import GateTerms
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.net.connections import Flow
    from headway.engines.redis.net.pool import ServerPool

OK, FULL, REUSED, OTHER, GONE, LOST = range(6)
"""How an answer begins, as in `script/lua/once.lua`."""
ATTEMPTS = 4
LINES, EVENTS = 200, 1000
"""How many lines of the log one answer has, and how many pending events one list of it."""

ALWAYS = "it is always elsewhere, or lost"
MOST_TOGETHER, MOST_BYTES = 64, 262144
"""How many events travel in one command."""

ERRORS = (ReplyError, *CONNECTION_ERRORS)


class Head(NamedTuple):
    """The numbers in front of every answer; times are ticks of the server's clock, `due` is 0 if nothing is pending."""

    status: int
    now: int
    clock: int
    began: int
    due: int

    @classmethod
    def read(cls, data: bytes) -> Head:
        return cls(*map(int, unpack_from("<5d", data)))


class GateCommands:
    """How one gate is asked."""

    def __init__(self, engine: Engine, terms: GateTerms) -> None:
        rule = terms.rule
        self.engine = engine
        self.name = terms.name or ""
        self.rule = rule
        self.timeout_ns = terms.timeout_ns
        self.root = f"{engine.namespace}:once:{{{escape(self.name)}}}".encode()
        # What `Engine.pool_of` looks at.
        self.keys = (self.root,)
        self._together: WeakKeyDictionary[asyncio.AbstractEventLoop, Together] = WeakKeyDictionary()
        self._numbers = (rule.duration // TICK, rule.strict, rule.max_pending, rule.retention // TICK)
        self._front = framed(b"EVALSHA", plain_script("once").sha, b"1", self.root)
        self._framed = framed(numbers(0, *self._numbers))

    def _flow(self, words: tuple[bytes, ...]) -> Flow[Any]:
        return run_plain("once", b"1", self.root, self._packed(), *words)

    def _packed(self) -> bytes:
        return numbers(self.engine.fixed_time, *self._numbers)

    # -- sending -----------------------------------------------------------------------------------------

    def _payload(self, words: tuple[bytes, ...]) -> bytes:
        """The command as bytes, for a server that knows the script: nearly all of it is the same each time."""
        numbers = self._framed if not self.engine.fixed_time else framed(self._packed())
        return b"*%d\r\n%b%b%b" % (5 + len(words), self._front, numbers, framed(*words))

    def send(self, *words: bytes) -> tuple[Head, list[Any]]:
        """From a thread."""
        pool = self.engine.pool_of(self)
        connection = pool.spare()
        if connection is not None:
            # Nearly always that is all; whatever else comes is for the slow way, which may send the command again.
            try:
                if self.timeout_ns < self.engine.timeout * 1e9:  # others have more time
                    connection.limit(self.timeout_ns)
                reply = connection.call(self._payload(words))
            except CONNECTION_ERRORS as error:
                connection.close()
                pool = self._next_pool(pool, error)
            except BaseException:
                connection.close()
                raise
            else:
                pool.put_back(connection)
                if type(reply) is list and (answer := self._read(reply)) is not None:
                    return answer
        for _ in range(ATTEMPTS):
            try:
                if (answer := self._read(pool.exchange(self._flow(words), self.timeout_ns))) is not None:
                    return answer
            except ERRORS as error:
                pool = self._next_pool(pool, error)
        raise self.engine.unavailable(ConnectionError(ALWAYS))

    async def send_async(self, *words: bytes) -> tuple[Head, list[Any]]:
        """From a task, on the connection that all tasks of its loop share."""
        loop = running_loop()
        pool = self.engine.pool_of(self)
        for _ in range(ATTEMPTS):
            connection = None
            try:
                deadline = loop.time() + self.timeout_ns / 1e9
                connection = pool.connection_of(loop, self.timeout_ns) or await pool.open_connection(
                    loop, self.timeout_ns, deadline
                )
                if connection.full:
                    await connection.room()
                    deadline = loop.time() + self.timeout_ns / 1e9
                found = await exchange_async(connection, self._flow(words), deadline)
                if (answer := self._read(found)) is not None:
                    return answer
            except ERRORS as error:
                if connection is not None and not isinstance(error, ReplyError):
                    connection.close()
                pool = self._next_pool(pool, error)
        raise self.engine.unavailable(ConnectionError(ALWAYS))

    def _next_pool(self, pool: ServerPool, error: Exception) -> ServerPool:
        """Where to send the command after this error; raises if there is no such place."""
        engine = self.engine
        if isinstance(error, ReplyError):
            moved = engine.moved(self, error)
            if moved is None:
                raise engine.refusal(error) from error
            return moved
        if isinstance(error, LoopEnded) or not pool.again(error):
            raise engine.unavailable(error) from error
        return engine.pool_of(self)

    def _read(self, answer: list[Any]) -> tuple[Head, list[Any]] | None:
        """What an answer says; None if the gate was lost, and the command is to be sent to the next one."""
        head = Head.read(answer[0])
        if head.status == LOST:
            self.engine.log_once(
                ConnectionError(f"gate {self.name!r} has lost a part of itself, and begins anew")
            )
            return None
        if head.status == OTHER:
            duration, strict = unpack_from("<2d", answer[0], 32)
            kept = self.rule._replace(duration=int(duration) * TICK, strict=bool(strict))
            raise LimitMismatch(self.name, str(kept), str(self.rule))
        return head, answer[1:]

    # -- submitting --------------------------------------------------------------------------------------

    def submit(self, event: str, id: str, value: str | None) -> Submission:
        _, said = self.send(b"submit", event.encode(), id.encode(), _value(value))
        return self._submission(said, event, id)

    async def submit_async(self, event: str, id: str, value: str | None) -> Submission:
        """Events of tasks that are submitted in one turn of their loop travel together."""
        loop = running_loop()
        together = self._together.get(loop)
        if together is None:
            together = self._together[loop] = Together(self)
        return self._submission(await together.add(loop, event, id, _value(value)), event, id)

    def _submission(self, answer: list[bytes], event: str, id: str) -> Submission:
        status, said, conflict = answer
        outcome = unpack("<d", status)[0]
        if outcome == FULL:
            raise GateFull(self.rule.max_pending, unpack("<d", said)[0] / 1e6)
        if outcome == REUSED:
            raise IdReused(id, said.decode(), event)
        accepted, clock, due = unpack("<3d", said)
        return Submission(accepted == 1, id, int(clock), int(due) * TICK, conflict.decode() or None)


class Together:
    """Submissions of one loop that wait for the end of its turn."""

    def __init__(self, commands: GateCommands) -> None:
        self.commands = commands
        self.words: list[bytes] = []
        self.size = 0
        self.futures: list[asyncio.Future[list[bytes]]] = []
        # asyncio keeps no task alive.
        self.tasks: set[asyncio.Task[None]] = set()

    def add(
        self, loop: asyncio.AbstractEventLoop, event: str, id: str, value: bytes
    ) -> asyncio.Future[list[bytes]]:
        words = (event.encode(), id.encode(), value)
        size = len(words[0]) + len(words[1]) + len(value)
        if len(self.futures) >= MOST_TOGETHER or (self.futures and self.size + size > MOST_BYTES):
            self.flush(loop)
        if not self.futures:
            loop.call_soon(self.flush, loop)
        future: asyncio.Future[list[bytes]] = loop.create_future()
        self.futures.append(future)
        self.words += words
        self.size += size
        return future

    def flush(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.futures:
            futures, words = self.futures, self.words
            self.futures, self.words, self.size = [], [], 0
            task = loop.create_task(self._send(futures, words))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _send(self, futures: list[asyncio.Future[list[bytes]]], words: list[bytes]) -> None:
        try:
            _, said = await self.commands.send_async(b"submit", *words)
        except BaseException as error:
            for future in futures:
                if not future.done():
                    if isinstance(error, Exception):
                        future.set_exception(_copied(error, first=future is futures[0]))
                    else:
                        future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for i, future in enumerate(futures):
            if not future.done():
                future.set_result(said[3 * i : 3 * i + 3])


def _copied(error: Exception, *, first: bool) -> Exception:
    """An error for each caller: one that is raised in several tasks would collect the frames of all."""
    if first:
        return error
    other = copy.copy(error)
    other.__cause__ = error.__cause__
    return other


def running_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio._get_running_loop()
    if loop is None:
        raise UnsupportedAsync("trio" if "trio" in sys.modules else None)
    return loop


def _value(value: str | None) -> bytes:
    """A value that is there has a sign in front."""
    return b"" if value is None else b"=" + value.encode()


# -- texts ---------------------------------------------------------------------------------------------------------


def read_line(line: bytes) -> Change:
    """A line of the log."""
    clock, status, time = map(int, unpack_from("<3d", line))
    id, event, value = _texts(line, 24)
    return Change(clock, EventStatus(status), id, event, value, time * TICK)


def read_pending(packed: bytes) -> Pending:
    time, due, clock = map(int, unpack_from("<3d", packed))
    id, event, value = _texts(packed, 24)
    return Pending(id, event, value, time * TICK, due * TICK, clock)


def _texts(packed: bytes, at: int) -> tuple[str, str, str | None]:
    """An id, an event, and a value or None; the value needs no length, and has a sign that it is there."""
    found = []
    for _ in range(2):
        end = at + 8 + int(unpack_from("<d", packed, at)[0])
        found.append(packed[at + 8 : end].decode())
        at = end
    value = packed[at:].decode()
    return found[0], found[1], value[1:] if value else None


def read_news(data: bytes) -> tuple[Head, list[Change]]:
    """A message of the gate's channel: the numbers, and the lines that are new, unless they are too many."""
    lines, at = [], 40
    while at < len(data):
        end = at + 8 + int(unpack_from("<d", data, at)[0])
        lines.append(read_line(data[at + 8 : end]))
        at = end
    return Head.read(data), lines
