# mypy: disable-error-code="arg-type, attr-defined"
"""What subscribers get over STOMP when much happens at once: resumes, gaps, joins, key frames."""

import asyncio
import json
import random

import pytest
from tests.stomp.asgi_peer import Between, Peer, clocks, nothing_is_left, until

from headway import Once
from headway.once import Replica, Snapshot, stomp_app
from headway.once.results import Change, Pending
from headway.once.stomp.feed import Subscriber, position_of
from headway.once.stomp.wire import message_of, parse_since
from headway.once.subscription import Position
from waiting import NEVER


def run(coroutine):
    return asyncio.run(coroutine)


# -- resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["message-id", "clock"])
def test_a_peer_resumes_where_it_was(header):
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate})
        gate.submit("pizza")
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe()
            await peer.messages(1)
            gate.submit("taco", id="a-b/c")
            *_, last = await peer.messages(2)
        gate.submit("soup")
        async with Peer(app) as peer:  # with a feed that begins now, and with one that is there
            await peer.connect()
            for id in ("1", "2"):
                peer.subscribe(id=id, since=last.headers[header])
                assert clocks(await peer.messages(2)) == [("SUBMITTED", 5), ("PUBLISHED", 6)]
            gate.submit("bread")
            assert sorted(clocks(await peer.messages(4))) == [("PUBLISHED", 8)] * 2 + [("SUBMITTED", 7)] * 2
        await nothing_is_left(app)

    run(main())


def test_a_peer_that_missed_nothing_waits_for_the_next_change():
    async def main():
        gate = Once(60)
        app = stomp_app({"a": gate})
        gate.submit("pizza")
        async with Peer(app) as peer, Peer(app) as other:
            await other.connect()
            other.subscribe()
            (key_frame,) = await other.messages(1)
            await peer.connect()
            peer.subscribe(since=key_frame.headers["message-id"], receipt="1")
            assert (await peer.next()).command == "RECEIPT"
            gate.submit("taco")
            assert clocks(await peer.messages(2)) == [("SUBMITTED", 3), ("PUBLISHED", 4)]

    run(main())


def test_a_resume_whose_lines_are_gone_gets_a_key_frame():
    async def main():
        gate = Once(0.001, retention=0)
        app = stomp_app({"a": gate})
        gate.submit("pizza")
        await asyncio.sleep(0.02)
        gate.submit("taco")
        for since in (0, 1):
            async with Peer(app) as peer:
                await peer.connect()
                peer.subscribe(since=since)
                assert clocks(await peer.messages(1)) == [("KEY_FRAME", 4)]

    run(main())


def test_a_resume_notices_that_the_gate_was_lost():
    async def main():
        old, new = Once(60), Once(60)
        old.submit("pizza")
        new.submit("taco")
        seen = message_of(old.changes()[1], old).id
        app = stomp_app({"a": new})
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe(since=seen)
            # The new one is kept from its beginning, so it is told from there.
            assert clocks(await peer.messages(3)) == [("KEY_FRAME", 0), ("SUBMITTED", 1), ("PUBLISHED", 2)]
            # A clock value alone cannot tell.
            peer.subscribe(id="1", since=2, receipt="r")
            assert (await peer.next()).command == "RECEIPT"
            new.submit("soup")
            assert [frame.headers["subscription"] for frame in await peer.messages(4)].count("1") == 2

    run(main())


def test_a_resume_notices_that_lines_were_rewritten():
    async def main():
        gate = Once(60)
        gate.submit("pizza")
        line = gate.changes()[1]
        for other in (line._replace(id="another"), line._replace(time=line.time + 1)):
            async with Peer(stomp_app({"a": gate})) as peer:
                await peer.connect()
                peer.subscribe(since=message_of(other, gate).id)
                assert clocks(await peer.messages(1)) == [("KEY_FRAME", 2)]

    run(main())


