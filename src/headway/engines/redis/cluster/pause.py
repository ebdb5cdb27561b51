"""A pause of the whole limiter, where the ledgers of keys are on other nodes than its own: in a cluster.

On one server the script that decides for a key checks whether the limiter is paused. In a cluster the limiter's own
ledger is in another slot, mostly on another node, and no script can read it. So the process reads it, and sends with
every command how long the pause still is; the script goes on as if it had read that itself.

    before the first call of a key      one query to the limiter's own ledger
    when a process pauses               the news, which are carried to every node, and the same query
    for as long as keys are used        the same query three times in a lease: news may get lost

The query changes nothing; it does not even create the ledger. If it is not answered, what was known last counts: keys
on healthy nodes do not wait for another node.
"""

from __future__ import annotations

import asyncio
from struct import unpack
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from headway.engines.redis.client.batching import LoopBatcher, ThreadBatcher
from headway.engines.redis.client.reconfigure import run_plain
from headway.engines.redis.client.requests import Request
from headway.engines.redis.net.connections import CONNECTION_ERRORS, LoopEnded, exchange_async
from headway.engines.redis.script.codec import Meta
from headway.engines.redis.script.protocol import numbers
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.engines.redis.client.ledger_client import LedgerClient, Reply
    from headway.engines.redis.client.registry import LimiterRegistry
    from headway.engines.redis.net.connections import Flow
    from headway.engines.redis.net.pool import ServerPool

ATTEMPTS = 4
UNUSED = 6
"""Visits without a call in between after which the queries stop: two leases."""

QUERY_ERRORS = (ReplyError, *CONNECTION_ERRORS)
"""After which the query may be sent to another node."""

FAILURES = (HeadwayError, *CONNECTION_ERRORS)
"""What is logged, and does not stop a call."""


