"""A pause of the whole limiter in a cluster: whatever the key, on whatever node its ledger is."""

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
from tests.redis.engine_checks import TIMEOUT
from tests.redis.servers import HOST, eventually

from headway import Limiter, RateLimited, Window
from headway.engines.redis.client.background import BackgroundWorker
from headway.engines.redis.cluster.engine import ClusterEngine
from headway.engines.redis.net.address import read_address
from headway.errors import EngineUnavailable
from waiting import NEVER, SOON

pytestmark = [pytest.mark.slow, pytest.mark.realtime]

KEYS = [f"key{i}" for i in range(8)]  # on all three nodes


@pytest.fixture
def process(cluster):
    """process(limit): a limiter as another process would have it. Messages alone are quick: a lease is long."""
    made: list[Any] = []

    def make(limit="100/s", lease=300, url=cluster.url, **options):
        engine = ClusterEngine(read_address(f"{url}?lease={lease}"), timeout=TIMEOUT)
        made.append(Limiter(limit, name="paused", engine=engine, **{"engine_timeout": TIMEOUT, **options}))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()
        limiter._shared.ledgers.registry.engine.close()
    for limiter in made:
        listener = limiter._shared.ledgers.registry.engine.worker._listener
        if listener is not None:
            listener.join(NEVER)  # or its subscription may be counted by the next test


def listens(cluster, limiter):
    """Wait until a process hears the news."""
    nodes = [server.client() for server in cluster.servers]
    before = sum(node.pubsub_numsub(limiter._shared.ledgers.registry.engine.news)[0][1] for node in nodes)
    limiter.peek("first")
    eventually(
        lambda: (
            sum(node.pubsub_numsub(limiter._shared.ledgers.registry.engine.news)[0][1] for node in nodes)
            > before
        ),
        "a subscription to the news",
    )


def reasons(limiter, keys=KEYS):
    answers = [limiter.try_acquire(key) for key in keys]
    return {"granted" if answer else answer.reason for answer in answers}


async def reasons_async(limiter, keys=KEYS):
    answers = [await limiter.try_acquire_async(key) for key in keys]
    return {"granted" if answer else answer.reason for answer in answers}


def test_a_process_that_pauses_knows_at_once(process):
    limiter = process()
    assert reasons(limiter) == {"granted"}
    limiter.pause(60)
    assert reasons(limiter) == {"paused"}
    assert asyncio.run(reasons_async(limiter)) == {"paused"}
    assert 50 < limiter.peek("key0").retry_after < 61
    with pytest.raises(RateLimited) as error:
        limiter.acquire("key1", timeout=1)
    assert 50 < error.value.retry_after < 61
    limiter.pause(0)
    assert reasons(limiter) == {"granted"}
    limiter.pause(60, key="key0")
    assert reasons(limiter, ["key0"]) == {"paused"}
    assert reasons(limiter, KEYS[1:]) == {"granted"}


@pytest.mark.parametrize("task", [False, True])
def test_a_process_that_comes_later_asks_first(process, task):
    process().pause(60)
    later = process()
    assert (asyncio.run(reasons_async(later)) if task else reasons(later)) == {"paused"}


def test_the_news_reach_every_process(process, cluster):
    first, second = process(), process()
    listens(cluster, first)
    second.pause(60)
    eventually(lambda: reasons(first) == {"paused"}, "the news of a pause")
    second.pause(0)
    eventually(lambda: reasons(first) == {"granted"}, "the news of its end")
    second.pause(60)
    eventually(lambda: reasons(first) == {"paused"}, "the news of another")
    second.reset()
    eventually(lambda: reasons(first) == {"granted"}, "the news of a reset")


def test_news_that_are_lost_are_asked_for(process, monkeypatch):
    monkeypatch.setattr(BackgroundWorker, "_message", lambda self, message: None)
    deaf, other = process(lease=1), process()
    assert reasons(deaf) == {"granted"}
    time.sleep(0.5)
    other.pause(60)
    # Used all the time, or it would have to ask anew.
    eventually(lambda: reasons(deaf) == {"paused"}, "a visit", every=0.05)
    other.pause(0)
    eventually(lambda: reasons(deaf) == {"granted"}, "another", every=0.05)


def test_slots_that_were_promised_are_recalled(process, cluster):
    """Sleepers of several keys, tasks and threads; and what was promised for after the pause stays promised."""
    limiter, other = process("2/s burst 1"), process("2/s burst 1")
    listens(cluster, limiter)
    listens(cluster, other)
    for key in KEYS:
        limiter.acquire(key)
    went: list[float] = []

    def sleep_in_thread(key):
        limiter.acquire(key, timeout=NEVER)
        went.append(time.monotonic())

    async def main():
        threads = [threading.Thread(target=sleep_in_thread, args=(key,)) for key in KEYS[:2]]
        for thread in threads:
            thread.start()
        tasks = [asyncio.create_task(limiter.acquire_async(key, timeout=NEVER)) for key in KEYS * 3]
        await asyncio.sleep(0.03)
        await other.pause_async(1.5)
        begin = time.monotonic()
        await asyncio.sleep(0.5)
        assert not went
        assert not any(task.done() for task in tasks[-8:])
        await asyncio.gather(*tasks)
        assert time.monotonic() - begin >= 1.4
        for thread in threads:
            await asyncio.to_thread(thread.join, NEVER)
        assert all(at - begin >= 1.4 for at in went)
        assert len(went) == 2

    asyncio.run(main())


