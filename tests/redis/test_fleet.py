# mypy: disable-error-code="attr-defined, union-attr"
"""The verbs of a limiter on a shared engine, as one process sees them: the same as in memory."""

import asyncio
import itertools
import pickle
import threading
import time

import pytest
from tests.redis.checks import check_reset
from tests.redis.crew import spent
from tests.redis.servers import eventually

import headway
from headway import (
    AcquireTimeout,
    AllOf,
    Bucket,
    Concurrency,
    FixedWindow,
    Limiter,
    RateLimited,
    Remote,
    Spacing,
    Window,
)

KINDS = [
    Bucket("1/s", burst=3),
    Window(3, per=1),
    Window(3, per=1, remote=Remote(max_transit=1)),
    FixedWindow(3, per="day"),
    Concurrency(3),
    AllOf("3/s", "5 concurrent"),
]

_names = itertools.count()


def kind_of(limit):
    return limit.kind + ("-remote" if getattr(limit, "remote", None) else "")


@pytest.mark.parametrize("limit", KINDS, ids=kind_of)
def test_grants_what_the_limit_has_and_denies_the_rest(server, name, limit):
    limiter = Limiter(limit, name=name, engine=server.url)
    permits = [limiter.try_acquire(cost=3)]
    assert permits[0]
    denied = limiter.try_acquire(cost=3)
    assert not denied
    assert denied.reason == "limit"
    assert denied.retry_after > 0
    assert limiter.peek().remaining < 3
    assert limiter.stats().granted == 1
    assert limiter.stats().denied == 1
    for permit in permits:
        permit.complete()


@pytest.mark.parametrize("limit", KINDS, ids=kind_of)
def test_another_limiter_of_the_name_sees_the_same_ledger(valkey, name, limit):
    first = Limiter(limit, name=name, engine=valkey.url)
    other = pickle.loads(pickle.dumps(first))
    permit = first.try_acquire(cost=3)
    assert permit
    assert not other.try_acquire(cost=3)
    assert other.try_acquire("another key", cost=3).cancel() is None
    permit.cancel()


def test_a_spacing_is_kept(server, name):
    limiter = Limiter("1 every 40ms", name=name, engine=server.url)
    times = [spent(limiter.acquire()) for _ in range(6)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 0.040


def test_waiting_keeps_the_schedule_of_a_bucket(server, name):
    limiter = Limiter("100/s burst 1", name=name, engine=server.url)
    begin = time.monotonic()
    for _ in range(21):
        limiter.acquire()
    assert time.monotonic() - begin >= 0.2


def test_a_window_with_a_remote_waits_for_its_permits(server, name):
    limiter = Limiter(Window(2, per=0.2, remote=Remote(resolution=0)), name=name, engine=server.url)
    times = []

    def call():
        with limiter:
            times.append(time.monotonic())

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    times.sort()
    assert len(times) == 6
    assert all(later - earlier >= 0.2 for earlier, later in zip(times, times[2:], strict=False))


def test_concurrency_is_passed_on_to_who_came_first(server, name):
    limiter = Limiter("1 concurrent", name=name, engine=server.url)
    order = []

    async def call(number):
        async with limiter:
            order.append(number)
            await asyncio.sleep(0.002)

    async def main():
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(call(number)))
            await asyncio.sleep(0.001)
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == list(range(20))


def test_several_metrics_are_taken_together_or_not_at_all(server, name):
    limiter = Limiter({"requests": "5/minute", "tokens": "100/minute"}, name=name, engine=server.url)
    permit = limiter.acquire(cost={"tokens": 80})
    denied = limiter.try_acquire(cost={"tokens": 30})
    assert not denied
    assert denied.limit == Window(100, per=60)
    assert limiter.peek().parts[0].remaining == 4
    permit.settle({"tokens": 10})
    time.sleep(0.05)
    assert limiter.try_acquire(cost={"tokens": 30})
    assert limiter.peek().parts[1].remaining == 60


def test_one_limit_per_host_under_one_for_all(server, name):
    limiter = Limiter({"all": "3/minute", "host": "2/minute"}, name=name, engine=server.url)
    assert [bool(limiter.try_acquire({"host": "a"})) for _ in range(3)] == [True, True, False]
    assert [bool(limiter.try_acquire({"host": "b"})) for _ in range(2)] == [True, False]


def test_who_waits_for_its_host_does_not_block_others(server, name):
    limiter = Limiter({"all": "5 concurrent", "host": "1 concurrent"}, name=name, engine=server.url)

    async def main():
        held = await limiter.acquire_async({"host": "a"})
        waiter = asyncio.create_task(limiter.acquire_async({"host": "a"}))
        await asyncio.sleep(0.1)
        other = await asyncio.wait_for(limiter.acquire_async({"host": "b"}), 5)
        assert not waiter.done()
        held.complete()
        permit = await asyncio.wait_for(waiter, 5)
        permit.complete()
        other.complete()

    asyncio.run(main())


