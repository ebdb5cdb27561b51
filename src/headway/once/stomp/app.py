r"""`stomp_app`: gates over STOMP 1.0, 1.1 and 1.2 on WebSocket, as an ASGI app.

    from headway import Once
    from headway.once import stomp_app

    gates = {"orders": Once("5min", name="orders", engine="redis://cache")}
    app = stomp_app(gates)                      # uvicorn module:app
    starlette_app.mount("/stomp", stomp_app(gates))    # or inside another one

A WebSocket on any path is served, with the subprotocol `v12.stomp`, `v11.stomp`, `v10.stomp` or none. Which version is
spoken is agreed upon by CONNECT and CONNECTED alone. Frames go out as text messages, one frame each; they may come in
as text or binary messages, cut anywhere.

**Destinations.** A gate's name is percent-encoded in them, as in a URL.

    SUBSCRIBE  /topic/gates/{gate}      key frames and changes of a gate, from now on or from `since` on
    SEND       /app/gates/{gate}        an event comes: a submit

**MESSAGE.** Headers besides those of STOMP, and a body in JSON:

    kind           SUBMITTED, INVALIDATED or PUBLISHED: a change (a delta). KEY_FRAME: the state
    clock          the gate's clock value: each change is one more than the one before
    content-type   application/json
    message-id     what to resume with, see below

    MESSAGE
    subscription:sub-0
    destination:/topic/gates/orders
    message-id:7-1731772800000000-1-1731772803500000-delivery-1
    content-type:application/json
    kind:SUBMITTED
    clock:7
    content-length:145

    {"clock":7,"status":"SUBMITTED","id":"delivery-1","event":"order 7","value":null,
     "time":1731772803.5,"began":1731772800.0}

    a key frame (kind:KEY_FRAME, message-id:6-1731772800000000-1731772801000000)
    {"clock":6,"time":1731772801.0,"began":1731772800.0,"duration":300.0,"mode":"strict",
     "pending":[{"id":"a","event":"order 6","value":null,"time":1731772800.5,"due":1731773100.5,"clock":6}]}

Times are seconds since 1970 by the engine's clock. `began` is when the gate began: another value is another gate, which
has taken the name of one that was lost. `pending` is in the order of being due. (Bodies have one line; they are broken
here for the page.) The fields are those of `headway.Change`, `headway.Snapshot` and `headway.once.Pending`.

**What comes when.** Without `since` a key frame comes first, and then every change after it. Every `key_frame_every`
seconds there is a key frame besides, of the clock value of the last change: a peer that has it all may ignore those.
Changes of one gate come in the order of the clock and without gaps. Where a gap cannot be avoided (lines are not kept
any more, the gate was lost, a server has lost lines) a key frame comes instead: it is the whole state, whatever there
was before, and its clock value may be lesser.

**Resuming.** `since` on SUBSCRIBE is the `message-id` of the last message that was seen, or its plain clock value. What
was missed comes then, or a key frame first where that is not possible. With a message-id the server also notices that
the gate was lost in between, or that lines were rewritten; with a clock value alone it may not.

**SEND.** The body is `{"event": "...", "id": "...", "value": "..."}`; `id` and `value` may be left out or null. With a
`receipt` header the RECEIPT comes after the decision, and says it:

    RECEIPT
    receipt-id:1
    accepted:true                   or false: a repeat
    id:delivery-1                   percent-encoded, as `conflict` is
    clock:7
    due:1731773103.5                if accepted: when it is published
    conflict:delivery-0             if not: the id of the event that it repeats

**Errors close**, as STOMP has it: an ERROR with the reason in its header `message` and as its body, then the end. A
bad frame, an unknown destination or gate, a body that is no event, a gate that is full, an id that was used for another
event, an engine that is away at a SEND (subscribers stay, and go on when it is back), silence of the peer where
heart-beats were agreed on. A peer that reads too slowly is dropped with an ERROR that has the headers `subscription`
and `since`, if there is one: with which to resume. Receipts of earlier frames tell what was done before.

Not here: which peers may connect. Put the app behind what checks that, and give `origins` where browsers can reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final

from headway.core.durations import count_of, span_of
from headway.errors import InvalidArgument
from headway.once.gate import Once
from headway.once.stomp.connection import ASGIMessage, Connection, Receive, SendMessage
from headway.once.stomp.feed import Feed
from headway.once.stomp.wire import no_gate
from headway.stomp.heart_beats import LONGEST

SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp", "v10.stomp")
HOW: Final = (
    b"This is STOMP over WebSocket: connect with a WebSocket client (ws:// or wss://, subprotocol v12.stomp), "
    b"then CONNECT, SUBSCRIBE to /topic/gates/{gate}, or SEND to /app/gates/{gate}.\n"
)


def stomp_app(
    gates: Mapping[str, Once],
    *,
    key_frame_every: float | timedelta | None = 10.0,
    heart_beat: tuple[int, int] = (10_000, 10_000),
    max_unsent: int = 1 << 20,
    connect_within: float | timedelta = 10.0,
    send_within: float | timedelta = 30.0,
    close_within: float | timedelta = 10.0,
    origins: Collection[str] | None = None,
) -> StompApp:
    """An ASGI app that serves gates over STOMP on WebSocket: for uvicorn, or to be mounted in another app.

    `gates` are by the names that peers use; the mapping is looked up at each use, so gates may come and go. A key frame
    is sent at subscribe and every `key_frame_every` seconds (None: only where it is needed). `heart_beat` is what the
    server can send and wants, in milliseconds. At most `max_unsent` bytes wait for a peer that reads too slowly, which
    is then dropped and may resume; it should be more than a key frame of the largest gate, about 200 bytes for each
    pending event. A peer has `connect_within` seconds to say CONNECT; one that reads nothing at all is dropped after
    `send_within`, and an ERROR has `close_within` to be sent. `origins` are the web pages that may connect, such as
    "https://example.org"; None: all.

    >>> from headway import Once
    >>> from headway.once import stomp_app
    >>> app = stomp_app({"orders": Once("5min")})
    >>> app
    <stomp_app of 1 gate>
    """
    return StompApp(
        gates, key_frame_every, heart_beat, max_unsent, (connect_within, send_within, close_within), origins
    )


class StompApp:
    """What `stomp_app` returns."""

    def __init__(
        self,
        gates: Any,
        key_frame_every: Any,
        heart_beat: Any,
        max_unsent: Any,
        within: tuple[Any, Any, Any],
        origins: Any,
    ) -> None:
        self.gates: Mapping[str, Once] = _checked_gates(gates)
        self.key_frame_every = (
            None if key_frame_every is None else _seconds("key_frame_every", key_frame_every)
        )
        self.heart_beat = _checked_beats(heart_beat)
        self.max_unsent = _checked_size(max_unsent)
        connect, send, close = within
        self.connect_ns = round(_seconds("connect_within", connect) * 1e9)
        self.send_within = _seconds("send_within", send)
        self.close_within = _seconds("close_within", close)
        self._origins = _checked_origins(origins)
        self._feeds: dict[tuple[asyncio.AbstractEventLoop, Once], Feed] = {}

    def __repr__(self) -> str:
        count = len(self.gates)
        return f"<stomp_app of {count} gate{'' if count == 1 else 's'}>"

    # -- ASGI

    async def __call__(self, scope: ASGIMessage, receive: Receive, send: SendMessage) -> None:
        kind = scope["type"]
        if kind == "websocket":
            await self._websocket(scope, receive, send)
        elif kind == "http":
            await _answer_http(scope, send)
        elif kind == "lifespan":
            await _live(receive, send)
        else:
            raise InvalidArgument("scope", kind, "'websocket', 'http' or 'lifespan'")

    async def _websocket(self, scope: ASGIMessage, receive: Receive, send: SendMessage) -> None:
        message = await receive()
        if message["type"] != "websocket.connect":
            return
        if not self._welcomes(scope):
            await send({"type": "websocket.close", "code": 1008, "reason": "this origin may not connect"})
            return
        offered = scope.get("subprotocols") or ()
        agreed = next((one for one in SUBPROTOCOLS if one in offered), None)
        await send({"type": "websocket.accept", "subprotocol": agreed})
        await Connection(self, receive, send).serve()

    def _welcomes(self, scope: ASGIMessage) -> bool:
        """Browsers say which page connects; other clients need not."""
        if self._origins is None:
            return True
        given = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"origin"]
        return all(one in self._origins for one in given)

    # -- gates

    def gate(self, name: str) -> tuple[str, Once]:
        """The gate of this name, as it is now."""
        found = self.gates.get(name)
        if not isinstance(found, Once):
            raise no_gate(name, self.gates)
        return name, found

    def feed(self, name: str, gate: Once) -> Feed:
        """What reads this gate on the running loop; it ends with its last subscriber."""
        key = asyncio.get_running_loop(), gate
        known = self._feeds.get(key)
        if known is None:
            known = self._feeds[key] = Feed(gate, name, self.key_frame_every, lambda: self._forget(*key))
        return known

    def subscribers(self, gate: Once) -> int:
        """How many subscriptions read this gate on the running loop."""
        feed = self._feeds.get((asyncio.get_running_loop(), gate))
        return 0 if feed is None else feed.subscribers

    def _forget(self, loop: asyncio.AbstractEventLoop, gate: Once) -> None:
        self._feeds.pop((loop, gate), None)


# -- scopes that are no WebSocket


async def _answer_http(scope: ASGIMessage, send: SendMessage) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(HOW)).encode()),
    ]
    if scope.get("http_version", "1.1").startswith("1"):
        headers += [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    await send({"type": "http.response.start", "status": 426, "headers": headers})
    await send({"type": "http.response.body", "body": HOW})


async def _live(receive: Receive, send: SendMessage) -> None:
    """There is nothing to begin with, and connections end by themselves."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


