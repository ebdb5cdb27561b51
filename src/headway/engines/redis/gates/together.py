"""Events that tasks submit in one turn of their loop travel together: one command, one answer, a future for each."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

from headway.core.once import Submission
from headway.engines.redis.gates.codec import body_of, read_said
from headway.engines.redis.net.connections import LoopEnded

if TYPE_CHECKING:
    from headway.engines.redis.gates.commands import GateCommands

MOST_TOGETHER, MOST_BYTES = 64, 262144
"""How many events travel in one command. With fewer than all there are several commands: while the server decides one,
the answer to another is read. Two hundred tasks are served nearly twice as fast so as by one command for all."""

Waiting = list[tuple["asyncio.Future[Submission]", str, str]]


class Together:
    """Submissions of one loop that wait for the end of its turn."""

    __slots__ = ("bodies", "commands", "loop", "size", "tasks", "waiting")

    def __init__(self, commands: GateCommands, loop: asyncio.AbstractEventLoop) -> None:
        self.commands = commands
        self.loop = loop
        self.bodies: list[bytes] = []
        self.size = 0
        self.waiting: Waiting = []
        # asyncio keeps no task alive.
        self.tasks: set[asyncio.Task[None]] = set()

    def add(self, event: str, id: str, value: str | None) -> asyncio.Future[Submission]:
        body = body_of(event, id, value)
        waiting = self.waiting
        if not waiting:
            self.loop.call_soon(self.flush)
        elif len(waiting) >= MOST_TOGETHER or self.size + len(body) > MOST_BYTES:
            self.flush()
            self.loop.call_soon(self.flush)
            waiting = self.waiting
        future: asyncio.Future[Submission] = self.loop.create_future()
        waiting.append((future, event, id))
        self.bodies.append(body)
        self.size += len(body)
        return future

    def flush(self) -> None:
        """Send what has gathered."""
        if not self.waiting:
            return
        commands, loop = self.commands, self.loop
        batch = Batch(self, self.waiting, commands.submit_payload(b"".join(self.bodies)))
        self.waiting, self.bodies, self.size = [], [], 0
        try:
            connection = commands.engine.pool_of(commands).connection_of(loop, commands.timeout_ns)
        except Exception:  # noqa: BLE001 - the slow way meets it again, and tells the callers
            connection = None
        if connection is None or connection.full:
            batch.send_slowly()
        else:
            batch.deadline = loop.time() + commands.timeout_ns / 1e9
            connection.send(batch.payload, batch, batch.deadline)


class Batch:
    """A command under way. The usual answer is read where it arrives; all else is for a task."""

    __slots__ = ("deadline", "payload", "together", "waiting")

    def __init__(self, together: Together, waiting: Waiting, payload: bytes) -> None:
        self.together = together
        self.waiting = waiting
        self.payload = payload
        self.deadline = 0.0

    def on_reply(self, reply: Any) -> None:
        try:
            answer = self.together.commands.read(reply) if type(reply) is list else None
            if type(answer) is tuple:
                self._deliver(answer[1][0])
                return
        except Exception as error:  # noqa: BLE001 - handed to the callers
            self._fail(error)
            return
        self.send_slowly()

    def on_error(self, error: BaseException) -> None:
        """There will be no answer on this connection; the slow way asks again, or says why not."""
        if isinstance(error, LoopEnded) or not isinstance(error, Exception):
            # Nothing can be begun in a loop that ends.
            self._fail(self.together.commands.engine.unavailable(error))
        else:
            self.send_slowly(error)

    def send_slowly(self, trouble: Exception | None = None) -> None:
        tasks = self.together.tasks
        task = self.together.loop.create_task(self._send(trouble))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _send(self, trouble: Exception | None) -> None:
        try:
            _, (said,) = await self.together.commands.send_async(self.payload, trouble)
        except BaseException as error:
            if isinstance(error, Exception):
                self._fail(error)
                return
            for future, _, _ in self.waiting:
                future.cancel()
            raise
        self._deliver(said)

    def _deliver(self, said: bytes) -> None:
        at, rule = 0, self.together.commands.rule
        for future, event, id in self.waiting:
            found, at = read_said(said, at, rule, event, id)
            if future.done():
                continue
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)

    def _fail(self, error: Exception) -> None:
        first = True
        for future, _, _ in self.waiting:
            if not future.done():
                future.set_exception(_copied(error, first=first))
                first = False


def _copied(error: Exception, *, first: bool) -> Exception:
    """An error for each caller: one that is raised in several tasks would collect the frames of all."""
    if first:
        return error
    other = copy.copy(error)
    other.__cause__ = error.__cause__
    return other
