"""A gate, watched from elsewhere: over STOMP, through lost connections, and never wrong without knowing.

A `Watcher` keeps a `Replica` and hands out what it applied. When the connection is lost it connects again, at growing
intervals, and subscribes with the `message-id` of the last message that it applied: what was missed comes then, or a
key frame. A change that does not fit (which the server promises not to send) ends the connection, and the next one
begins with a key frame.

What it hands out:

    KeyFrame   the whole state; `missed` says whether changes before it were not seen
    Change     one that was applied; in order, without gaps
    Lost       the connection is lost, and why; it will be tried again
    Back       there is a connection again; what was missed follows, if anything was

**What the server's clock says now** is needed for a countdown, and a local clock may be hours off. Every message says a
time that was past when it was sent, so the true difference of the clocks is at least `time` minus the local time at
which it came; the largest of these is the best that is known. A message that was slow only makes a lesser one.

An ERROR in answer to the first SUBSCRIBE is raised (`Refused`): there is no such gate. Any other is a lost connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from headway.errors import HeadwayError
from headway.once import Change, Pending, Replica, Snapshot
from headway.once.stomp.wire import TOPIC, item_of
from headway.service.client import Refused, ServiceUnavailable, checked_url
from headway.stomp import Frame, Parser, StompError, encode
from headway.stomp.heart_beats import MS, HeartBeats, parse_beats

HEART_BEAT: Final = (5000, 5000)
CONNECT_WITHIN: Final = 10.0
LARGEST: Final = 256 * 1024 * 1024
"""Bytes of a key frame that are accepted: a million pending events have about 200 MB."""
FIRST_RETRY: Final = 0.25
LAST_RETRY: Final = 10.0


class KeyFrame(NamedTuple):
    """The state was taken from a key frame."""

    snapshot: Snapshot
    missed: bool


class Lost(NamedTuple):
    """The connection is lost; the next attempt is in `retry_in` seconds."""

    reason: str
    retry_in: float


class Back(NamedTuple):
    """Subscribed again, after a `Lost`."""


Item = KeyFrame | Change | Lost | Back


class _Broken(Exception):
    """This connection cannot go on, and why."""


class Watcher:
    """One gate of a service, for one task."""

    def __init__(self, url: str, gate: str) -> None:
        scheme, host, port, path = checked_url(url)
        shown = f"[{host}]" if ":" in host else host
        self.url = url
        self.gate = gate
        self.mode: str | None = None
        self.duration: float | None = None
        self._address = f"{'wss' if scheme == 'https' else 'ws'}://{shown}:{port}{path}/stomp"
        self._host = host
        self._replica: Replica | None = None
        self._since: str | None = None  # the message-id of what was applied last
        self._ahead: float | None = None  # the server's clock minus ours
        self._retry = FIRST_RETRY
        self._began = self._lost = False

    @property
    def clock(self) -> int:
        return 0 if self._replica is None else self._replica.clock

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What is pending at `clock`, in the order of being due."""
        return () if self._replica is None else self._replica.pending

    def now(self) -> float | None:
        """The server's time, as far as it is known."""
        return None if self._ahead is None else time.monotonic() + self._ahead

    async def watch(self) -> AsyncGenerator[Item, None]:
        """Everything that happens, from now on."""
        while True:
            try:
                async with aclosing(self._connection()) as items:
                    async for item in items:
                        if self._lost:
                            self._lost = False
                            yield Back()
                        if not isinstance(item, Back):
                            self._began, self._retry = True, FIRST_RETRY
                            yield item
            except _Broken as broken:
                reason = str(broken)
            if not self._began:
                raise ServiceUnavailable(self.url, reason)
            pause = self._retry * random.uniform(0.5, 1)
            self._retry = min(self._retry * 2, LAST_RETRY)
            self._lost = True
            yield Lost(reason, pause)
            await asyncio.sleep(pause)

    # -- one connection

    async def _connection(self) -> AsyncGenerator[KeyFrame | Change | Back, None]:
        try:
            # A server on loopback is not reached by way of a proxy, and `submit` uses none either.
            async with connect(
                self._address,
                subprotocols=[Subprotocol("v12.stomp")],
                open_timeout=CONNECT_WITHIN,
                ping_interval=None,
                max_size=LARGEST,
                proxy=None,
            ) as socket:
                stream = _Stream(socket)
                beating = asyncio.create_task(stream.beat())
                try:
                    await stream.handshake(self._host)
                    await stream.send(self._subscribe())
                    self._ahead = None
                    while True:
                        item = self._take(await stream.frame())
                        if item is not None:
                            yield item
                finally:
                    beating.cancel()
                    with suppress(asyncio.CancelledError):
                        await beating
        except (OSError, WebSocketException, StompError) as error:
            raise _Broken(_words(error)) from error

    def _subscribe(self) -> Frame:
        destination = TOPIC + quote(self.gate, safe="")
        since = {} if self._since is None else {"since": self._since}
        return Frame("SUBSCRIBE", {"id": "0", "destination": destination, "receipt": "0", **since})

    def _take(self, frame: Frame) -> KeyFrame | Change | Back | None:
        """Apply a frame; what is to be handed out of it."""
        if frame.command == "ERROR":
            reason = frame.headers.get("message") or frame.body.decode(errors="replace")
            if not self._began:
                raise Refused(0, "stomp", reason)
            raise _Broken(reason)
        if frame.command != "MESSAGE":
            return Back() if frame.command == "RECEIPT" else None
        try:
            body = json.loads(frame.body)
            item = item_of(body)
        except (ValueError, RecursionError) as error:
            raise _Broken(f"a message that cannot be read: {error}") from error
        self._hear_time(item.time)
        before = None if self._replica is None else self._replica.since
        if isinstance(item, Snapshot):
            return self._take_key_frame(item, body, frame, before)
        if self._replica is None or not self._replica.apply(item):
            if self._replica is not None and not self._replica.needs_key_frame:
                return None  # it was delivered twice
            self._since = None
            raise _Broken(f"change {item.clock} does not follow on {self.clock}")
        self._since = frame.headers.get("message-id")
        return item

    def _take_key_frame(
        self, item: Snapshot, body: dict[str, Any], frame: Frame, before: Change | Snapshot | None
    ) -> KeyFrame:
        try:
            terms = float(body["duration"]), str(body["mode"])
            if self._replica is None or terms != (self.duration, self.mode):
                self._replica = Replica(terms[0], terms[1])  # type: ignore[arg-type] # checked there
        except (KeyError, ValueError, HeadwayError) as error:
            raise _Broken(f"a key frame that cannot be read: {error}") from error
        self.duration, self.mode = terms
        self._replica.apply(item)
        self._since = frame.headers.get("message-id")
        missed = before is not None and (before.clock, before.began) != (item.clock, item.began)
        return KeyFrame(item, missed)

    def _hear_time(self, server: float) -> None:
        ahead = server - time.monotonic()
        if self._ahead is None or ahead > self._ahead:
            self._ahead = ahead


