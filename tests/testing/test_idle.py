"""A ManualClock on an ordinary event loop."""

import asyncio
import time

from headway.testing import ManualClock
from waiting import NEVER

SECOND = 10**9


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
    assert time.monotonic() - began < NEVER
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