class ClusterPause:
    """Until when a limiter is paused, as this process knows it."""

    __slots__ = (
        "__weakref__",
        "_ends",
        "_epoch",
        "_seq",
        "idle",
        "keys",
        "known",
        "registry",
        "until",
        "used",
        "visited",
    )

    def __init__(self, registry: LimiterRegistry) -> None:
        self.registry = registry
        self.keys = registry.redis_keys((None,))
        # On our clock; 0: it is not.
        self.until = 0
        # As the ledger has it, on its server's clock: that tells one pause from another.
        self._ends = self._seq = 0.0
        self._epoch = b""
        self.begin()

    def begin(self) -> None:
        """Without queries; this is also the state in a forked child."""
        # Whether the background worker sends queries, and whether keys were used since the last one.
        self.known = self.used = False
        self.idle = self.visited = 0

    # -- what is known -----------------------------------------------------------------------------------

    def left(self, now: int) -> bytes:
        """How long the pause still is, as a script reads it; empty if there is none."""
        ticks = -(-(self.until - now) // 1000)
        return numbers(ticks) if self.until and ticks > 0 else b""

    def learn(self, epoch: bytes, seq: float, now: float, pause: float, received: int) -> None:
        """From the ledger itself: it was paused for so long at `now` on its server's clock."""
        if epoch == self._epoch and seq < self._seq:
            return  # from before what is known already
        self._epoch, self._seq = epoch, seq
        ends = now + pause if pause > 0 else 0.0
        if ends == self._ends:
            return
        lifted = ends < self._ends and now < self._ends
        self._ends = ends
        self.until = received + self.registry.stretched(pause) if pause > 0 else 0
        for ledger in self.registry.all_clients():
            if ledger.pause_state is self:
                ledger.on_pause(lifted)
        self.registry.engine.worker.wake()

    # -- the query ---------------------------------------------------------------------------------------

    def query(self) -> None:
        """From a thread."""
        pool = self.registry.engine.pool_of(self)
        for _ in range(ATTEMPTS):
            try:
                self._read(*pool.exchange(self._dump()))
                return
            except QUERY_ERRORS as error:
                pool = self._next_pool(pool, error)
        raise self._always_elsewhere()

    async def query_async(self, loop: asyncio.AbstractEventLoop) -> None:
        timeout_ns = self.registry.timeout_ns
        deadline = loop.time() + timeout_ns / 1e9
        pool = self.registry.engine.pool_of(self)
        for _ in range(ATTEMPTS):
            connection = None
            try:
                connection = pool.connection_of(loop, timeout_ns) or await pool.open_connection(
                    loop, timeout_ns, deadline
                )
                self._read(*await exchange_async(connection, self._dump(), deadline))
                return
            except QUERY_ERRORS as error:
                if connection is not None and not isinstance(error, ReplyError):
                    connection.close()
                pool = self._next_pool(pool, error)
        raise self._always_elsewhere()

    def _dump(self) -> Flow[Any]:
        """A flow that reads the limiter's own ledger."""
        return run_plain("dump", b"1", self.keys[0])

    def _next_pool(self, pool: ServerPool, error: Exception) -> ServerPool:
        """Where to send the query after this error; raises if there is no such place."""
        engine = self.registry.engine
        if isinstance(error, ReplyError):
            moved = engine.moved(self, error)
            if moved is None:
                raise engine.refusal(error) from None
            return moved
        if isinstance(error, LoopEnded) or not pool.again(error):
            raise error
        return engine.pool_of(self)

    def _always_elsewhere(self) -> Exception:
        return self.registry.engine.unavailable(ConnectionError("it is always elsewhere"))

    def _read(self, stored: bytes | None, time: bytes) -> None:
        registry = self.registry
        now = registry.engine.fixed_time or unpack("<d", time)[0]
        if stored is None:
            self.learn(b"", 0, now, 0, registry.clock.now())
        else:
            meta = Meta.read(stored)
            self.learn(meta.epoch, meta.seq, now, max(0.0, meta.paused - now), registry.clock.now())

    def follow(self) -> None:
        """From now on the background worker sends queries."""
        self.idle = 0
        self.known = True
        self.registry.engine.follow(self)

    # -- the batchers of keys ----------------------------------------------------------------------------

    def new_thread_batcher(self, ledger: LedgerClient) -> ThreadBatcher:
        return PauseAwareThreadBatcher(ledger, self)

    def last_loop_batcher(self, ledger: LedgerClient, loop: asyncio.AbstractEventLoop) -> LoopBatcher:
        return PauseAwareLoopBatcher(ledger, loop, self)


class PauseAwareThreadBatcher(ThreadBatcher):
    """Before the first request it finds out whether the limiter is paused."""

    __slots__ = ("pause_state",)

    def __init__(self, ledger: LedgerClient, pause_state: ClusterPause) -> None:
        ThreadBatcher.__init__(self, ledger)
        self.pause_state = pause_state

    def send(self, request: Request) -> None:
        pause_state = self.pause_state
        pause_state.used = True
        if not pause_state.known:
            try:
                pause_state.query()
            except FAILURES as error:
                self.engine.log_once(error)
            pause_state.follow()
        ThreadBatcher.send(self, request)


class PauseAwareLoopBatcher(LoopBatcher):
    """The same for tasks."""

    __slots__ = ("pause_state",)

    def __init__(
        self, ledger: LedgerClient, loop: asyncio.AbstractEventLoop, pause_state: ClusterPause
    ) -> None:
        LoopBatcher.__init__(self, ledger, loop)
        self.pause_state = pause_state

    def flush(self) -> None:
        pause_state = self.pause_state
        pause_state.used = True
        if pause_state.known:
            LoopBatcher.flush(self)
        else:
            self._slowly(self._look_first())

    async def _look_first(self) -> None:
        try:
            await self.pause_state.query_async(self.loop)
        except FAILURES as error:
            self.engine.log_once(error)
        self.pause_state.follow()

    def _go_on(self, slow: asyncio.Task[None]) -> None:
        if slow.cancelled() and not self.pause_state.known:
            # The loop ends, and nothing was sent yet.
            self.fail([], self.unavailable(LoopEnded("the event loop has ended")))
        LoopBatcher._go_on(self, slow)


class Pause(Request):
    """A pause that this process makes: it is the first to know."""

    __slots__ = ()

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        pause_state = self.ledger.registry.pause_state
        if pause_state is not None and self.ledger.key is None:
            pause_state.learn(reply.reply_epoch, reply.seq, reply.now, reply.pause, reply.received)
        return Request.apply_reply(self, reply, said, position)
