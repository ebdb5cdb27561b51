"""One peer on a WebSocket: its frames are acted upon, and what waits for it is bounded.

Two tasks serve it. The *reader* feeds what comes to the session and acts on it, one frame after another, so that
receipts come in the order of what they are for. The *writer* sends what the session and the feeds have for it, and
lets time act between: heart-beats, and a peer that is overdue.

**A peer that reads too slowly.** A server that lets the app wait in `send` while its own buffer is full (as uvicorn
does) keeps little; what waits here is counted: bytes in the session, and bytes that were taken from it and are not
handed to the server yet.

    what waits is above              what happens
    half of `max_unsent`             catching up waits, and so does the reader; key frames at intervals are left out
    `max_unsent`, and a change       the connection is dropped: all that waits is discarded, and an ERROR says with
      comes                          which `since` to resume
    0, and `send` does not return    the connection is dropped after `send_within` seconds
    `close_within` after the end     the app returns without having sent the ERROR: the peer reads nothing at all

So a connection keeps at most `max_unsent` and one message, and no task for longer than these times. Others do not wait
for it: a feed only appends to what waits. What the server itself keeps is out of an app's reach: after the app has
returned, uvicorn (0.54) closes a connection only when its own buffer (64 KiB and a frame) is written, so a peer that
never reads keeps its socket until it goes away.

While this side does not listen (it waits for an engine, or for room) the peer is not taken for lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from headway.errors import EngineUnavailable, HeadwayError
from headway.once.stomp.feed import Subscriber
from headway.once.stomp.wire import (
    SUBMIT,
    TOPIC,
    BadRequest,
    Message,
    gate_name,
    parse_since,
    parse_submit,
    receipt_headers,
    short,
)
from headway.stomp import Closed, Disconnect, Event, Send, Session, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from headway.once.stomp.app import StompApp

log = logging.getLogger("headway")

ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
SendMessage = Callable[[ASGIMessage], Awaitable[None]]

NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
TOO_SLOW: Final = 1008
LONGEST_CLOSE: Final = 123
"""Bytes of the reason in a WebSocket's close frame."""


