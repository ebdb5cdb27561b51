"""`redis+cluster://`: ledgers spread over nodes, each where the slot of its root key says.

All keys of a ledger have one hash tag, so a ledger is on one node; the nodes know which. The naive client reads the
map of slots first: a call that blocks the first caller, and with it an event loop. Here no caller waits for the map.
A command for a ledger whose slot is not known yet goes to any node, and the reply `MOVED 3999 host:port` says where
the ledger is. That is one more round trip, once; a thread reads the whole map meanwhile. All other changes of a
cluster come down to the same two rules: a redirection corrects the map, and a node that cannot be reached is removed
from it.

    MOVED       the slot is there now: note it, go there
    ASK         this key is there already, its slot will follow: go there this once, and send ASKING first
    TRYAGAIN    some keys of the ledger are here and some there: nothing can be decided until all have migrated, so the
                command is retried until then, after longer and longer pauses
    non local   the same, noticed in the middle of a script, when it read a list: it may have changed other keys
                before, so the ledger cannot be trusted
    unreachable forget that the node has any slots; the other nodes name the replica that was promoted in its place

A ledger that was moved is served by another server than before, so the first command there puts it in quarantine, as
after a failover: what the old node granted while it was cut off cannot be known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError
from redis.crc import key_slot

from headway.engines.redis.client.round_trip import PARTS_ARE_MISSING
from headway.engines.redis.cluster.pubsub import ShardedSubscription
from headway.engines.redis.engine import Engine, Located
from headway.engines.redis.net.connections import CONNECTION_ERRORS, Connection, ReleaseSender
from headway.engines.redis.net.pool import ServerPool
from headway.engines.redis.script.protocol import HEAD, LOST, MOVED, command
from headway.errors import HeadwayError

if TYPE_CHECKING:
    import asyncio

    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.net.connections import LoopConnection
    from headway.engines.redis.net.connectors import Connector

log = logging.getLogger("headway")

SLOTS = 16384
ASKING = command(b"ASKING")


class ClusterEngine(Engine):
    """A cluster that keeps ledgers."""

    def _settle(self, connectors: list[Connector]) -> None:
        self.sharded = 1.0
        self._way = connectors[0]
        self._seeds = [Node(self, connector) for connector in connectors]
        self._nodes = {node.name: node for node in self._seeds}
        self._slots: list[Node | None] = [None] * SLOTS
        self._reading = False
        # The first node is used for slots that are not in the map; each failure moves on to another.
        self._guide: deque[Node] = deque(self._seeds)

    def reset(self) -> None:
        self._reading = False
        Engine.reset(self)

    # -- where -------------------------------------------------------------------------------------------

    def pool_of(self, ledger: Located) -> ServerPool:
        node = self._slots[slot_of(ledger.keys[0])]
        if node is None:
            self.read_map()
            return self._guide[0]
        return node

    def pools(self) -> list[ServerPool]:
        """All nodes that are known; first the one that is used for unknown slots."""
        guide = self._guide[0]
        return [guide, *[node for node in list(self._nodes.values()) if node is not guide]]

    def primaries(self) -> list[ServerPool]:
        """The nodes that have the ledgers, to read all of them; reads the map first, and blocks for it."""
        self._read_map()
        return list(dict.fromkeys(node for node in self._slots if node is not None)) or self.pools()

    def moved(self, ledger: Located, error: Exception) -> ServerPool | None:
        what, *rest = str(error).split()
        if what in ("MOVED", "ASK") and len(rest) >= 2:
            node = self._node(rest[1], self.pool_of(ledger))
            if what == "ASK":
                return AskingPool(node)
            self._slots[int(rest[0])] = node
            self.read_map()
            return node
        return Engine.moved(self, ledger, error)

    def halfway(self, ledger: LedgerClient, error: Exception) -> bool:
        if self.half_done(error):
            ledger.distrust()
            return True
        return str(error).startswith("TRYAGAIN")

    def half_done(self, error: Exception) -> bool:
        return "non local key" in str(error)

    def _node(self, name: str, said_by: ServerPool) -> Node:
        host, _, port = name.rpartition(":")
        # Without a host: the same host as the node that sent the redirection.
        host = host or said_by.way.options.get("host", "localhost")
        name = f"{host}:{port}"
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes.setdefault(name, Node(self, self._way.to(host, int(port))))
        return node

    def on_unreachable(self, pool: ServerPool, error: BaseException) -> bool:  # noqa: ARG002
        """A node cannot be reached: another may know its replacement. Not if that was tried just now."""
        now = time.monotonic()
        fresh = isinstance(pool, Node) and now - pool.failed > self.timeout
        if isinstance(pool, Node):
            pool.failed = now
        self._slots = [None if node is pool else node for node in self._slots]
        if self._guide[0] is pool:
            self._guide.rotate(-1)
        self.read_map()
        return fresh and self._guide[0] is not pool

    # -- the map -----------------------------------------------------------------------------------------

    def read_map(self) -> None:
        """Have the whole map read, by a thread of its own."""
        with self._lock:
            if self._reading or self.worker.stopped:
                return
            self._reading = True
        try:
            threading.Thread(target=self._read_map, name="headway cluster map", daemon=True).start()
        except RuntimeError as error:  # no more threads: redirections still tell each caller where to go
            self._reading = False
            self.log_once(error)

    def _read_map(self) -> None:
        try:
            for pool in self.pools():
                try:
                    answer = pool.call(command(b"CLUSTER", b"SLOTS"))[0]
                except (HeadwayError, *CONNECTION_ERRORS):
                    continue
                if isinstance(answer, list) and answer:
                    self._learn(answer, pool)
                    return
        except Exception:
            log.exception("the map of %s could not be read", self.address)
        finally:
            # Not more often than this: while a cluster changes, every caller wants the map.
            time.sleep(0.1)
            self._reading = False

    def _learn(self, ranges: list[Any], said_by: ServerPool) -> None:
        slots: list[Node | None] = [None] * SLOTS
        named = []
        for first, last, primary, *_ in ranges:
            node = self._node(f"{(primary[0] or b'').decode()}:{primary[1]}", said_by)
            named.append(node)
            slots[first : last + 1] = [node] * (last + 1 - first)
        self._slots = slots
        self._guide = deque([*named, *[seed for seed in self._seeds if seed not in named]])
        for name, node in list(self._nodes.items()):
            if node not in self._guide and not node.release_sender.outstanding:
                del self._nodes[name]
                node.close()

    # -- talking -----------------------------------------------------------------------------------------

    def _new_subscription(self) -> ShardedSubscription:
        return ShardedSubscription(self)


class Node(ServerPool):
    """One node of a cluster."""

    def __init__(self, engine: Engine, connector: Connector) -> None:
        self.name = connector.name
        self.failed = 0.0
        ServerPool.__init__(self, engine, connector)

    def reset(self) -> None:
        ServerPool.reset(self)
        self.release_sender = NodeReleaseSender(self)


class NodeReleaseSender(ReleaseSender):
    """Releases to a node. If it cannot be reached, they go to the nodes that have their ledgers now, in their order."""

    def flush(self) -> None:
        ReleaseSender.flush(self)
        if self.wire is None and self.outstanding:
            self.pool.engine.on_unreachable(self.pool, ConnectionError("releases cannot be delivered"))
            self.forward()

    def forward(self) -> None:
        with self.lock, self.order:
            if self.wire is not None:
                return  # another thread has connected meanwhile, and has written them
            self._begin_streams()
            releases = []
            for line in (self.again, self.unheard):
                while line:  # the collector may come, and with it one more
                    releases.append(line.popleft())
        for release in releases:
            self.pool.engine.pool_of(release.ledger).release_sender.take_in(release)


class AskingPool(ServerPool):
    """A node to which a ledger migrates: ASKING comes before every command."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.engine = node.engine
        self.way = node.way

    def take(self, timeout: float = 0) -> Connection:
        return AskingConnection(self.node.take(timeout))

    def put_back(self, connection: Any) -> None:
        self.node.put_back(None if connection is None else connection.wire)

    def again(self, error: BaseException) -> bool:
        return self.node.again(error)

    def connection_of(self, loop: asyncio.AbstractEventLoop, timeout_ns: int) -> LoopConnection | None:
        connection = self.node.connection_of(loop, timeout_ns)
        return None if connection is None else AskingLoopConnection(connection)  # type: ignore[return-value]

    async def open_connection(
        self, loop: asyncio.AbstractEventLoop, timeout_ns: int, deadline: float
    ) -> LoopConnection:
        connection = await self.node.open_connection(loop, timeout_ns, deadline)
        return AskingLoopConnection(connection)  # type: ignore[return-value]


