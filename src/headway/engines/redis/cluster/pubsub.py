"""Listening in a cluster: to the calls of each ledger, on the node that has it.

A message that is published in a cluster is carried to every node, which would make a cluster slower the larger it is.
So a call goes to a *sharded* channel, `<root>:wake:<process>`, that lives in the slot of its ledger, and the process
listens to it on that slot's node for as long as somebody stands in that ledger's queue (and a little longer: mostly
somebody will again). Only the news are published plainly, since they are rare and concern everybody.

A channel follows its slot. When that moves, the old node ends the subscription; when a node dies, its channels are
asked for again wherever they are now. What was said meanwhile is not lost: after each confirmation the ledger is
asked.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from headway.engines.redis.ears import QUIET, Ear, Subscription
from headway.engines.redis.place import Unreachable
from headway.engines.redis.wires import TROUBLE

if TYPE_CHECKING:
    from headway.engines.redis.account import Account
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.place import Place

AGAIN = 0.2
"""Seconds until a node that could not be reached is tried again."""
LINGER = 5.0
"""Seconds for which a channel is kept after nobody waits on it any more."""


class ShardedSubscription(Subscription):
    """The channels of this process in a cluster: one for each ledger in whose queue somebody stands."""

    def __init__(self, engine: Engine) -> None:
        Subscription.__init__(self, engine)
        self.ears: dict[Place, Ear] = {}
        # Two limiters of one name are two accounts with one channel.
        self.followed: dict[Account, bytes] = {}
        self.accounts: dict[bytes, set[Account]] = {}
        # Where each channel is listened to, and since when nobody needs it.
        self.where: dict[bytes, Ear] = {}
        self.unused: dict[bytes, float] = {}
        self.wanted: deque[Account] = deque()
        self.later: list[tuple[float, bytes]] = []
        self.next_round = 0.0
        self.news: Ear | None = None
        self.bell, self.ringer = socket.socketpair()

    def begin(self) -> None:
        self.bell.settimeout(0)
        self.ringer.settimeout(0)
        self.selector.register(self.bell, selectors.EVENT_READ)
        for account in list(self.engine.keeper.accounts):
            if account.standing:
                self.follow(account)
        self.tend()

    def __exit__(self, *error: object) -> None:
        Subscription.__exit__(self, *error)
        self.bell.close()
        self.ringer.close()

    def follow(self, account: Account) -> None:
        """From any thread."""
        if account not in self.followed:
            self.followed[account] = account.keys[0] + b":wake:" + self.engine.process
            self.wanted.append(account)
            with contextlib.suppress(OSError):
                self.ringer.send(b".")

    def wait(self, seconds: float) -> None:
        pause = AGAIN if self.later or self.news is None else QUIET
        for key, _ in self.selector.select(min(seconds, pause)):
            if key.data is None:
                with contextlib.suppress(OSError):
                    self.bell.recv(4096)
                continue
            try:
                self.listen_to(key.data)
            except TROUBLE as error:
                self.lost(key.data, error)
        self.tend()

    def tend(self) -> None:
        """Listen where it is wanted, and not where nobody waits any more."""
        now = time.monotonic()
        while self.wanted:
            account = self.wanted.popleft()
            channel = self.followed.get(account)
            if channel is not None:
                self.accounts.setdefault(channel, set()).add(account)
                self.subscribe(channel)
        due = [channel for at, channel in self.later if at <= now]
        self.later = [(at, channel) for at, channel in self.later if at > now]
        for channel in due:
            self.subscribe(channel)
        if now >= self.next_round:
            self.next_round = now + QUIET
            self.listen_for_news()
            self.forget_unused(now)
            for ear in list(self.ears.values()):
                try:
                    ear.check(now)
                except TROUBLE as error:
                    self.lost(ear, error)

    def subscribe(self, channel: bytes) -> None:
        account = next(iter(self.accounts.get(channel, ())), None)
        if account is None or channel in self.where:
            return
        place = self.engine.place_of(account)
        try:
            ear = self.ear_at(place)
            ear.expected.append(channel)
            self.where[channel] = ear
            ear.say(b"SSUBSCRIBE", channel)
        except TROUBLE as error:
            if place in self.ears:
                self.lost(self.ears[place], error)
            else:
                self.engine.revive(place, error)
                self.again(channel, AGAIN)

    def ear_at(self, place: Place) -> Ear:
        ear = self.ears.get(place)
        if ear is None:
            ear = self.ears[place] = self.open_ear(place)
        return ear

    def listen_for_news(self) -> None:
        """On any node: what is published plainly is carried to all."""
        if self.news is not None:
            return
        for place in self.engine.places():
            try:
                ear = self.ear_at(place)
                ear.expected.append(self.engine.news)
                ear.say(b"SUBSCRIBE", self.engine.news)
            except TROUBLE:
                continue
            self.news = ear
            return

    def forget_unused(self, now: float) -> None:
        for channel, accounts in list(self.accounts.items()):
            if any(account.standing for account in accounts):
                self.unused.pop(channel, None)
            elif now - self.unused.setdefault(channel, now) > LINGER:
                # Whoever begins to stand now either sees that it is not followed any more, or is seen here.
                for account in accounts:
                    self.followed.pop(account, None)
                if any(account.standing for account in accounts):
                    self.followed.update(dict.fromkeys(accounts, channel))
                    continue
                del self.unused[channel], self.accounts[channel]
                ear = self.where.pop(channel, None)
                if ear is not None:
                    with contextlib.suppress(OSError):
                        ear.say(b"SUNSUBSCRIBE", channel)

    def lost(self, ear: Ear, error: Exception) -> None:
        """A connection has ended: its channels are asked for again, wherever they are now."""
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(ear)
        ear.close()
        self.ears.pop(ear.place, None)
        ear.place.renounce(error)
        if self.news is ear:
            self.news = None
        self.engine.complain(error)
        if isinstance(error, Unreachable) or not ear.heard > ear.asked:
            self.engine.revive(ear.place, error)
        for channel, other in list(self.where.items()):
            if other is ear:
                self.again(channel, AGAIN)

    def again(self, channel: bytes, delay: float) -> None:
        self.where.pop(channel, None)
        self.later.append((time.monotonic() + delay, channel))

    def refused(self, ear: Ear, error: Exception) -> None:
        """Mostly as the slot has moved."""
        channel = ear.expected.popleft() if ear.expected else b""
        account = next(iter(self.accounts.get(channel, ())), None)
        if account is not None:
            moved = self.engine.moved(account, error)
            self.again(channel, 0 if moved is not None and str(error).startswith("MOVED") else AGAIN)

    def confirmed(self, channel: bytes) -> None:
        """What was said before we could hear it is asked for."""
        if channel == self.engine.news:
            self.engine.keeper.visit_all()
        for account in self.accounts.get(channel, ()):
            account.visited = 0
            self.engine.keeper.wake()

    def ended(self, ear: Ear, channel: bytes) -> None:
        """The slot went to another node, if it was not we who wanted it to end."""
        if self.where.get(channel) is ear:
            self.again(channel, 0)
