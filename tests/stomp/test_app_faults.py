# mypy: disable-error-code="attr-defined, method-assign"
"""Gates over STOMP when something goes wrong: peers that do not read, engines that are away, ends of all kinds."""

import asyncio
import json
import logging

import pytest
from tests.stomp.asgi_peer import Between, Peer, clocks, nothing_is_left, until

from headway import EngineUnavailable, LimitMismatch, Once
from headway.once import stomp_app
from headway.once.stomp import feed
from headway.once.stomp.connection import Connection
from waiting import NEVER


def run(coroutine):
    return asyncio.run(coroutine)


# -- peers that do not read ----------------------------------------------------------------------------------


def test_a_slow_peer_is_dropped_and_resumes_without_a_gap():
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate}, max_unsent=20_000, key_frame_every=0.01)
        async with Peer(app) as slow, Peer(app) as good:
            for peer in (slow, good):
                await peer.connect()
                peer.subscribe()
                await peer.messages(1)
            gate.submit("first")
            seen = await slow.messages(2)
            (only,) = app._feeds.values()
            connections = [subscriber._peer for subscriber in only._joined]
            slow.reads.clear()
            most = 0
            for number in range(60):
                gate.submit(f"event {number}", value="x" * 1000)
                await asyncio.sleep(0.001)
                most = max(most, *(connection.unsent for connection in connections))
            assert 15_000 < most < 23_000, "what may wait, and a message"
            changes = [kind for kind in clocks(good.now()) if kind[0] != "KEY_FRAME"]
            assert [clock for _, clock in changes] == list(range(1, 123)), "others do not wait for it"
            slow.reads.set()
            while (frame := await slow.next()).command == "MESSAGE":
                seen.append(frame)
            assert frame.command == "ERROR"
            since = frame.headers["since"]
            assert frame.headers["subscription"] == "0"
            assert frame.body.decode().startswith("too slow: 2")
            assert frame.body.decode().endswith(f"and 20000 may; subscribe again with since:{since}")
            assert seen[-1].headers["message-id"] == since, "all before the ERROR was read"
            assert (await slow.next())["code"] == 1008
            async with Peer(app) as again:
                await again.connect()
                again.subscribe(since=since)
                while int(seen[-1].headers["clock"]) < 122:
                    seen.append(await again.next())
        deltas = [clock for kind, clock in clocks(seen) if kind != "KEY_FRAME"]
        assert deltas == list(range(1, 123))

    run(main())


def test_a_crowd_of_changes_at_once_drops_no_peer_that_reads():
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate}, max_unsent=20_000)
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe()
            await peer.messages(1)
            for number in range(100):
                gate.submit(f"event {number}", value="x" * 1000)
            assert [clock for _, clock in clocks(await peer.messages(200))] == list(range(1, 201))

    run(main())


def test_catching_up_waits_for_a_slow_peer_and_does_not_drop_it():
    async def main():
        gate = Once(60)
        for number in range(200):
            gate.submit(f"event {number}", value="x" * 1000)
        app = stomp_app({"a": gate}, max_unsent=20_000)
        async with Peer(app) as peer:
            await peer.connect()
            peer.reads.clear()
            peer.subscribe(since=0)
            await asyncio.sleep(0.05)
            peer.reads.set()
            found = await peer.messages(400)
        assert [clock for _, clock in clocks(found)] == list(range(1, 401))

    run(main())


def test_a_peer_that_reads_nothing_leaves_nothing_behind():
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate}, max_unsent=5000, close_within=0.05)
        peer = Peer(app)
        await peer.__aenter__()
        await peer.connect()
        peer.subscribe()
        await peer.messages(1)
        peer.reads.clear()
        for number in range(20):
            gate.submit(f"event {number}", value="x" * 1000)
            await asyncio.sleep(0.001)
        await asyncio.wait_for(peer.task, NEVER)
        assert peer.now() == []
        await nothing_is_left(app)

    run(main())


def test_a_peer_that_does_not_read_its_receipts_holds_itself_up_only():
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate}, max_unsent=1000, send_within=0.2)
        peer = Peer(app)
        await peer.__aenter__()
        await peer.connect()
        peer.reads.clear()
        for number in range(1000):
            body = json.dumps({"event": f"event {number}"}).encode()
            peer.frame("SEND", body, destination="/app/gates/a", receipt=number)
        await asyncio.wait_for(peer.task, NEVER)
        assert 0 < gate.snapshot().clock < 40, "it was not read further than there was room for receipts"
        await nothing_is_left(app)

    run(main())


