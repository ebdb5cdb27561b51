"""What a ledger keeps beside its permits: it goes with time, lives as long as the ledger, and is nobody else's."""

import asyncio
import itertools
import struct
import threading
import time

import pytest
from tests.redis.servers import eventually

from headway import Limiter
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.address import read_address
from waiting import NEVER

OLD = struct.pack("<dd", (time.time() - 3600) * 1e6, (time.time() - 3600) * 1e6)


@pytest.fixture
def engines(valkey):
    """engines(): an engine of its own, as another process would have it."""
    made = []

    def make():
        made.append(Engine(read_address(valkey.url)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize("limit", ["1000000/day aligned", "1000000/s; 1000000/day aligned"])
def test_streams_of_the_dead_go_although_the_ledger_lives_until_a_certain_day(engines, valkey, name, limit):
    """A calendar quota is prolonged once in its period, and not with every use: by then, many children were forked."""
    limiter = Limiter(limit, name=name, engine=engines())
    client, root = valkey.client(), f"headway:{{{name}}}"
    limiter.acquire()
    client.hset(root, mapping={f"c{number:016}": OLD for number in range(200)})
    for _ in range(1024):
        limiter.acquire()
    assert client.hlen(root) < 20
    assert client.pttl(root) > 60_000


def test_many_streams_are_looked_through_some_at_a_time(engines, valkey, name):
    """All keys of a limiter with metrics share a root. To look at each stream of each key in one step would block the
    server for all other clients. The streams of dead processes go all the same."""
    limiter = Limiter({"calls": "1000000/day", "tokens": "1000000/day"}, name=name, engine=engines())
    client, root = valkey.client(), f"headway:{{{name}}}"
    limiter.acquire(cost={"calls": 1, "tokens": 1})
    live = struct.pack("<dd", 0, time.time() * 1e6 + 3600e6)
    client.hset(root, mapping={f"c{number:016}": live for number in range(20_000)})
    client.hset(root, mapping={f"c{number:016}": OLD for number in range(20_000, 30_000)})
    steps = 0
    while client.hlen(root) > 20_020:
        assert steps < 20
        client.config_resetstat()
        for _ in range(1024):
            limiter.acquire(cost={"calls": 1, "tokens": 1})
        calls = client.info("commandstats")
        assert "cmdstat_hkeys" not in calls
        assert calls["cmdstat_hget"]["calls"] + calls.get("cmdstat_hdel", {"calls": 0})["calls"] < 16 * 1024
        steps += 1
    assert client.hlen(root) >= 20_000


def test_grants_that_are_no_longer_asked_for_expire(engines, valkey, name):
    """Where no release is sent, a waiter that was called by a message says nothing more. With every grant some records
    are looked at, so that old ones do not gather, and none of them all at once."""
    limiter = Limiter("1 concurrent; 100000/s", name=name, engine=engines())
    client, root = valkey.client(), f"headway:{{{name}}}"
    client.hset(f"{root}:g", mapping={f"{number:020}": OLD for number in range(200)})
    recent = struct.pack("<dd", time.time() * 1e6, time.time() * 1e6)
    client.hset(f"{root}:g", "recent", recent)

    async def call():
        async with limiter:
            pass

    async def main():
        await asyncio.gather(*(call() for _ in range(400)))

    asyncio.run(main())
    eventually(lambda: client.hkeys(f"{root}:g") == [b"recent"], "only the recent one")


@pytest.mark.realtime
def test_the_queue_lives_as_long_as_a_ledger_under_a_longer_limit(engines, valkey, name):
    """A limit with a longer window is adopted while a waiter stands in the queue."""
    limiter = Limiter("1 concurrent; 10/s", name=name, engine=engines())
    held = limiter.acquire()
    thread = threading.Thread(target=lambda: limiter.acquire(timeout=30).complete())
    thread.start()
    eventually(lambda: limiter.peek().waiting, "a waiter in the queue")
    assert not Limiter("1 concurrent; 10/hour", name=name, engine=engines()).try_acquire()
    client, root = valkey.client(), f"headway:{{{name}}}"
    assert client.pttl(root) > 3_000_000
    assert client.pttl(f"{root}:q") >= client.pttl(root) - 1000
    held.complete()
    thread.join(NEVER)


def test_a_process_with_many_keys_does_not_name_a_stream_twice(engines, name):
    """All keys of a limiter with metrics share a root: a second stream of the same name would overtake the first."""
    engine = engines()
    limiter = Limiter({"host": "10 concurrent", "all": "1000/s"}, name=name, engine=engine)
    limiter.acquire({"host": "first"}).complete()
    engine._streams = itertools.count(0x10000)
    limiter.acquire({"host": "many later"}).complete()
    limiter.acquire({"host": "first"}).complete()
