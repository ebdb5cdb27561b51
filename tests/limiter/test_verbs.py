"""acquire, try_acquire, hold, reserve, close: what each verb does, on a clock that the test owns."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import math
from datetime import timedelta

import pytest

from headway import Limiter, LimiterClosed, RateLimited, Spacing, Window
from headway.testing import ManualClock, disabled, run

pytestmark = pytest.mark.both_forms

SECOND = 10**9
MS = 10**6


@pytest.fixture
def clock():
    return ManualClock()


def facts(limiter, key=None):
    """Everything that can be seen of a limiter without changing it."""
    return limiter.peek(key), limiter.stats()


# -- time-outs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.0, 0.05, timedelta(milliseconds=99), 0.099999999])
def test_a_wait_that_cannot_end_in_time_fails_at_once(clock, timeout):
    limiter = Limiter("10/s burst 1", clock=clock)
    limiter.acquire()
    before = limiter.peek()
    with pytest.raises(RateLimited) as caught:
        limiter.acquire(timeout=timeout)
    assert clock.now() == 0
    assert (caught.value.reason, caught.value.retry_after) == ("timeout", 0.1)
    assert str(caught.value.limit) == "10/s burst 1"
    assert limiter.peek() == before
    assert limiter.stats().waiting == 0


def test_a_wait_may_end_at_exactly_its_deadline():
    clock = ManualClock(autojump=True)
    limiter = Limiter("10/s burst 1", clock=clock)
    limiter.acquire(timeout=0)
    limiter.acquire(timeout=0.1)
    assert clock.now() == SECOND // 10
    limiter.acquire(timeout=None)
    limiter.acquire(timeout=math.inf)
    assert clock.now() == 3 * SECOND // 10


def test_the_limiter_has_a_time_out_of_its_own():
    clock = ManualClock(autojump=True)
    limiter = Limiter("10/s burst 1", timeout=0.05, clock=clock)
    limiter.acquire()
    for ask in (limiter.acquire, limiter.hold().__enter__, limiter.__enter__):
        with pytest.raises(RateLimited, match=r"timeout=0\.05 s"):
            ask()
    limiter.acquire(timeout=None)
    limiter.acquire(timeout=1)
    assert clock.now() == 2 * SECOND // 10


@pytest.mark.parametrize("verb", ["acquire", "acquire_async"])
def test_where_no_time_is_known_it_waits_until_the_deadline(verb):
    clock = ManualClock(autojump=True)
    limiter = Limiter("1 concurrent", clock=clock)
    permit = limiter.acquire()
    asynchronously = verb == "acquire_async"
    with pytest.raises(RateLimited, match="not granted within timeout=5 s"):
        run(limiter.acquire_async(timeout=5), clock=clock) if asynchronously else limiter.acquire(timeout=5)
    assert clock.now() == 5 * SECOND
    assert limiter.stats().waiting == 0
    permit.complete()
    limiter.acquire(timeout=0).complete()


def test_what_comes_free_at_the_deadline_is_not_missed(clock):
    limiter = Limiter("1 concurrent", clock=clock)
    permit = limiter.acquire()

    async def main():
        waiter = asyncio.create_task(limiter.acquire_async(timeout=5))
        await clock.sleep_async(5)
        if not waiter.done():
            permit.complete()
        (await waiter).complete()
        return clock.now()

    assert run(main(), clock=clock) == 5 * SECOND


def test_a_time_out_in_the_middle_lets_those_behind_move_up(clock):
    limiter = Limiter("2 concurrent", clock=clock)
    out = limiter.acquire()

    async def main():
        heavy = asyncio.create_task(limiter.acquire_async(cost=2, timeout=3))
        await asyncio.sleep(0)
        light = asyncio.create_task(limiter.acquire_async())
        with pytest.raises(RateLimited):
            await heavy
        permit = await light
        assert clock.now() == 3 * SECOND
        permit.complete()

    run(main(), clock=clock)
    out.complete()


# -- max_waiting -------------------------------------------------------------------------------------------------


def test_only_so_many_may_wait(clock):
    limiter = Limiter("10/s burst 1", max_waiting=2, clock=clock)

    async def main():
        await limiter.acquire_async()
        waiters = [asyncio.create_task(limiter.acquire_async()) for _ in range(2)]
        await asyncio.sleep(0)
        before = limiter.peek()
        with pytest.raises(RateLimited, match=r"max_waiting=2") as caught:
            await limiter.acquire_async()
        assert (caught.value.reason, caught.value.retry_after) == ("max_waiting", 0.3)
        assert limiter.peek() == before
        await waiters[0]
        third = asyncio.create_task(limiter.acquire_async())
        await asyncio.gather(waiters[1], third)
        return clock.now()

    assert run(main(), clock=clock) == 3 * SECOND // 10


def test_no_caller_may_wait(clock):
    limiter = Limiter("10/s burst 1", max_waiting=0, clock=clock)
    limiter.acquire()
    with pytest.raises(RateLimited, match="max_waiting=0"):
        limiter.acquire()
    assert limiter.stats().waiting == 0
    clock.advance(0.1)
    limiter.acquire()


# -- nothing is ever granted -------------------------------------------------------------------------------------


# -- start="full" ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "first"),
    [
        (Window(3, per=60, remote=False), 60.0),
        ("10/s burst 5", 0.1),
        ("1 every 6s", 6.0),
        ("3/day aligned", 86400.0),
    ],
)
def test_a_full_start_counts_everything_as_just_used(clock, limit, first):
    limiter = Limiter(limit, start="full", clock=clock)
    for key in (None, "a"):
        denied = limiter.try_acquire(key)
        assert (denied.retry_after, denied.status.remaining) == (first, 0)
    clock.advance_ns(int(first * SECOND) - 1)
    assert not limiter.try_acquire()
    clock.advance_ns(1)
    assert limiter.try_acquire()
    assert limiter.try_acquire("a")
    assert limiter.try_acquire("a key that comes late")


def test_a_full_start_of_a_window_counts_as_completed_now():
    clock = ManualClock()
    denied = Limiter("3/minute", start="full", clock=clock).try_acquire()
    assert (round(denied.retry_after, 3), denied.status.in_flight) == (60.031, 0)


def test_a_full_start_of_a_remote_window_waits_for_their_transit():
    clock = ManualClock()
    limiter = Limiter("2/s", remote=True, start="full", clock=clock)
    status = limiter.peek()
    assert (status.remaining, status.in_flight, status.exact) == (0, 2, False)
    clock.advance(10)
    assert not limiter.try_acquire()
    clock.advance(1.1)
    limiter.acquire(cost=2, timeout=0).complete()


# -- reserve -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "delays"),
    [
        ("10/s burst 2", [0, 0, 0.1, 0.2]),
        ("1 every 6s", [0, 6, 12, 18]),
        ("10/s burst 2; 1 every 1s", [0, 1, 2, 3]),
    ],
)
def test_promised_times(limit, delays):
    clock = ManualClock(autojump=True)
    limiter = Limiter(limit, clock=clock)
    permits = [limiter.reserve() for _ in delays]
    assert [permit.delay for permit in permits] == delays
    arrived = []
    for permit in permits:
        with permit:
            arrived.append(clock.now() / SECOND)
        assert permit.delay == 0
    assert arrived == delays
    assert limiter.stats().granted == len(delays)


def test_a_task_waits_for_its_slot(clock):
    limiter = Limiter("1 every 6s", clock=clock)

    async def main():
        limiter.acquire()
        permit = await limiter.reserve_async()
        assert await permit.wait_async() is permit
        async with limiter.reserve():
            return clock.now()

    assert run(main(), clock=clock) == 12 * SECOND


def test_no_caller_takes_what_was_promised(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    limiter.reserve()
    limiter.reserve()
    assert limiter.try_acquire().retry_after == 0.2
    clock.advance(0.1)
    assert not limiter.try_acquire()
    clock.advance(0.1)
    assert limiter.try_acquire()


@pytest.mark.parametrize("limit", ["10/s burst 1", "1 every 100ms"])
def test_a_cancelled_reservation_gives_back_what_no_later_reservation_has(clock, limit):
    limiter = Limiter(limit, clock=clock)
    first, second, third = (limiter.reserve() for _ in range(3))
    second.cancel()
    assert third.delay == 0.2
    assert limiter.peek().retry_after == 0.3
    third.cancel()
    assert 0.1 < limiter.reserve().delay <= 0.2
    assert first.delay == 0


def test_the_last_reservation_is_given_back_whole(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    limiter.reserve()
    before = limiter.peek()
    limiter.reserve().cancel()
    assert limiter.peek() == before


def test_a_waiter_is_promised_its_time_before_a_later_reservation(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    trace = []

    async def wait(name):
        await limiter.acquire_async()
        trace.append((name, clock.now() // MS))

    async def main():
        await limiter.acquire_async()
        waiters = [asyncio.create_task(wait(name)) for name in "ab"]
        await asyncio.sleep(0)
        reserved = limiter.reserve()
        assert reserved.delay == 0.3
        waiters.append(asyncio.create_task(wait("c")))
        await asyncio.sleep(0)
        assert limiter.stats().waiting == 3
        await reserved.wait_async()
        trace.append(("reserved", clock.now() // MS))
        await asyncio.gather(*waiters)

    run(main(), clock=clock)
    assert trace == [("a", 100), ("b", 200), ("reserved", 300), ("c", 400)]
    assert limiter.stats().waiting == 0


def test_a_promised_waiter_that_is_cancelled_lets_others_move_up(clock):
    limiter = Limiter("10/s burst 1", clock=clock)

    async def main():
        await limiter.acquire_async()
        first = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0)
        limiter.reserve().cancel()
        behind = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0)
        first.cancel()
        await behind
        return clock.now() // MS

    assert run(main(), clock=clock) == 100
    assert (limiter.stats().waiting, limiter.stats().granted) == (0, 3)


def test_closing_tells_a_promised_waiter_at_once(clock):
    limiter = Limiter("10/s burst 1", clock=clock)

    async def main():
        await limiter.acquire_async()
        waiter = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0)
        limiter.reserve()
        limiter.close()
        with pytest.raises(LimiterClosed):
            await waiter
        return clock.now()

    assert run(main(), clock=clock) == 0


def test_a_promised_waiter_that_wakes_late_keeps_the_distance(clock):
    limiter = Limiter("1 every 1s", clock=clock)
    used = []

    async def main():
        await limiter.acquire_async()
        waiter = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0)
        reserved = limiter.reserve()
        clock.advance(1.5)
        await waiter
        used.append(clock.now() // MS)
        await reserved.wait_async()
        used.append(clock.now() // MS)

    run(main(), clock=clock)
    assert used == [1500, 2500]


@pytest.mark.parametrize("limit", ["1 every 1s", "1 every 1s; 100/s burst 1"])
def test_a_holder_that_comes_late_keeps_the_distance(clock, limit):
    limiter = Limiter(limit, clock=clock)
    _, late, punctual = (limiter.reserve() for _ in range(3))
    used = []

    async def main():
        await clock.sleep_async(1.5)
        await late.wait_async()
        used.append(clock.now() // MS)
        await punctual.wait_async()
        used.append(clock.now() // MS)

    run(main(), clock=clock)
    assert used == [1500, 2500]


def test_only_so_many_may_be_reserved(clock):
    limiter = Limiter(Spacing(6, max_reserved=2), clock=clock)
    delays = [limiter.reserve().delay for _ in range(3)]
    assert delays == [0, 6, 12]
    before = limiter.peek()
    with pytest.raises(RateLimited):
        limiter.reserve()
    assert limiter.peek() == before
    clock.advance(6)
    assert limiter.reserve().delay == 12


def test_a_reservation_waits_for_the_end_of_a_pause(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    limiter.pause(5)
    assert limiter.reserve().delay == 5
    assert limiter.reserve().delay == 5.1


# -- close -------------------------------------------------------------------------------------------------------


# -- disabled ----------------------------------------------------------------------------------------------------


def test_disabled_grants_whatever_the_patience(clock):
    limiter = Limiter("1/minute", clock=clock)
    limiter.acquire()
    with disabled():
        assert limiter.try_acquire()
        assert limiter.acquire()
        assert limiter.acquire(timeout=0)
    assert not limiter.try_acquire()


# -- several limits ----------------------------------------------------------------------------------------------


def test_all_or_none(clock):
    limiter = Limiter("10/s; 3/minute; 5 concurrent", clock=clock)
    permits = [limiter.try_acquire() for _ in range(3)]
    denied = limiter.try_acquire()
    assert (str(denied.limit), denied.retry_after) == ("3/minute", 60)
    assert [part.remaining for part in denied.status.parts] == [7, 0, 2]
    for permit in permits:
        permit.complete()
    assert [part.remaining for part in limiter.peek().parts] == [7, 0, 5]