class AskingConnection(Connection):
    """A thread's connection that sends ASKING before each command."""

    def __init__(self, connection: Connection) -> None:
        # No new connection: it wraps an existing one.
        self.wire = connection
        self.usual = 0.0
        self.connection, self.socket, self.reader, self.room, self.ident = (
            connection.connection, connection.socket, connection.reader, connection.room, connection.ident,
        )  # fmt: skip

    def call(self, payload: bytes) -> Any:
        self.socket.sendall(ASKING + payload)
        self.read()
        return whole(self.read())

    def limit(self, left_ns: int) -> None:
        self.wire.limit(left_ns)  # the wrapped connection is the one that is put back


class AskingLoopConnection:
    """The same for tasks."""

    def __init__(self, connection: LoopConnection) -> None:
        self.wire = connection
        self.ident = connection.ident
        self.made_by = connection.made_by

    async def call(self, payload: bytes, deadline: float) -> Any:
        # Its reply is OK, or the connection fails and the next command fails too.
        self.wire.call(ASKING, deadline)
        return whole(await self.wire.call(payload, deadline))

    @property
    def full(self) -> bool:
        """Whether as much is under way as the node can answer soon."""
        return self.wire.full

    async def room(self) -> None:
        """Wait until there is room for another command."""
        await self.wire.room()

    def close(self) -> None:
        self.wire.close()


def whole(answer: Any) -> Any:
    """The reply of a node to which a ledger migrates. A ledger that has arrived may still lack its lists, and a fresh
    one
    would be in their way: the command is retried when all keys have arrived."""
    missing = isinstance(answer, Exception) and any(text in str(answer) for text in PARTS_ARE_MISSING)
    sent = type(answer) is bytes and len(answer) >= HEAD.size and HEAD.unpack_from(answer)[0] in (LOST, MOVED)
    return ReplyError("TRYAGAIN the ledger is on its way") if missing or sent else answer


def slot_of(key: bytes) -> int:
    """The slot of a key: that of its hash tag.

    >>> slot_of(b"headway:{api}") == slot_of(b"headway:{api}:q")
    True
    """
    return int(key_slot(key))
