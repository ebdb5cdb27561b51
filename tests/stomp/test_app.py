"""Gates over STOMP, without a socket: what a peer asks for, and what it is told."""

import asyncio
import json

import pytest
from tests.stomp.asgi_peer import Peer, clocks

from headway import Once
from headway.once import stomp_app


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_subscriber_gets_a_key_frame_and_then_every_change():
    async def main():
        gate = Once(60, "strict")
        gate.submit("pizza", id="p")
        async with Peer(stomp_app({"a": gate})) as peer:
            assert peer.accepted == {"type": "websocket.accept", "subprotocol": "v12.stomp"}
            await peer.connect()
            peer.subscribe(receipt="s")
            assert (await peer.next()).headers == {"receipt-id": "s"}
            (key_frame,) = await peer.messages(1)
            gate.submit("taco", id="t", value="2")
            gate.submit("pizza", id="q")
            changes = await peer.messages(2)
        assert clocks([key_frame, *changes]) == [("KEY_FRAME", 1), ("SUBMITTED", 2), ("INVALIDATED", 3)]
        state = json.loads(key_frame.body)
        (pending,) = gate.changes()[0:1]
        assert state["mode"] == "strict"
        assert state["duration"] == 60.0
        assert [one["id"] for one in state["pending"]] == ["p"]
        assert state["began"] == pending.began
        body = json.loads(changes[0].body)
        assert body == gate.changes(1)[0]._asdict() | {"status": "SUBMITTED"}
        assert key_frame.headers["content-type"] == "application/json"
        assert key_frame.headers["destination"] == "/topic/gates/a"
        assert key_frame.headers["subscription"] == "0"

    run(main())


def test_a_send_is_a_submit_and_its_receipt_tells_the_decision():
    async def main():
        gate = Once(60)
        async with Peer(stomp_app({"a": gate})) as peer:
            await peer.connect()
            first = await peer.submit("pizza", id="p/1", value="2")
            assert first.command == "RECEIPT"
            due = first.headers.pop("due")
            assert float(due) == gate.changes()[0].time
            assert first.headers == {"receipt-id": "r", "accepted": "true", "id": "p%2F1", "clock": "1"}
            again = await peer.submit("pizza", id="q")
            assert again.headers == {
                "receipt-id": "r",
                "accepted": "false",
                "id": "q",
                "clock": "2",
                "conflict": "p%2F1",
            }
        assert gate.changes()[0].value == "2"

    run(main())


@pytest.mark.parametrize("plain", [False, True], ids=["message-id", "clock"])
def test_a_peer_resumes_where_it_was(plain):
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate})
        gate.submit("pizza")
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe()
            await peer.messages(1)
            gate.submit("taco")
            *_, last = await peer.messages(2)
        gate.submit("soup")
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe(since=last.headers["clock" if plain else "message-id"])
            missed = await peer.messages(2)
            gate.submit("bread")
            later = await peer.messages(2)
        assert clocks(missed + later) == [
            ("SUBMITTED", 5),
            ("PUBLISHED", 6),
            ("SUBMITTED", 7),
            ("PUBLISHED", 8),
        ]
        assert app._feeds == {}

    run(main())
