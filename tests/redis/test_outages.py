# mypy: disable-error-code="attr-defined, union-attr"
"""An engine that does not answer: every call ends in time, as `on_engine_error` says, and goes on when it is back."""

import asyncio
import threading
import time

import pytest

from headway import Limiter, Permit, RateLimited, Remote, Window
from headway.engines.redis.client.batching import thread_batcher
from headway.errors import EngineUnavailable
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime

TIMEOUT = 0.6
# For the command of another that one has to wait for, and for a machine that has other things to do.
SLACK = SOON


@pytest.fixture
def stopped(valkey):
    """valkey, and how to stop it."""
    yield valkey
    valkey.cont()


def timed(call, *args, **options):
    begin = time.monotonic()
    try:
        outcome = call(*args, **options)
    except Exception as error:  # noqa: BLE001 - it is looked at
        outcome = error
    return outcome, time.monotonic() - begin


async def timed_async(call, *args, **options):
    begin = time.monotonic()
    try:
        outcome = await call(*args, **options)
    except Exception as error:  # noqa: BLE001 - it is looked at
        outcome = error
    return outcome, time.monotonic() - begin


VERBS = [
    ("try_acquire", ()),
    ("acquire", ()),
    ("reserve", ()),
    ("peek", ()),
    ("pause", (1,)),
    ("reset", ()),
]


@pytest.mark.parametrize("mode", ["stopped", "refused", "stalled"])
def test_every_verb_ends_in_time(stopped, make_proxy, name, mode):
    events = []
    proxy = make_proxy(stopped)
    limiter = Limiter(
        "100/s burst 10",
        name=name,
        engine=proxy.url,
        engine_timeout=TIMEOUT,
        on_event=lambda event: events.append(event.kind),
    )
    patient = Limiter("100/s burst 10", name=name, engine=proxy.url, engine_timeout=NEVER)
    permits = [patient.acquire() for _ in range(4)]
    limiter.acquire()
    asyncio.run(limiter.acquire_async())
    {"stopped": stopped.stop, "refused": proxy.refuse, "stalled": proxy.stall}[mode]()
    del events[:]

    async def main():
        for verb, args in VERBS:
            outcome, took = await timed_async(getattr(limiter, f"{verb}_async"), *args)
            assert isinstance(outcome, EngineUnavailable), (verb, outcome)
            assert took < TIMEOUT + SLACK, verb

    for verb, args in VERBS:
        outcome, took = timed(getattr(limiter, verb), *args)
        assert isinstance(outcome, EngineUnavailable), (verb, outcome)
        assert took < TIMEOUT + SLACK, verb
    asyncio.run(main())
    assert events.count("engine_error") == 2 * len(VERBS)

    def hold():
        with limiter.hold():
            pass

    assert isinstance(timed(hold)[0], EngineUnavailable)
    # Ends are not waited for, and are not lost.
    for end in ("complete", "cancel", "abandon"):
        outcome, took = timed(getattr(permits.pop(), end))
        assert outcome is None
        assert took < SOON
    assert timed(permits.pop().settle, 3)[1] < SOON
    stopped.cont()
    proxy.heal()
    limiter.acquire().complete()
    assert asyncio.run(limiter.acquire_async())


def test_open_lets_pass_and_local_a_share(stopped, name):
    free = Limiter(
        "10/minute", name=f"{name}o", engine=stopped.url, engine_timeout=TIMEOUT, on_engine_error="open"
    )
    share = Limiter(
        "100/minute",
        name=f"{name}l",
        engine=stopped.url,
        engine_timeout=TIMEOUT,
        on_engine_error="local",
        local_share=0.05,
    )
    assert free.try_acquire()
    assert share.try_acquire()
    stopped.stop()
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(timed(free.acquire))) for _ in range(20)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert time.monotonic() - begin < 2 * TIMEOUT + SLACK
    assert all(isinstance(outcome, Permit) for outcome, _ in outcomes)

    async def main():
        return await asyncio.gather(*(share.try_acquire_async() for _ in range(50)))

    assert sum(map(bool, asyncio.run(main()))) == 5
    assert not share.try_acquire()
    with pytest.raises(RateLimited):
        share.acquire(timeout=0)
    with pytest.raises(RateLimited):
        asyncio.run(share.acquire_async(timeout=0))
    stopped.cont()
    wait_until(share.try_acquire, "the engine's own ledger again")


@pytest.mark.parametrize("mode", ["open", "local"])
def test_a_permit_without_the_engine_is_one_of_its_limiter(name, mode):
    """It has the key and the cost that were asked for, and can be settled like any other."""
    limits = {"requests": "500/minute", "tokens": "30000/minute"}
    limiter = Limiter(limits, name=name, engine="redis://127.0.0.1:1", on_engine_error=mode)
    for permit in (
        limiter.acquire("alice", cost={"tokens": 1200}),
        asyncio.run(limiter.acquire_async("alice", cost={"tokens": 1200})),
        limiter.try_acquire("alice", cost={"tokens": 50}),
    ):
        assert isinstance(permit, Permit)
        assert permit.key == "alice"
        permit.check()
        assert permit.expires_in > 1
        assert permit.cost["requests"] == 1
        permit.settle({"tokens": 40})