@pytest.mark.parametrize("limit", ["1/minute", "1/minute burst 1", "1 concurrent", "1/day aligned"])
def test_a_wait_that_cannot_end_in_time_fails_at_once_or_at_its_deadline(server, name, limit):
    limiter = Limiter(limit, name=name, engine=server.url)
    permit = limiter.acquire()
    begin = time.monotonic()
    with pytest.raises(AcquireTimeout) as caught:
        limiter.acquire(timeout=0.2)
    assert time.monotonic() - begin < 2
    assert caught.value.reason == "timeout"
    assert caught.value.timeout == 0.2
    eventually(lambda: limiter.peek().waiting == 0, "a place given back")
    permit.cancel()


@pytest.mark.parametrize("options", [{"timeout": 0.1}, {"max_waiting": 0}], ids=str)
@pytest.mark.parametrize(
    ("limit", "least"), [("1 concurrent", 0), (Window(1, per=2, remote=Remote(max_transit=30)), 2)], ids=str
)
def test_who_gave_up_in_the_queue_is_told_how_things_stand(server, name, limit, least, options):
    """While permits are out nobody knows when: the least that it can be, and not when a lease would end."""
    limiter = Limiter(limit, name=name, engine=server.url, **options)
    held = limiter.acquire()
    for call in (limiter.acquire, lambda: asyncio.run(limiter.acquire_async())):
        with pytest.raises(RateLimited, match="permits are out, so it is not known when") as caught:
            call()
        error = caught.value
        assert isinstance(error, TimeoutError) == ("timeout" in options)
        assert (error.status.exact, error.status.in_flight, error.reason) == (False, 1, next(iter(options)))
        assert error.retry_after == error.status.retry_after
        assert least <= error.retry_after < least + 0.5
    held.complete()
    eventually(lambda: limiter.peek().waiting == 0, "an empty queue")


def test_a_cancelled_wait_gives_its_place_back(server, name):
    limiter = Limiter("1 concurrent", name=name, engine=server.url)

    async def main():
        held = await limiter.acquire_async()
        first = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0.05)
        second = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0.05)
        assert limiter.peek().waiting == 2
        first.cancel()
        await asyncio.sleep(0.1)
        assert limiter.peek().waiting == 1
        held.complete()
        permit = await asyncio.wait_for(second, 5)
        permit.complete()
        await asyncio.sleep(0.1)
        assert limiter.peek().in_flight == 0

    asyncio.run(main())


def test_a_cancelled_reservation_gives_its_slot_back(server, name):
    limiter = Limiter("1/m burst 1", name=name, engine=server.url)

    async def main():
        await limiter.acquire_async()
        task = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.sleep(0.03)
        assert 50 < (await limiter.peek_async()).retry_after < 61

    asyncio.run(main())


def test_reserve_promises_a_time(server, name):
    limiter = Limiter("1/s burst 1", name=name, engine=server.url)
    assert limiter.reserve().delay == 0
    permit = limiter.reserve()
    assert 0.1 < permit.delay < 1.1
    with permit:
        assert permit.delay == 0
    with pytest.raises(headway.HeadwayError, match="cannot promise"):
        Limiter("1 concurrent", name=f"{name}c", engine=server.url).reserve()


def test_a_spacing_bounds_what_is_reserved(server, name):
    limiter = Limiter(Spacing(0.3, max_reserved=2), name=name, engine=server.url)
    limiter.acquire()
    limiter.reserve()
    limiter.reserve()
    assert limiter.peek().waiting == 2
    with pytest.raises(RateLimited):
        limiter.reserve()
    begin = time.monotonic()
    limiter.acquire()
    assert 0.3 < time.monotonic() - begin < 5


def test_a_pause_holds_everybody_up_and_moves_who_sleeps(server, name):
    limiter = Limiter("20/s burst 1", name=name, engine=server.url)

    async def main():
        await limiter.acquire_async()
        begin = time.monotonic()
        sleeper = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0.01)
        await limiter.pause_async(0.4)
        assert (await limiter.try_acquire_async()).reason == "paused"
        await asyncio.wait_for(sleeper, 5)
        assert time.monotonic() - begin >= 0.4

    asyncio.run(main())


def test_a_pause_can_be_lifted(server, name):
    limiter = Limiter("20/s burst 1", name=name, engine=server.url)
    limiter.pause(60)
    assert not limiter.try_acquire()
    limiter.pause(0)
    assert limiter.try_acquire()