@pytest.mark.parametrize(
    "since",
    [
        "",
        "-1",
        "x",
        "1-",
        "1-2",
        "1-2-9-4-a",
        "1-2-0-4-a",
        "1-2-3-4-%ff",
        "9" * 30,
        "1-" + "9" * 30,
        "\u0661",
        "1.5",
    ],
)
def test_a_bad_since_is_an_error(since):
    async def main():
        async with Peer(stomp_app({"a": Once(60)})) as peer:
            await peer.connect()
            peer.subscribe(since=since)
            frame, _ = await peer.error()
            assert "is no place to resume from: give the message-id" in frame.body.decode()

    run(main())


def test_a_message_id_carries_all_that_a_subscription_uses():
    gate = Once(60, "strict")
    gate.submit("pizza", id="ü/ -\n")
    (change,), snapshot = gate.changes(), gate.snapshot()
    back = parse_since(message_of(change, gate).id)
    assert back == change._replace(event="", value=None)
    again = parse_since(message_of(snapshot, gate).id)
    assert isinstance(again, Snapshot)
    assert (again.clock, again.began) == (snapshot.clock, snapshot.began)


# -- joining -------------------------------------------------------------------------------------------------


def item_of(frame):
    """What a client makes of a message."""
    body = json.loads(frame.body)
    if frame.headers["kind"] == "KEY_FRAME":
        pending = tuple(Pending(**one) for one in body["pending"])
        return Snapshot(body["clock"], body["time"], pending, body["began"])
    seen = parse_since(frame.headers["message-id"])
    assert isinstance(seen, Change)
    assert seen.status.name == body.pop("status")
    return Change(status=seen.status, **body)


async def follow(app, dice, changes):
    """One that comes and goes until it has seen all; what it saw must fit together all the time."""
    replica, since = Replica(60, "strict"), None
    while replica.clock < changes:
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe(**({} if since is None else {"since": since}))
            for number in range(dice.randrange(1, 30)):
                frame = await peer.next()
                kind, clock = clocks([frame])[0]
                if kind == "KEY_FRAME" and (number or since is not None):
                    assert clock == replica.clock, "a key frame is in order with the changes"
                elif kind != "KEY_FRAME":
                    assert clock == replica.clock + 1, "no gap, and nothing twice"
                assert replica.apply(item_of(frame))
                since = frame.headers[dice.choice(["message-id", "message-id", "clock"])]
                if replica.clock == changes:
                    break
    return replica


@pytest.mark.parametrize("seed", range(6))
def test_a_subscriber_that_joins_at_any_time_sees_every_change_once_and_in_order(seed):
    async def main():
        dice = random.Random(seed)
        gate = Once(60, "strict")
        between = Between(gate)
        between.turns = lambda: dice.choice([0, 0, 1, 2, 5])
        app = stomp_app({"a": gate}, key_frame_every=0.005)
        following = [asyncio.create_task(follow(app, random.Random(dice.random()), 300)) for _ in range(6)]
        number = 0
        while gate.snapshot().clock < 300:
            number += 1
            gate.submit(f"event {dice.randrange(100)} {number // 30}")
            for _ in range(dice.choice([0, 0, 1, 3, 10, 30])):
                await asyncio.sleep(0)
        replicas = await asyncio.wait_for(asyncio.gather(*following), NEVER)
        assert all(replica.pending == gate.snapshot().pending for replica in replicas)
        await nothing_is_left(app)

    run(main())


class Pushed:
    """A peer that keeps what it is given."""

    def __init__(self):
        self.messages = []

    def push(self, subscriber, message):
        self.messages.append(message)
        return True

    def has_room(self, message):
        return True

    def fail(self, reason):
        raise AssertionError(reason)

    async def room(self):
        pass


class Standing:
    """A feed that is where it is put."""

    _name = "a"

    def __init__(self, gate, position):
        self.gate, self.position, self.joined = gate, position, []

    def enter(self, _):
        pass

    def leave(self, _):
        pass

    def fresh_key_frame(self):
        return None

    def join(self, subscriber):
        self.joined.append(subscriber)

    def pause(self, subscriber):
        self.joined.remove(subscriber)