def test_32_threads_do_not_wait_for_each_other(stopped, name):
    limiter = Limiter("1000/s burst 1000", name=name, engine=stopped.url, engine_timeout=TIMEOUT)
    limiter.acquire()
    stopped.stop()
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(timed(limiter.acquire))) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert len(outcomes) == 32
    assert all(isinstance(outcome, EngineUnavailable) for outcome, _ in outcomes)
    assert max(took for _, took in outcomes) < TIMEOUT + SLACK
    stopped.cont()
    limiter.acquire()


def test_200_tasks_do_not_wait_for_each_other(stopped, name):
    limiter = Limiter("1000/s burst 1000", name=name, engine=stopped.url, engine_timeout=TIMEOUT)

    async def main():
        await limiter.acquire_async()
        stopped.stop()
        outcomes = await asyncio.gather(*(timed_async(limiter.acquire_async) for _ in range(200)))
        assert all(isinstance(outcome, EngineUnavailable) for outcome, _ in outcomes)
        assert max(took for _, took in outcomes) < TIMEOUT + SLACK
        stopped.cont()
        assert await limiter.acquire_async()

    asyncio.run(main())


def test_more_threads_than_travel_in_one_command(valkey, name):
    limiter = Limiter("1000000/s burst 1000", name=name, engine=valkey.url, engine_timeout=3)
    barrier, outcomes = threading.Barrier(400), []

    def work():
        barrier.wait()
        outcomes.append(limiter.try_acquire())

    threads = [threading.Thread(target=work) for _ in range(400)]
    with thread_batcher(
        limiter._shared.ledgers.registry.ledger((None,))
    ).lock:  # so that all of them have to wait
        for thread in threads:
            thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join(NEVER)
    assert len(outcomes) == 400
    assert all(outcomes)
    assert limiter.stats().granted == 400


@pytest.mark.parametrize(
    "limit", ["1 concurrent", Window(1, per=0.2, remote=Remote(max_transit=30))], ids=["c", "w"]
)
def test_waiters_in_the_queue_hear_of_an_outage(stopped, name, limit):
    lease = 0.5
    limiter = Limiter(limit, name=name, engine=f"{stopped.url}?lease={lease}", engine_timeout=TIMEOUT)
    held = limiter.acquire()
    outcomes = []

    async def main():
        outcomes.append(await timed_async(limiter.acquire_async))

    threads = [threading.Thread(target=lambda: outcomes.append(timed(limiter.acquire))) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: asyncio.run(main())))
    for thread in threads:
        thread.start()
    wait_until(lambda: limiter.peek().waiting == 4, "four waiters")
    stopped.stop()
    begin = time.monotonic()
    for thread in threads:
        thread.join(NEVER)
    assert time.monotonic() - begin < 2 * lease + TIMEOUT + SLACK
    assert [type(outcome) for outcome, _ in outcomes] == [EngineUnavailable] * 4
    stopped.cont()
    held.cancel()
    limiter.acquire(timeout=NEVER).cancel()
    wait_until(
        lambda: limiter.peek().waiting == 0 and limiter.peek().in_flight == 0, "no waiter and no permit out"
    )


def test_a_promised_slot_is_kept_through_a_short_outage(stopped, name):
    limiter = Limiter("5/s burst 1", name=name, engine=stopped.url, engine_timeout=TIMEOUT)
    limiter.acquire()
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(timed(limiter.acquire)))
    thread.start()
    time.sleep(0.05)
    stopped.stop()
    thread.join(NEVER)
    ((permit, took),) = outcomes
    assert isinstance(permit, Permit)
    assert took < SOON


def test_many_ends_to_a_stopped_engine_do_not_block(stopped, name):
    limiter = Limiter("20000 concurrent", name=name, engine=stopped.url, engine_timeout=NEVER)

    async def main():
        return await asyncio.gather(*(limiter.acquire_async() for _ in range(3000)))

    permits = asyncio.run(main())
    permits.append(limiter.acquire())
    permits.pop().complete()
    time.sleep(0.05)
    stopped.stop()
    longest = 0.0
    for permit in permits:
        longest = max(longest, timed(permit.complete)[1])
    assert longest < SOON
    stopped.cont()
    wait_until(lambda: limiter.peek().in_flight == 0, "all ends")


def test_an_engine_that_is_not_there_at_first(name, make_server):
    server = make_server()
    server.kill()
    limiter = Limiter("5/s", name=name, engine=server.url, engine_timeout=TIMEOUT)
    spaced = Limiter("1 every 10ms", name=f"{name}s", engine=server.url, engine_timeout=TIMEOUT)
    for one in (limiter, spaced):
        outcome, took = timed(one.try_acquire)
        assert isinstance(outcome, EngineUnavailable)
        assert took < TIMEOUT + SLACK
    server.restart()
    assert limiter.try_acquire()
    assert spaced.try_acquire()


def test_a_server_that_refuses_keeps_its_connection_and_is_complained_of_once(name, make_server, caplog):
    server = make_server()
    client = server.client()
    limiter = Limiter("1000/s", name=name, engine=server.url)
    assert limiter.try_acquire()
    client.config_set("min-replicas-to-write", 1)
    before = client.info("stats")["total_connections_received"]
    for _ in range(5):
        with pytest.raises(EngineUnavailable, match="NOREPLICAS"):
            limiter.try_acquire()
    assert client.info("stats")["total_connections_received"] == before
    assert caplog.text.count("NOREPLICAS") == 1
    client.config_set("min-replicas-to-write", 0)
    assert limiter.try_acquire()
