"""Listening: the channels on which a process is told that somebody's turn has come.

On one server that is one subscription for the whole process: `<namespace>:wake:<process>`, and `<namespace>:news` for
what concerns everybody (pauses, losses). In a cluster a message that is published is carried to every node, which
would make the cluster slower the larger it is; so there a call goes to a *sharded* channel, `<root>:wake:<process>`,
that lives in the slot of its ledger. The process listens to it on that slot's node while somebody stands in that
ledger's queue.

An `Ear` is one connection that listens; `Subscription` has one, `ShardedSubscription` one for each node. Both are
used by one thread, the listener of `keeper.py`; only `follow` comes from others. An ear that hears nothing for a
while asks whether anybody is there: a server that was stopped does not end its connections.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from headway.engines.redis.place import Unreachable
from headway.engines.redis.wires import TROUBLE, new_reader
from headway.engines.redis.words import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.engines.redis.account import Account
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.place import Place

Message = dict[str, Any]

QUIET = 1.0
"""Seconds of silence after which one asks whether anybody is there."""
PATIENCE = 2.0
"""Seconds that the answer may take."""
AGAIN = 0.2
"""Seconds until a node that could not be reached is tried again."""
LINGER = 5.0
"""Seconds for which a channel is kept after nobody waits on it any more: mostly somebody will again."""


class Ear:
    """A connection that listens."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.connection = place.connect()
        self.socket: socket.socket = self.connection._sock
        self.timeout = place.engine.timeout
        self.reader = new_reader()
        self.heard = self.asked = time.monotonic()
        # Channels that were asked for and not yet confirmed, in order.
        self.expected: deque[bytes] = deque()
        self.socket.settimeout(0)

    def fileno(self) -> int:
        return self.socket.fileno()

    def say(self, *parts: bytes) -> None:
        self.socket.settimeout(max(self.timeout, 0.05))
        try:
            self.socket.sendall(command(*parts))
        finally:
            self.socket.settimeout(0)

    def hear(self) -> Iterator[Any]:
        """What has come; raises when the connection has ended."""
        while True:
            try:
                data = self.socket.recv(65536)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # A TLS socket has its own way to say that nothing is there.
                if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                    return
                raise
            if not data:
                raise ConnectionError("the server closed the subscription")
            self.heard = time.monotonic()
            self.reader.feed(data)
            while (answer := self.reader.gets()) is not False:
                yield answer

    def check(self, now: float) -> None:
        """Make sure that silence is not the silence of the dead."""
        if now - self.heard < QUIET:
            return
        if self.asked > self.heard:
            if now - self.asked > PATIENCE:
                raise ConnectionError("the subscription is silent")
        else:
            self.asked = now
            self.say(b"PING")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.disconnect()


