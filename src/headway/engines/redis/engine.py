"""`redis://` and its kin: one engine per address and process, shared by all limiters that name it.

An engine knows where its servers are and keeps what belongs to the process and not to a limiter: connections, the
names of its streams, where the server's clock stands, and the threads that work for waiters and leases.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import secrets
import sys
import threading
import weakref
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from hiredis import ReplyError

from headway.clock import SYSTEM
from headway.core.limits import Limit
from headway.core.rules import check_exact, rules_of
from headway.engines import base
from headway.engines.lateness import late_spacing
from headway.engines.redis.client.background import BackgroundWorker
from headway.engines.redis.client.releases import PendingRelease
from headway.engines.redis.client.requests import Release
from headway.engines.redis.gates.listener import GateListener
from headway.engines.redis.net.address import Address
from headway.engines.redis.net.connections import CONNECTION_ERRORS, exchange, exchange_async
from headway.engines.redis.net.connectors import Connector, connectors_to
from headway.engines.redis.net.pool import ServerPool
from headway.engines.redis.net.pubsub import Subscription
from headway.engines.redis.net.server_checks import server_checks
from headway.engines.redis.script.protocol import TICK, command
from headway.engines.repeated_log import RepeatedLog
from headway.engines.unused import EngineUsers
from headway.errors import EngineUnavailable
from headway.forks import on_fork

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.client.requests import Acquire, Request, Wakeup
    from headway.engines.redis.cluster.pause import ClusterPause
    from headway.engines.redis.net.connections import Connection, LoopConnection

engines: weakref.WeakSet[Engine] = weakref.WeakSet()

OUT_OF_ORDER = (
    "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "ASK", "NOAUTH", "NOPERM", "NOREPLICAS", "OOM",
    "READONLY", "TRYAGAIN", "WRONGPASS",
)  # fmt: skip
"""How the errors of a server begin that does not serve now, or not us."""


class Located(Protocol):
    """What a server keeps under a root key: a ledger, a limiter's pause, a gate."""

    @property
    def keys(self) -> tuple[bytes, ...]: ...


