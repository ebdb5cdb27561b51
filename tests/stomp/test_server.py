"""The app on a real server: many subscribers at once, some of which do not read, and mounted in another app."""

import asyncio
import urllib.error
import urllib.request
from importlib import import_module

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.stomp.served import served

from headway import Once
from headway.once import stomp_app
from waiting import NEVER

# Not by `import`: mypy would follow it to the peers of the benchmarks, which have no types.
bench = import_module("bench.stomp")

pytestmark = pytest.mark.realtime


def test_two_hundred_subscribers_see_every_change_and_twenty_that_do_not_read_are_dropped():
    """A short form of `python -m bench --only stomp`."""

    async def main(server):
        async with bench.crowd(server, 200, 2.0, stuck=20, value=6000, grace=NEVER) as seen:
            assert seen.complete == 180, "each of them saw every clock value, in order"
            # 20 times what may wait and a server's own buffer, and what else a process grows by.
            assert seen.kept_most - seen.kept_before < 32 * bench.MIB
            for one in seen.stuck:
                one.transport.resume_reading()
            await asyncio.wait_for(asyncio.gather(*(one.ended for one in seen.stuck)), NEVER)
            for one in seen.stuck:
                (error,) = one.errors
                assert b"message:too slow\\c " in error
                assert b"\nsince:" + one.last_id + b"\n" in error, (
                    "what it has seen last, now that it reads again"
                )
                assert one.clocks == list(range(1, len(one.clocks) + 1))
                assert len(one.clocks) < seen.changes
            # One of them resumes, and misses nothing.
            subscribe = (
                b"SUBSCRIBE\nid:0\ndestination:/topic/gates/a\nsince:" + seen.stuck[0].last_id + b"\n\n\0"
            )
            again = await bench.client(server.port, subscribe)
            seen.stuck.append(again)
            assert again.clocks[0] == len(seen.stuck[0].clocks) + 1

    options = {"max_unsent": 128 * 1024, "close_within": NEVER}
    with bench.server(small_buffers=True, options=options) as server:
        asyncio.run(main(server))


def test_a_peer_that_never_reads_is_let_go():
    """Its task ends by the app's own time-outs; the others are not disturbed, and the server stops."""

    async def main(server):
        async with bench.crowd(server, 3, 1.0, stuck=1, value=8000, grace=NEVER) as seen:
            assert seen.complete == 2

    with bench.server(small_buffers=True, options={"max_unsent": 16 * 1024, "close_within": 0.2}) as server:
        asyncio.run(main(server))


def test_it_is_mounted_in_another_app():
    gate = Once(60)
    app = Starlette(routes=[Mount("/stomp", stomp_app({"a": gate}))])

    async def main(port):
        one = await bench.client(port, bench.SUBSCRIBE, path="/stomp/")
        gate.submit("pizza")
        two = await bench.client(port, bench.SUBSCRIBE.replace(b"\n\n", b"\nsince:0\n\n"), path="/stomp/")
        assert two.clocks[0] == 1
        for client in (one, two):
            client.transport.abort()
            await client.ended

    with served(app) as port:
        asyncio.run(main(port))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/stomp/")
        assert refused.value.code == 426
        assert refused.value.headers["upgrade"] == "websocket"
        refused.value.close()


def test_a_server_that_stops_ends_its_connections():
    gate = Once(60)
    app = stomp_app({"a": gate})

    async def main():
        with served(app) as port:
            one = await bench.client(port, bench.SUBSCRIBE)
            begun = asyncio.get_running_loop().time()
        await asyncio.wait_for(one.ended, NEVER)
        assert asyncio.get_running_loop().time() - begun < NEVER
        assert app._feeds == {}

    asyncio.run(main())
