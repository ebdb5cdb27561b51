"""A server that keeps ledgers: how to connect to it, and the connections that are open.

A standalone server, a Sentinel's primary or an embedded one is one place; a cluster has one for each of its nodes. Threads
take a connection and put it back; the tasks of an event loop share one; what is only posted has its own.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from headway.engines.redis.wires import PostWire, TaskWire, Wire

if TYPE_CHECKING:
    from headway.engines.redis.engine import Engine


class Place:
    """One server, and the open connections to it."""

    def __init__(self, engine: Engine, pool: Any, pool_async: Any) -> None:
        self.engine = engine
        self._pool = pool
        self._pool_async = pool_async
        self.reset()

    def reset(self) -> None:
        """Start without connections: in a forked child those of its parent are not its own."""
        self._idle: deque[Wire] = deque()
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()
        self.posts = PostWire(self)

    # -- threads -----------------------------------------------------------------------------------------

    def connect(self) -> Any:
        """A new connection of redis-py's, within the engine's time-out and without its retries."""
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self.engine.prepare()
        connection = self._pool.make_connection()
        connection.socket_timeout = connection.socket_connect_timeout = self.engine.timeout
        connection.retry = Retry(NoBackoff(), 0)
        connection.connect()
        return connection

    def listening_pool(self) -> Any:
        """For a subscription, which waits for messages longer than for answers."""
        return self._pool

    def take(self, deadline: int) -> Wire:
        """A connection for one thread; to be put back, or closed when it has failed."""
        try:
            return self._idle.pop()
        except IndexError:
            wire = Wire(self)
            self.engine.greet(wire)
            return wire

    def put_back(self, wire: Wire | None) -> None:
        if wire is not None:
            if wire.hurried:
                wire.hurried = False
                wire.socket.settimeout(self.engine.timeout)
            self._idle.append(wire)

    def again(self, error: BaseException) -> bool:
        """Whether it may help to ask again at once: idle connections break, and the server is there all the same."""
        if isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError":
            return False
        had = len(self._idle)
        while self._idle:
            self._idle.pop().close()
        return self.engine.revive(self, error, had > 0)

    # -- tasks -------------------------------------------------------------------------------------------

    async def connect_async(self) -> Any:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        await asyncio.to_thread(self.engine.prepare) if self.engine.slow_to_prepare else self.engine.prepare()
        connection = self._pool_async.make_connection()
        # Reading is bounded by the lane, for all who wait at once.
        connection.socket_timeout = None
        connection.socket_connect_timeout = self.engine.timeout
        connection.retry = Retry(NoBackoff(), 0)
        await connection.connect()
        return connection

    def wire_of(self, loop: asyncio.AbstractEventLoop) -> TaskWire | None:
        wire: TaskWire | None = self._loops.get(loop)
        return wire if wire is not None and type(wire) is TaskWire and wire.broken is None else None

    async def open_wire(self, loop: asyncio.AbstractEventLoop, deadline: float) -> TaskWire:
        """The connection of this loop; those who need it while it is being made wait for it."""
        making = self._loops.get(loop)
        if isinstance(making, asyncio.Task) and not making.done():
            return await asyncio.shield(making)  # type: ignore[no-any-return]
        self._loops[loop] = making = loop.create_task(self._make_wire(loop, deadline))
        return await asyncio.shield(making)

    async def _make_wire(self, loop: asyncio.AbstractEventLoop, deadline: float) -> TaskWire:
        wire = TaskWire(self, loop)
        await wire.open(deadline)
        self._loops[loop] = wire
        self.engine.greet(wire)
        return wire

    def drop_wire(self, loop: asyncio.AbstractEventLoop, wire: TaskWire) -> None:
        wire.close()
        if self._loops.get(loop) is wire:
            del self._loops[loop]

    def close(self) -> None:
        """Close what is not in use; a loop's connection is closed by its loop."""
        while self._idle:
            self._idle.pop().close()
        self.posts.close()
        for loop, wire in list(self._loops.items()):
            if isinstance(wire, TaskWire) and not loop.is_closed():
                loop.call_soon_threadsafe(wire.close)
