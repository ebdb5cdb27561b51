"""Real limiters on virtual time: when each permit was granted."""

import asyncio
import threading

import pytest

from headway import Limiter
from headway.testing import ManualClock, disabled, run, virtual_time
from waiting import NEVER

SECOND = 10**9


@pytest.fixture
def limiter():
    return Limiter("10/minute")


def test_ledgers_start_fresh_and_come_back(limiter):
    limiter.acquire(cost=7)
    with virtual_time() as clock:
        assert limiter.peek().remaining == 10
        for _ in range(25):
            limiter.acquire()
        assert clock.now() == 120 * SECOND
        with virtual_time():
            assert limiter.peek().remaining == 10
            limiter.acquire()
        assert limiter.peek().remaining == 5
    assert limiter.peek().remaining == 3


def test_threads_share_it(limiter):
    served = []

    def worker():
        for _ in range(3):
            limiter.acquire()
            served.append(clock.now() // SECOND)

    with virtual_time() as clock:
        threads = [threading.Thread(target=worker) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(NEVER)
    assert served == [0] * 10 + [60] * 10 + [120] * 4


def test_tasks_and_jobs_share_it(limiter):
    served = []

    async def task():
        loop = asyncio.get_running_loop()
        for _ in range(3):
            await limiter.acquire_async()
            served.append(loop.time())

    async def main():
        await asyncio.gather(
            *(task() for _ in range(8)), *(asyncio.to_thread(limiter.acquire) for _ in range(6))
        )

    run(main())
    assert {0.0, 60.0, 120.0} == set(served)
    assert len(served) == 24
    assert limiter.peek().remaining == 10


def test_advance_serves_in_order():
    clock, served = ManualClock(), []
    slots = Limiter("1 every 6s", clock=clock)

    async def task(name):
        await slots.acquire_async()
        served.append((name, clock.now()))

    async def main():
        tasks = [asyncio.ensure_future(task(name)) for name in "abcd"]
        await clock.advance_async(12)
        assert served == [("a", 0), ("b", 6 * SECOND), ("c", 12 * SECOND)]
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert clock.sleepers == 0

    asyncio.run(main())


def test_disabled_consumes_nothing(limiter):
    with disabled():
        for _ in range(100):
            assert limiter.try_acquire()
            limiter.acquire()
    assert limiter.peek().remaining == 10