@pytest.mark.parametrize("limit", ["10/s burst 1", Window(1, per=0.1)])
def test_all_waiters_of_a_key_go_when_the_pause_is_lifted(process, cluster, limit):
    """Threads and tasks, here and elsewhere: nothing was promised for after the pause that could be in the way."""
    limiter, other = process(limit), process(limit)
    listens(cluster, limiter)
    listens(cluster, other)
    limiter.pause(50)
    eventually(lambda: reasons(other) == {"paused"}, "the news of a pause")
    threads = [threading.Thread(target=each.acquire, args=("key0",)) for each in (limiter, other) * 2]
    for thread in threads:
        thread.start()

    async def main():
        tasks = [asyncio.create_task(each.acquire_async("key0")) for each in (limiter, other) * 2]
        while len(limiter._shared.ledgers.registry.waiters) + len(other._shared.ledgers.registry.waiters) < 8:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        await other.pause_async(0)
        await asyncio.wait_for(asyncio.gather(*tasks), NEVER)

    asyncio.run(main())
    for thread in threads:
        thread.join(NEVER)
        assert not thread.is_alive()


def test_a_queued_waiter_is_not_served_before_the_pause_is_lifted(process, cluster):
    limiter, other = process("1 concurrent"), process("1 concurrent")
    held = [limiter.acquire(key) for key in KEYS]
    got: list[float] = []

    def wait(key):
        permit = limiter.acquire(key, timeout=600)
        got.append(time.monotonic())
        permit.complete()

    threads = [threading.Thread(target=wait, args=(key,)) for key in KEYS]
    for thread in threads:
        thread.start()
    for key in KEYS:
        eventually(lambda key=key: limiter.peek(key).waiting, "a waiter")
    other.pause(600)
    eventually(lambda: limiter.peek("free").retry_after > 10, "the news of a pause")
    for permit in held:
        permit.complete()
    time.sleep(0.5)
    assert not got
    lifted = time.monotonic()
    other.pause(0)
    for thread in threads:
        thread.join(NEVER)
    assert len(got) == len(KEYS)
    assert max(got) - lifted < SOON


def test_one_question_for_all_calls_and_no_ledger_for_it(process, cluster):
    limiter = process()
    node = cluster.owner("headway:{paused}").client()
    keys = [key for key in KEYS * 2 if cluster.owner(f"{{paused:{key}}}").port != node_port(node)]
    node.config_resetstat()
    for _ in range(5):
        assert reasons(limiter, keys) == {"granted"}
        assert asyncio.run(reasons_async(limiter, keys)) == {"granted"}
    calls = node.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    # The first one, one when the news are heard, and two where the script was not known.
    assert 1 <= calls <= 4
    assert not node.exists("headway:{paused}")


def node_port(client):
    return client.connection_pool.connection_kwargs["port"]


def test_keys_do_not_wait_for_the_node_of_their_limiter(process, make_cluster):
    """Known or not: what is not known is not waited for, and asked again."""
    own = make_cluster(cluster_require_full_coverage="no")
    dead = own.owner("headway:{paused}")
    keys = [key for key in KEYS if own.owner(f"{{paused:{key}}}") is not dead]
    alive = next(server for server in own.servers if server is not dead)
    url = f"redis+cluster://{HOST}:{alive.port}"
    settled = process(url=url, lease=1, engine_timeout=0.5)
    assert reasons(settled, keys) == {"granted"}
    dead.kill()
    assert reasons(settled, keys) == {"granted"}
    assert reasons(process(url=url, lease=1, engine_timeout=0.5), keys) == {"granted"}
    later = process(url=url, lease=1, engine_timeout=0.5)
    assert asyncio.run(reasons_async(later, keys)) == {"granted"}
    dead.restart()
    other = process(url=url)

    def paused():
        with contextlib.suppress(EngineUnavailable):
            other.pause(60)
            return True

    eventually(paused, "a node that is back", every=0.1)
    for limiter in (settled, later):
        eventually(lambda limiter=limiter: reasons(limiter, keys) == {"paused"}, "a visit", every=0.05)


def test_a_limiter_that_rests_is_not_followed_for_ever(process):
    limiter = process(lease=0.3)
    worker = limiter._shared.ledgers.registry.engine.worker
    assert reasons(limiter) == {"granted"}
    assert worker.cluster_pauses
    eventually(lambda: not worker.cluster_pauses, "the end of the questions")
    process().pause(60)
    assert reasons(limiter) == {"paused"}
