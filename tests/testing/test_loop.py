"""Virtual time for asyncio: exact, in order, the same every time."""

import asyncio
import math
import random
import time

import pytest

from headway.clock import SYSTEM
from headway.testing import Deadlock, ManualClock, VirtualLoop, loop_factory, run
from waiting import NEVER

SECOND = 10**9


def test_an_hour_takes_no_time():
    async def main():
        for _ in range(3600):
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(main()) == 3600.0
    assert time.monotonic() - began < NEVER


def test_clock_sleepers_and_loop_timers_share_one_order():
    clock, trace = ManualClock(), []

    async def sleeper(name, sleep, *steps):
        for step in steps:
            await sleep(step)
            trace.append((clock.now(), name))

    async def main():
        await asyncio.gather(
            sleeper("clock", clock.sleep_async, 0.1, 0.2, 1e-9),
            sleeper("loop", asyncio.sleep, 0.1, 0.2, 1e-9),
            sleeper("other", asyncio.sleep, 1.1, 2.2),
        )

    run(main(), clock=clock)
    assert trace == [
        (100_000_000, "clock"),
        (100_000_000, "loop"),
        (300_000_000, "clock"),
        (300_000_000, "loop"),
        (300_000_001, "clock"),
        (300_000_001, "loop"),
        (1_100_000_000, "other"),
        (3_300_000_000, "other"),
    ]
    assert clock.sleepers == 0


def test_the_same_trace_twice():
    def trace():
        dice, seen = random.Random(7), []

        async def walker(name):
            for _ in range(20):
                if dice.random() < 0.5:
                    await asyncio.sleep(dice.choice([0, 0.001, 0.5, 3]))
                else:
                    await SYSTEM.sleep_async(dice.choice([0, 0.001, 0.5, 3]))
                seen.append((SYSTEM.now(), name))

        async def main():
            async with asyncio.TaskGroup() as group:
                for name in range(30):
                    group.create_task(walker(name))

        run(main())
        return seen

    first = trace()
    assert first == trace()
    assert [moment for moment, _ in first] == sorted(moment for moment, _ in first)


def test_time_outs_are_virtual():
    clock = ManualClock()

    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(3600)
        assert loop.time() == 30.0
        async with asyncio.timeout(30):
            await asyncio.sleep(29)
        assert loop.time() == 59.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 1)
        assert loop.time() == 60.0
        return clock.sleepers

    assert run(main(), clock=clock) == 0


def test_far_away_the_nanosecond_is_still_exact():
    """After ten years a float of seconds has steps of 60 ns; the clock's own sleepers do not care."""
    clock = ManualClock(10 * 365 * 86_400)

    async def main():
        start = clock.now()
        await clock.sleep_async(1e-9)
        assert clock.now() - start == 1
        await asyncio.sleep(1)
        assert clock.now() - start == SECOND + 1
        loop = asyncio.get_running_loop()
        when = loop.time() + 0.25
        while loop.time() < when:  # noqa: ASYNC110  # a wait in steps gets there
            await asyncio.sleep(when - loop.time())

    run(main(), clock=clock)


def test_a_wait_in_steps_gets_there():
    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1.1)
        when = 1.1 + 2.2  # a little more than 3.3
        rounds = 0
        while loop.time() < when:
            rounds += 1
            woken = loop.create_future()
            loop.call_at(when, woken.set_result, None)
            await woken
        return rounds

    assert run(main()) <= 2


def test_cancelled_sleepers_leave_nothing():
    clock = ManualClock()

    async def main():
        tasks = [asyncio.ensure_future(clock.sleep_async(10 + n)) for n in range(500)]
        tasks += [asyncio.ensure_future(asyncio.sleep(10 + n)) for n in range(500)]
        waker = asyncio.get_running_loop().create_future()
        tasks.append(asyncio.ensure_future(clock.park_async(waker, 5 * SECOND)))
        await asyncio.sleep(1)
        assert clock.sleepers == 1001
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert clock.sleepers == 0
        assert len(clock._alarms._heap) == 0

    run(main(), clock=clock)
    assert clock.now() == SECOND


def test_park_async():
    clock = ManualClock()

    async def main():
        loop = asyncio.get_running_loop()
        await clock.park_async(loop.create_future(), 7)
        assert clock.now() == 7
        await clock.park_async(loop.create_future(), 7)  # late: returns at once
        waker = loop.create_future()
        loop.call_later(1, waker.set_result, None)
        await clock.park_async(waker, 100 * SECOND)
        assert clock.now() == SECOND + 7
        assert clock.sleepers == 0
        waker = loop.create_future()
        loop.call_later(1, waker.set_result, None)
        await clock.park_async(waker, None)

    run(main(), clock=clock)
    assert clock.now() == 2 * SECOND + 7


def test_deadlock_is_told():
    async def wait_for_ever():
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"time cannot bring: .*wait_for_ever"):
        run(wait_for_ever())
    with pytest.raises(Deadlock):
        run(asyncio.sleep(math.inf))


def test_errors_and_results_come_through():
    async def fail():
        await asyncio.sleep(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(fail())
    assert run(asyncio.sleep(1, "result"), debug=True) == "result"


def test_a_closed_loop_leaves_no_timers_on_the_clock():
    clock = ManualClock()
    with asyncio.Runner(loop_factory=loop_factory(clock)) as runner:
        runner.get_loop().call_later(100, print)
        runner.run(asyncio.sleep(1))
        assert clock.sleepers == 1
    assert clock.sleepers == 0
    clock.advance(200)


def test_two_loops_one_after_another_share_a_clock():
    clock = ManualClock()
    run(asyncio.sleep(1), clock=clock)
    run(asyncio.sleep(1), clock=clock)
    assert clock.now() == 2 * SECOND


def test_a_timer_cancelled_by_its_neighbour_does_not_run():
    ran: list[str] = []

    async def main():
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def cancel():
            timers[0].cancel()

        loop.call_later(1, cancel)
        timers.append(loop.call_later(1, ran.append, "second"))
        assert isinstance(loop, VirtualLoop)
        await asyncio.sleep(2)
        timers[0].cancel()

    run(main())
    assert ran == []
