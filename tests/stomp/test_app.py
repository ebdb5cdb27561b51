"""Gates over STOMP, without a socket: what a peer asks for, and what it is told."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.stomp.asgi_peer import Peer, clocks

from headway import InvalidArgument, Once
from headway.once import stomp_app
from headway.stomp import Frame, encode


def run(coroutine):
    return asyncio.run(coroutine)


# -- subscribing ---------------------------------------------------------------------------------------------


def test_a_subscriber_gets_a_key_frame_and_then_every_change():
    async def main():
        gate = Once(60, "strict")
        gate.submit("pizza", id="p")
        async with Peer(stomp_app({"a": gate})) as peer:
            await peer.connect()
            peer.subscribe(receipt="s")
            (key_frame,) = await peer.messages(1)
            assert (await peer.next()).headers == {"receipt-id": "s"}
            gate.submit("taco", id="t", value="2")
            gate.submit("pizza", id="q")
            changes = await peer.messages(2)
        assert clocks([key_frame, *changes]) == [("KEY_FRAME", 1), ("SUBMITTED", 2), ("INVALIDATED", 3)]
        first, second, _ = gate.changes()
        state = json.loads(key_frame.body)
        (pending,) = state.pop("pending")
        assert state.pop("time") >= first.time
        assert state == {"clock": 1, "began": first.began, "duration": 60.0, "mode": "strict"}
        assert pending == {
            "id": "p", "event": "pizza", "value": None, "time": first.time, "due": pending["due"], "clock": 1,
        }  # fmt: skip
        assert pending["due"] == pytest.approx(first.time + 60)
        assert json.loads(changes[0].body) == second._asdict() | {"status": "SUBMITTED"}
        assert key_frame.headers["content-type"] == "application/json"
        assert key_frame.headers["destination"] == "/topic/gates/a"
        assert key_frame.headers["subscription"] == "0"

    run(main())


def test_what_is_sent_after_a_subscribe_comes_as_a_change():
    """A key frame that already had it would tell nothing of an event that is published at once."""

    async def main():
        async with Peer(stomp_app({"a": Once(60)})) as peer:
            await peer.connect()
            peer.subscribe()
            peer.frame("SEND", b'{"event": "pizza"}', destination="/app/gates/a")
            assert clocks(await peer.messages(3)) == [("KEY_FRAME", 0), ("SUBMITTED", 1), ("PUBLISHED", 2)]

    run(main())


def test_two_subscriptions_of_a_connection_and_the_end_of_one():
    async def main():
        gates = {"a": Once(60, "strict"), "b/c ü": Once(60, "strict")}
        async with Peer(stomp_app(gates)) as peer:
            await peer.connect()
            peer.subscribe("a", "1")
            peer.subscribe("b%2Fc%20%C3%BC", "2")
            await peer.messages(2)
            gates["a"].submit("pizza")
            assert (await peer.next()).headers["subscription"] == "1"
            gates["b/c ü"].submit("pizza")
            assert (await peer.next()).headers["subscription"] == "2"
            peer.frame("UNSUBSCRIBE", id="1", receipt="u")
            assert (await peer.next()).headers == {"receipt-id": "u"}
            assert len(peer.app._feeds) == 1, "a feed without subscribers ends"
            gates["a"].submit("taco")
            gates["b/c ü"].submit("taco")
            assert (await peer.next()).headers["subscription"] == "2"
            peer.subscribe("a", "1")  # the id is free again
            assert clocks(await peer.messages(1)) == [("KEY_FRAME", 2)]
        assert peer.app._feeds == {}

    run(main())


def test_one_feed_serves_all_and_ends_with_the_last(monkeypatch):
    async def main():
        gate = Once(60)
        made = []

        def subscribe(since=None):
            made.append(Once.subscribe(gate, since))
            return made[-1]

        monkeypatch.setattr(gate, "subscribe", subscribe)
        app = stomp_app({"a": gate})
        async with Peer(app) as one, Peer(app) as other:
            for peer in (one, other):
                await peer.connect()
                peer.subscribe()
                await peer.messages(1)
            live = [each for each in made if each._waker is not None]
            assert len(live) == 1, "one subscription waits for changes"
            gate.submit("pizza")
            assert clocks(await one.messages(2)) == clocks(await other.messages(2))
        assert app._feeds == {}
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"

    run(main())


def test_a_closed_gate_ends_its_subscribers_with_a_reason():
    async def main():
        gate = Once(60, name="till")
        async with Peer(stomp_app({"a": gate})) as peer:
            await peer.connect()
            peer.subscribe()
            await peer.messages(1)
            gate.close()
            frame, _ = await peer.error()
            assert frame.headers["message"] == "gate 'a' was closed"

    run(main())


def test_gates_may_come_later():
    async def main():
        gates: dict[str, Once] = {}
        async with Peer(stomp_app(gates)) as peer:
            await peer.connect()
            gates["late"] = Once(60)
            peer.subscribe("late")
            assert clocks(await peer.messages(1)) == [("KEY_FRAME", 0)]

    run(main())


# -- submitting ----------------------------------------------------------------------------------------------


def test_a_send_is_a_submit_and_its_receipt_tells_the_decision():
    async def main():
        gate = Once(60)
        async with Peer(stomp_app({"a": gate})) as peer:
            await peer.connect()
            first = await peer.submit("pizza", id="p/1", value="2")
            assert first.command == "RECEIPT"
            assert float(first.headers.pop("due")) == gate.changes()[0].time
            assert first.headers == {"receipt-id": "r", "accepted": "true", "id": "p%2F1", "clock": "1"}
            again = await peer.submit("pizza", id="q\n\0")
            assert again.headers == {
                "receipt-id": "r", "accepted": "false", "id": "q%0A%00", "clock": "2", "conflict": "p%2F1",
            }  # fmt: skip
        assert gate.changes()[0].value == "2"

    run(main())


BAD = [
    (b"nonsense", "the body is no JSON: b'nonsense'"),
    (b"\xff", "the body is no JSON"),
    (b"[" * 100_000, "the body is no JSON"),
    (b"[]", "the body has no event"),
    (b'{"id": "1"}', "the body has no event"),
    (b'{"event": 1}', "event is no text"),
    (b'{"event": null}', "event is no text"),
    (b'{"event": "a", "id": 1}', "id is no text"),
    (b'{"event": "a", "id": ""}', "id='' is not accepted"),
    (b'{"event": "a", "colour": 1}', "the body has 'colour', which is not known"),
    (b'{"event": "%s"}' % (b"x" * 70_000), "give a str of at most 65536 bytes in UTF-8; nothing has changed"),
    (b'{"event": "\\ud800"}', "a lone surrogate has none; nothing has changed"),
    (b'{"event": "other", "id": "used"}', "id 'used' was submitted with event 'pizza' before"),
    (b'{"event": "third"}', "the gate holds 2 events already"),
]


@pytest.mark.parametrize(("body", "reason"), BAD, ids=[reason[:24] for _, reason in BAD])
def test_a_bad_submit_is_an_error_and_changes_nothing(body, reason):
    async def main():
        gate = Once(60, max_pending=2)
        gate.submit("pizza", id="used")
        gate.submit("taco")
        before = gate.changes()
        async with Peer(stomp_app({"a": gate})) as peer:
            await peer.connect()
            peer.frame("SEND", body, destination="/app/gates/a", receipt="7")
            frame, closed = await peer.error()
        assert reason in frame.body.decode()
        assert len(frame.body) < 1500
        assert frame.headers["receipt-id"] == "7"
        assert closed["code"] == 1002
        assert closed["reason"]
        assert len(closed["reason"].encode()) <= 123
        assert gate.changes() == before

    run(main())


# -- what is not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "destination", "reason"),
    [
        ("SUBSCRIBE", "/topic/gates/b", "there is no gate 'b'; gates: a, esc\\x1b"),
        ("SUBSCRIBE", "/topic/gates/", "there is no '/topic/gates/' here: subscribe to /topic/gates/{gate}; gates: a"),
        ("SUBSCRIBE", "/topic/gates/%ff", "there is no '/topic/gates/%ff' here"),
        ("SUBSCRIBE", "/app/gates/a", "there is no '/app/gates/a' here: subscribe to /topic/gates/{gate}"),
        ("SEND", "/topic/gates/a", "there is no '/topic/gates/a' here: send to /app/gates/{gate}"),
        ("SEND", "/app/gates/" + "b" * 99, "there is no gate 'bbbbbbbbbbb"),
    ],
)  # fmt: skip
def test_what_there_is_not_is_an_error_that_names_what_there_is(command, destination, reason):
    async def main():
        gates = {"a": Once(60), "esc\x1b": Once(60)}
        async with Peer(stomp_app(gates)) as peer:
            await peer.connect()
            body = b'{"event": "pizza"}' if command == "SEND" else b""
            peer.frame(command, body, id="1", destination=destination)
            frame, _ = await peer.error()
        assert frame.body.decode().startswith(reason)
        assert "\x1b" not in frame.body.decode()

    run(main())


def test_of_many_gates_ten_are_named():
    async def main():
        gate = Once(60)
        async with Peer(stomp_app({f"gate {number:02}": gate for number in range(30)})) as peer:
            await peer.connect()
            peer.subscribe("b")
            frame, _ = await peer.error()
        assert frame.body.decode().endswith("gate 08, gate 09 and 20 more")

    run(main())


# -- the connection ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        ([], None),
        (["v10.stomp", "v11.stomp", "v12.stomp"], "v12.stomp"),
        (["v10.stomp", "chat"], "v10.stomp"),
        (["chat"], None),
    ],
)
def test_a_subprotocol_is_agreed_upon(offered, agreed):
    async def main():
        async with Peer(stomp_app({}), subprotocols=offered) as peer:
            assert peer.accepted == {"type": "websocket.accept", "subprotocol": agreed}
            # The version is another matter.
            assert (await peer.connect(accept_version="1.0,1.1")).headers["version"] == "1.1"

    run(main())


def test_a_peer_of_version_1_0_needs_no_ids():
    async def main():
        gate = Once(60)
        async with Peer(stomp_app({"a": gate}), subprotocols=[]) as peer:
            peer.put("CONNECT\n\n\0")
            assert (await peer.next()).headers["version"] == "1.0"
            peer.put("SUBSCRIBE\ndestination: /topic/gates/a\n\n\0")
            (key_frame,) = await peer.messages(1)
            assert "subscription" not in key_frame.headers
            gate.submit("pizza", id="a\nb: c")
            (change, _) = await peer.messages(2)
            assert change.headers["message-id"].endswith("-a%0Ab%3A%20c")
            peer.put("DISCONNECT\nreceipt:9\n\n\0")
            assert (await peer.next()).headers == {"receipt-id": "9"}
            assert (await peer.next())["code"] == 1000

    run(main())


def test_heart_beats_go_both_ways():
    async def main():
        async with Peer(stomp_app({"a": Once(60)}, heart_beat=(20, 50))) as peer:
            connected = await peer.connect(heart_beat="50,20")
            assert connected.headers["heart-beat"] == "20,50"
            while peer.beats < 3:
                peer.put("\n")
                await asyncio.sleep(0.02)
            # And now it is silent.
            frame, _ = await peer.error()
            assert frame.headers["message"] == "no heart-beat within 100 ms"

    run(main())


def test_a_peer_that_does_not_connect_is_closed():
    async def main():
        async with Peer(stomp_app({}, connect_within=0.05)) as peer:
            frame, _ = await peer.error()
            assert frame.headers["message"] == "no CONNECT within 50 ms"

    run(main())


def test_frames_may_be_cut_anywhere_and_be_binary():
    async def main():
        gate = Once(60)
        async with Peer(stomp_app({"a": gate})) as peer:
            stream = encode(Frame("CONNECT", {"accept-version": "1.2", "host": "here"}))
            body = '{"event": "pizza ü"}'.encode()
            stream += encode(Frame("SEND", {"destination": "/app/gates/a", "receipt": "1"}, body))
            for byte in stream:
                peer.put(bytes([byte]))
            assert [(await peer.next()).command, (await peer.next()).command] == ["CONNECTED", "RECEIPT"]
        assert gate.changes()[0].event == "pizza ü"

    run(main())


def test_pages_of_other_origins_may_not_connect():
    async def main():
        app = stomp_app({}, origins=["https://here.example/"])
        for origin, kind in (
            (None, "accept"),
            (b"https://HERE.example", "accept"),
            (b"https://evil.example", "close"),
        ):
            headers = [] if origin is None else [(b"origin", origin)]
            async with Peer(app, headers=headers) as peer:
                assert peer.accepted["type"] == f"websocket.{kind}"

    run(main())


def test_http_and_lifespan_are_answered():
    async def main():
        app, sent = stomp_app({}), []
        inbox: asyncio.Queue[Any] = asyncio.Queue()

        async def send(message):
            sent.append(message)

        async def receive():
            return await inbox.get()

        await app({"type": "http", "method": "GET", "path": "/"}, receive, send)
        assert sent[0]["status"] == 426
        assert (b"upgrade", b"websocket") in sent[0]["headers"]
        assert b"connect with a WebSocket client" in sent[1]["body"]
        sent.clear()
        inbox.put_nowait({"type": "lifespan.startup"})
        inbox.put_nowait({"type": "lifespan.shutdown"})
        await app({"type": "lifespan"}, receive, send)
        assert [one["type"] for one in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        with pytest.raises(InvalidArgument):
            await app({"type": "smoke"}, receive, send)

    run(main())


@pytest.mark.parametrize(
    ("gates", "options", "argument"),
    [
        ([Once(60)], {}, "gates"),
        ({"a": "5min"}, {}, "gates"),
        ({"": Once(60)}, {}, "gates"),
        ({1: Once(60)}, {}, "gates"),
        ({}, {"key_frame_every": 0}, "key_frame_every"),
        ({}, {"heart_beat": 10}, "heart_beat"),
        ({}, {"heart_beat": (10, -1)}, "heart_beat"),
        ({}, {"heart_beat": (10, 1.5)}, "heart_beat"),
        ({}, {"max_unsent": 0}, "max_unsent"),
        ({}, {"connect_within": -1}, "connect_within"),
        ({}, {"send_within": "soon"}, "send_within"),
        ({}, {"close_within": float("inf")}, "close_within"),
        ({}, {"origins": "https://here.example"}, "origins"),
    ],
)
def test_bad_options_are_refused(gates, options, argument):
    with pytest.raises(InvalidArgument) as refused:
        stomp_app(gates, **options)
    assert refused.value.argument == argument


def test_the_app_is_imported_when_it_is_asked_for():
    program = """
import sys, headway, headway.once
assert not {name for name in sys.modules if name.startswith(("headway.once.stomp", "headway.stomp"))}
from headway.once import stomp_app
import headway.once.stomp
assert headway.once.stomp_app is stomp_app and callable(stomp_app)
try:
    headway.once.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'headway.once' has no attribute 'nothing'\n"