# -- options


def _checked_gates(gates: Any) -> Mapping[str, Once]:
    accepted = 'gates by their names: {"orders": Once("5min")}'
    if not isinstance(gates, Mapping):
        raise InvalidArgument("gates", gates, accepted)
    for name, gate in gates.items():
        if not isinstance(name, str) or not name or not isinstance(gate, Once):
            raise InvalidArgument("gates", {name: gate}, accepted)
    return gates


def _seconds(argument: str, value: Any) -> float:
    ns = span_of(value)
    if ns is None or not 1_000_000 <= ns <= LONGEST * 1_000_000:
        raise InvalidArgument(argument, value, "seconds from 0.001 to a day, or a timedelta")
    return ns / 1e9


def _checked_beats(heart_beat: Any) -> tuple[int, int]:
    accepted = f"two numbers of ms, from 0 (none) to {LONGEST}: what the server can send, and what it wants"
    if not isinstance(heart_beat, tuple | list) or len(heart_beat) != 2:
        raise InvalidArgument("heart_beat", heart_beat, accepted)
    send, want = map(count_of, heart_beat)
    if send is None or want is None or not (0 <= send <= LONGEST and 0 <= want <= LONGEST):
        raise InvalidArgument("heart_beat", heart_beat, accepted)
    return send, want


def _checked_size(max_unsent: Any) -> int:
    size = count_of(max_unsent)
    if size is None or size < 1:
        raise InvalidArgument("max_unsent", max_unsent, "a number of bytes from 1 up")
    return size


def _checked_origins(origins: Any) -> frozenset[str] | None:
    if origins is None:
        return None
    if isinstance(origins, str) or not all(isinstance(one, str) for one in origins):
        raise InvalidArgument("origins", origins, 'origins of web pages: ["https://example.org"]')
    return frozenset(one.rstrip("/").lower() for one in origins)