@pytest.mark.parametrize("limit", ["10/day aligned", "1/100s burst 10", "10/hour", "10 concurrent"])
def test_nothing_comes_back_for_what_was_taken_before_a_reset(server, name, limit):
    limiter = Limiter(limit, name=name, engine=server.url)
    check_reset(limiter, limiter.reset)


def test_reset_starts_anew(server, name):
    for limit in KINDS:
        limiter = Limiter(limit, name=f"{name}{kind_of(limit)}", engine=server.url)
        permit = limiter.try_acquire(cost=3)
        limiter.reset()
        again = limiter.try_acquire(cost=3)
        assert again, limit
        again.complete()
        permit.complete()


def test_200_tasks_travel_together(server, name):
    limiter = Limiter("1000000/s burst 1000", name=name, engine=server.url)
    client = server.client()

    async def main():
        await limiter.acquire_async()
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        await asyncio.gather(*(limiter.acquire_async() for _ in range(200)))
        return client.info("commandstats")["cmdstat_evalsha"]["calls"] - before

    assert asyncio.run(main()) <= 3
    assert limiter.stats().granted == 201


def test_two_event_loops_one_after_the_other_and_threads(server, name):
    limiter = Limiter("1000/s burst 100", name=name, engine=server.url)
    for _ in range(2):
        assert asyncio.run(limiter.acquire_async())
        assert limiter.acquire()


def test_throttle_takes_its_name_from_the_function(server):
    calls = []

    def call(number):
        calls.append(number)
        return number

    call.__qualname__ = "call"
    throttled = headway.throttle("2/minute", engine=server.url, timeout=0, on_limit="skip")(call)
    assert [throttled(1), throttled(2), throttled(3)] == [1, 2, None]
    assert throttled.limiter.name == f"{__name__}:call"
    with pytest.raises(headway.HeadwayError, match="another function in another process"):
        headway.throttle("2/minute", engine=server.url)(lambda: None)


def test_who_may_not_reserve_is_told_when_it_may(server, name):
    for engine in ("memory://", server.url):
        limiter = Limiter(Spacing(2, max_reserved=1), name=name, engine=engine)
        limiter.acquire()
        limiter.reserve()
        with pytest.raises(RateLimited) as caught:
            limiter.reserve()
        assert 1.5 < caught.value.retry_after < 2.1
        assert 3.5 < caught.value.status.retry_after < 4.1


def test_a_key_may_be_any_text(server, name):
    for engine in ("memory://", server.url):
        limiter = Limiter("1/minute", name=name, engine=engine)
        for key in ("", "\udcff", "a\0b", "\n", "x" * 3000, "größe"):
            assert limiter.try_acquire(key)
            assert not limiter.try_acquire(key)


def test_names_that_look_alike_are_not_the_same(server):
    first = Limiter("1/minute", name="a:b", engine=server.url)
    other = Limiter("1/minute", name="a", engine=server.url)
    assert first.try_acquire("c")
    assert other.try_acquire("b:c")
    assert other.try_acquire("}{")
    assert Limiter("1/minute", name="a}", engine=server.url).try_acquire("{")


def test_close_ends_waiters(server, name):
    limiter = Limiter("1 concurrent", name=name, engine=server.url)
    held = limiter.acquire()
    ended = []

    def wait():
        with pytest.raises(headway.LimiterClosed):
            limiter.acquire()
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    limiter.close()
    thread.join(5)
    assert ended == [True]
    with pytest.raises(headway.LimiterClosed):
        limiter.try_acquire()
    held.complete()