class Engine(base.Engine):
    """Servers of Redis or Valkey that keep ledgers."""

    tick_ns = TICK
    only_pool: ServerPool | None = None
    """The server, where there is only one."""

    def __init__(self, address: Address, *, timeout: float = 0.25) -> None:
        self.address = address.public
        self._original = address.original
        self.namespace = address.namespace
        self.lease_ns = address.lease_ns
        self.drift_ppm = address.drift_ppm
        self.drift = (address.drift_ppm + SYSTEM.drift_ppm) / 1e6
        self.strict = address.strict
        self.timeout = timeout
        self.clock = SYSTEM
        self.repeated_log = RepeatedLog(self.clock.now)
        self.sharded = 0.0
        # Tests set the time that the scripts go by; 0: the server's own.
        self.fixed_time = 0.0
        self.slow_to_prepare = False
        self._round_trip: int | None = None
        self._subscription: Subscription | None = None
        self.users = EngineUsers(self)
        # Called when it is closed.
        self.on_close: Callable[[], None] | None = None
        self._settle(self._connectors(address))
        self.reset()
        engines.add(self)

    def _connectors(self, address: Address) -> list[Connector]:
        return connectors_to(address)

    def _settle(self, connectors: list[Connector]) -> None:
        self.only_pool = ServerPool(self, connectors[0])

    def reset(self) -> None:
        """Begin as a process that no server knows; a forked child is another."""
        self.process = secrets.token_hex(6).encode()
        self.wake = self.namespace.encode() + b":wake:" + self.process
        self.news = self.namespace.encode() + b":news"
        self.waiting: weakref.WeakValueDictionary[int, Acquire] = weakref.WeakValueDictionary()
        self._early: dict[int, Wakeup] = {}
        # Clients with releases that wait for a command to travel with.
        self.deferred: set[LedgerClient] = set()
        self.worker = BackgroundWorker(self)
        self.gates = GateListener(self)
        self._streams = itertools.count()
        self.tickets = itertools.count(1)
        self._lock = threading.Lock()
        self.users.reset()
        self._greeted: set[bytes] = set()
        # Whether this process is about to end: nothing that it sends now is sent again.
        self.ending = False
        self._subscription = None
        for pool in self.pools():
            pool.reset()

    # -- limiters ----------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed, so that a new limiter needs another."""
        return self.worker.stopped

    def open(self, terms: base.LimiterTerms) -> base.Ledgers:
        from headway.engines.redis.client.ledgers import RedisLedgers

        ledgers = RedisLedgers(self, terms)
        self.users.add(ledgers)
        return ledgers

    def open_gate(self, terms: base.GateTerms) -> base.Gate:
        from headway.engines.redis.gates.gate import RedisGate

        gate = RedisGate(self, terms)
        self.users.add(gate)
        return gate

    def open_again(self) -> None:
        """A limiter is to use it that was made before the engine was closed for want of users."""
        self.worker = BackgroundWorker(self)
        self.gates = GateListener(self)

    def hurry(self) -> bool:
        """Deliver what is still to be delivered; whether there is something."""
        return self.worker.hurry()

    def stop(self) -> None:
        """Begin nothing any more."""
        self.worker.stopped = True

    def rules_of(self, limit: Limit) -> tuple[Rule, ...]:
        """The rules of a limit by the server's clock, in numbers that its scripts can compute with."""
        rules = rules_of(limit, TICK, self.drift_ppm, TICK, self.lease_ns)
        check_exact(rules)
        return rules

    def adapt(self, limit: Limit, *, measure: bool = True) -> Limit:
        """A `Spacing` whose waiters may be a little late: waking up takes time, and so does the round trip."""
        return late_spacing(limit, lambda: 2 * self.round_trip_ns(measure), self.address)

    # -- names -------------------------------------------------------------------------------------------

    def new_stream(self) -> bytes:
        """A name that no other stream of this process has, for 16 million of them. All keys of a limiter with metrics
        share a root; if two streams there shared a name, the server would reject the older one's commands as stale."""
        return self.process + b64encode((next(self._streams) & 0xFFFFFF).to_bytes(3, "big"))

    # -- where -------------------------------------------------------------------------------------------

    def pool_of(self, ledger: Located) -> ServerPool:  # noqa: ARG002 - a cluster needs it
        assert self.only_pool is not None  # a cluster finds the node
        return self.only_pool

    def pools(self) -> list[ServerPool]:
        return [] if self.only_pool is None else [self.only_pool]

    def moved(self, ledger: Located, error: Exception) -> ServerPool | None:
        """Where the ledger is now, if that is what the error says."""
        if str(error).startswith("READONLY"):
            # It was the primary when we connected, and is a replica now: find the primary anew.
            pool = self.pool_of(ledger)
            pool.discard_connections(ConnectionError("it has become a replica"), alive=True)
            return pool
        return None

    def halfway(self, ledger: LedgerClient, error: Exception) -> bool:  # noqa: ARG002 - a cluster knows of it
        """Whether the ledger is in pieces just now, one here and one there, and may be whole in a moment."""
        return False

    def half_done(self, error: Exception) -> bool:  # noqa: ARG002
        """Whether a script may have been ended by this error after it had begun to write."""
        return False

    def prepare(self) -> None:
        """Before a connection is made: what has to be there first."""

    def on_unreachable(self, pool: ServerPool, error: BaseException) -> bool:  # noqa: ARG002
        """A server cannot be reached or does not answer: whether it may help to ask again at once."""
        return False

    def check_server(self, connection: Connection) -> None:
        """A connection was made; a server that is new to us has to answer some questions."""
        self.repeated_log.recovered()
        if connection.ident not in self._greeted:
            exchange(connection, server_checks(self), connection.until)
            self._greeted.add(connection.ident)

    async def check_server_async(self, connection: LoopConnection, deadline: float) -> None:
        self.repeated_log.recovered()
        if connection.ident not in self._greeted:
            await exchange_async(connection, server_checks(self), deadline)
            self._greeted.add(connection.ident)

    def round_trip_ns(self, measure: bool = True) -> int:
        """How long a command takes there and back, as measured once; 0 for an engine that cannot be reached."""
        if self._round_trip is None:
            if not measure:
                return 0
            clock, trips = self.clock, []
            try:
                pool = self.pools()[0]
                for _ in range(6):
                    begin = clock.now()
                    pool.call(command(b"PING"))
                    trips.append(clock.now() - begin)
            except (EngineUnavailable, *CONNECTION_ERRORS) as error:
                self.log_once(error)
                return 0
            # The first one had to connect.
            self._round_trip = sorted(trips[1:])[2]
        return self._round_trip

    # -- talking -----------------------------------------------------------------------------------------

    def post(self, request: Request) -> None:
        """Say something without waiting for an answer; never blocks, never raises.

        A release travels with the next command, if one comes soon: within this turn of the event loop, or
        within a millisecond; what has come together until then is posted together. A thread does not leave an end for
        later that a waiter waits for, nor the first one of its process: that may be the only one, as in a child that
        is forked for each job and ends by `os._exit`, where no other thread would post it.
        """
        ledger = request.ledger
        if ledger.compacted:
            # The next command is to find what was released, and it travels from another client.
            ledger = request.ledger = ledger.registry.successor(ledger, request.epoch)
        loop = asyncio._get_running_loop()
        if loop is None and (
            type(request) is not Release
            or ledger.waiting
            or ledger.standing
            or self.pool_of(ledger).release_sender.wire is None
        ):
            self.post_now(request)
            return
        request.posted = True
        ledger.ends.append(request)
        if ledger in self.deferred:
            return
        self.deferred.add(ledger)
        if loop is not None:
            loop.call_soon(self.flush, ledger)
            self.worker.flush()  # for a loop that ends before that
        else:
            self.worker.flush_soon()

    def flush(self, ledger: LedgerClient) -> None:
        """Post what has not travelled with a question by now."""
        self.deferred.discard(ledger)
        while ends := ledger.take_ends():
            self.post_now(*ends)

    def post_now(self, *requests: Request) -> None:
        """Requests of one client and one epoch, in one command."""
        posts = self.pool_of(requests[0].ledger).release_sender
        posts.post(PendingRelease(*requests))
        self.worker.flush()
        if posts.wire is None:
            self.worker.wake()

    def plan_flush_at_exit(self) -> None:
        """`multiprocessing` ends its children without atexit: it runs only what the child has registered with it."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, flush_at_exit, exitpriority=0)

    def ask_later(self, request: Request) -> None:
        self.worker.retry_later(request)

    def wait_for(self, acquire: Acquire) -> None:
        """A request waits in the queue: listen for its wake-up."""
        self.worker.track(acquire.ledger)
        self.worker.listen()
        if self._subscription is not None:
            self._subscription.follow(acquire.ledger)
        # Last: from now on it can be called.
        self.waiting[acquire.ticket] = acquire
        if acquire.ticket in self._early and (early := self._early.pop(acquire.ticket, None)) is not None:
            self.call(acquire.ticket, early)

    def call(self, ticket: int, call: Wakeup) -> None:
        """A waiter's turn has come; or, where the call has no marks, the time to poll for it is known.

        The message may overtake the answer that it has to wait at all.
        """
        acquire = self.waiting.get(ticket)
        if acquire is None:
            self._early[ticket] = call
            while len(self._early) > 1024:
                self._early.pop(next(iter(self._early)), None)
            # It may have begun to wait just now, and found nothing.
            acquire = self.waiting.get(ticket)
            if acquire is None:
                return
            self._early.pop(ticket, None)
        ledger = acquire.ledger
        at = ledger.registry.clock.now()
        if not call.marks:
            self.worker.plan_poll(ledger, at + ledger.registry.stretched(call.slot - call.now))
            return
        granted = ledger.registry.local_time(ledger, call.now, at)
        acquire.called(call.slot - call.now, call.marks, call.epoch, granted, at)

    def track(self, ledger: LedgerClient) -> None:
        """There is a sleeper or a lease: send heartbeats, and learn of pauses and losses."""
        self.worker.track(ledger)
        self.worker.listen()

    def follow(self, pause_state: ClusterPause) -> None:
        """Keys of this limiter are used: hear of pauses of all of it."""
        self.worker.follow(pause_state)
        self.worker.listen()

    def subscription(self) -> Subscription:
        """The channels of this process, for its listener."""
        self._subscription = self._new_subscription()
        return self._subscription

    def _new_subscription(self) -> Subscription:
        return Subscription(self)

    # -- trouble -----------------------------------------------------------------------------------------

    def unavailable(self, cause: BaseException) -> EngineUnavailable:
        self.log_once(cause)
        text = str(cause) or type(cause).__name__
        return EngineUnavailable(self.address, text)

    def refusal(self, error: Exception) -> Exception:
        """What to raise for what went wrong: an error of the server's becomes one of ours."""
        return self.unavailable(error) if isinstance(error, ReplyError) else error

    def out_of_order(self, error: Exception) -> bool:
        """Whether a server that gave this error as its answer does not serve now, and may do so later."""
        return str(error).startswith(OUT_OF_ORDER) or self.half_done(error)

    def log_once(self, cause: BaseException) -> None:
        """Log what is wrong, once and then once a minute; an error of ours says what another said before."""
        kind, text = f"{type(cause).__name__}: ", str(cause) or type(cause).__name__
        if isinstance(cause, EngineUnavailable):
            kind, text = "", cause.cause_text
        self.repeated_log.warning(f"engine {self.address}", text, kind)

    def close(self) -> None:
        """Close connections and threads; no limiter uses the engine any more."""
        self.worker.stopped = True
        self.worker.wake()
        self.gates.stop()
        for pool in self.pools():
            pool.close()
        if self.on_close is not None:
            self.on_close()

    def __reduce__(self) -> Any:
        if self._original is None:
            raise TypeError(f"{self!r} cannot be pickled, as a client cannot: name the engine by its URI")
        from headway.engines.uri import open_engine

        return open_engine, (self._original, self.timeout)

    def __repr__(self) -> str:
        return f"<headway engine {self.address}>"


def flush_at_exit() -> None:
    """At the end of the process: send the releases, so that no waiter has to wait for a lease to end."""
    for engine in list(engines):
        engine.ending = True
        for ledger in list(engine.deferred):
            engine.flush(ledger)
        for pool in engine.pools():
            pool.release_sender.flush()


atexit.register(flush_at_exit)


def after_fork() -> None:
    """In a forked child: connections and threads are the parent's, and so is the name of the process."""
    for engine in list(engines):
        engine.reset()


on_fork(after_fork)
