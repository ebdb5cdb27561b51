"""Thread pools: sharing a limiter, waiting in workers, and leaving the event loop alone."""

import asyncio
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

from headway import AcquireTimeout, Limiter, LimiterClosed, throttle
from waiting import NEVER

pytestmark = [pytest.mark.both_forms, pytest.mark.realtime]


def test_a_pool_never_goes_over_the_limit():
    limiter = Limiter("20/100ms")
    times = []

    @throttle(limiter)
    def call(number):
        times.append(time.monotonic())
        return number

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(call, range(60))) == list(range(60))
    times.sort()
    # A grant is noted a little after it was given, so the window is measured a little short.
    assert all(later - earlier > 0.08 for earlier, later in zip(times, times[20:], strict=False))
    assert times[-1] - times[0] > 0.19


def test_a_pool_of_the_older_kind_and_at_most_three_inside():
    limiter = Limiter("3 concurrent")
    inside, most = [], []

    @limiter
    def call(number):
        inside.append(number)
        most.append(len(inside))
        time.sleep(0.001)
        inside.remove(number)
        return number

    with ThreadPool(12) as pool:
        assert sorted(pool.imap_unordered(call, range(60))) == list(range(60))
    assert max(most) == 3
    assert limiter.stats().completed == 60


def test_with_is_per_thread():
    limiter = Limiter("8 concurrent")
    together = threading.Barrier(4)

    def work(_):
        with limiter as outer, limiter as inner:
            together.wait(NEVER)
            assert outer is not inner
            assert (outer.ended, inner.ended) == (None, None)
        together.wait(NEVER)
        return outer.ended, inner.ended

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(4))) == {("complete", "complete")}
    assert limiter.peek().in_flight == 0


def test_worker_threads_of_a_loop_may_block():
    limiter = Limiter("200/s burst 1")
    call = throttle(limiter)(threading.get_ident)

    async def main():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            threads = await asyncio.gather(
                *(asyncio.to_thread(call) for _ in range(5)),
                *(asyncio.get_running_loop().run_in_executor(None, call) for _ in range(5)),
            )
        assert threading.get_ident() not in threads

    asyncio.run(main())
    assert limiter.stats().completed == 10


def test_a_block_left_in_another_thread():
    """A generator that a thread pool runs in steps enters in one thread and leaves in another."""
    limiter = Limiter("2 concurrent")

    def steps():
        with limiter:
            yield
            with limiter.hold():
                yield

    generator = steps()
    for _ in range(3):
        thread = threading.Thread(target=next, args=(generator, None))
        thread.start()
        thread.join(NEVER)
    assert limiter.peek().in_flight == 0
    assert limiter.stats().completed == 2


def test_closing_ends_the_waits_of_a_pool():
    limiter = Limiter("1/hour")
    limiter.acquire()
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(limiter.acquire) for _ in range(4)]
        while limiter.stats().waiting < 4:
            time.sleep(0.001)
        limiter.close()
        assert [type(wait.exception(10)) for wait in waits] == [LimiterClosed] * 4


def test_time_outs_in_a_pool():
    limiter = Limiter("1 concurrent")
    with limiter, ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(limiter.acquire, timeout=0.02) for _ in range(4)]
        assert [type(wait.exception(10)) for wait in waits] == [AcquireTimeout] * 4
    assert limiter.stats().waiting == 0
    limiter.acquire().complete()