def test_what_makes_no_sense_is_refused(server, name):
    for options, says in [
        ({}, "name"),
        ({"name": name, "start": "full"}, "survives"),
        ({"name": name, "on_engine_error": "maybe"}, "closed"),
        ({"name": name, "on_ledger_loss": "forget"}, "quarantine"),
        ({"name": name, "engine_timeout": 0}, "0.001"),
        ({"name": name, "engine_timeout": "soon"}, "engine_timeout='soon'"),
        ({"name": name, "max_quarantine": -1}, "None for no cap"),
        ({"name": name, "max_quarantine": "soon"}, "max_quarantine='soon'"),
        ({"name": name, "local_share": 0}, "above 0"),
    ]:
        with pytest.raises(headway.HeadwayError, match=says):
            Limiter("1/s", engine=server.url, **options)
    for options in ({"name": name}, {}):
        with pytest.raises(headway.HeadwayError, match=r"^engine='http://somewhere' .* redis://"):
            Limiter("1/s", engine="http://somewhere", **options)
    for wrong, shown in (
        (None, "None"),
        (6379, "6379"),
        (b"redis://:secret@db", "<class 'bytes'>"),
        ({"password": "secret"}, "<class 'dict'>"),
    ):
        with pytest.raises(headway.InvalidArgument, match=rf"^engine={shown} .* give a URI") as caught:
            Limiter("1/s", engine=wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(headway.HeadwayError, match="seconds='soon' is not accepted; give seconds from 0 up"):
        Limiter("1/s", name=name, engine=server.url).pause("soon")  # type: ignore[arg-type]
    with pytest.raises(headway.HeadwayError, match="shared engine"):
        Limiter("1/s", on_engine_error="open")
    with pytest.raises(headway.HeadwayError, match=r"2\*\*52"):
        Limiter("1000000007/s burst 10000000", name=name, engine=server.url)
    with pytest.raises(headway.HeadwayError, match="twice the round trip"):
        Limiter(Spacing(1, expire_after="1ns"), name=name, engine=server.url)


def test_a_permit_that_comes_back_in_time_is_waited_for(server, name):
    """Nobody knows when a permit that is out comes back: who has a second to wait does not give up at once."""
    limiter = Limiter("1 concurrent", name=name, engine=server.url)
    held = limiter.acquire()
    threading.Timer(0.1, held.complete).start()
    limiter.acquire(timeout=2).complete()
    held = limiter.acquire()
    begin = time.monotonic()
    with pytest.raises(RateLimited):
        limiter.acquire(timeout=0.2)
    assert 0.2 <= time.monotonic() - begin < 2
    held.complete()


def test_a_pause_of_the_limiter_holds_every_key_up(server, name):
    limiter = Limiter("20/s burst 1", name=name, engine=server.url)
    other = Limiter("20/s burst 1", name=name, engine=server.url)

    async def main():
        await limiter.acquire_async("alice")
        begin = time.monotonic()
        sleepers = [asyncio.create_task(limiter.acquire_async("alice")) for _ in range(3)]
        await asyncio.sleep(0.01)
        await other.pause_async(0.5)
        assert (await other.try_acquire_async("bob")).reason == "paused"
        await asyncio.wait_for(asyncio.gather(*sleepers), 5)
        assert time.monotonic() - begin >= 0.5
        await other.pause_async(60)
        await other.pause_async(0)
        assert await other.try_acquire_async("bob")

    asyncio.run(main())


def test_an_abandoned_permit_is_known_to_take_its_transit(server, name):
    limiter = Limiter(Window(1, per=1, remote=Remote(max_transit=30)), name=name, engine=server.url)
    limiter.acquire().abandon()
    eventually(lambda: limiter.peek().exact, "the end of the permit on the server")
    assert limiter.peek().retry_after > 29
    begin = time.monotonic()
    with pytest.raises(AcquireTimeout, match=r"would have to wait"):
        limiter.acquire(timeout=20)
    assert time.monotonic() - begin < 10


def test_a_permit_has_the_status_after_its_grant(server, name):
    limiter = Limiter("3/minute", name=name, engine=server.url)
    permit = limiter.acquire("ann", cost=2)
    assert (permit.status.remaining, permit.status.denied) == (1, False)
    assert permit.status.headers()["X-RateLimit-Remaining"] == "1"
    meter = Limiter({"host": "2/minute", "all": "9/minute"}, name=name + "m", engine=server.url)
    assert meter.acquire({"host": "there"}).status["host"].remaining == 1


def test_an_exempt_key_needs_no_engine(server, name):
    limiter = Limiter("1/minute", name=name, engine=server.url, overrides={"vip": None, "ann": "2/minute"})
    assert all(limiter.try_acquire("vip", cost=9) for _ in range(20))
    assert all([asyncio.run(limiter.acquire_async("vip", timeout=0)), limiter.acquire("vip")])
    assert (limiter.peek("vip").retry_after, str(limiter.peek("vip").limit)) == (0, "unlimited")
    limiter.reset("vip")
    assert [bool(limiter.try_acquire("ann")) for _ in range(3)] == [True, True, False]
    assert [bool(limiter.try_acquire("bob")) for _ in range(2)] == [True, False]
    assert limiter.stats().granted == 25
    limiter.pause(30)
    assert not limiter.try_acquire("vip")
    limiter.pause(0)
    assert limiter.try_acquire("vip")
    with pytest.raises(headway.InvalidArgument, match="with metrics no key is exempt"):
        Limiter({"a": "1/s"}, name=name + "m", engine=server.url, overrides={"vip": None})


def test_reset_all_says_what_to_do(server, name):
    with pytest.raises(headway.InvalidUse, match=r"write `limiter.reset\(key\)`"):
        Limiter("1/minute", name=name, engine=server.url).reset_all()