class _Stream:
    """Frames over a WebSocket, with heart-beats both ways."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._parser = Parser("1.2", max_body=LARGEST)
        self._beats = HeartBeats(time.monotonic_ns(), HEART_BEAT, int(CONNECT_WITHIN * 1e9))

    async def send(self, frame: Frame) -> None:
        await self._socket.send(encode(frame).decode())
        self._beats.sent(time.monotonic_ns())

    async def handshake(self, host: str) -> None:
        beats = ",".join(map(str, HEART_BEAT))
        await self.send(Frame("CONNECT", {"accept-version": "1.2", "host": host, "heart-beat": beats}))
        frame = await self.frame()
        if frame.command != "CONNECTED":
            raise _Broken(frame.headers.get("message") or f"{frame.command} instead of CONNECTED")
        can, wants = parse_beats(frame.headers.get("heart-beat")) or (0, 0)
        self._beats.agree(can, wants)
        self._beats.begin(time.monotonic_ns())

    async def frame(self) -> Frame:
        """The next one."""
        while True:
            while (frame := self._parser.next()) is not None:
                if isinstance(frame, Frame):
                    return frame
            overdue = self._beats.overdue_at()
            left = None if overdue is None else max(0, overdue - time.monotonic_ns()) / 1e9
            try:
                self._parser.feed(await asyncio.wait_for(self._socket.recv(), left))
            except TimeoutError:
                raise _Broken("the server is silent") from None
            self._beats.heard(time.monotonic_ns())

    async def beat(self) -> None:
        """Send a heart-beat whenever one is due."""
        with suppress(ConnectionClosed):  # `frame` says so
            while True:
                due = self._beats.send_at()
                wait = MS * 1000 if due is None else due - time.monotonic_ns()
                if wait <= 0:
                    await self._socket.send("\n")
                    self._beats.sent(time.monotonic_ns())
                else:
                    await asyncio.sleep(wait / 1e9)


def _words(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        return f"the server answered {error.response.status_code} instead of opening a WebSocket"
    if isinstance(error, ConnectionClosed):
        said = error.rcvd.reason if error.rcvd is not None else ""
        return said or "the connection was closed"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, InvalidHandshake):
        return f"it speaks no WebSocket: {error}"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
