"""Combining: whoever wants something of a ledger while a command is on its way travels with the next one.

A lane is one stream of numbered commands from this process to one account's ledger; there is one for threads and one
for
each event loop. At most one command of a lane is under way, which is what makes numbers enough to apply each once. The
first to come sends its own request and whatever has gathered; when the answer is there, one of those who came meanwhile
sends all of theirs. So an idle lane adds no delay, and a busy one makes one call for hundreds of decisions.

A command whose answer was lost is sent again with its number, and the script gives its old answer. When the time is up
before an answer came, nobody knows whether it was applied: those who asked hear that the engine is not available, the
lane goes on as another stream, and the keeper finds out later what was granted to nobody (`Doubt`) and gives it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

from headway.clock import SYSTEM
from headway.engines.redis.account import Account, Talk
from headway.engines.redis.requests import NOTHING, Echo, Request
from headway.engines.redis.wires import TROUBLE, LoopEnded, TaskWire, Wire
from headway.errors import EngineUnavailable

MOST = 256
"""Requests in one command: a script keeps the server from everybody else."""

LEAD = "lead"


class Lane:
    """A stream of commands to one ledger."""

    __slots__ = ("account", "engine", "first", "number", "queue", "stream", "timeout_ns")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.engine = account.spec.engine
        self.stream = self.engine.new_stream()
        # Above all that a stream of this name may have had before.
        self.number = SYSTEM.now() // 1000
        # When the command under way was sent first, once it has been.
        self.first = 0
        self.queue: deque[Request] = deque()
        self.timeout_ns: int = account.spec.timeout_ns

    def gather(self) -> list[Request]:
        queue = self.queue
        batch = [queue.popleft() for _ in range(min(len(queue), MOST))]
        return [request for request in batch if not request.orphan]

    def talk(self, batch: list[Request], ident: bytes) -> Talk:
        return Talk(self.account, batch, self.stream, self.number, ident, self.timeout_ns, self.first)

    def unavailable(self, cause: BaseException) -> EngineUnavailable:
        return self.engine.unavailable(cause)

    def fail(self, batch: list[Request], error: BaseException, sent: bool = True) -> None:
        """Tell everybody in the batch, and who waits behind it: they have waited for the same answer."""
        for request in batch:
            request.fail(error)
        if self.first and sent:
            for request in batch:
                request.doubtful = True
            self.engine.keeper.clear_up(Doubt(self.account, batch, self.stream, self.number, self.first))
            self.stream = self.engine.new_stream()
        else:
            for request in batch:
                request.unheard()
        while self.queue:
            for request in self.gather():
                request.fail(error)
                request.unheard()


class Doubt:
    """A command of which nobody knows whether it was applied."""

    __slots__ = ("account", "batch", "first", "number", "stream")

    def __init__(
        self, account: Account, batch: list[Request], stream: bytes, number: int, first: int
    ) -> None:
        self.account = account
        self.batch = batch
        self.stream = stream
        self.number = number
        self.first = first

    def settle(self) -> None:
        """Say something of no consequence under its number: the script answers with the command's own answer if it was
        applied; if it was not, it never will be."""
        account = self.account
        place = account.spec.engine.place_of(account)
        wire = place.take(0)
        try:
            question = Echo(account, self.batch)
            talk = Talk(
                account, [question], self.stream, self.number, wire.ident, account.spec.timeout_ns, self.first
            )
            answer = wire.ask(talk.open())
            if not talk.settle(answer):
                flow = talk.converse(answer)
                payload = next(flow)
                while True:
                    payload = flow.send(wire.ask(payload))
            place.put_back(wire)
        except StopIteration:
            place.put_back(wire)
        except BaseException:
            wire.close()
            raise


class ThreadLane(Lane):
    __slots__ = ("lock", "unfinished")

    def __init__(self, account: Account) -> None:
        Lane.__init__(self, account)
        self.lock = threading.Lock()
        # What was under way when the thread that asked was interrupted.
        self.unfinished: list[Request] | None = None

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
            # Who has the lock is bound by the engine's time-out, and so is who sends what has gathered meanwhile.
            if not self._wait(request):
                request.withdraw()
                raise self.unavailable(TimeoutError("too many wait for its answer"))
            batch = []
        try:
            if self.unfinished is not None:
                unfinished, self.unfinished = self.unfinished, None
                self._round(unfinished)
            if batch:
                self.number += 1
                self.first = 0
                self._round(batch)
            # More may have gathered than one command takes.
            while not request.done:
                self.number += 1
                self.first = 0
                self._round(self.gather())
        finally:
            lock.release()
        if request.error is not None:
            raise request.error

    def _wait(self, request: Request) -> bool:
        try:
            return self.lock.acquire(timeout=2 * self.timeout_ns / 1e9)
        except BaseException:
            with contextlib.suppress(ValueError):
                self.queue.remove(request)
            raise

    def _round(self, batch: list[Request]) -> None:
        clock = self.account.spec.clock
        deadline = clock.now() + self.timeout_ns
        place = self.engine.place_of(self.account)
        while True:
            wire: Wire | None = None
            try:
                wire = place.take(deadline)
                talk = self.talk(batch, wire.ident)
                payload = talk.open()
                if self.first:
                    wire.limit(deadline - clock.now())
                else:
                    self.first = talk.sent
                answer = wire.ask(payload)
                if talk.settle(answer):
                    place.put_back(wire)
                    return
                flow = talk.converse(answer)
                payload = next(flow)
                while True:
                    # It takes more than one question, and all of them have the time of one.
                    wire.limit(deadline - clock.now())
                    payload = flow.send(wire.ask(payload))
            except StopIteration:
                place.put_back(wire)
                return
            except TROUBLE as error:
                if wire is not None:
                    wire.close()
                if clock.now() >= deadline or not place.again(error):
                    self.fail(batch, self.unavailable(error))
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
                    self.fail(batch, self.engine.refusal(error), False)
                    return
                # Ctrl-C: whoever comes next sends it again, with its number, and who was interrupted gives back.
                self.unfinished = batch
                self.engine.keeper.later(Request(self.account, NOTHING))
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
                if (
                    request.waiter.done()
                    and not request.waiter.cancelled()
                    and request.waiter.result() is LEAD
                ):
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
            for other in reversed(batch):
                if not other.done and other is not request:
                    # It was not sent, as our task was cancelled before: for the next one to send, or to be posted.
                    if other.waiter is None:
                        other.unheard()
                    else:
                        self.queue.appendleft(other)
                elif other.waiter is not None and not other.waiter.done():
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

    def fail(self, batch: list[Request], error: BaseException, sent: bool = True) -> None:
        behind = [*self.queue]
        Lane.fail(self, batch, error, sent)
        for request in behind:
            if request.waiter is not None and not request.waiter.done():
                request.waiter.set_result(None)

    async def _round(self, batch: list[Request]) -> None:
        self.number += 1
        self.first = 0
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
                self.first = self.first or talk.sent
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
                if loop.time() >= deadline or isinstance(error, LoopEnded) or not place.again(error):
                    self.fail(batch, self.unavailable(error))
                    break
                place = self.engine.place_of(self.account)
            except Exception as error:  # noqa: BLE001 - handed to whoever asked
                moved = self.engine.moved(self.account, error)
                if moved is not None and loop.time() < deadline:
                    place = moved
                    continue
                self.fail(batch, self.engine.refusal(error), False)
                break
            except asyncio.CancelledError as error:
                # While connecting. What was not sent yet is for the others to send, if there are any.
                if not self.first:
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled
