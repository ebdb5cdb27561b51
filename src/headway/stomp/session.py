"""A server's side of one STOMP connection: what a peer may say when, and what it is told.

    session = Session(now)
    for event in session.receive(data, now):     # bytes in
        ...                                      # act on it
        session.done(event)                      # or session.refuse(event, "no such gate")
    for frame in session.take(now):              # bytes out, one item a frame
        ...

The session decides all that the protocol decides; the program decides the rest, and says when it has. `done(event)`
is the answer to the frame behind an event: CONNECTED to a CONNECT, RECEIPT to any other frame that asks for one. A
receipt says that the frame *was processed*, so it is the program that gives it, after a submit and not before.

    state       what comes                                to          answer
    opened      CONNECT or STOMP with a common version    connected   CONNECTED
    connected   SUBSCRIBE, UNSUBSCRIBE, SEND              connected   RECEIPT if asked for
    connected   DISCONNECT                                leaving     RECEIPT if asked for, then closed
    leaving     anything                                  leaving     none: it is not read
    any         anything else, garbage, silence           closed      ERROR, then closed

**No exception comes out of it for what a peer does.** A fault of the peer is an ERROR frame that says what was wrong, a
`Closed` event, and the end: after an ERROR the protocol has no way to go on. What comes later is dropped unread. The
program writes what is left in `take`, and closes the connection when `closed` is true.

**What is not served** is refused with its name: transactions (BEGIN, COMMIT, ABORT), acknowledgement (ACK, NACK, and
`ack` other than `auto`). A subscriber that needs to know that it missed nothing has the clock values of a gate.

**Bounds.** A frame has bounds (see `codec`), and so has the number of subscriptions. Frames that wait in `take` are
for the program to count (`unsent` in bytes, and `frames`, the number of all so far): a peer that does not read is
closed by the program, which knows its queue.

**Time** is an argument, in nanoseconds of any clock. `next_look` says when `tick` has something to do: a heart-beat to
send, or a peer that is overdue (see `heart_beats`).

`host` is not needed, though 1.1 and 1.2 ask for it: the usual client for browsers does not send one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple

from headway.errors import InvalidArgument
from headway.stomp.codec import (
    MAX_BODY,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    VERSIONS,
    Frame,
    Parser,
    StompError,
    encode,
    shown,
)
from headway.stomp.events import Closed, Connect, Disconnect, Event, Send, Subscribe, Unsubscribe
from headway.stomp.heart_beats import LONGEST, MS, HeartBeats, parse_beats


class State(Enum):
    OPENED = "opened"
    CONNECTED = "connected"
    LEAVING = "leaving"
    CLOSED = "closed"


TRANSITIONS: Final = {
    (State.OPENED, "CONNECT"): State.CONNECTED,
    (State.OPENED, "STOMP"): State.CONNECTED,
    (State.CONNECTED, "SUBSCRIBE"): State.CONNECTED,
    (State.CONNECTED, "UNSUBSCRIBE"): State.CONNECTED,
    (State.CONNECTED, "SEND"): State.CONNECTED,
    (State.CONNECTED, "DISCONNECT"): State.LEAVING,
}
"""The table above: what is not in it closes the connection."""

READING: Final = frozenset(state for state, _ in TRANSITIONS)

NOT_SERVED: Final = {
    "BEGIN": "transactions are not served",
    "COMMIT": "transactions are not served",
    "ABORT": "transactions are not served",
    "ACK": "messages are not acknowledged here: subscribe with ack 'auto'",
    "NACK": "messages are not acknowledged here: subscribe with ack 'auto'",
}
OF_A_SERVER: Final = frozenset({"CONNECTED", "MESSAGE", "RECEIPT", "ERROR"})


class _Subscription(NamedTuple):
    destination: str
    named: bool  # in 1.0 a subscription needs no id, and its messages then have none


class _Refused(Exception):
    """What a frame asks for is refused; headers that the ERROR frame has besides."""

    def __init__(self, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.headers = headers


# -- the session -----------------------------------------------------------------------------------------


class Session:
    r"""One connection. `now` is in nanoseconds, as everywhere here; `heart_beat` is what this side can send and wants.

    >>> session = Session(now=0)
    >>> (connect,) = session.receive(b"CONNECT\naccept-version:1.2\nhost:a\n\n\0", now=0)
    >>> session.done(connect)
    >>> session.take(now=0)
    [b'CONNECTED\nversion:1.2\nheart-beat:10000,10000\nserver:headway\n\n\x00']
    >>> session.receive(b"GARBAGE\n\n\0", now=1)
    [Closed(reason="unknown command 'GARBAGE'")]
    >>> session.closed
    True
    """

    def __init__(
        self,
        now: int,
        *,
        hosts: Collection[str] | None = None,
        heart_beat: tuple[int, int] = (10_000, 10_000),
        connect_within: int = 10_000_000_000,
        server: str = "headway",
        session: str | None = None,
        max_subscriptions: int = 100,
        max_headers: int = MAX_HEADERS,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_body: int = MAX_BODY,
    ) -> None:
        if not all(0 <= ms <= LONGEST for ms in heart_beat):
            raise InvalidArgument("heart_beat", heart_beat, f"two numbers of ms, from 0 to {LONGEST}")
        self.state = State.OPENED
        self.reason: str | None = None
        self._parser = Parser("1.2", max_headers, max_header_bytes, max_body)
        self._version: str | None = None
        self._hosts = hosts
        self._about = {"server": server} | ({} if session is None else {"session": session})
        self._max_subscriptions = max_subscriptions
        self._subscriptions: dict[str, _Subscription] = {}
        self._begins: dict[str, bytes] = {}  # of their messages, as far as they are known
        self._messages = 0
        self._out: list[bytes] = []
        self._unsent = 0
        self.frames = 0
        self._beats = HeartBeats(now, heart_beat, connect_within)
        self._welcomed = False

    @property
    def closed(self) -> bool:
        """Whether to close the connection, once `take` is written."""
        return self.state is State.CLOSED

    @property
    def version(self) -> str | None:
        """What was agreed upon; None before that."""
        return self._version

    @property
    def buffered(self) -> int:
        """Bytes of a frame that is not complete."""
        return self._parser.buffered

    @property
    def unsent(self) -> int:
        """Bytes that wait in `take`."""
        return self._unsent

    @property
    def subscriptions(self) -> dict[str, str]:
        """Destinations by the ids of subscriptions."""
        return {id: one.destination for id, one in self._subscriptions.items()}

    # -- in and out

    def receive(self, data: bytes | str, now: int) -> list[Event]:
        """Bytes came, cut anywhere, or a WebSocket message. What they mean, in order."""
        events: list[Event] = []
        self._beats.heard(now)
        if self.state not in READING:
            return events
        try:
            self._parser.feed(data)
            while self.state in READING:
                found = self._parser.next()
                if found is None:
                    break
                if isinstance(found, Frame):
                    events.append(self._on_frame(found))
        except StompError as error:
            events.append(self._fail(str(error)))
        if self.state is State.LEAVING:
            # What came behind the DISCONNECT is not read, nor kept until the program has answered it.
            self._parser = Parser("1.2")
        return events

    def take(self, now: int) -> list[bytes]:
        """What is to be written now, one item for each frame or heart-beat."""
        out, self._out, self._unsent = self._out, [], 0
        if out:
            self._beats.sent(now)
        if self._welcomed:
            self._beats.begin(now)
        return out

    # -- answers of the program

    def done(self, event: Event, headers: Mapping[str, str] | None = None) -> None:
        """What the frame asked for was done: CONNECTED, or its receipt, which may have headers of the program."""
        if self.closed or isinstance(event, Closed):
            return
        if isinstance(event, Connect):
            beats = {} if event.version == "1.0" else {"heart-beat": "{},{}".format(*self._beats.offer)}
            self._write(Frame("CONNECTED", {"version": event.version} | beats | self._about))
            self._welcomed = True
            return
        if event.receipt is not None:
            self._write(Frame("RECEIPT", {"receipt-id": event.receipt, **(headers or {})}))
        if isinstance(event, Disconnect) and not self.closed:
            self._end("the peer has disconnected")

    def refuse(self, event: Event, reason: str) -> None:
        """What the frame asked for is refused: an ERROR that closes."""
        receipt = None if isinstance(event, Closed) else event.receipt
        if not self.closed:
            self._fail(reason, receipt)

    def close(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """End it from this side: an ERROR that says why, and may have headers of the program."""
        if not self.closed:
            self._fail(reason, more=headers)

    def message(
        self,
        subscription: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> bool:
        """Send a MESSAGE to a subscription; whether it still is one. Without an id the messages are numbered."""
        known = self._subscriptions.get(subscription)
        if known is None or self.state is not State.CONNECTED:
            return False
        self._messages += 1
        own = self._own_headers(subscription, known) | {"message-id": message_id or str(self._messages)}
        # The headers of the protocol come first: of equal names the first counts.
        others = {name: value for name, value in (headers or {}).items() if name not in own}
        self._write(Frame("MESSAGE", own | others, body))
        return not self.closed

    def message_part(self, subscription: str, rest: bytes) -> bool:
        """The same, where `rest` is made once for many (see `rest_of_message`)."""
        known = self._subscriptions.get(subscription)
        if known is None or self.state is not State.CONNECTED:
            return False
        begin = self._begins.get(subscription)
        if begin is None:
            frame = encode(Frame("MESSAGE", self._own_headers(subscription, known)), self._version or "1.2")
            begin = self._begins[subscription] = frame[:-2]  # without the blank line and the NUL
        self._messages += 1
        self._put(begin + rest)
        return True

    def _own_headers(self, id: str, known: _Subscription) -> dict[str, str]:
        return ({"subscription": id} if known.named else {}) | {"destination": known.destination}

    # -- time

    def next_look(self) -> int | None:
        """When `tick` has something to do, if nothing happens before; None: never."""
        times = [time for time in (self.beat_at(), self.overdue_at()) if time is not None]
        return min(times, default=None)

    def beat_at(self) -> int | None:
        """When a heart-beat is to be sent, if nothing else is before; None: never."""
        return None if self.closed else self._beats.send_at()

    def overdue_at(self) -> int | None:
        """When the peer is taken for lost, if it sends nothing before; None: never."""
        return self._beats.overdue_at() if self.state in READING else None

    def tick(self, now: int) -> list[Event]:
        """Time has passed: send a heart-beat if it is due, close if the peer is overdue."""
        overdue, beat = self.overdue_at(), self.beat_at()
        if overdue is not None and now >= overdue:
            what = "no CONNECT" if self.state is State.OPENED else "no heart-beat"
            return [self._fail(f"{what} within {self._beats.patience // MS} ms")]
        if beat is not None and now >= beat and not self._out:
            self._put(b"\n")
        return []

    # -- frames

    def _on_frame(self, frame: Frame) -> Event:
        receipt = frame.headers.get("receipt")
        try:
            state = self._next_state(frame)
            event = _HANDLERS[frame.command](self, frame, receipt)
        except _Refused as refused:
            return self._fail(str(refused), receipt, refused.headers)
        self.state = state
        return event

    def _next_state(self, frame: Frame) -> State:
        command = frame.command
        state = TRANSITIONS.get((self.state, command))
        if state is None:
            if command in NOT_SERVED:
                raise _Refused(f"{command} is refused: {NOT_SERVED[command]}")
            if command in OF_A_SERVER:
                raise _Refused(f"{command} is a frame of a server, not of a client")
            if not any(known == command for _, known in TRANSITIONS):
                raise _Refused(f"unknown command {shown(command)}")
            if self.state is State.OPENED:
                raise _Refused(f"{command} came before CONNECT")
            raise _Refused(f"{command} came on a connection that has one already")
        if frame.body and command != "SEND":
            raise _Refused(f"{command} has no body")
        return state

    def _on_connect(self, frame: Frame, _: str | None) -> Event:
        headers = frame.headers
        version = "1.0"
        if "accept-version" in headers:
            asked = {one.strip() for one in headers["accept-version"].split(",")}
            common = [one for one in VERSIONS if one in asked]
            if not common:
                known = ",".join(VERSIONS)
                raise _Refused(f"no common version; this server has {known.replace(',', ' ')}", version=known)
            version = common[-1]
        host = headers.get("host")
        if self._hosts is not None and host is not None and host not in self._hosts:
            raise _Refused(f"unknown host {shown(host)}")
        beats = parse_beats(None if version == "1.0" else headers.get("heart-beat"))
        if beats is None:
            raise _Refused(f"heart-beat is not two numbers of milliseconds: {shown(headers['heart-beat'])}")
        self._beats.agree(*beats)
        self._version = self._parser.version = version
        # A CONNECT has no receipt: CONNECTED is the answer to it.
        return Connect(version, host, headers)

    def _on_subscribe(self, frame: Frame, receipt: str | None) -> Event:
        destination, ack = _needed(frame, "destination"), frame.headers.get("ack", "auto")
        id = self._subscription_id(frame)
        if ack != "auto":
            raise _Refused(f"ack {shown(ack)} is refused: only 'auto' is served")
        if id in self._subscriptions:
            raise _Refused(f"there is a subscription {shown(id)} already")
        if len(self._subscriptions) >= self._max_subscriptions:
            raise _Refused(f"a connection has at most {self._max_subscriptions} subscriptions")
        self._subscriptions[id] = _Subscription(destination, "id" in frame.headers)
        return Subscribe(id, destination, frame.headers, receipt)

    def _on_unsubscribe(self, frame: Frame, receipt: str | None) -> Event:
        id = self._subscription_id(frame)
        known = self._subscriptions.pop(id, None)
        self._begins.pop(id, None)
        if known is None:
            raise _Refused(f"there is no subscription {shown(id)}")
        return Unsubscribe(id, known.destination, frame.headers, receipt)

    def _subscription_id(self, frame: Frame) -> str:
        """In 1.0 a subscription may go by its destination."""
        if self._version == "1.0" and "id" not in frame.headers:
            return _needed(frame, "destination")
        return _needed(frame, "id")

    def _on_send(self, frame: Frame, receipt: str | None) -> Event:
        if "transaction" in frame.headers:
            raise _Refused("SEND in a transaction is refused: transactions are not served")
        return Send(_needed(frame, "destination"), frame.body, frame.headers, receipt)

    def _on_disconnect(self, frame: Frame, receipt: str | None) -> Event:
        return Disconnect(frame.headers, receipt)

    # -- the end

    def _write(self, frame: Frame) -> None:
        try:
            self._put(encode(frame, self._version or "1.2"))
        except StompError as error:
            self._fail(str(error))

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._unsent += len(data)
        self.frames += 1

    def _fail(self, reason: str, receipt: str | None = None, more: Mapping[str, str] | None = None) -> Closed:
        headers = {"message": reason, "content-type": "text/plain"} | dict(more or {})
        version = self._version
        if version is None or not self._welcomed:
            # The peer knows of no version yet: say nothing that is escaped in one version and not in another.
            version = "1.0"
            headers["message"] = reason.replace("\\", "/").replace(":", ",")
        elif receipt is not None:
            headers["receipt-id"] = receipt
        headers["message"] = " ".join(
            "".join(c if c.isprintable() else " " for c in headers["message"]).split()
        )
        self._put(encode(Frame("ERROR", headers, reason.encode(errors="replace")), version))
        return self._end(reason)

    def _end(self, reason: str) -> Closed:
        self.state = State.CLOSED
        self.reason = reason
        self._subscriptions.clear()
        self._begins.clear()
        # What is not a frame yet never will be one.
        self._parser = Parser("1.2")
        return Closed(reason)


_HANDLERS: Final[dict[str, Callable[[Session, Frame, str | None], Event]]] = {
    "CONNECT": Session._on_connect,
    "STOMP": Session._on_connect,
    "SUBSCRIBE": Session._on_subscribe,
    "UNSUBSCRIBE": Session._on_unsubscribe,
    "SEND": Session._on_send,
    "DISCONNECT": Session._on_disconnect,
}


def rest_of_message(version: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A MESSAGE from its `message-id` on: what is the same for all subscriptions of a version.

    >>> rest_of_message("1.2", {"message-id": "1", "kind": "a:b"}, b"hello")
    b'message-id:1\\nkind:a\\\\cb\\ncontent-length:5\\n\\nhello\\x00'
    """
    return encode(Frame("MESSAGE", headers, body), version).removeprefix(b"MESSAGE\n")


def _needed(frame: Frame, name: str) -> str:
    value = frame.headers.get(name)
    if value is None:
        raise _Refused(f"{frame.command} needs the header {name!r}")
    return value
