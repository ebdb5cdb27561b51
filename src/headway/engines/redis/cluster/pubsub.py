"""Pub/sub in a cluster: the wake-ups of each ledger, on the node that has it.

A message that is published in a cluster is carried to every node, which would make a cluster slower the larger it is.
So a wake-up goes to a *sharded* channel, `<root>:wake:<process>`, that is in the slot of its ledger. The process
listens to it on that slot's node for as long as it has a waiter in that ledger's queue (and a little longer: mostly
another will follow). Only news are published plainly, since they are rare and concern every process.

A channel follows its slot. When the slot moves, the old node ends the subscription; when a node dies, its channels are
subscribed to again wherever they are now. Messages sent meanwhile are not missed: after each confirmation the ledger is
polled.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from headway.engines.redis.net.connections import CONNECTION_ERRORS
from headway.engines.redis.net.pool import Unreachable
from headway.engines.redis.net.pubsub import QUIET, PubSubConnection, Subscription

if TYPE_CHECKING:
    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.net.pool import ServerPool

AGAIN = 0.2
"""Seconds until a node that could not be reached is tried again."""
LINGER = 5.0
"""Seconds for which a channel is kept after its last waiter has gone."""


class ShardedSubscription(Subscription):
    """The channels of this process in a cluster: one for each ledger in whose queue it has waiters."""

    def __init__(self, engine: Engine) -> None:
        Subscription.__init__(self, engine)
        self.pubsubs: dict[ServerPool, PubSubConnection] = {}
        # Two limiters of one name are two ledger clients with one channel.
        self.followed: dict[LedgerClient, bytes] = {}
        self.ledgers: dict[bytes, set[LedgerClient]] = {}
        # On which connection each channel is, and since when it has no waiters.
        self.where: dict[bytes, PubSubConnection] = {}
        self.unused: dict[bytes, float] = {}
        self.wanted: deque[LedgerClient] = deque()
        self.retry_later: list[tuple[float, bytes]] = []
        self.next_round = 0.0
        self.news: PubSubConnection | None = None
        self.waker, self.ringer = socket.socketpair()

    def begin(self) -> None:
        self.waker.settimeout(0)
        self.ringer.settimeout(0)
        self.selector.register(self.waker, selectors.EVENT_READ)
        for ledger in list(self.engine.worker.ledgers):
            if ledger.standing:
                self.follow(ledger)
        self.flush()

    def __exit__(self, *error: object) -> None:
        Subscription.__exit__(self, *error)
        self.waker.close()
        self.ringer.close()

    def follow(self, ledger: LedgerClient) -> None:
        """From any thread."""
        if ledger not in self.followed:
            self.followed[ledger] = ledger.keys[0] + b":wake:" + self.engine.process
            self.wanted.append(ledger)
            with contextlib.suppress(OSError):
                self.ringer.send(b".")

    def wait(self, seconds: float) -> None:
        pause = AGAIN if self.retry_later or self.news is None else QUIET
        for key, _ in self.selector.select(min(seconds, pause)):
            if key.data is None:
                with contextlib.suppress(OSError):
                    self.waker.recv(4096)
                continue
            try:
                self.listen_to(key.data)
            except CONNECTION_ERRORS as error:
                self.lost(key.data, error)
        self.flush()

    def flush(self) -> None:
        """Subscribe to the channels that have waiters, and end those that have none any more."""
        now = time.monotonic()
        while self.wanted:
            ledger = self.wanted.popleft()
            channel = self.followed.get(ledger)
            if channel is not None:
                self.ledgers.setdefault(channel, set()).add(ledger)
                self.subscribe(channel)
        due = [channel for at, channel in self.retry_later if at <= now]
        self.retry_later = [(at, channel) for at, channel in self.retry_later if at > now]
        for channel in due:
            self.subscribe(channel)
        if now >= self.next_round:
            self.next_round = now + QUIET
            self.listen_for_news()
            self.forget_unused(now)
            for pubsub in list(self.pubsubs.values()):
                try:
                    pubsub.check(now)
                except CONNECTION_ERRORS as error:
                    self.lost(pubsub, error)

    def subscribe(self, channel: bytes) -> None:
        ledger = next(iter(self.ledgers.get(channel, ())), None)
        if ledger is None or channel in self.where:
            return
        pool = self.engine.pool_of(ledger)
        try:
            pubsub = self.connection_at(pool)
            pubsub.expected.append(channel)
            self.where[channel] = pubsub
            pubsub.send(b"SSUBSCRIBE", channel)
        except CONNECTION_ERRORS as error:
            if pool in self.pubsubs:
                self.lost(self.pubsubs[pool], error)
            else:
                self.engine.on_unreachable(pool, error)
                self.again(channel, AGAIN)

    def connection_at(self, pool: ServerPool) -> PubSubConnection:
        pubsub = self.pubsubs.get(pool)
        if pubsub is None:
            pubsub = self.pubsubs[pool] = self.open_connection(pool)
        return pubsub

    def listen_for_news(self) -> None:
        """On any node: what is published plainly is carried to all."""
        if self.news is not None:
            return
        for pool in self.engine.pools():
            try:
                pubsub = self.connection_at(pool)
                pubsub.expected.append(self.engine.news)
                pubsub.send(b"SUBSCRIBE", self.engine.news)
            except CONNECTION_ERRORS:
                continue
            self.news = pubsub
            return

    def forget_unused(self, now: float) -> None:
        for channel, ledgers in list(self.ledgers.items()):
            if any(ledger.standing for ledger in ledgers):
                self.unused.pop(channel, None)
            elif now - self.unused.setdefault(channel, now) > LINGER:
                # A waiter that comes now either finds that the channel is not followed any more, or is seen here.
                for ledger in ledgers:
                    self.followed.pop(ledger, None)
                if any(ledger.standing for ledger in ledgers):
                    self.followed.update(dict.fromkeys(ledgers, channel))
                    continue
                del self.unused[channel], self.ledgers[channel]
                pubsub = self.where.pop(channel, None)
                if pubsub is not None:
                    with contextlib.suppress(OSError):
                        pubsub.send(b"SUNSUBSCRIBE", channel)

    def lost(self, pubsub: PubSubConnection, error: Exception) -> None:
        """A connection has ended: subscribe to its channels again, wherever they are now."""
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(pubsub)
        pubsub.close()
        self.pubsubs.pop(pubsub.pool, None)
        pubsub.pool.discard_connections(error)
        if self.news is pubsub:
            self.news = None
        self.engine.log_once(error)
        if isinstance(error, Unreachable) or not pubsub.replied_at > pubsub.asked:
            self.engine.on_unreachable(pubsub.pool, error)
        for channel, other in list(self.where.items()):
            if other is pubsub:
                self.again(channel, AGAIN)

    def again(self, channel: bytes, delay: float) -> None:
        self.where.pop(channel, None)
        self.retry_later.append((time.monotonic() + delay, channel))

    def refused(self, pubsub: PubSubConnection, error: Exception) -> None:
        """Mostly because the slot has moved."""
        channel = pubsub.expected.popleft() if pubsub.expected else b""
        ledger = next(iter(self.ledgers.get(channel, ())), None)
        if ledger is not None:
            moved = self.engine.moved(ledger, error)
            self.again(channel, 0 if moved is not None and str(error).startswith("MOVED") else AGAIN)

    def confirmed(self, channel: bytes) -> None:
        """Poll for what was published before the subscription was there."""
        if channel == self.engine.news:
            self.engine.worker.visit_all()
        for ledger in self.ledgers.get(channel, ()):
            ledger.visited = 0
            self.engine.worker.wake()

    def ended(self, pubsub: PubSubConnection, channel: bytes) -> None:
        """The slot went to another node, unless this process ended the subscription itself."""
        if self.where.get(channel) is pubsub:
            self.again(channel, 0)