class Connection:
    """One WebSocket, from its acceptance to its end. A `feed.Peer`."""

    def __init__(self, app: StompApp, receive: Receive, send: SendMessage) -> None:
        self._app = app
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._session = Session(self._now(), heart_beat=app.heart_beat, connect_within=app.connect_ns)
        self._subscribers: dict[str, Subscriber] = {}
        self._sent_of: dict[str, _SentMessages] = {}
        self._queue: deque[bytes] = deque()
        self._in_flight = 0  # bytes in the queue, and of the frame that is being sent
        self._sent = 0  # frames
        self._awake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._listening = False
        self._gone = False
        self._code = PROTOCOL_ERROR
        self._writer: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending_since: float | None = None

    def _now(self) -> int:
        return int(self._loop.time() * 1e9)

    @property
    def unsent(self) -> int:
        """Bytes that wait for this peer."""
        return self._session.unsent + self._in_flight

    # -- from the beginning to the end

    async def serve(self) -> None:
        reader = asyncio.create_task(self._guarded(self._read))
        writer = self._writer = asyncio.create_task(self._guarded(self._write))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if not self._gone:
                await asyncio.wait({writer})  # it has something to say, and a time to say it
        finally:
            for subscriber in self._subscribers.values():
                subscriber.end()
            self._subscribers.clear()
            for timer in filter(None, (self._end, self._timer)):
                timer.cancel()
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _guarded(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except OSError:
            self._gone = True  # so a server says that the peer is gone
        except Exception:
            log.exception("a STOMP connection is ended")
            self.fail("an error of the server, which is in its log")

    # -- in

    async def _read(self) -> None:
        session = self._session
        while not session.closed:
            self._listening = True
            message = await self._receive()
            self._listening = False
            if message["type"] == "websocket.disconnect":
                self._gone = True
                return
            data = message.get("text")
            for event in session.receive(message.get("bytes") or b"" if data is None else data, self._now()):
                await self.room()
                await self._act(event)
                self._wake()
                await asyncio.sleep(0)  # a peer that sends very many frames at once does not stop all others
            session.receive(b"", self._now())  # what it took this side to act is not the peer's silence
            self._wake()

    async def _act(self, event: Event) -> None:
        session = self._session
        if session.closed or isinstance(event, Closed):
            return
        try:
            headers = None
            if isinstance(event, Subscribe):
                await self._subscribe(event)
            elif isinstance(event, Unsubscribe):
                self._unsubscribe(event.id)
            elif isinstance(event, Send):
                headers = await self._submit(event)
            elif isinstance(event, Disconnect):
                self._code = NORMAL
            session.done(event, headers)
        except BadRequest as error:
            session.refuse(event, short(str(error)))

    async def _subscribe(self, event: Subscribe) -> None:
        gates = self._app.gates
        gate = self._app.gate(gate_name(event.destination, TOPIC, gates))
        since = event.headers.get("since")
        place = None if since is None else parse_since(since)
        self._sent_of[event.id] = _SentMessages(since)
        subscriber = self._subscribers[event.id] = Subscriber(self, event.id, self._app.feed(*gate), place)
        if place is None:
            # A SEND that comes next is a change after the key frame, and not in it.
            await subscriber.begun.wait()

    def _unsubscribe(self, id: str) -> None:
        subscriber = self._subscribers.pop(id, None)
        self._sent_of.pop(id, None)
        if subscriber is not None:
            subscriber.end()

    async def _submit(self, event: Send) -> dict[str, str]:
        _, gate = self._app.gate(gate_name(event.destination, SUBMIT, self._app.gates))
        text, id, value = parse_submit(event.body)
        try:
            return receipt_headers(await gate.submit_async(text, id, value))
        except EngineUnavailable as error:
            again = "" if id is None else ": send it again with the same id"
            # Where the engine is, is not for peers: the log has it.
            raise BadRequest(f"the engine does not answer; it may have been counted{again}") from error
        except HeadwayError as error:
            raise BadRequest(f"{error}; nothing has changed") from error

    # -- out: what a feed calls

    def push(self, subscriber: Subscriber, message: Message) -> bool:
        session, sent = self._session, self._sent_of.get(subscriber.id)
        if session.closed or sent is None:
            return False
        if self.unsent > self._app.max_unsent:
            self._drop(subscriber.id, sent)
            return False
        going_on = session.message_part(subscriber.id, message.rest(session.version or "1.2"))
        sent.queued(session.frames, message.id, self._sent)
        self._wake()
        return going_on

    def has_room(self, message: Message) -> bool:
        return self.unsent <= self._app.max_unsent // 2 and len(message.body) <= self._app.max_unsent

    async def room(self) -> None:
        while self.unsent > self._app.max_unsent // 2 and not self._session.closed:
            self._has_room.clear()
            await self._has_room.wait()

    def fail(self, reason: str) -> None:
        """An ERROR, after what waits."""
        self._session.close(reason)
        self._wake()

    def _drop(self, id: str, sent: _SentMessages) -> None:
        """It is too slow: discard what waits, and say with what to resume."""
        sending, waiting = self._in_flight - sum(map(len, self._queue)), self.unsent
        # The frame that is being sent comes before the ERROR, if that one ever comes.
        since = sent.last(self._sent + (sending > 0))
        self._queue.clear()
        self._session.take(self._now())
        self._in_flight = sending
        self._code = TOO_SLOW
        how = "subscribe again" if since is None else f"subscribe again with since:{since}"
        headers = {"subscription": id} | ({} if since is None else {"since": since})
        self._session.close(
            f"too slow: {waiting} bytes wait, and {self._app.max_unsent} may; {how}",
            headers,
        )
        self._wake()

    # -- out: the writer

    async def _write(self) -> None:
        session, queue = self._session, self._queue
        while True:
            if not queue:
                # In one turn, so that nothing is counted twice or not at all.
                waiting = session.unsent
                queue.extend(session.take(self._now()))
                self._in_flight += waiting
            if queue:
                await self._send_frame(queue.popleft())
            elif session.closed:
                break
            else:
                self._schedule()
                self._awake.clear()
                await self._awake.wait()
        reason = (session.reason or "").encode()[:LONGEST_CLOSE].decode(errors="ignore")
        await self._send({"type": "websocket.close", "code": self._code, "reason": reason})

    async def _send_frame(self, frame: bytes) -> None:
        self._sending_since = self._loop.time()
        await self._send({"type": "websocket.send", "text": frame.decode()})
        self._sending_since = None
        self._in_flight -= len(frame)
        self._sent += 1
        self._has_room.set()

    # -- time: one timer, which is set anew when it fires and not with every frame

    def _schedule(self) -> None:
        """Look again when time has something to do."""
        session, sending = self._session, self._sending_since
        # While something is being sent, no heart-beat is needed; one that is due would be so all the time.
        look = session.next_look() if sending is None and not session.unsent else session.overdue_at()
        at = (self._loop.time() if sending is None else sending) + self._app.send_within
        if look is not None:
            at = min(at, look / 1e9)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        session, now, since = self._session, self._now(), self._sending_since
        if since is not None and now / 1e9 - since >= self._app.send_within:
            self._give_up()  # it reads nothing
            return
        overdue = session.overdue_at()
        if not self._listening and overdue is not None and now >= overdue:
            session.receive(b"", now)  # it may have said something that was not read yet
        session.tick(now)
        if session.unsent:
            self._wake()
        self._schedule()

    def _wake(self) -> None:
        """There is something to send. After the end, there is not for ever time to send it."""
        self._awake.set()
        if self._session.closed and self._end is None:
            self._has_room.set()
            self._end = self._loop.call_later(self._app.close_within, self._give_up)

    def _give_up(self) -> None:
        self._gone = True
        if self._writer is not None:
            self._writer.cancel()


class _SentMessages:
    """Of one subscription: which message was handed to the server last."""

    def __init__(self, since: str | None) -> None:
        self._last = since
        self._queued: deque[tuple[int, str]] = deque()

    def queued(self, number: int, id: str, sent: int) -> None:
        """This message is frame `number` of its connection, of which `sent` were handed over."""
        self.last(sent)
        self._queued.append((number, id))

    def last(self, sent: int) -> str | None:
        while self._queued and self._queued[0][0] <= sent:
            self._last = self._queued.popleft()[1]
        return self._last
