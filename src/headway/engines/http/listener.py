"""Hears what a service tells a session: one answer that does not end, read by a thread of its own.

Messages are numbered. A connection that breaks is made again, and says which number was heard last, so that none is
lost and none is heard twice. A line without a message comes every few seconds: where none does, the connection is dead.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from headway.engines.http.bell import Bell
from headway.engines.http.http11 import CONNECTION_ERRORS, Connection
from headway.engines.wire import EVENTS_PATH

if TYPE_CHECKING:
    from headway.engines.http.channel import Channel

SILENCE = 20.0
"""Seconds without a line after which a connection is dead; a server sends one every 5."""
SHORTEST, LONGEST = 0.02, 1.0
"""Seconds between two attempts to connect."""


class Listener:
    """The thread that listens for one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._bell = Bell()
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        # Of which session, and the last message that was heard of it.
        self._number = 0
        self._heard = 0

    def heard_in(self, number: int) -> int:
        """The last message of this session that was heard."""
        return self._heard if number == self._number else 0

    def start(self) -> None:
        """Listen from now on; called when something may be told."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headway http listener", daemon=True)
            self._thread.start()

    def again(self) -> None:
        """There is another session, or the channel is closed."""
        connection = self._connection
        if connection is not None:
            connection.close()
        self._bell.ring()

    def known(self) -> None:
        """The server has heard of the session, and can be listened to."""
        self._bell.ring()

    def forget(self) -> None:
        """In a forked child."""
        if self._connection is not None:
            self._connection.forget()

    def join(self, seconds: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        channel, pause = self._channel, SHORTEST
        while not channel.stopped:
            if channel.fresh:
                # The server does not know the session yet: the first batch tells it.
                self._bell.wait(LONGEST)
                continue
            try:
                for line in self._lines():
                    pause = SHORTEST
                    if line:
                        self._hear(json.loads(line))
            except (*CONNECTION_ERRORS, ValueError) as error:
                channel.log_loss(error)
            finally:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
            # The sender finds out whether the server is there, and whether it knows the session.
            channel.probe()
            self._bell.wait(pause)
            pause = min(2 * pause, LONGEST)

    def _lines(self) -> Any:
        channel = self._channel
        if self._number != channel.number:
            self._number, self._heard = channel.number, 0
        path = f"{EVENTS_PATH}?session={channel.session}&after={self._heard}"
        self._connection = Connection(channel.address, channel.host, channel.timeout)
        if channel.stopped:
            return
        left = b""
        for chunk in self._connection.stream(path, SILENCE):
            *lines, left = (left + chunk).split(b"\n")
            yield from lines

    def _hear(self, message: list[Any]) -> None:
        number, *rest = message
        if number > self._heard and self._number == self._channel.number:
            self._channel.hear(rest)
            self._heard = number
