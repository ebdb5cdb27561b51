"""Batching: requests that come while a command is in flight travel together in the next one.

A batcher is one stream of numbered commands from this process to one key's ledgers. There is one for threads, and one
for each event loop. At most one command of a batcher is in flight, so its number is enough to apply it once. The first
request is sent at once, with all that wait; when its reply is there, what has come meanwhile is sent, up to `MOST`
requests. So an idle batcher adds no delay, and a busy one makes one call for hundreds of decisions. An event loop that
was busy last time also waits for the end of its turn: tasks that were woken together send together. The time-out of a
command begins when it is sent, and not while its requests wait for the command before it.

A command whose reply was lost is sent again with its number, and the script gives its old reply. If the time is up
before a reply came, it is unknown whether the command was applied. Its callers get `EngineUnavailable`, the batcher
goes on as another stream, and the background worker finds out later what was granted in vain (`UnknownOutcome`), and
releases it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError
from redis.exceptions import RedisError

from headway.clock import SYSTEM
from headway.engines.redis.client.ledger_client import LedgerClient
from headway.engines.redis.client.requests import NOTHING, OutcomeProbe, Request, grant_status
from headway.engines.redis.client.round_trip import RoundTrip
from headway.engines.redis.net.connections import (
    CONNECTION_ERRORS,
    Connection,
    LoopConnection,
    LoopEnded,
    exchange,
    exchange_async,
)
from headway.errors import EngineUnavailable, HeadwayError
from headway.interrupts import take_lock

if TYPE_CHECKING:
    from headway.engines.redis.net.pool import ServerPool

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
"""Seconds between two questions to a slot that is half way to another node; twice as long each time."""
MOST, FEW = 256, 32
"""Requests in one command: a script keeps the server from all other clients. Fewer where each takes longer, as there
are several rules, or waiters that have to be served."""
QUICK = 1_000_000
"""Nanoseconds in which a connection is there that is open already."""
REFUSALS = (ReplyError, HeadwayError, RedisError)
"""What the server or we have to say to a command. Whatever else comes is a fault, or comes from a signal's handler (not
only Ctrl-C: a job that takes too long is often ended so), and says nothing of what has become of the command."""


class Batcher:
    """A stream of commands to one ledger."""

    __slots__ = ("engine", "first", "ledger", "number", "queue", "stream", "timeout_ns")

    def __init__(self, ledger: LedgerClient) -> None:
        self.ledger = ledger
        self.engine = ledger.registry.engine
        self.stream = spare_stream(ledger) or self.engine.new_stream()
        # Above all that a stream of this name may have had before.
        self.number = SYSTEM.now() // 1000
        # When the command under way was sent first, once it has been.
        self.first = 0
        self.queue: deque[Request] = deque()
        self.timeout_ns: int = ledger.registry.timeout_ns

    def gather(self) -> list[Request]:
        queue, ledger = self.queue, self.ledger
        most = MOST if ledger.frame.width == 1 and not ledger.waiting else FEW
        batch = [queue.popleft() for _ in range(min(len(queue), most))]
        return [request for request in batch if not request.orphan]

    def unavailable(self, cause: BaseException) -> EngineUnavailable:
        return self.engine.unavailable(cause)

    def elsewhere(self, error: Exception, hops: int) -> tuple[ServerPool | None, float]:
        """Where to ask again and after how many seconds, if that is what an error says. Nodes that send us to each
        other do not agree yet, and a ledger that is half way cannot be decided about: both take a moment."""
        halfway = self.engine.halfway(self.ledger, error)
        pool = self.engine.pool_of(self.ledger) if halfway else self.engine.moved(self.ledger, error)
        return pool, min(FIRST_PAUSE * 2.0**hops, LONGEST_PAUSE) if halfway or hops > 2 else 0.0

    def fail(self, batch: list[Request], error: BaseException, sent: bool = True) -> None:
        """Fail the requests in the batch and those behind it: they have waited for the same reply."""
        self.fail_unknown(batch, error, sent)
        while self.queue:
            for request in self.gather():
                request.fail(error)
                request.unheard()

    def fail_unknown(self, batch: list[Request], error: BaseException, sent: bool = True) -> None:
        """There will be no reply for the requests in the batch."""
        for request in batch:
            request.fail(error)
        if self.first and sent:
            for request in batch:
                request.unknown = True
            self.engine.worker.resolve_unknown(
                UnknownOutcome(self.ledger, batch, self.stream, self.number, self.first)
            )
            self.stream = self.engine.new_stream()
        else:
            for request in batch:
                request.unheard()


class UnknownOutcome:
    """A command of which it is unknown whether it was applied."""

    __slots__ = ("batch", "first", "ledger", "number", "stream")

    def __init__(
        self, ledger: LedgerClient, batch: list[Request], stream: bytes, number: int, first: int
    ) -> None:
        self.ledger = ledger
        self.batch = batch
        self.stream = stream
        self.number = number
        self.first = first

    def settle(self) -> None:
        """Say something of no consequence under its number: the script answers with the command's own answer if it was
        applied; if it was not, it never will be."""
        ledger = self.ledger
        pool = ledger.registry.engine.pool_of(ledger)
        connection = pool.take()
        try:
            probe = OutcomeProbe(ledger, self.batch)
            round_trip = RoundTrip(ledger, [probe], self.stream, self.number, connection.ident, self.first)
            answer = connection.call(round_trip.encode())
            if not round_trip.settle(answer):
                exchange(connection, round_trip.resolve(answer))
        except BaseException:
            connection.close()
            raise
        pool.put_back(connection)

    def give_up(self) -> None:
        """It will never be known: a release that waits for one of the batch waits no longer."""
        for request in self.batch:
            request.settle()


class ThreadBatcher(Batcher):
    __slots__ = ("lock", "timeout", "unfinished")

    def __init__(self, ledger: LedgerClient) -> None:
        Batcher.__init__(self, ledger)
        self.lock = threading.Lock()
        # In seconds; connections wait for as long as the engine's was when they were put back.
        self.timeout = self.timeout_ns / 1e9
        # What is under way, also if the thread that asked was interrupted.
        self.unfinished: list[Request] | None = None

    @property
    def busy(self) -> bool:
        return self.lock.locked()

    def retire(self) -> bytes | None:
        """Give its stream away, for a batcher that comes later; None if it is used."""
        mine: list[bool] = []
        try:
            if not take_lock(self.lock, mine) or self.queue or self.unfinished is not None:
                return None
            stream, self.stream = self.stream, b""
            return stream
        finally:
            if mine and mine[0]:
                self.lock.release()

    def send(self, request: Request) -> None:
        """Send it, alone or with others, and wait for its answer."""
        lock = self.lock
        mine: list[bool] = []
        try:
            if take_lock(lock, mine):
                batch = [request, *self.gather()] if self.queue else [request]
            else:
                batch = []
                self._line_up(request, mine)
            if mine[-1]:
                if self.unfinished is not None:
                    self._finish(self.unfinished)
                if batch:
                    self._send(batch)
                # More may have gathered than one command takes; the thread that gathered ours may have been interrupted
                # before sending.
                while not request.done:
                    self._send(self.gather() or [request])
        except BaseException:
            request.withdraw()
            if self.unfinished is not None:
                # The next thread sends it again, with its number; what an interrupted caller was granted goes back.
                self.engine.worker.retry_later(Request(self.ledger, NOTHING))
            raise
        finally:
            if mine and mine[-1]:
                lock.release()
                if self.queue:
                    self._call_next()
        if request.error is not None:
            raise request.error

    def _line_up(self, request: Request, mine: list[bool]) -> None:
        """Wait until another thread has sent it and its answer is there, or until it is ours to send what has gathered.
        Each thread waits for a lock of its own: of one for all, every thread would be woken for every answer."""
        turn = request.waiter = allocate_lock()
        turn.acquire()
        self.queue.append(request)
        while not request.done:
            # First the queue: a thread that gives the lock back now sees that we are in it.
            if take_lock(self.lock, mine):
                return
            # A thread that was interrupted may have woken no other.
            turn.acquire(timeout=self.timeout)

    def _call_next(self) -> None:
        """The lock is free: the first thread that waits sends what has gathered."""
        for pool in range(len(self.queue)):
            try:
                request = self.queue[pool]
            except IndexError:  # another thread has gathered them
                return
            if request.waiter is not None and not request.orphan:
                call(request)
                return

    def fail(self, batch: list[Request], error: BaseException, sent: bool = True) -> None:
        behind = [*self.queue]
        Batcher.fail(self, batch, error, sent)
        for request in behind:
            if request.waiter is not None:
                call(request)

    def _send(self, batch: list[Request]) -> None:
        ledger = self.ledger
        if not self.stream:
            self.stream = self.engine.new_stream()  # it was retired while a thread was about to use it
        ahead = True
        while ahead:
            self.number += 1
            self.first = 0
            together: list[Request] = []
            self.unfinished = together
            if ledger.ends:
                ledger.take_ends(together)
            # A request is to find what was released before it. If that is more than one command takes, it goes first.
            ahead = bool(together and ledger.ends)
            if not ahead:
                together += grant_status(batch) if ledger.registry.with_status else batch
            self._round(together)
            self.unfinished = None
            for request in together:
                if request.waiter is not None:
                    call(request)
            if ahead and together[0].error is not None:
                self.fail(batch, together[0].error, sent=False)
                return

    def _finish(self, batch: list[Request]) -> None:
        """A thread was interrupted, maybe only after all replies had been applied."""
        if not all(request.done for request in batch):
            try:
                self._round(batch)
            except Exception as error:
                if threading.current_thread() is not threading.main_thread():
                    # No signal's handler runs here, so it is the batch. It must not block all others.
                    self.fail(batch, self.unavailable(error))
                    self.unfinished = None
                raise
        self.unfinished = None
        for request in batch:
            if request.waiter is not None:
                call(request)

    def _round(self, batch: list[Request]) -> None:
        clock = self.ledger.registry.clock
        began, left = clock.now(), self.timeout
        deadline = began + self.timeout_ns
        pool = self.engine.only_pool or self.engine.pool_of(self.ledger)
        # Whether it was sent on another connection before: there it may still be under way, whatever is answered here.
        hops, twice = 0, self.first != 0
        while True:
            connection: Connection | None = None
            try:
                connection = pool.take(left)
                round_trip = RoundTrip(
                    self.ledger, batch, self.stream, self.number, connection.ident, self.first
                )
                payload = round_trip.encode()
                if self.first or self.timeout != connection.usual or round_trip.sent - began > QUICK:
                    if self.engine.slow_to_prepare and not self.first:
                        deadline = (
                            round_trip.sent + self.timeout_ns
                        )  # what had to be started took its own time
                    connection.limit(deadline - clock.now())
                self.first = self.first or round_trip.sent
                answer = connection.call(payload)
                if not round_trip.settle(answer):
                    # It takes more than one command, and all of them have the time of one.
                    exchange(connection, round_trip.resolve(answer), deadline, clock)
                pool.put_back(connection)
                return
            except CONNECTION_ERRORS as error:
                if connection is not None:
                    connection.close()
                if clock.now() >= deadline or not pool.again(error):
                    self.fail(batch, self.unavailable(error))
                    return
                pool = self.engine.pool_of(self.ledger)
                twice = self.first != 0
                left = max(0.001, (deadline - clock.now()) / 1e9)
            except BaseException as error:
                if isinstance(error, ReplyError):
                    pool.put_back(connection)  # it was an answer
                elif connection is not None:
                    connection.close()
                if not isinstance(error, REFUSALS):
                    raise
                moved, pause = self.elsewhere(error, hops)
                if moved is not None and clock.now() < deadline:
                    pool = moved
                    hops += 1
                    time.sleep(pause)
                    continue
                self.fail(batch, self.engine.refusal(error), twice or self.engine.half_done(error))
                return


def call(request: Request) -> None:
    """Wake the thread that waits for a request."""
    with suppress(RuntimeError):  # it is awake
        request.waiter.release()


class LoopBatcher(Batcher):
    """The batcher of an event loop. It is no task. The usual case happens in the caller's and in the transport's call;
    connecting, an unexpected reply and errors are dealt with in a task of its own. So a cancelled caller leaves at
    once, and its reply finds an orphan."""

    __slots__ = ("batch", "busy", "crowded", "deadline", "loop", "slow", "under_way", "wire")

    def __init__(self, ledger: LedgerClient, loop: asyncio.AbstractEventLoop) -> None:
        Batcher.__init__(self, ledger)
        self.loop = loop
        self.busy = False
        # Whether several travelled together last time.
        self.crowded = False
        # The requests in flight; their command; and until when (on the loop's clock) it must be answered.
        self.batch: list[Request] | None = None
        self.under_way: RoundTrip | None = None
        self.deadline = 0.0
        # The connection that was open last.
        self.wire: LoopConnection | None = None
        # The task that deals with what is not usual.
        self.slow: asyncio.Task[None] | None = None

    def retire(self) -> bytes | None:
        """Give its stream away; None if it is used. Another thread than its loop's cannot tell whether it is
        about to be used: then it keeps its stream, and its ledger will get another one."""
        if self.busy or self.queue:
            return None
        if self.loop is not asyncio._get_running_loop() and not self.loop.is_closed():
            return b""
        stream, self.stream = self.stream, b""
        return stream

    def send(self, request: Request) -> asyncio.Future[None]:
        """Send it, alone or with others; what is returned is done when its answer is there."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self.enqueue(request, waiter)
        return waiter

    def enqueue(self, request: Request, waiter: Any) -> None:
        """Send it, alone or with others, and tell its waiter when its answer is there."""
        request.waiter = waiter
        self.queue.append(request)
        if not self.busy:
            self.busy = True
            if self.crowded:
                # Requests of the same turn of the loop travel along.
                self.loop.call_soon(self.flush)
            else:
                self.flush()

    def gather(self) -> list[Request]:
        return [request for request in Batcher.gather(self) if not request.waiter.cancelled()]

    def flush(self) -> None:
        """Send what has gathered."""
        connection = self._wire()
        if connection is not None and connection.full:
            connection.backlog.append(self.flush)
            return
        batch = self.ledger.take_ends() if self.ledger.ends else []
        # As above: if more was given back than travels with a question, that goes first.
        if not (batch and self.ledger.ends):
            asks = self.gather()
            self.crowded = len(asks) > 1
            batch += grant_status(asks) if self.ledger.registry.with_status else asks
        if not batch:
            self._next()
            return
        if not self.stream:
            self.stream = self.engine.new_stream()  # it was retired while a task was about to use it
        self.batch = batch
        self.number += 1
        self.first = 0
        self.deadline = self.loop.time() + self.timeout_ns / 1e9
        try:
            if connection is None:
                self._slowly(self._round(batch))
                return
            round_trip = RoundTrip(self.ledger, batch, self.stream, self.number, connection.ident, self.first)
            payload = round_trip.encode()
        except Exception as error:  # noqa: BLE001 - handed to the callers
            self.fail(batch, error)
            self._deliver(batch)
            return
        self.under_way = round_trip
        self.first = round_trip.sent
        connection.send(payload, self, self.deadline)

    def _wire(self) -> LoopConnection | None:
        """The connection that is open."""
        wire = self.wire
        if wire is not None and wire.broken is None and wire.pool is self.engine.only_pool:
            return wire
        try:
            self.wire = self.engine.pool_of(self.ledger).connection_of(self.loop, self.timeout_ns)
        except Exception:  # noqa: BLE001 - the task that deals with errors hands it to the callers
            self.wire = None
        return self.wire

    def on_reply(self, answer: Any) -> None:
        """The answer to the command on its way."""
        round_trip, self.under_way = self.under_way, None
        if round_trip is None:
            raise RuntimeError("an answer to nothing")
        try:
            settled = round_trip.settle(answer)
        except Exception as error:  # noqa: BLE001 - handed to the callers
            self.fail(round_trip.batch, error)
            settled = True
        if settled:
            self._deliver(round_trip.batch)
        else:
            self._slowly(self._round(round_trip.batch, round_trip, answer))

    def on_error(self, error: BaseException) -> None:
        """There will be no answer on this connection."""
        round_trip, self.under_way = self.under_way, None
        if round_trip is None:
            return
        if isinstance(error, LoopEnded):
            # Nothing can be begun in a loop that ends.
            self.fail(round_trip.batch, self.unavailable(error))
            self._deliver(round_trip.batch)
        else:
            self._slowly(self._round(round_trip.batch, trouble=error))

    def _deliver(self, batch: list[Request]) -> None:
        """Wake the callers, and go on."""
        self.batch = None
        for request in batch:
            request.resolve_waiter()
        self._next()

    def _next(self) -> None:
        """Send what has gathered meanwhile, together with what the callers that were just woken send next."""
        if self.queue:
            self.loop.call_soon(self.flush)
        else:
            self.busy = False

    def _slowly(self, rounds: Coroutine[Any, Any, None]) -> None:
        self.slow = self.loop.create_task(rounds, name="headway redis command")
        # Not for the task itself to say: one that is cancelled before it began says nothing.
        self.slow.add_done_callback(self._go_on)

    def _go_on(self, slow: asyncio.Task[None]) -> None:
        self.slow = None
        batch = self.batch or []
        if slow.cancelled():
            # The loop ends. A request that comes all the same, to clean up, waits behind the batch, and need not fail.
            self.fail_unknown(batch, self.unavailable(LoopEnded("the event loop has ended")))
        elif (error := slow.exception()) is not None:
            self.fail(batch, error)
        self._deliver(batch)

    def leave(self) -> None:
        """The loop was closed, in the middle of a command or not: no caller is left to wake."""
        if self.batch:
            self.fail_unknown(self.batch, LoopEnded("the event loop was closed"))

    def fail(self, batch: list[Request], error: BaseException, sent: bool = True) -> None:
        behind = [*self.queue]
        Batcher.fail(self, batch, error, sent)
        for request in behind:
            request.resolve_waiter()

    async def _round(
        self,
        batch: list[Request],
        round_trip: RoundTrip | None = None,
        answer: Any = None,
        trouble: BaseException | None = None,
    ) -> None:
        """From any point of a command's life to its end: at the beginning (connect first), with an answer that is not
        the usual one, or after the connection failed."""
        loop, timeout_ns = self.loop, self.timeout_ns
        if not self.first:
            # Nothing was sent yet: that the loop was busy until now is not the engine's fault.
            self.deadline = loop.time() + timeout_ns / 1e9
        deadline = self.deadline
        hops, twice = 0, trouble is not None
        pool = self.engine.pool_of(self.ledger)
        connection: LoopConnection | None = (
            pool.connection_of(loop, timeout_ns) if round_trip is not None else None
        )
        while True:
            try:
                if trouble is not None:
                    error, trouble = trouble, None
                    raise error
                if round_trip is None or connection is None:
                    connection = pool.connection_of(loop, timeout_ns) or await pool.open_connection(
                        loop, timeout_ns, deadline
                    )
                    if not self.first:
                        deadline = self.deadline = max(deadline, connection.made_by)
                    if connection.full:
                        await connection.room()
                        if not self.first:
                            deadline = self.deadline = loop.time() + timeout_ns / 1e9
                    if self.engine.slow_to_prepare and not self.first:
                        # What had to be started took its own time.
                        deadline = self.deadline = max(deadline, loop.time() + timeout_ns / 1e9)
                    round_trip = RoundTrip(
                        self.ledger, batch, self.stream, self.number, connection.ident, self.first
                    )
                    payload = round_trip.encode()
                    self.first = self.first or round_trip.sent
                    answer = await connection.call(payload, deadline)
                    if round_trip.settle(answer):
                        return
                await exchange_async(connection, round_trip.resolve(answer), deadline)
                return
            except CONNECTION_ERRORS as error:
                if connection is not None:
                    connection.close()
                if loop.time() >= deadline or isinstance(error, LoopEnded) or not pool.again(error):
                    self.fail(batch, self.unavailable(error))
                    return
                pool = self.engine.pool_of(self.ledger)
                twice = self.first != 0
            except Exception as error:  # noqa: BLE001 - handed to the callers
                moved, pause = self.elsewhere(error, hops)
                if moved is None or loop.time() >= deadline:
                    self.fail(batch, self.engine.refusal(error), twice or self.engine.half_done(error))
                    return
                pool = moved
                hops += 1
                await asyncio.sleep(pause)
            round_trip = connection = None