def test_a_peer_that_does_not_read_costs_no_time(monkeypatch):
    """A heart-beat that cannot be sent is due all the time: once the loop was busy with that alone."""
    looks = []
    look = Connection._look

    def counted(connection):
        looks.append(connection)
        look(connection)

    monkeypatch.setattr(Connection, "_look", counted)

    async def main():
        gate = Once(60)
        async with Peer(stomp_app({"a": gate}, heart_beat=(10, 0))) as peer:
            await peer.connect(heart_beat="0,10")
            peer.subscribe()
            await peer.messages(1)
            peer.reads.clear()
            gate.submit("pizza")
            await asyncio.sleep(0.3)
            before = len(looks)
            assert before < 60
            peer.reads.set()
            await until(lambda: peer.beats > 3)

    run(main())


# -- faults --------------------------------------------------------------------------------------------------


def test_subscribers_stay_while_the_engine_is_away(caplog, monkeypatch):
    monkeypatch.setattr(feed, "FRESH", 0.0)  # a key frame that is there would do, also in an outage

    async def main():
        gate = Once(60, "strict")
        between = Between(gate)
        app = stomp_app({"a": gate}, key_frame_every=0.01)
        async with Peer(app) as peer, Peer(app) as late:
            for one in (peer, late):
                await one.connect()
            peer.subscribe()
            await peer.messages(1)
            between.error = EngineUnavailable("memory://", "it is away")
            between._gate.submit("pizza", "p", None)  # another process
            late.subscribe(receipt="1")
            assert (await late.next()).command == "RECEIPT"
            await asyncio.sleep(0.2)
            assert all(kind == ("KEY_FRAME", 0) for kind in clocks(peer.now()))
            assert late.now() == []
            between.error = None
            while (frame := await peer.next()).headers["kind"] == "KEY_FRAME":
                assert frame.headers["clock"] == "0"
            assert clocks([frame]) == [("SUBMITTED", 1)]
            assert clocks(await late.messages(1)) == [("KEY_FRAME", 1)]

    with caplog.at_level(logging.INFO, "headway"):
        run(main())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "stay, and go on when it is back" in said[0]
    assert said[1] == "gate 'a': its engine is back"


def test_a_send_while_the_engine_is_away_is_an_error_that_says_so():
    async def main():
        gate = Once(60)
        between = Between(gate)
        between.error = EngineUnavailable("memory://", "it is away")
        async with Peer(stomp_app({"a": gate})) as peer:
            await peer.connect()
            peer.frame("SEND", b'{"event": "pizza", "id": "1"}', destination="/app/gates/a")
            frame, _ = await peer.error()
            assert "the engine does not answer" in frame.body.decode()
            assert "memory://" not in frame.body.decode()
            assert frame.body.decode().endswith("it may have been counted: send it again with the same id")

    run(main())


@pytest.mark.parametrize(
    ("error", "reason", "logged"),
    [
        (LimitMismatch("a", "only 1min", "only 2min"), "gate 'a' cannot be read:", 0),
        (RuntimeError("oh"), "an error of the server, which is in its log", 1),
    ],
)
def test_a_gate_that_cannot_be_read_ends_its_subscribers(caplog, error, reason, logged):
    async def main():
        gate = Once(60)
        between = Between(gate)
        app = stomp_app({"a": gate})
        async with Peer(app) as peer, Peer(app) as other:
            await peer.connect()
            await other.connect()
            peer.subscribe()
            await peer.messages(1)
            between.error = error
            gate.submit("pizza")
            frame, _ = await peer.error()
            assert reason in frame.body.decode()
            other.subscribe()
            frame, _ = await other.error()
            assert reason in frame.body.decode()
        await nothing_is_left(app)

    run(main())
    assert len(caplog.records) in (logged, 2 * logged, 3 * logged)


def test_a_submit_that_fails_unexpectedly_is_logged_and_ends_the_connection(caplog):
    async def main():
        gate = Once(60)
        Between(gate).error = RuntimeError("oh")
        async with Peer(stomp_app({"a": gate})) as peer:
            await peer.connect()
            peer.frame("SEND", b'{"event": "pizza"}', destination="/app/gates/a")
            frame, _ = await peer.error()
            assert frame.headers["message"] == "an error of the server, which is in its log"

    run(main())
    assert len(caplog.records) == 1


@pytest.mark.parametrize("reads", [True, False])
def test_a_cancelled_app_leaves_nothing_behind(reads):
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate})
        peer = Peer(app)
        await peer.__aenter__()
        await peer.connect()
        peer.subscribe()
        await peer.messages(1)
        if not reads:
            peer.reads.clear()
            gate.submit("pizza")
            await asyncio.sleep(0.01)
        peer.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await peer.task
        await nothing_is_left(app)

    run(main())


def test_a_peer_that_is_gone_leaves_nothing_behind():
    """A server says so in `send`, with an OSError, before `receive` does."""

    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate})
        peer = Peer(app)
        await peer.__aenter__()
        await peer.connect()
        peer.subscribe()
        await peer.messages(1)

        async def gone(_):
            raise ConnectionResetError

        peer.reads.wait = lambda: gone(None)
        gate.submit("pizza")
        await asyncio.wait_for(peer.task, NEVER)
        await nothing_is_left(app)

    run(main())
