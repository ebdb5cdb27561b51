"""Combining: whoever wants something of a ledger while a command is on its way travels with the next one.

A lane is one stream of numbered commands from this process to one account's ledger; there is one for threads and one for
each event loop. At most one command of a lane is under way, which is what makes numbers enough to apply each once. The
first to come sends its own request and whatever has gathered; when the answer is there, one of those who came meanwhile
sends all of theirs. So an idle lane adds no delay, and a busy one makes one call for hundreds of decisions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from headway.engines.redis.account import Account, Talk
from headway.engines.redis.requests import End
from headway.engines.redis.wires import TROUBLE, TaskWire, Wire
from headway.errors import EngineUnavailable

if TYPE_CHECKING:
    from headway.engines.redis.requests import Request

MOST = 256
"""Requests in one command: a script keeps the server from everybody else."""

LEAD = "lead"


class Lane:
    """A stream of commands to one ledger."""

    __slots__ = ("account", "engine", "number", "queue", "stream", "timeout_ns")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.engine = account.spec.engine
        self.stream = self.engine.new_stream()
        self.number = 0
        self.queue: deque[Request] = deque()
        self.timeout_ns: int = account.spec.timeout_ns

    def gather(self) -> list[Request]:
        queue = self.queue
        return [queue.popleft() for _ in range(min(len(queue), MOST))]

    def talk(self, batch: list[Request], ident: bytes) -> Talk:
        return Talk(self.account, batch, self.stream, self.number, ident, self.timeout_ns)

    def unavailable(self, cause: BaseException) -> EngineUnavailable:
        return self.engine.unavailable(cause)

    def fail(self, batch: list[Request], error: BaseException, unsent: bool = False) -> None:
        for request in batch:
            request.error = error
            request.done = True
            if unsent and type(request) is End:
                # Nothing has left this machine, so it can be said again. Otherwise nobody knows, and the lease covers it.
                self.engine.post_now(request)


class ThreadLane(Lane):
    __slots__ = ("lock",)

    def __init__(self, account: Account) -> None:
        Lane.__init__(self, account)
        self.lock = threading.Lock()

    @property
    def busy(self) -> bool:
        return self.lock.locked()

    def ask(self, request: Request) -> None:
        """Send it, alone or with others, and wait for its answer."""
        lock = self.lock
        if lock.acquire(blocking=False):
            batch = [request, *self.gather()] if self.queue else [request]
            if self.account.ends:
                batch = self.account.take_ends() + batch
        else:
            self.queue.append(request)
            # Who has the lock is bound by the engine's time-out, and so are those before us.
            if not lock.acquire(timeout=2 * self.timeout_ns / 1e9):
                request.orphan = True
                raise self.unavailable(TimeoutError("too many wait for its answer"))
            if request.done:
                lock.release()
                if request.error is not None:
                    raise request.error
                return
            batch = self.gather()
        try:
            self._round(batch)
        finally:
            lock.release()
        if request.error is not None:
            raise request.error

    def _round(self, batch: list[Request]) -> None:
        self.number += 1
        clock = self.account.spec.clock
        deadline = clock.now() + self.timeout_ns
        place = self.engine.place_of(self.account)
        while True:
            wire: Wire | None = None
            try:
                wire = place.take(deadline)
                talk = self.talk(batch, wire.ident)
                reply = wire.ask(talk.open())
                if talk.settle(reply):
                    place.put_back(wire)
                    return
                flow = talk.converse(reply)
                payload = next(flow)
                while True:
                    payload = flow.send(wire.ask(payload))
            except StopIteration:
                place.put_back(wire)
                return
            except TROUBLE as error:
                if wire is not None:
                    wire.close()
                if clock.now() >= deadline or not place.again(error):
                    self.fail(batch, self.unavailable(error), unsent=wire is None)
                    return
                place = self.engine.place_of(self.account)
            except BaseException as error:
                if wire is not None:
                    wire.close()
                if isinstance(error, Exception):
                    moved = self.engine.moved(self.account, error)
                    if moved is not None and clock.now() < deadline:
                        place = moved
                        continue
                    self.fail(batch, self.engine.refusal(error))
                    return
                # Ctrl-C: the others in the batch must not hang, and what was granted is reclaimed by its lease.
                self.fail(batch, self.unavailable(ConnectionError("the thread that asked was interrupted")))
                raise


class TaskLane(Lane):
    __slots__ = ("busy", "loop")

    def __init__(self, account: Account, loop: asyncio.AbstractEventLoop) -> None:
        Lane.__init__(self, account)
        self.loop = loop
        self.busy = False

    async def ask(self, request: Request) -> None:
        """Send it, alone or with others, and wait for its answer."""
        if self.busy:
            self.queue.append(request)
            request.waiter = self.loop.create_future()
            try:
                leads = await request.waiter
            except asyncio.CancelledError:
                if request in self.queue:
                    self.queue.remove(request)
                request.orphan = True
                if request.waiter.done() and not request.waiter.cancelled() and request.waiter.result() is LEAD:
                    self._pass_on()
                raise
            if leads is not LEAD:
                if request.error is not None:
                    raise request.error
                return
            batch = self.gather()
        else:
            self.busy = True
            batch = [request]
            if self.account.ends:
                batch = self.account.take_ends() + batch
        try:
            await self._round(batch)
        finally:
            for other in batch:
                if other.waiter is not None and not other.waiter.done():
                    other.waiter.set_result(None)
            self._pass_on()
        if request.error is not None:
            raise request.error

    def _pass_on(self) -> None:
        """Let the next one send what has gathered."""
        while self.queue:
            waiter = self.queue[0].waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(LEAD)
                return
            self.queue.popleft()
        self.busy = False

    async def _round(self, batch: list[Request]) -> None:
        self.number += 1
        loop = self.loop
        cancelled: BaseException | None = None
        place = self.engine.place_of(self.account)
        deadline = loop.time() + self.timeout_ns / 1e9
        while True:
            wire: TaskWire | None = None
            try:
                wire = place.wire_of(loop) or await place.open_wire(loop, deadline)
                talk = self.talk(batch, wire.ident)
                flow = None
                payload = talk.open()
                while True:
                    reply = wire.ask(payload)
                    timer = loop.call_at(deadline, wire.give_up)
                    try:
                        answer = await reply
                    except asyncio.CancelledError as error:
                        # The answer is there, or will not come: see `Reply`. First what is owed to the others.
                        cancelled = error
                        answer = reply.result()
                    finally:
                        timer.cancel()
                    if flow is not None:
                        payload = flow.send(answer)
                    elif talk.settle(answer):
                        break
                    else:
                        flow = talk.converse(answer)
                        payload = next(flow)
                break
            except StopIteration:
                break
            except TROUBLE as error:
                if wire is not None:
                    place.drop_wire(loop, wire)
                if loop.time() >= deadline or not place.again(error):
                    self.fail(batch, self.unavailable(error), unsent=wire is None)
                    break
                place = self.engine.place_of(self.account)
            except Exception as error:  # noqa: BLE001 - handed to whoever asked
                moved = self.engine.moved(self.account, error)
                if moved is not None and loop.time() < deadline:
                    place = moved
                    continue
                self.fail(batch, self.engine.refusal(error))
                break
            except asyncio.CancelledError:
                # While connecting: nothing was sent yet.
                self.fail(batch, self.unavailable(ConnectionError("the task that asked was cancelled")))
                raise
        if cancelled is not None:
            raise cancelled