def thread_batcher(ledger: LedgerClient) -> ThreadBatcher:
    """The stream of this process's threads."""
    batcher: ThreadBatcher | None = ledger.thread_batcher
    if batcher is None:
        pause_state = ledger.pause_state
        batcher = ThreadBatcher(ledger) if pause_state is None else pause_state.new_thread_batcher(ledger)
        batcher = ledger.batchers.setdefault(None, batcher)
        ledger.thread_batcher = batcher
    return batcher


def loop_batcher(ledger: LedgerClient, loop: asyncio.AbstractEventLoop) -> LoopBatcher:
    """The stream of an event loop's tasks."""
    batcher: LoopBatcher | None = ledger.last_loop_batcher
    if batcher is None or batcher.loop is not loop:
        batcher = ledger.batchers.get(id(loop))
        if batcher is None or batcher.loop is not loop:
            leave_closed(ledger)
            pause_state = ledger.pause_state
            batcher = (
                LoopBatcher(ledger, loop)
                if pause_state is None
                else pause_state.last_loop_batcher(ledger, loop)
            )
            ledger.batchers[id(loop)] = batcher
        ledger.last_loop_batcher = batcher
    return batcher


def leave_closed(ledger: LedgerClient) -> None:
    """Part with the batchers of loops that were closed."""
    for name, old in list(ledger.batchers.items()):
        if name is not None and old.loop.is_closed() and ledger.batchers.pop(name, None) is not None:
            old.leave()


def spare_stream(ledger: LedgerClient) -> bytes:
    """An unused stream that the ledger knows already, if there is one: a ledger keeps each for a while."""
    try:
        return ledger.spare.pop() if ledger.spare else b""
    except IndexError:  # another thread took the last one
        return b""


def retire(ledger: LedgerClient) -> list[bytes] | None:
    """Close the batchers of a client; returns the streams that are free now. None if the client is in use."""
    engine = ledger.registry.engine
    if ledger.busy or ledger.ends or ledger in engine.worker.ledgers or ledger in engine.deferred:
        return None
    batchers = list(ledger.batchers.values())
    if any(batcher.busy for batcher in batchers):
        return None
    streams = [*(ledger.spare or ())]
    for batcher in batchers:
        stream = batcher.retire()
        if stream is None:
            return None
        if stream:
            streams.append(stream)
    # They refer to it, as it does to them; without this it would be there until the collector comes.
    ledger.batchers, ledger.spare = {}, None
    ledger.thread_batcher = ledger.last_loop_batcher = None
    return streams
