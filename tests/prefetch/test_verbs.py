"""What the verbs of a prefetcher do, where a fetch takes no time or a virtual one."""

import asyncio
import pickle
import threading
import time

import pytest

from headway import (
    AcquireTimeout,
    EngineUnavailable,
    InvalidUse,
    LimiterClosed,
    Prefetcher,
    RateLimited,
    UnsupportedAsync,
)
from headway.testing import ManualClock, run


def until(condition):
    """Wait for another thread, for as long as any machine may need."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


async def until_async(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


class Remote:
    """An async server on virtual time."""

    def __init__(self, limit=10**9, expires_in=60.0, delay=0.2):
        self.left, self.expires_in, self.delay = limit, expires_in, delay
        self.asked = []

    async def fetch(self, amount):
        self.asked.append(amount)
        granted = min(amount, self.left)
        self.left -= granted
        await asyncio.sleep(self.delay)
        return granted, self.expires_in


def now():
    return asyncio.get_running_loop().time()


def test_the_first_try_begins_a_fetch_and_is_denied(server, clock):
    prefetcher = Prefetcher(server.fetch, clock=clock)
    denied = prefetcher.try_acquire()
    assert not denied
    assert denied.reason == "limit"
    until(lambda: prefetcher.stats().available == 10)
    assert prefetcher.try_acquire()
    assert server.asked == [10]


def test_a_strict_prefetcher_spends_what_was_granted_and_no_more(server, clock):
    server.left = 7
    prefetcher = Prefetcher(server.fetch, clock=clock)
    prefetcher.try_acquire()
    until(lambda: not prefetcher.stats().in_flight)
    assert sum(bool(prefetcher.try_acquire()) for _ in range(20)) == 7
    assert prefetcher.stats().spent == 7


def test_permits_expire_by_the_clock_that_was_given(server, clock):
    server.expires_in = 5.0
    prefetcher = Prefetcher(server.fetch, clock=clock)
    prefetcher.acquire()
    clock.advance(5.0)
    assert not prefetcher.try_acquire()
    assert prefetcher.stats().expired == 9


def test_the_clocks_drift_and_resolution_shorten_what_is_granted(server):
    clock = ManualClock(drift_ppm=1000, resolution=0.016)
    server.expires_in = 10.0
    prefetcher = Prefetcher(server.fetch, clock=clock)
    prefetcher.acquire()
    clock.advance(10 - 0.01 - 0.016 - 1e-9)
    assert prefetcher.try_acquire()
    clock.advance(1e-9)
    assert prefetcher.stats().available == 0


def test_acquire_waits_for_the_answer():
    async def main():
        remote = Remote()
        prefetcher = Prefetcher(remote.fetch)
        assert await prefetcher.acquire_async()
        assert now() == 0.2
        assert [bool(await prefetcher.try_acquire_async()) for _ in range(5)] == [True] * 5
        assert remote.asked == [10]

    run(main())


def test_a_fetch_in_the_background_comes_before_the_last_permit_is_spent():
    async def main():
        remote = Remote()
        prefetcher = Prefetcher(remote.fetch)
        await prefetcher.acquire_async()
        for _ in range(200):
            await asyncio.sleep(0.02)
            assert await prefetcher.acquire_async(timeout=0.2)
        steady, begin = len(remote.asked), now()
        for _ in range(500):
            await asyncio.sleep(0.02)
            before = now()
            assert await prefetcher.try_acquire_async()
            assert now() == before
        assert len(remote.asked) - steady <= 2.2 * (now() - begin)

    run(main())


def test_waiters_are_served_first_come_first_served_whatever_they_want():
    async def main():
        order: list[tuple[int, float]] = []

        async def wait(number, cost):
            await prefetcher.acquire_async(cost)
            order.append((number, now()))

        remote = Remote(limit=30)
        prefetcher = Prefetcher(remote.fetch, min_prefetch=1)
        tasks = [asyncio.create_task(wait(number, cost)) for number, cost in enumerate((1, 20, 1, 5, 3))]
        await asyncio.gather(*tasks)
        assert [number for number, _ in order] == [0, 1, 2, 3, 4]
        assert prefetcher.stats().spent == 30

    run(main())


def test_while_callers_wait_a_try_is_denied():
    async def main():
        remote = Remote(limit=10)
        prefetcher = Prefetcher(remote.fetch)
        await prefetcher.acquire_async()
        waiting = asyncio.create_task(prefetcher.acquire_async(50))
        await asyncio.sleep(0)
        denied = await prefetcher.try_acquire_async()
        assert (bool(denied), denied.reason, prefetcher.stats().available) == (False, "waiting", 9)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await prefetcher.try_acquire_async()

    run(main())


def test_what_all_waiters_want_is_asked_for_at_once():
    async def main():
        remote = Remote()
        prefetcher = Prefetcher(remote.fetch, predict_window=0.05)
        await asyncio.gather(*(prefetcher.acquire_async(3) for _ in range(40)))
        assert sum(remote.asked) <= 10 + 120 + 120
        assert now() == pytest.approx(0.4)

    run(main())


def test_a_wait_ends_at_its_timeout_and_says_when_to_come_back():
    async def main():
        remote = Remote(limit=0, expires_in=None)
        prefetcher = Prefetcher(remote.fetch)
        with pytest.raises(AcquireTimeout) as caught:
            await prefetcher.acquire_async(timeout=0.3)
        # The answer came at 0.2: there is no fetch before 0.5, so this is certain.
        assert now() == 0.2
        assert caught.value.timeout == 0.3
        assert caught.value.retry_after == pytest.approx(0.5)
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, RateLimited)
        with pytest.raises(AcquireTimeout):
            await prefetcher.acquire_async(timeout=0)
        assert now() == 0.2
        with pytest.raises(AcquireTimeout):
            await prefetcher.acquire_async(timeout=0.45)
        assert now() == pytest.approx(0.65)

    run(main())


def test_the_default_timeout_is_the_constructors():
    async def main():
        prefetcher = Prefetcher(Remote(delay=10).fetch, timeout=0.1, fetch_timeout=20)
        with pytest.raises(AcquireTimeout):
            await prefetcher.acquire_async()
        assert now() == 0.1

    run(main())


def test_a_time_that_the_server_names_is_kept():
    async def main():
        async def fetch(amount):
            asked.append(now())
            return 0, None, 7.0

        asked: list[float] = []
        prefetcher = Prefetcher(fetch)
        with pytest.raises(AcquireTimeout):
            await prefetcher.acquire_async(timeout=30)
        assert asked == [0.0, 7.0, 14.0, 21.0, 28.0]

    run(main())


def test_a_limit_of_zero_admits_nothing():
    async def main():
        prefetcher = Prefetcher(Remote(limit=0).fetch)
        for _ in range(200):
            await asyncio.sleep(0.05)
            assert not await prefetcher.try_acquire_async()
        assert prefetcher.stats().spent == 0

    run(main())


def test_an_optimist_admits_before_the_answer_and_pays_afterwards():
    async def main():
        remote = Remote(limit=4)
        prefetcher = Prefetcher(remote.fetch, optimistic=True, max_debt=6)
        assert [bool(await prefetcher.try_acquire_async()) for _ in range(8)] == [True] * 6 + [False] * 2
        await asyncio.sleep(0.3)
        assert prefetcher.stats().debt == 2
        remote.left = 20
        await asyncio.sleep(1)
        await prefetcher.try_acquire_async()
        await asyncio.sleep(0.3)
        stats = prefetcher.stats()
        assert (stats.debt, stats.spent + stats.available + stats.expired) == (0, stats.fetched)

    run(main())


def test_close_ends_every_wait():
    async def main():
        prefetcher = Prefetcher(Remote(delay=1).fetch)
        waits = [asyncio.create_task(prefetcher.acquire_async()) for _ in range(3)]
        await asyncio.sleep(0.1)
        await prefetcher.close_async()
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(result) for result in results] == [LimiterClosed] * 3
        assert now() == 0.1
        with pytest.raises(LimiterClosed):
            prefetcher.try_acquire()
        prefetcher.close()
        assert len(asyncio.all_tasks()) == 1, "the fetch has ended, too"

    run(main())


def test_close_ends_a_wait_for_a_server_that_is_not_to_be_asked():
    async def main():
        async def fetch(amount):
            return 0, None, 100.0

        prefetcher = Prefetcher(fetch)
        wait = asyncio.create_task(prefetcher.acquire_async())
        await asyncio.sleep(1)
        prefetcher.close()
        with pytest.raises(LimiterClosed):
            await wait
        assert now() == 1

    run(main())


def test_closing_names_the_prefetcher():
    prefetcher = Prefetcher(lambda amount: (amount, 1), name="api")
    prefetcher.close()
    with pytest.raises(LimiterClosed, match="limiter 'api' is closed"):
        prefetcher.acquire()


def test_a_cancelled_wait_gives_its_place_to_the_next():
    async def main():
        remote = Remote(limit=12)
        prefetcher = Prefetcher(remote.fetch)
        await prefetcher.acquire_async(2)
        first = asyncio.create_task(prefetcher.acquire_async(100))
        second = asyncio.create_task(prefetcher.acquire_async(8))
        await asyncio.sleep(0)
        first.cancel()
        assert await second
        assert prefetcher.stats().waiting == 0

    run(main())


def test_a_sync_fetch_does_not_block_the_loop_it_is_asked_from(server):
    server.gate.clear()

    async def main():
        prefetcher = Prefetcher(server.fetch)
        waiting = asyncio.create_task(prefetcher.acquire_async())
        await asyncio.sleep(0.01)
        server.gate.set()
        assert await asyncio.wait_for(waiting, 30)

    asyncio.run(main())


def test_an_async_fetch_without_a_loop_says_what_to_do():
    prefetcher = Prefetcher(Remote().fetch)
    for call in (prefetcher.try_acquire, prefetcher.acquire):
        with pytest.raises(InvalidUse, match="no event loop runs that could run it"):
            call()


def test_a_thread_hands_an_async_fetch_to_the_loop_that_asked_last():
    async def main():
        prefetcher = Prefetcher(Remote(limit=40, delay=0.001).fetch)
        await prefetcher.acquire_async()
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, prefetcher.acquire, 30)

    asyncio.run(main())


def test_two_event_loops_one_after_the_other():
    prefetcher = Prefetcher(Remote(delay=0).fetch)

    async def main():
        assert await prefetcher.acquire_async(12)

    for _ in range(3):
        asyncio.run(main())
    assert prefetcher.stats().spent == 36


def test_a_fetch_whose_loop_ends_is_given_up_and_does_not_jam():
    remote = Remote(delay=1)
    prefetcher = Prefetcher(remote.fetch)

    async def ask():
        assert not await prefetcher.try_acquire_async()
        await asyncio.sleep(0)

    asyncio.run(ask())
    assert not prefetcher.stats().in_flight
    remote.delay = 0

    async def wait():
        assert await prefetcher.acquire_async(timeout=20)

    asyncio.run(wait())


def test_a_blocking_wait_in_the_loop_of_its_fetch_is_refused():
    async def main():
        prefetcher = Prefetcher(Remote().fetch)
        with pytest.raises(InvalidUse, match="would stop the event loop in which its fetch runs"):
            prefetcher.acquire()
        assert prefetcher.stats().waiting == 0

    run(main())


def test_a_blocking_wait_in_a_loop_is_warned_about(server):
    async def main():
        with pytest.warns(RuntimeWarning, match="inside a running event loop") as caught:
            assert Prefetcher(server.fetch).acquire()
        assert caught[0].filename == __file__

    asyncio.run(main())


def test_misuse_of_coroutines_is_named():
    prefetcher = Prefetcher(lambda amount: (amount, 1.0))
    with pytest.raises(InvalidUse, match=r"if await prefetcher.try_acquire_async"):
        bool(prefetcher.try_acquire_async())

    async def main():
        with pytest.raises(InvalidUse, match=r"await prefetcher.acquire_async"):
            await prefetcher.acquire()  # type: ignore[misc]

    with pytest.warns(RuntimeWarning):
        asyncio.run(main())
    with pytest.raises(UnsupportedAsync):
        prefetcher.acquire_async().send(None)


def test_admissions_show_what_was_decided(server, clock):
    prefetcher = Prefetcher(server.fetch, clock=clock, name="api")
    assert repr(prefetcher.try_acquire()) == "<Admission: denied, limit, retry after 0 s>"
    assert repr(prefetcher.acquire()) == "<Admission: granted>"
    assert repr(prefetcher) == "<Prefetcher: 'api', 9 permits at hand>"
    prefetcher.close()
    assert repr(prefetcher) == "<Prefetcher: 'api', closed>"


def test_a_prefetcher_is_not_pickled():
    with pytest.raises(TypeError, match="a prefetcher cannot be pickled"):
        pickle.dumps(Prefetcher(lambda amount: (amount, 1.0)))


def test_stats_add_up():
    async def main():
        remote = Remote(limit=100, expires_in=1.0)
        prefetcher = Prefetcher(remote.fetch)
        for _ in range(300):
            await prefetcher.try_acquire_async()
            await asyncio.sleep(0.011)
        await asyncio.sleep(2)
        stats = prefetcher.stats()
        assert stats.granted + stats.denied == 300
        assert stats.spent == stats.granted
        assert stats.spent + stats.available + stats.expired == stats.fetched == 100
        assert (stats.fetches, stats.failures) == (len(remote.asked), 0)

    run(main())


def test_threads_and_tasks_wait_in_one_line(server):
    """On the real clock: a thread between two tasks."""
    server.left = 0
    order = []

    async def main():
        prefetcher = Prefetcher(server.fetch, close_wait=0.02)

        async def task(number):
            await prefetcher.acquire_async(timeout=30)
            order.append(number)

        def thread():
            prefetcher.acquire(timeout=30)
            order.append(2)

        first = asyncio.create_task(task(1))
        await until_async(lambda: prefetcher.stats().waiting == 1)
        second = threading.Thread(target=thread)
        second.start()
        await until_async(lambda: prefetcher.stats().waiting == 2)
        third = asyncio.create_task(task(3))
        await until_async(lambda: prefetcher.stats().waiting == 3)
        for served in range(1, 4):
            server.left = 1
            await until_async(lambda served=served: len(order) == served)
        await asyncio.gather(first, third)
        second.join(30)

    asyncio.run(main())
    assert order == [1, 2, 3]


def test_many_threads_spend_each_permit_once(server):
    server.left = 2000
    prefetcher = Prefetcher(server.fetch, close_wait=0.01, max_prefetch=100)
    passed = []

    def work():
        for _ in range(300):
            if prefetcher.try_acquire():
                passed.append(1)
            try:
                prefetcher.acquire(timeout=3)
                passed.append(1)
            except AcquireTimeout:
                return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stats = prefetcher.stats()
    assert len(passed) == stats.spent == 2000
    assert server.at_once == 1
    assert (stats.waiting, stats.available) == (0, 0)


def test_engine_unavailable_is_never_raised_while_permits_are_left(server, clock):
    prefetcher = Prefetcher(server.fetch, clock=clock)
    prefetcher.acquire()
    server.error = OSError("down")
    assert all(prefetcher.try_acquire() for _ in range(9))
    until(lambda: prefetcher.stats().failures == 1)
    with pytest.raises(EngineUnavailable):
        prefetcher.try_acquire()
