# mypy: disable-error-code="union-attr"
"""An engine that no limiter uses any more closes by itself, and delivers first what is left to say."""

import asyncio
import gc
import os
import threading
import time
import weakref

import pytest
import redis
from tests.redis.servers import HOST

from headway import EngineUnavailable, Limiter, redis_engine
from headway.engines import unused
from headway.engines.redis import opened
from headway.engines.unused import _watched
from waiting import NEVER, wait_until

pytestmark = pytest.mark.realtime


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(unused, "LINGER_NS", 200_000_000)


def files():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number, and nothing else


def mine():
    return [thread for thread in threading.enumerate() if thread.name.startswith("headway")]


def use(limiter):
    """A permit that is renewed and one that is waited for: both threads run."""
    with limiter:
        waiting = threading.Thread(target=lambda: limiter.acquire(timeout=NEVER).complete())
        waiting.start()
        wait_until(lambda: limiter.peek().waiting, "a waiter")
    waiting.join(NEVER)


def test_a_limiter_is_freed_without_the_collector(valkey, name):
    """Nothing that it refers to refers to it."""
    gc.disable()
    try:
        limiter = Limiter("5/s", name=name, engine=valkey.url, overrides={"k": "7/s"})
        limiter.acquire("k")
        freed = weakref.ref(limiter._shared.ledgers)
        del limiter
        assert freed() is None
    finally:
        gc.enable()


def test_limiters_that_are_made_and_dropped_leave_nothing_behind(valkey, name):
    others = set(mine())  # of engines that other tests still refer to
    use(Limiter("1 concurrent", name=name, engine=valkey.url))
    wait_until(lambda: not set(mine()) - others, "no threads of before")
    before = files()
    for number in range(25):
        use(Limiter("1 concurrent", name=name, engine=f"{valkey.url}?namespace=n{number}"))
    wait_until(lambda: not set(mine()) - others, "no threads")
    wait_until(lambda: files() <= before + 2, "no connections")
    assert not [uri for uri in opened if "namespace=n" in uri]
    wait_until(lambda: len(valkey.client().client_list()) < 15, "the server has no connections left of them")


def test_so_do_those_of_an_event_loop_that_goes_on(valkey, name):
    async def main():
        for number in range(10):
            limiter = Limiter("5/s", name=name, engine=f"{valkey.url}?namespace=t{number}")
            (await limiter.acquire_async()).complete()
            del limiter
        while [uri for uri in opened if "namespace=t" in uri]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        return files()

    before = files()
    assert asyncio.run(asyncio.wait_for(main(), NEVER)) <= before + 5  # those of the loop itself


def test_a_permit_that_is_out_keeps_its_engine(valkey, name):
    uri = f"{valkey.url}?namespace=out&lease=1"
    permit = Limiter("1 concurrent", name=name, engine=uri).acquire()
    time.sleep(2.5)  # two leases and more: it is renewed
    assert uri in opened
    permit.check()
    permit.complete()
    del permit
    wait_until(lambda: uri not in opened, "the engine is closed")
    assert Limiter("1 concurrent", name=name, engine=uri).peek().in_flight == 0


def test_what_is_left_to_say_is_said_first(valkey, name):
    """The releases of permits, of one that was dropped without an end, and while the server does not answer."""
    uri = f"{valkey.url}?namespace=last"
    permits = [Limiter("9 concurrent", name=name, engine=uri).acquire() for _ in range(5)]
    valkey.stop()
    for permit in permits:
        permit.complete()
    del permit, permits
    time.sleep(0.5)
    valkey.cont()
    with pytest.warns(ResourceWarning):
        Limiter("9 concurrent", name=name, engine=uri).acquire()
    wait_until(lambda: uri not in opened, "the engine is closed")
    watch = Limiter("9 concurrent", name=name, engine=f"{valkey.url}?namespace=last&lease=5")
    assert watch.peek().in_flight == 0


def test_a_limiter_that_comes_later_opens_it_again(valkey, name):
    """Also one that was given the engine itself, which was closed meanwhile."""
    uri = f"{valkey.url}?namespace=again"
    first = Limiter("1 concurrent", name=name, engine=uri)
    engine = first._shared._engine
    use(first)
    del first
    wait_until(lambda: engine.closed, "the engine is closed")
    again = Limiter("1 concurrent", name=name, engine=engine)
    assert not engine.closed
    use(again)
    other = Limiter("1 concurrent", name=name, engine=uri)
    use(other)


def test_an_engine_that_the_user_holds_stays_until_it_is_closed(valkey, name):
    client = redis.Redis(host=HOST, port=valkey.port)
    engine = redis_engine(client, namespace="held")
    Limiter("5/s", name=name, engine=engine).acquire()
    Limiter("5/s", name=name, engine=f"{valkey.url}?namespace=other").acquire()
    wait_until(lambda: not any(users.unused for users in list(_watched.values())), "the other one is closed")
    time.sleep(0.4)
    assert not engine.closed  # type: ignore[attr-defined]
    Limiter("5/s", name=name, engine=engine).acquire()
    engine.close()
    client.close()


def test_one_uri_is_one_engine_and_every_limiter_keeps_its_own_time_out(valkey, name):
    """The first limiter's connection is the second one's, which may wait for longer; the first does not."""
    short = Limiter("1000/s", name=name, engine=f"{valkey.url}?namespace=times", engine_timeout=0.3)
    short.acquire()
    stats = valkey.client()
    before = stats.info("stats")["total_connections_received"]
    long = Limiter("1000/s", name=name, engine=f"{valkey.url}?namespace=times", engine_timeout=30)
    assert long._shared._engine is short._shared._engine
    valkey.stop()
    going_on = threading.Timer(1.0, valkey.cont)
    going_on.start()
    assert long.try_acquire()
    going_on.join()
    for _ in range(5):
        long.acquire()
        short.acquire()
    assert stats.info("stats")["total_connections_received"] == before
    valkey.stop()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable):
        short.acquire()
    with pytest.raises(EngineUnavailable):
        asyncio.run(short.acquire_async())
    assert time.monotonic() - began < 15
    valkey.cont()
