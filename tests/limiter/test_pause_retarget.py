"""pause, retarget, reset: what those hear who wait already."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import math
import threading

import pytest

from headway import Limiter, LimitMismatch, RateLimited
from headway.testing import ManualClock, run
from waiting import NEVER

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
def test_nobody_is_granted_anything_during_a_pause(clock, limit):
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


def test_a_pause_of_one_key_leaves_the_others_alone(clock):
    limiter = Limiter("1/minute", clock=clock)
    limiter.pause(30, "a")
    assert limiter.try_acquire("a").reason == "paused"
    assert limiter.try_acquire("b")
    assert limiter.try_acquire()
    limiter.pause(0, "a")
    assert limiter.try_acquire("a")


def test_the_reason_is_that_of_the_own_key(clock):
    limiter = Limiter("1/minute", clock=clock)
    limiter.pause(30, "a")
    limiter.try_acquire("b")
    assert limiter.try_acquire("b").reason == "limit"


@pytest.mark.parametrize(
    ("options", "reason"), [({"timeout": 5}, "timeout"), ({"max_waiting": 0}, "max_waiting")]
)
def test_who_does_not_wait_for_the_end_of_a_pause_is_told_of_it(clock, options, reason):
    """As on a shared engine: the wait is long because somebody paused, and not because of the limit."""
    limiter = Limiter("1/minute", clock=clock, **options)
    limiter.pause(30, "a")
    with pytest.raises(RateLimited, match=r"\(paused\)$") as caught:
        limiter.acquire("a")
    assert (caught.value.reason, caught.value.retry_after) == (reason, 30)
    limiter.acquire("b")
    with pytest.raises(RateLimited, match=r"[^)]$"):
        limiter.acquire("b", timeout=5)


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
        await crowd.add("nobody")
        return await crowd.done()

    assert run(main(), clock=clock) == [("b", 5000), ("nobody", 5000), ("a", 8000)]


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


def test_threads_hear_of_the_end_of_a_pause(clock):
    limiter = Limiter("5 concurrent", clock=clock)
    limiter.pause(1000)
    threads = [threading.Thread(target=lambda: limiter.acquire().complete()) for _ in range(3)]
    for thread in threads:
        thread.start()
    clock.settle()
    assert limiter.stats().waiting == 3
    limiter.pause(0)
    for thread in threads:
        thread.join(NEVER)
    assert (limiter.stats().completed, limiter.stats().waiting) == (3, 0)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "5", "soon", "", None, True])
def test_a_bad_pause_changes_nothing(clock, seconds):
    limiter = Limiter("1/minute", clock=clock)
    with pytest.raises(ValueError, match=r"^seconds=.* is not accepted; give seconds from 0 up"):
        limiter.pause(seconds)
    assert limiter.try_acquire()


# -- retarget ----------------------------------------------------------------------------------------------------


def test_a_raised_limit_is_heard_by_who_waits(clock):
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


def test_concurrency_lowered_below_what_is_out(clock):
    limiter = Limiter("4 concurrent", clock=clock)
    permits = [limiter.acquire() for _ in range(4)]
    limiter.set_limit("2 concurrent")
    left = []
    for permit in permits:
        left.append((limiter.peek().remaining, limiter.peek().in_flight))
        permit.complete()
    assert left == [(0, 4), (0, 3), (0, 2), (1, 1)]
    assert limiter.peek().remaining == 2


def test_another_kind_is_refused_and_changes_nothing(clock):
    limiter = Limiter("10/s", clock=clock)
    limiter.acquire(cost=4)
    before = limiter.peek(), limiter.stats(), limiter.limit
    for other in ("5 concurrent", "10/s burst 1", "10/s; 5/s", {"tokens": "10/s"}):
        with pytest.raises(LimitMismatch, match=r"this limiter is kept as '10/s'.*: make a new one"):
            limiter.set_limit(other)
    with pytest.raises(ValueError, match="unit"):
        limiter.set_limit("5/parsec")
    assert (limiter.peek(), limiter.stats(), limiter.limit) == before


def test_keys_are_retargeted_but_not_those_with_an_override(clock):
    for own in ("3/minute", "2/minute"):
        limiter = Limiter("2/minute", overrides={"vip": own}, clock=clock)
        limiter.acquire("a")
        limiter.acquire("vip")
        limiter.set_limit("9/minute")
        assert limiter.peek("a").remaining == 8
        assert limiter.peek("vip").remaining == int(own[0]) - 1
        assert limiter.peek("new").remaining == 9


def test_a_permit_taken_before_can_be_ended_after(clock):
    limiter = Limiter("5/s", remote=True, clock=clock)
    first, second = limiter.acquire(), limiter.acquire()
    limiter.set_limit("3/s")
    assert limiter.peek().in_flight == 2
    first.cancel()
    assert limiter.peek().remaining == 2
    second.complete()
    assert (limiter.peek().in_flight, limiter.peek().remaining) == (0, 2)


# -- reset -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["1/minute", "1/m burst 1", "1 every 60s", "1/day aligned"])
def test_a_reset_calls_who_waits(clock, limit):
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


def test_a_reset_lifts_the_pause_of_the_key(clock):
    limiter = Limiter("1/minute", clock=clock)
    limiter.pause(50, "a")
    limiter.reset("a")
    assert limiter.try_acquire("a")


def test_what_was_out_at_a_reset_is_nobodys_any_more(clock):
    limiter = Limiter("2 concurrent", clock=clock)
    permit = limiter.acquire("a")
    limiter.reset("a")
    assert limiter.peek("a").remaining == 2
    permit.complete()
    assert (limiter.peek("a").remaining, limiter.peek("a").in_flight) == (2, 0)
    late = limiter.acquire("a", cost=2)
    limiter.reset("a")
    late.settle(3)
    assert (limiter.peek("a").remaining, limiter.peek("a").in_flight) == (2, 0)