def test_a_subscriber_ahead_of_its_feed_leaves_out_what_it_has():
    async def main():
        gate = Once(60)
        gate.submit("pizza")
        gate.submit("taco")
        lines = gate.changes()
        standing, peer = Standing(gate, position_of(lines[1])), Pushed()
        subscriber = Subscriber(peer, "0", standing, 0)
        await subscriber._task
        assert [message.headers["clock"] for message in peer.messages] == ["1", "2", "3", "4"]
        gate.submit("soup")
        for line in gate.changes(2):
            subscriber.take(line, position_of(line), message_of(line, gate))
        assert [message.headers["clock"] for message in peer.messages] == ["1", "2", "3", "4", "5", "6"]

    run(main())


def test_a_subscriber_ahead_of_its_feed_notices_that_lines_were_rewritten():
    async def main():
        gate = Once(60)
        gate.submit("pizza")
        gate.submit("taco")
        lines = gate.changes()
        standing, peer = Standing(gate, position_of(lines[1])), Pushed()
        subscriber = Subscriber(peer, "0", standing, 0)
        await subscriber._task
        assert standing.joined == [subscriber]
        # A server has lost the last lines, and the feed reads what it has written instead.
        log = gate._gate._shared.core.log
        log[2], log[3] = (log[at]._replace(id="another") for at in (2, 3))
        for line in gate.changes(2):
            subscriber.take(line, position_of(line), message_of(line, gate))
        await subscriber._task
        assert [message.headers["kind"] for message in peer.messages[4:]] == ["KEY_FRAME"]
        assert standing.joined == [subscriber]

    run(main())


def test_a_subscriber_waits_for_a_feed_that_is_at_another_gate():
    async def main():
        gate = Once(60)
        gate.submit("pizza")
        here = position_of(gate.changes()[1])
        standing, peer = Standing(gate, Position(1, 1, None)), Pushed()
        Subscriber(peer, "0", standing, None)
        await asyncio.sleep(0.05)
        assert standing.joined == []
        standing.position = here
        await until(lambda: standing.joined)
        assert [message.headers["clock"] for message in peer.messages] == ["2"]

    run(main())


# -- key frames at intervals ---------------------------------------------------------------------------------


def test_there_is_one_snapshot_for_all_in_each_interval():
    async def main():
        gate = Once(60)
        between = Between(gate)
        app = stomp_app({"a": gate}, key_frame_every=0.05)
        async with Peer(app) as one, Peer(app) as other:
            for peer in (one, other):
                await peer.connect()
                peer.subscribe()
                await peer.messages(1)
            before = between.snapshots
            first, second = await one.messages(4), await other.messages(4)
            assert clocks(first) == clocks(second) == [("KEY_FRAME", 0)] * 4
            assert [frame.body for frame in first] == [frame.body for frame in second]
            assert 4 <= between.snapshots - before <= 6
            times = [json.loads(frame.body)["time"] for frame in first]
            assert times == sorted(set(times))

    run(main())


def test_a_key_frame_waits_for_the_changes_before_it():
    async def main():
        gate = Once(60, "strict")
        between = Between(gate)
        app = stomp_app({"a": gate}, key_frame_every=0.02)
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe(since=0)
            await until(lambda: app._feeds and next(iter(app._feeds.values()))._joined)
            between.let.clear()
            peer.now()
            gate.submit("pizza")
            (only,) = app._feeds.values()
            await until(lambda: only._held)
            assert all(kind == ("KEY_FRAME", 0) for kind in clocks(peer.now()))
            between.let.set()
            assert clocks(await peer.messages(2)) == [("SUBMITTED", 1), ("KEY_FRAME", 1)]

    run(main())


def test_key_frames_at_intervals_can_be_left_out():
    async def main():
        app = stomp_app({"a": Once(60)}, key_frame_every=None)
        async with Peer(app) as peer:
            await peer.connect()
            peer.subscribe()
            await peer.messages(1)
            assert len(next(iter(app._feeds.values()))._tasks) == 1

    run(main())
