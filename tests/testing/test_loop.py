"""Virtual time for asyncio: exact, in order, the same every time."""

import asyncio
import concurrent.futures
import math
import random
import threading
import time

import pytest

from headway.clock import SYSTEM
from headway.testing import Deadlock, ManualClock, VirtualLoop, crew, loop_factory, run

SECOND = 10**9


def test_an_hour_takes_no_time():
    async def main():
        for _ in range(3600):
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(main()) == 3600.0
    assert time.monotonic() - began < 1


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
        return loop.clock.sleepers

    assert run(main()) == 0


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
        while loop.time() < when:  # noqa: ASYNC110  # who waits in steps gets there
            await asyncio.sleep(when - loop.time())

    run(main(), clock=clock)


def test_who_waits_in_steps_gets_there():
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
        bell = asyncio.get_running_loop().create_future()
        tasks.append(asyncio.ensure_future(clock.park_async(bell, 5 * SECOND)))
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
        bell = loop.create_future()
        loop.call_later(1, bell.set_result, None)
        await clock.park_async(bell, 100 * SECOND)
        assert clock.now() == SECOND + 7
        assert clock.sleepers == 0
        bell = loop.create_future()
        loop.call_later(1, bell.set_result, None)
        await clock.park_async(bell, None)

    run(main(), clock=clock)
    assert clock.now() == 2 * SECOND + 7


def test_executor_jobs_are_not_jumped_over():
    async def main():
        loop = asyncio.get_running_loop()
        ticker = asyncio.ensure_future(asyncio.sleep(3600))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ticker), 1)
        for executor in (None, concurrent.futures.ThreadPoolExecutor(1)):
            await asyncio.gather(*(loop.run_in_executor(executor, time.sleep, 0.05) for _ in range(3)))
            assert loop.time() == 1.0
            if executor:
                executor.shutdown()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        cancelled = loop.run_in_executor(None, time.sleep, 0.1)
        await asyncio.to_thread(time.sleep, 0.02)
        cancelled.cancel()
        began = time.monotonic()
        await asyncio.sleep(1)  # waits for the abandoned thread
        assert time.monotonic() - began > 0.04
        await ticker
        return loop.time()

    assert run(main()) == 3600.0


def test_jobs_that_sleep_on_the_clock():
    """A blocking limiter in a worker thread: its virtual wait passes, also with more jobs than workers."""
    clock, trace = ManualClock(), []

    def job(name):
        clock.sleep(10)
        trace.append((clock.now() // SECOND, name))

    async def main():
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [loop.run_in_executor(pool, job, name) for name in range(4)]
            await asyncio.sleep(5)
            assert clock.now() == 5 * SECOND
            await asyncio.gather(*jobs)

    run(main(), clock=clock)
    assert [moment for moment, _ in trace] == [10, 10, 20, 20]


def test_a_job_still_asleep_at_the_end_is_slept_to_its_end():
    clock = ManualClock()

    async def main():
        asyncio.get_running_loop().run_in_executor(None, clock.sleep, 50)
        await asyncio.sleep(1)

    run(main(), clock=clock)
    assert clock.now() == 50 * SECOND


def test_a_blocking_sleep_inside_the_loop_ends():
    clock = ManualClock()

    async def main():
        timer = asyncio.ensure_future(asyncio.sleep(1))
        await asyncio.sleep(0)
        clock.sleep(10)
        await timer
        return clock.now()

    assert run(main(), clock=clock) == 10 * SECOND
    assert not clock.autojump


def test_other_threads_may_call_in():
    async def main():
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def late():
            time.sleep(0.1)
            loop.call_soon_threadsafe(answer.set_result, "here")

        thread = threading.Thread(target=late)
        thread.start()
        assert await answer == "here"
        thread.join()

    run(main())


def test_threads_and_tasks_share_the_time(monkeypatch):
    monkeypatch.setattr(crew, "PATIENCE", 0.1)  # the job waits for a thread that sleeps
    clock, trace = ManualClock(), []

    def thread_work():
        for _ in range(5):
            clock.sleep(2)
            trace.append((clock.now() // SECOND, "thread"))

    async def main():
        thread = threading.Thread(target=thread_work)
        thread.start()
        for _ in range(3):
            await asyncio.sleep(3)
            trace.append((clock.now() // SECOND, "task"))
        await asyncio.to_thread(thread.join)

    run(main(), clock=clock)
    assert [moment for moment, name in trace if name == "thread"] == [2, 4, 6, 8, 10]
    assert [moment for moment, name in trace if name == "task"] == [3, 6, 9]


def test_sockets_work():
    async def main():
        async def echo(reader, writer):
            writer.write(await reader.readline())
            await asyncio.sleep(60)
            writer.write(b"later\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            async with asyncio.timeout(61):
                assert await reader.readline() == b"hello\n"
                assert await reader.readline() == b"later\n"
            writer.close()
            await writer.wait_closed()
        return asyncio.get_running_loop().time()

    assert run(main()) == 60.0


def test_deadlock_is_told():
    async def wait_for_nobody():
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"time cannot bring: .*wait_for_nobody"):
        run(wait_for_nobody())
    with pytest.raises(Deadlock):
        run(asyncio.sleep(math.inf))


def test_the_last_worker_thread_is_no_hope():
    async def main():
        await asyncio.to_thread(int)
        await asyncio.Event().wait()

    began = time.monotonic()
    with pytest.raises(Deadlock):
        run(main())
    assert time.monotonic() - began < 2


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
    ran = []

    async def main():
        loop = asyncio.get_running_loop()
        timers = []
        loop.call_later(1, lambda: [timer.cancel() for timer in timers])
        timers.append(loop.call_later(1, ran.append, "second"))
        assert isinstance(loop, VirtualLoop)
        await asyncio.sleep(2)
        timers[0].cancel()

    run(main())
    assert ran == []


# On an ordinary loop.


def test_autojump_on_an_ordinary_loop():
    clock, trace = ManualClock(autojump=True), []

    async def sleeper(name, step):
        for _ in range(100):
            await clock.sleep_async(step)
            trace.append((clock.now(), name))

    async def main():
        await asyncio.gather(sleeper("a", 36), sleeper("b", 30))

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 1
    assert trace[-1] == (3600 * SECOND, "a")
    assert [moment for moment, _ in trace] == sorted(moment for moment, _ in trace)
    assert clock.sleepers == 0


def test_advance_async_stops_at_every_sleeper():
    clock, trace = ManualClock(), []

    async def sleeper(step):
        for _ in range(3):
            await clock.sleep_async(step)
            trace.append(clock.now() // SECOND)

    async def main():
        tasks = [asyncio.ensure_future(sleeper(step)) for step in (2, 3)]
        await clock.advance_async(6.5)
        assert trace == [2, 3, 4, 6, 6]
        await clock.advance_async(2.5)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert trace == [2, 3, 4, 6, 6, 9]


def test_advance_from_another_thread_wakes_a_task():
    clock = ManualClock()

    async def main():
        task = asyncio.ensure_future(clock.sleep_async(5))
        await asyncio.sleep(0)
        await asyncio.to_thread(clock.advance, 5)
        await asyncio.wait_for(task, 5)

    asyncio.run(main())
