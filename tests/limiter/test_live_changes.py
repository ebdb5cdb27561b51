"""pause, set_limit, reset: what callers that wait already hear of them."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio

import pytest

from headway import Limiter, RateLimited
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms

SECOND = 10**9
MS = 10**6


@pytest.fixture
def clock():
    return ManualClock()


class Crowd:
    """Tasks that wait, and what became of them: (name, milliseconds) or (name, reason)."""

    def __init__(self, limiter, clock):
        self.limiter, self.clock = limiter, clock
        self.trace = []
        self.tasks = []

    async def add(self, name, key=None, cost=1):
        async def wait():
            try:
                await self.limiter.acquire_async(key, cost=cost)
                self.trace.append((name, self.clock.now() // MS))
            except RateLimited as error:
                self.trace.append((name, error.reason))

        self.tasks.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)

    async def done(self):
        await asyncio.gather(*self.tasks)
        return self.trace


# -- pause -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["10/s burst 5", "5/s", "1 every 100ms", "5/day aligned", "5 concurrent", "5/s; 9/m"]
)
def test_nothing_is_granted_during_a_pause(clock, limit):
    limiter = Limiter(limit, clock=clock)
    limiter.pause(30)
    for key in (None, "a"):
        denied = limiter.try_acquire(key)
        assert (denied.reason, denied.retry_after, denied.status.remaining) == ("paused", 30, 0)
    with pytest.raises(RateLimited) as caught:
        limiter.acquire(timeout=29)
    assert caught.value.retry_after == 30
    clock.advance_ns(30 * SECOND - 1)
    assert not limiter.try_acquire()
    clock.advance_ns(1)
    permit = limiter.try_acquire()
    assert permit
    permit.complete()
    assert limiter.stats().granted == 1


def test_sleepers_hear_of_a_pause_and_of_its_end(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        await limiter.acquire_async()
        for name in "abc":
            await crowd.add(name)
        await clock.sleep_async(0.15)
        limiter.pause(10)
        await clock.sleep_async(2)
        assert crowd.trace == [("a", 100)]
        limiter.pause(0)
        return await crowd.done()

    assert run(main(), clock=clock) == [("a", 100), ("b", 2150), ("c", 2250)]


def test_a_pause_runs_out_by_itself_without_a_burst(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        await limiter.acquire_async()
        for name in "abcd":
            await crowd.add(name)
        limiter.pause(10)
        return await crowd.done()

    assert run(main(), clock=clock) == [("a", 10_000), ("b", 10_100), ("c", 10_200), ("d", 10_300)]


def test_of_several_pauses_the_longest_holds(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        limiter.pause(10)
        await crowd.add("a")
        limiter.pause(20)
        await clock.sleep_async(15)
        limiter.pause(1)
        await crowd.add("b")
        return await crowd.done()

    assert run(main(), clock=clock) == [("a", 20_000), ("b", 20_100)]


def test_keyed_and_common_pauses_add_up(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        limiter.pause(5)
        limiter.pause(8, "a")
        await crowd.add("a", "a")
        await crowd.add("b", "b")
        await crowd.add("no key")
        return await crowd.done()

    assert run(main(), clock=clock) == [("b", 5000), ("no key", 5000), ("a", 8000)]


def test_looking_during_a_pause_counts_the_queue_after_it(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        limiter.pause(10)
        for name in "abc":
            await crowd.add(name)
        assert limiter.peek().retry_after == 10.3
        with pytest.raises(RateLimited):
            await limiter.acquire_async(timeout=10.2)
        assert clock.now() == 0
        await clock.sleep_async(4)
        assert limiter.peek().retry_after == 6.3
        return await crowd.done()

    assert run(main(), clock=clock) == [("a", 10_000), ("b", 10_100), ("c", 10_200)]


def test_a_promised_waiter_waits_too(clock):
    limiter = Limiter("10/s burst 1", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        await limiter.acquire_async()
        await crowd.add("a")
        limiter.reserve()
        limiter.pause(3)
        return await crowd.done()

    assert run(main(), clock=clock) == [("a", 3000)]


# -- set_limit ---------------------------------------------------------------------------------------------------


def test_waiters_hear_of_a_raised_limit(clock):
    limiter = Limiter("1/s burst 1", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        await limiter.acquire_async()
        for name in "abc":
            await crowd.add(name)
        await clock.sleep_async(0.5)
        limiter.set_limit("10/s burst 1")
        return await crowd.done()

    # Half a permit is owed still: at the new rate that is 50 ms.
    trace = run(main(), clock=clock)
    first = trace[0][1]
    assert [name for name, _ in trace] == list("abc")
    assert 500 < first <= 1000
    assert [moment - first for _, moment in trace] == [0, 100, 200]


def test_a_raised_window_lets_the_next_in_at_once(clock):
    limiter = Limiter("2/minute", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        await limiter.acquire_async(cost=2)
        for name in "abc":
            await crowd.add(name)
        await clock.sleep_async(1)
        limiter.set_limit("4/minute")
        return await crowd.done()

    assert run(main(), clock=clock) == [("a", 1000), ("b", 1000), ("c", 60_000)]
    assert str(limiter.limit) == "4/minute"


def test_a_limit_lowered_below_a_waiting_cost_refuses_it(clock):
    limiter = Limiter("10/s", clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        await limiter.acquire_async(cost=10)
        await crowd.add("light", cost=3)
        await crowd.add("heavy", cost=8)
        await crowd.add("also light", cost=2)
        limiter.set_limit("5/s")
        return await crowd.done()

    assert run(main(), clock=clock) == [("heavy", "never"), ("light", 1000), ("also light", 1000)]
    assert limiter.stats().waiting == 0
    with pytest.raises(ValueError, match="at most 5"):
        limiter.acquire(cost=8)


@pytest.mark.parametrize(
    ("limit", "nothing"),
    [
        ("4 concurrent", "0 concurrent"),
        ("4/minute", "0/minute"),
        ("10/s burst 4", "0/s burst 4"),
        ("4/day aligned", "0/day aligned"),
    ],
)
def test_lowered_to_zero_and_raised_again(clock, limit, nothing):
    limiter = Limiter(limit, clock=clock)
    permits = [limiter.acquire() for _ in range(4)]
    crowd = Crowd(limiter, clock)

    async def main():
        await crowd.add("a")
        limiter.set_limit(nothing)
        await crowd.done()
        assert not limiter.try_acquire()
        limiter.set_limit(limit)
        assert not limiter.try_acquire()
        return crowd.trace

    assert run(main(), clock=clock) == [("a", "never")]
    for permit in permits:
        permit.complete()


@pytest.mark.parametrize("limit", ["2/s", "2/s burst 2", "2/s; 5 concurrent"])
def test_what_comes_behind_a_cost_that_is_never_granted_again_is_not_refused_with_it(clock, limit):
    limiter = Limiter(limit, clock=clock, remote=False)
    crowd = Crowd(limiter, clock)

    async def main():
        limiter.try_acquire(cost=2).complete()
        await crowd.add("doomed", cost=2)
        await asyncio.sleep(0)
        limiter.set_limit(limit.replace("2", "1"))
        # The doomed one has been woken, and has not run yet.
        (await limiter.acquire_async(timeout=5)).complete()
        return await crowd.done()

    assert run(main(), clock=clock) == [("doomed", "never")]


# -- reset -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["1/minute", "1/m burst 1", "1 every 60s", "1/day aligned"])
def test_a_reset_wakes_the_waiters(clock, limit):
    limiter = Limiter(limit, clock=clock)
    crowd = Crowd(limiter, clock)

    async def main():
        for key in ("a", "b"):
            await limiter.acquire_async(key)
            await crowd.add(key, key)
        await clock.sleep_async(1)
        limiter.reset("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert crowd.trace == [("a", 1000)]
        limiter.reset("b")
        return await crowd.done()

    assert run(main(), clock=clock) == [("a", 1000), ("b", 1000)]
