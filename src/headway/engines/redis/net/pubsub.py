"""Listening: the channels on which a process is told that somebody's turn has come.

On one server that is one subscription for the whole process: `<namespace>:wake:<process>`, and `<namespace>:news` for
what concerns everybody (pauses, losses). A cluster has more of them, see `shards.py`.

An `Ear` is one connection that listens, and `Subscription` has one. It is used by one thread, the listener of
`keeper.py`; only `follow` comes from others. An ear that hears nothing for a while asks whether anybody is there: a
server that was stopped does not end its connections. Then nobody else should wait for it either, so all connections to
it are given up.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

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


class Rejected(ConnectionError):
    """The server is there and answers, but will not have this subscription."""


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
        except Rejected:
            raise
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
        raise Rejected(f"the subscription was refused: {error}")

    def confirmed(self, channel: bytes) -> None: ...

    def ended(self, ear: Ear, channel: bytes) -> None: ...