class Subscription:
    """The channels of this process on one server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.messages: deque[Message] = deque()
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> Subscription:
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, Ear):
                key.data.close()
        self.selector.close()

    def begin(self) -> None:
        """Listen; returns when the server has confirmed it."""
        engine = self.engine
        self.ear = self.open_ear(engine.places()[0], engine.wake, engine.news)
        end = time.monotonic() + max(engine.timeout, 0.05)
        while self.ear.expected:
            if time.monotonic() > end:
                raise TimeoutError("the subscription was not confirmed in time")
            self.wait(0.05)

    def open_ear(self, place: Place, *channels: bytes) -> Ear:
        ear = Ear(place)
        try:
            if channels:
                ear.expected.extend(channels)
                ear.say(b"SUBSCRIBE", *channels)
        except BaseException:
            ear.close()
            raise
        self.selector.register(ear, selectors.EVENT_READ, ear)
        return ear

    def follow(self, account: Account) -> None:
        """Listen for calls to those who stand in this ledger's queue: one channel serves all."""

    def get_message(self, ignore_subscribe_messages: bool = True, timeout: float = 1.0) -> Message | None:  # noqa: ARG002
        """The next message, or None if there is none in time."""
        end = time.monotonic() + timeout
        while not self.messages and (left := end - time.monotonic()) > 0:
            self.wait(left)
        return self.messages.popleft() if self.messages else None

    def wait(self, seconds: float) -> None:
        """Take in what comes, for as long as nothing does."""
        try:
            if not self.selector.select(min(seconds, QUIET)):
                self.ear.check(time.monotonic())
            else:
                self.listen_to(self.ear)
        except TROUBLE as error:
            # Those who ask would find out too, one after the other, and each after a time-out.
            self.ear.place.renounce(error)
            raise

    def listen_to(self, ear: Ear) -> None:
        for answer in ear.hear():
            if isinstance(answer, Exception):
                self.refused(ear, answer)
            elif answer[0] in (b"message", b"smessage"):
                self.messages.append({"channel": answer[1], "data": answer[2]})
            elif answer[0] in (b"subscribe", b"ssubscribe"):
                if ear.expected:
                    ear.expected.popleft()
                self.confirmed(answer[1])
            elif answer[0] == b"sunsubscribe":
                self.ended(ear, answer[1])

    def refused(self, ear: Ear, error: Exception) -> None:  # noqa: ARG002
        raise ConnectionError(f"the subscription was refused: {error}")

    def confirmed(self, channel: bytes) -> None: ...

    def ended(self, ear: Ear, channel: bytes) -> None: ...


class ShardedSubscription(Subscription):
    """The channels of this process in a cluster: one for each ledger in whose queue somebody stands."""

    def __init__(self, engine: Engine) -> None:
        Subscription.__init__(self, engine)
        self.ears: dict[Place, Ear] = {}
        self.followed: dict[Account, bytes] = {}
        self.accounts: dict[bytes, Account] = {}
        # Where each channel is listened to, and since when nobody needs it.
        self.where: dict[bytes, Ear] = {}
        self.unused: dict[bytes, float] = {}
        self.wanted: deque[Account] = deque()
        self.later: list[tuple[float, Account]] = []
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
            self.followed[account] = channel = account.keys[0] + b":wake:" + self.engine.process
            self.accounts[channel] = account
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
        due = [account for at, account in self.later if at <= now]
        self.later = [(at, account) for at, account in self.later if at > now]
        while self.wanted:
            due.append(self.wanted.popleft())
        for account in due:
            self.subscribe(account, now)
        if now >= self.next_round:
            self.next_round = now + QUIET
            self.listen_for_news()
            self.forget_unused(now)
            for ear in list(self.ears.values()):
                try:
                    ear.check(now)
                except TROUBLE as error:
                    self.lost(ear, error)

    def subscribe(self, account: Account, now: float) -> None:
        channel = self.followed.get(account)
        if channel is None or channel in self.where:
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
                self.later.append((now + AGAIN, account))

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
        for account, channel in list(self.followed.items()):
            if account.standing:
                self.unused.pop(channel, None)
            elif now - self.unused.setdefault(channel, now) > LINGER:
                # Whoever begins to stand now either sees that it is not followed any more, or is seen here.
                del self.followed[account]
                if account.standing:
                    self.followed[account] = channel
                    continue
                del self.unused[channel]
                self.accounts.pop(channel, None)
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
        account = self.accounts.get(channel)
        if account is not None:
            self.later.append((time.monotonic() + delay, account))

    def refused(self, ear: Ear, error: Exception) -> None:
        channel = ear.expected.popleft() if ear.expected else b""
        account = self.accounts.get(channel)
        if account is not None:
            moved = self.engine.moved(account, error)
            self.again(channel, 0 if moved is not None and str(error).startswith("MOVED") else AGAIN)

    def confirmed(self, channel: bytes) -> None:
        """What was said before we could hear it is asked for."""
        account = self.accounts.get(channel)
        if account is not None:
            account.visited = 0
            self.engine.keeper.wake()

    def ended(self, ear: Ear, channel: bytes) -> None:
        """The slot went to another node, if it was not we who wanted it to end."""
        if self.where.get(channel) is ear:
            self.again(channel, 0)
