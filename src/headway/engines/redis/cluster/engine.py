"""`redis+cluster://`: ledgers spread over nodes, each where the slot of its root key says.

All keys of an account have one hash tag, so an account is on one node; which one, the nodes know. The naive client
asks for the map first, which is a call that somebody has to wait for, and that blocks an event loop. Here nobody
waits for a map: an account whose slot is not known yet is asked for at any node, and the answer `MOVED 3999
host:port` says where it is. That is one more round trip, once; a thread reads the whole map meanwhile. Whatever else
happens to a cluster comes down to the same two things: a wrong answer corrects the map, and a node that cannot be
reached is struck from it.

    MOVED       the slot is there now: note it, go there
    ASK         this key is there already, its slot will follow: go there this once, and say ASKING first
    TRYAGAIN    some keys of the ledger are here and some there: nothing can be decided until all have arrived, so it is
                asked again until then, after longer and longer pauses
    non local   the same, noticed in the midst of a script, when it looked for a list: it may have changed others
                before, so nothing of the ledger can be believed
    unreachable forget that it has any slots; whoever was promoted in its place is named by the others

A ledger that was moved is served by another server than before, so its first caller puts it in quarantine, as after a
failover: what the old node granted while it was cut off cannot be known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError
from redis.crc import key_slot

from headway.engines.redis.account import PARTS_ARE_MISSING
from headway.engines.redis.engine import Engine
from headway.engines.redis.place import Place
from headway.engines.redis.shards import ShardedSubscription
from headway.engines.redis.wires import TROUBLE, PostWire, Wire
from headway.engines.redis.words import HEAD, LOST, MOVED, command
from headway.errors import HeadwayError

if TYPE_CHECKING:
    import asyncio

    from headway.engines.redis.account import Account
    from headway.engines.redis.halts import Halt
    from headway.engines.redis.ways import Way
    from headway.engines.redis.wires import TaskWire

log = logging.getLogger("headway")

SLOTS = 16384
ASKING = command(b"ASKING")


class ClusterEngine(Engine):
    """A cluster that keeps ledgers."""

    def _settle(self, ways: list[Way]) -> None:
        self.sharded = 1.0
        self._way = ways[0]
        self._seeds = [Node(self, way) for way in ways]
        self._nodes = {node.name: node for node in self._seeds}
        self._slots: list[Node | None] = [None] * SLOTS
        self._reading = False
        # Who is asked about slots that nobody knows: another one after each failure.
        self._guide: deque[Node] = deque(self._seeds)

    def reset(self) -> None:
        self._reading = False
        Engine.reset(self)

    # -- where -------------------------------------------------------------------------------------------

    def place_of(self, account: Account | Halt) -> Place:
        node = self._slots[slot_of(account.keys[0])]
        if node is None:
            self.read_map()
            return self._guide[0]
        return node

    def places(self) -> list[Place]:
        """All nodes that are known; first the one that is asked about what is not known."""
        guide = self._guide[0]
        return [guide, *[node for node in list(self._nodes.values()) if node is not guide]]

    def primaries(self) -> list[Place]:
        """The nodes that have the ledgers, for who wants to see all of them; reads the map first, and blocks for it."""
        self._read_map()
        return list(dict.fromkeys(node for node in self._slots if node is not None)) or self.places()

    def moved(self, account: Account | Halt, error: Exception) -> Place | None:
        what, *rest = str(error).split()
        if what in ("MOVED", "ASK") and len(rest) >= 2:
            node = self._node(rest[1], self.place_of(account))
            if what == "ASK":
                return AskingPlace(node)
            self._slots[int(rest[0])] = node
            self.read_map()
            return node
        return Engine.moved(self, account, error)

    def halfway(self, account: Account, error: Exception) -> bool:
        if self.half_done(error):
            account.distrust()
            return True
        return str(error).startswith("TRYAGAIN")

    def half_done(self, error: Exception) -> bool:
        return "non local key" in str(error)

    def _node(self, name: str, said_by: Place) -> Node:
        host, _, port = name.rpartition(":")
        # Without a name: at the same host as the one who says so.
        host = host or said_by.way.options.get("host", "localhost")
        name = f"{host}:{port}"
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes.setdefault(name, Node(self, self._way.to(host, int(port))))
        return node

    def revive(self, place: Place, error: BaseException) -> bool:  # noqa: ARG002
        """A node cannot be reached: another may know who took its place. Not if that was tried just now."""
        now = time.monotonic()
        fresh = isinstance(place, Node) and now - place.failed > self.timeout
        if isinstance(place, Node):
            place.failed = now
        self._slots = [None if node is place else node for node in self._slots]
        if self._guide[0] is place:
            self._guide.rotate(-1)
        self.read_map()
        return fresh and self._guide[0] is not place

    # -- the map -----------------------------------------------------------------------------------------

    def read_map(self) -> None:
        """Have the whole map read, by a thread of its own."""
        with self._lock:
            if self._reading or self.keeper.stopped:
                return
            self._reading = True
        try:
            threading.Thread(target=self._read_map, name="headway cluster map", daemon=True).start()
        except RuntimeError as error:  # no more threads: whoever asks is told where to go all the same
            self._reading = False
            self.complain(error)

    def _read_map(self) -> None:
        try:
            for place in self.places():
                try:
                    answer = place.ask(command(b"CLUSTER", b"SLOTS"))[0]
                except (HeadwayError, *TROUBLE):
                    continue
                if isinstance(answer, list) and answer:
                    self._learn(answer, place)
                    return
        except Exception:
            log.exception("the map of %s could not be read", self.address)
        finally:
            # Not more often than this: a cluster that changes is asked by everybody.
            time.sleep(0.1)
            self._reading = False

    def _learn(self, ranges: list[Any], said_by: Place) -> None:
        slots: list[Node | None] = [None] * SLOTS
        named = []
        for first, last, primary, *_ in ranges:
            node = self._node(f"{(primary[0] or b'').decode()}:{primary[1]}", said_by)
            named.append(node)
            slots[first : last + 1] = [node] * (last + 1 - first)
        self._slots = slots
        self._guide = deque([*named, *[seed for seed in self._seeds if seed not in named]])
        for name, node in list(self._nodes.items()):
            if node not in self._guide and not node.posts.unheard:
                del self._nodes[name]
                node.close()

    # -- talking -----------------------------------------------------------------------------------------

    def _new_subscription(self) -> ShardedSubscription:
        return ShardedSubscription(self)


class Node(Place):
    """One node of a cluster."""

    def __init__(self, engine: Engine, way: Way) -> None:
        self.name = way.name
        self.failed = 0.0
        Place.__init__(self, engine, way)

    def reset(self) -> None:
        Place.reset(self)
        self.posts = NodePosts(self)


class NodePosts(PostWire):
    """Letters to a node. If it cannot be reached, they go to whoever has their ledgers now, in their order."""

    def tend(self) -> None:
        PostWire.tend(self)
        if self.wire is None and self.unheard:
            self.place.engine.revive(self.place, ConnectionError("letters cannot be delivered"))
            self.forward()

    def forward(self) -> None:
        with self.lock, self.order:
            if self.wire is not None:
                return  # somebody has found a connection meanwhile, and has written them
            self._begin_streams()
            letters = list(self.unheard)
            self.unheard.clear()
        for letter in letters:
            self.place.engine.place_of(letter.account).posts.take_in(letter)


class AskingPlace(Place):
    """A node to which a ledger is on its way: every command has to say that one was sent here."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.engine = node.engine
        self.way = node.way

    def take(self, timeout: float = 0) -> Wire:
        return AskingWire(self.node.take(timeout))

    def put_back(self, wire: Any) -> None:
        self.node.put_back(None if wire is None else wire.wire)

    def again(self, error: BaseException) -> bool:
        return self.node.again(error)

    def wire_of(self, loop: asyncio.AbstractEventLoop, timeout_ns: int) -> TaskWire | None:
        wire = self.node.wire_of(loop, timeout_ns)
        return None if wire is None else AskingTaskWire(wire)  # type: ignore[return-value]

    async def open_wire(self, loop: asyncio.AbstractEventLoop, timeout_ns: int, deadline: float) -> TaskWire:
        wire = await self.node.open_wire(loop, timeout_ns, deadline)
        return AskingTaskWire(wire)  # type: ignore[return-value]


