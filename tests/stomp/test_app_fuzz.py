"""Whatever a peer sends to the app: frames, an ERROR, the end; never an exception, and nothing left behind."""

import asyncio
import json
import logging

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.stomp.asgi_peer import Peer

from headway import Once
from headway.once import stomp_app
from headway.stomp import Frame, encode
from waiting import NEVER

TEXTS = st.text(st.characters(), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | TEXTS, lambda inner: st.lists(inner, max_size=3), max_leaves=4
)
BODIES = (
    st.binary(max_size=60)
    | st.fixed_dictionaries({"event": TEXTS | VALUES}, optional={"id": TEXTS | VALUES, "value": VALUES}).map(
        lambda body: json.dumps(body).encode()
    )
    | st.sampled_from(
        [b'{"event": "pizza"}', b'{"event": "pizza", "id": "1"}', b"[" * 5000, b'{"event": 1e999}']
    )
)
DESTINATIONS = st.sampled_from(
    ["/topic/gates/a", "/app/gates/a", "/topic/gates/", "/app/gates/%ff", "/topic/gates/b", "/queue", "%"]
)
SINCES = st.sampled_from(["0", "1", "99", "1-1", "1-1-3-1-a", "1-1-3-1-%ff", "-", "1e9", ""]) | TEXTS
HEADERS = st.fixed_dictionaries(
    {"destination": DESTINATIONS},
    optional={
        "id": st.sampled_from(["0", "1", ""]) | TEXTS,
        "since": SINCES,
        "receipt": TEXTS,
        "ack": st.sampled_from(["auto", "client"]),
        "selector": TEXTS,
    },
)
COMMANDS = st.sampled_from(
    ["SUBSCRIBE", "SUBSCRIBE", "SEND", "SEND", "UNSUBSCRIBE", "DISCONNECT", "ACK", "CONNECT"]
)


@st.composite
def frames(draw):
    command = draw(COMMANDS)
    body = draw(BODIES) if command == "SEND" else b""
    headers = {name: value.replace("\0", "") for name, value in draw(HEADERS).items()}
    try:
        return encode(Frame(command, headers, body))
    except Exception:  # noqa: BLE001 - a text that no frame can say
        return b"\n"


PIECES = st.lists(frames() | st.binary(max_size=30) | TEXTS, max_size=8)


@settings(max_examples=150)
@given(pieces=PIECES, polite=st.booleans(), reads=st.booleans(), cancelled=st.booleans())
@example(pieces=[b"\0" * 100], polite=False, reads=True, cancelled=False)
def test_the_app_answers_anything(pieces, polite, reads, cancelled):
    said = []

    class Said(logging.Handler):
        def emit(self, record):
            said.append(record)

    async def main():
        gate = Once(60, "strict", max_pending=3)
        gate.submit("pizza", id="1")
        app = stomp_app(
            {"a": gate}, key_frame_every=0.001, close_within=0.05, send_within=0.05, max_unsent=2000
        )
        peer = Peer(app)
        await peer.__aenter__()
        if polite:
            await peer.connect()
        if not reads:
            peer.reads.clear()
        for piece in pieces:
            peer.put(piece)
            await asyncio.sleep(0)
        await asyncio.sleep(0.002)
        if cancelled:
            peer.task.cancel()
            await asyncio.wait({peer.task}, timeout=NEVER)
            assert peer.task.cancelled() or peer.task.exception() is None
        else:
            await peer.__aexit__()
        found = peer.now()
        ends = [one for one in found if not isinstance(one, Frame)]
        commands = [one.command for one in found if isinstance(one, Frame)]
        assert set(commands) <= {"CONNECTED", "MESSAGE", "RECEIPT", "ERROR"}
        assert commands.count("ERROR") <= 1
        assert "ERROR" not in commands[:-1], "nothing comes after it"
        assert [one["type"] for one in ends] in ([], ["websocket.close"])
        assert app._feeds == {}
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    handler = Said()
    logging.getLogger("headway").addHandler(handler)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("headway").removeHandler(handler)
    assert said == [], "an exception in the app is logged"
