"""Gates on a server that is shared, over STOMP: two apps, subscribers that come and go, and a server that is killed."""

import asyncio
import random

import pytest
from tests.stomp.asgi_peer import Peer, clocks, nothing_is_left
from tests.stomp.test_feeds import item_of

from headway import EngineUnavailable, Once
from headway.once import Replica, stomp_app
from waiting import NEVER

pytestmark = pytest.mark.realtime

CHANGES = 240


@pytest.fixture
def open_gate(name):
    made = []

    def open_gate(url, *args):
        made.append(Once(*args, name=name, engine=url, engine_timeout=2))
        return made[-1]

    yield open_gate
    for gate in made:
        gate.close()


async def follow(apps, dice):
    """Comes and goes, now here and now there, until it has seen all; every message must follow on the one before."""
    replica, since = Replica(60, "strict"), None
    while replica.clock < CHANGES:
        async with Peer(dice.choice(apps)) as peer:
            await peer.connect()
            peer.subscribe(**({} if since is None else {"since": since}))
            for number in range(dice.randrange(1, 60)):
                frame = await peer.next()
                assert frame.command == "MESSAGE", frame
                ((kind, clock),) = clocks([frame])
                if kind != "KEY_FRAME":
                    assert clock == replica.clock + 1, "no gap, and nothing twice"
                elif number or since is not None:
                    assert clock == replica.clock, "a key frame is in order with the changes"
                assert replica.apply(item_of(frame))
                since = frame.headers["message-id"]
                if replica.clock >= CHANGES:
                    break
    return replica


async def submit(gate, server, kill_at):
    """Events until there are as many changes, with one id until it is known what became of it."""
    number = 0
    while (await gate.snapshot_async()).clock < CHANGES:
        number += 1
        for _ in range(200):
            try:
                await gate.submit_async(f"event {number}", id=f"id {number}")
                break
            except EngineUnavailable:
                await asyncio.sleep(0.05)
        if number in kill_at:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            while True:
                try:
                    await gate.snapshot_async()
                    break
                except EngineUnavailable:
                    await asyncio.sleep(0.05)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("kill_at", [(), (60, 150)], ids=["calm", "killed"])
def test_subscribers_of_two_apps_see_every_change_once_and_in_order(make_server, open_gate, kill_at):
    server = make_server(appendonly="yes", appendfsync="always")

    async def main():
        dice = random.Random(5)
        gates = [open_gate(server.url, 60, "strict") for _ in range(2)]
        apps = [stomp_app({"a": gate}, key_frame_every=0.02) for gate in gates]
        following = [asyncio.create_task(follow(apps, random.Random(dice.random()))) for _ in range(5)]
        await submit(gates[0], server, kill_at)
        replicas = await asyncio.wait_for(asyncio.gather(*following), 2 * NEVER)
        state = await gates[0].snapshot_async()
        assert [replica.pending for replica in replicas] == [state.pending] * 5
        assert all(app._feeds == {} for app in apps)

    asyncio.run(main())


def test_a_subscriber_learns_that_its_gate_was_lost(make_server, open_gate):
    """A server without an append-only file comes back empty."""
    server = make_server()

    async def main():
        gate = open_gate(server.url, 60)
        app = stomp_app({"a": gate}, key_frame_every=None)
        async with Peer(app) as peer:
            await peer.connect()
            await gate.submit_async("pizza")
            peer.subscribe()
            assert clocks(await peer.messages(1)) == [("KEY_FRAME", 2)]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            for _ in range(200):
                try:
                    await gate.submit_async("taco", id="t")
                    break
                except EngineUnavailable:
                    await asyncio.sleep(0.05)
            (found,) = await peer.messages(1)
            assert found.headers["kind"] == "KEY_FRAME", "the gap is not hidden"
        await nothing_is_left(app)

    asyncio.run(main())