class AskingWire(Wire):
    """A thread's connection that says ASKING before each command."""

    def __init__(self, wire: Wire) -> None:
        # Not made anew: the same connection in another manner.
        self.wire = wire
        self.connection, self.socket, self.reader, self.room, self.ident = (
            wire.connection, wire.socket, wire.reader, wire.room, wire.ident,
        )  # fmt: skip

    def ask(self, payload: bytes) -> Any:
        self.socket.sendall(ASKING + payload)
        self.read()
        return whole(self.read())

    def limit(self, left_ns: int) -> None:
        self.wire.limit(left_ns)  # it is that one which is put back


class AskingTaskWire:
    """The same for tasks."""

    def __init__(self, wire: TaskWire) -> None:
        self.wire = wire
        self.ident = wire.ident

    async def ask(self, payload: bytes, deadline: float) -> Any:
        # Its answer is OK, or the connection fails and the next one says so.
        self.wire.ask(ASKING, deadline)
        return whole(await self.wire.ask(payload, deadline))

    def close(self) -> None:
        self.wire.close()


def whole(answer: Any) -> Any:
    """What a node answers to which a ledger is on its way. A ledger that it has been sent may still lack its lists, and
    one that it made instead would be in their way: it is asked again when all have arrived."""
    missing = isinstance(answer, Exception) and any(text in str(answer) for text in PARTS_ARE_MISSING)
    sent = type(answer) is bytes and len(answer) >= HEAD.size and HEAD.unpack_from(answer)[0] in (LOST, MOVED)
    return ReplyError("TRYAGAIN the ledger is on its way") if missing or sent else answer


def slot_of(key: bytes) -> int:
    """The slot of a key: that of its hash tag.

    >>> slot_of(b"headway:{api}") == slot_of(b"headway:{api}:q")
    True
    """
    return int(key_slot(key))
