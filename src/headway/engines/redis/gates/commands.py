"""Commands to a gate on a server, sent for a thread, or for tasks together.

Every command may be sent twice: a submission has an id, by which the server knows it again, and all others only look.
So a command whose answer was lost is simply sent again, at once on another connection, and no outcome is unknown for
longer than a caller retries.
"""

from __future__ import annotations

import asyncio
import sys
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from headway.core.once import Submission
from headway.engines.redis.client.registry import escape
from headway.engines.redis.gates.codec import (
    AGAIN,
    LOST,
    OTHER,
    Head,
    body_of,
    is_ok,
    read_said,
)
from headway.engines.redis.gates.together import Together
from headway.engines.redis.net.connections import CONNECTION_ERRORS, LoopEnded, exchange_async
from headway.engines.redis.script.protocol import TICK, command, framed, no_script, numbers
from headway.engines.redis.script.scripts import plain_script
from headway.errors import LimitMismatch, UnsupportedAsync

if TYPE_CHECKING:
    from headway.engines.base import GateTerms
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.net.connections import Flow
    from headway.engines.redis.net.pool import ServerPool

ATTEMPTS = 4
ALWAYS = "it is always elsewhere, or lost"
ERRORS = (ReplyError, *CONNECTION_ERRORS)

Answer = tuple[Head, list[Any]]


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
        self._together: dict[asyncio.AbstractEventLoop, Together] = {}
        self._numbers = (rule.duration // TICK, rule.strict, rule.max_pending, rule.retention // TICK)
        self._front = framed(b"EVALSHA", plain_script("once").sha, b"1", self.root)
        self._submit = b"*7\r\n" + self._front + framed(numbers(0, *self._numbers), b"submit")

    # -- commands as bytes -------------------------------------------------------------------------------

    def payload(self, *words: bytes) -> bytes:
        """A command, for a server that knows the script."""
        return b"*%d\r\n%b%b" % (5 + len(words), self._front, framed(self._packed(), *words))

    def submit_payload(self, bodies: bytes) -> bytes:
        """A command that submits events."""
        if self.engine.fixed_time:
            return self.payload(b"submit", bodies)
        return b"%b$%d\r\n%b\r\n" % (self._submit, len(bodies), bodies)

    def _packed(self) -> bytes:
        return numbers(self.engine.fixed_time, *self._numbers)

    # -- sending -----------------------------------------------------------------------------------------

    def _send_once(self, payload: bytes) -> Any:
        """From a thread, on a connection that is open. Nearly always that is all; None, or an error, is for `send`."""
        pool = self.engine.pool_of(self)
        connection = pool.spare()
        if connection is None:
            return None
        try:
            if self.timeout_ns < self.engine.timeout * 1e9:  # others have more time
                connection.limit(self.timeout_ns)
            reply = connection.call(payload)
        except CONNECTION_ERRORS as error:
            connection.close()
            self._next_pool(pool, error)
            return None
        except BaseException:
            connection.close()
            raise
        pool.put_back(connection)
        return reply

    def send(self, payload: bytes) -> Answer:
        """From a thread."""
        reply = self._send_once(payload)
        if type(reply) is list and type(answer := self.read(reply)) is tuple:
            return answer
        pool = self.engine.pool_of(self)
        attempts = ATTEMPTS
        while attempts:
            try:
                answer = self.read(pool.exchange(_flow(payload), self.timeout_ns))
                if type(answer) is tuple:
                    return answer
                attempts -= answer == LOST
            except ERRORS as error:
                attempts -= 1
                pool = self._next_pool(pool, error)
        raise self.engine.unavailable(ConnectionError(ALWAYS))

    async def send_async(self, payload: bytes, trouble: Exception | None = None) -> Answer:
        """From a task, on the connection that all tasks of its loop share; `trouble` is why it was sent in vain."""
        loop = running_loop()
        pool = self.engine.pool_of(self)
        if trouble is not None:
            pool = self._next_pool(pool, trouble)
        attempts = ATTEMPTS
        while attempts:
            connection = None
            try:
                deadline = loop.time() + self.timeout_ns / 1e9
                connection = pool.connection_of(loop, self.timeout_ns) or await pool.open_connection(
                    loop, self.timeout_ns, deadline
                )
                if connection.full:
                    await connection.room()
                    deadline = loop.time() + self.timeout_ns / 1e9
                answer = self.read(await exchange_async(connection, _flow(payload), deadline))
                if type(answer) is tuple:
                    return answer
                attempts -= answer == LOST
            except ERRORS as error:
                attempts -= 1
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

    def read(self, reply: list[Any]) -> Answer | int:
        """What a reply says, or why the command is to be sent again: the gate was lost, and the next one begins (LOST),
        or the command has done as much as one may, and is to go on (AGAIN)."""
        head = Head.read(reply[0])
        if head.status == LOST:
            self.engine.log_once(
                ConnectionError(f"gate {self.name!r} has lost a part of itself, and begins anew")
            )
            return LOST
        if head.status == AGAIN:
            return AGAIN
        if head.status == OTHER:
            duration, strict = unpack_from("<2d", reply[0], 32)
            kept = self.rule._replace(duration=int(duration) * TICK, strict=bool(strict))
            raise LimitMismatch(self.name, str(kept), str(self.rule))
        return head, reply[1:]

    # -- submitting --------------------------------------------------------------------------------------

    def submit(self, event: str, id: str, value: str | None) -> Submission:
        payload = self.submit_payload(body_of(event, id, value))
        reply = self._send_once(payload)
        said = reply[1] if type(reply) is list and is_ok(reply[0]) else self.send(payload)[1][0]
        found, _ = read_said(said, 0, self.rule, event, id)
        if isinstance(found, Exception):
            raise found
        return found

    def submit_async(self, event: str, id: str, value: str | None) -> asyncio.Future[Submission]:
        """Events of tasks that are submitted in one turn of their loop travel together."""
        loop = running_loop()
        together = self._together.get(loop)
        if together is None:
            for ended in [other for other in self._together if other.is_closed()]:
                self._together.pop(ended, None)
            together = self._together[loop] = Together(self, loop)
        return together.add(event, id, value)


def _flow(payload: bytes) -> Flow[list[Any]]:
    """A command, and the script before it if the server does not know it."""
    reply = yield payload
    if isinstance(reply, Exception) and no_script(reply):
        yield command(b"SCRIPT", b"LOAD", plain_script("once").text)
        reply = yield payload
    if isinstance(reply, Exception):
        raise reply
    return reply  # type: ignore[no-any-return]


def running_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio._get_running_loop()
    if loop is None:
        raise UnsupportedAsync("trio" if "trio" in sys.modules else None)
    return loop
