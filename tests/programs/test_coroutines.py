"""Throttled coroutine functions, and limiters under asyncio: tasks, groups, cancellation, loops one after another
and at once."""

import asyncio
import functools
import gc
import inspect
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import headway
import headway.flows.drive
from headway import Limiter, RateLimited
from headway.errors import UnsupportedAsync
from headway.testing import run
from programs import worker
from waiting import NEVER

pytestmark = pytest.mark.both_forms

# The attributes that a throttled function has beyond its type are looked at here, and wrong calls are made.
throttle: Callable[..., Callable[[Any], Any]] = headway.throttle


@throttle("2 concurrent")
async def fetch(number: int, *, wait: float = 0) -> int:
    """Doc."""
    await asyncio.sleep(wait)
    if number < 0:
        raise OSError(number)
    return number


def test_it_is_still_a_coroutine_function():
    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.iscoroutinefunction(fetch)
    assert inspect.signature(fetch) == inspect.signature(fetch.__wrapped__)
    assert (fetch.__name__, fetch.__doc__, fetch.__module__) == ("fetch", "Doc.", __name__)
    call = fetch(1)
    assert inspect.iscoroutine(call)
    assert call.__qualname__ == "fetch"
    call.close()
    assert asyncio.run(fetch(3)) == 3


def test_methods_partials_and_callable_objects():
    class Client:
        @throttle("5 concurrent")
        async def fetch(self, number):
            return self, number

        @classmethod
        @throttle("5 concurrent")
        async def make(cls, number):
            return cls, number

        @staticmethod
        @throttle("5 concurrent")
        async def static(number):
            return number

    class Callable:
        async def __call__(self, number):
            assert throttled.limiter.peek().in_flight == 1
            return number

    client = Client()
    for function in (client.fetch, Client.make, Client.static):
        assert inspect.iscoroutinefunction(function)
    assert asyncio.run(client.fetch(1)) == (client, 1)
    assert asyncio.run(Client.make(1)) == (Client, 1)
    assert asyncio.run(Client.static(1)) == 1

    five = throttle("5 concurrent")
    throttled = five(Callable())
    assert inspect.iscoroutinefunction(throttled)
    assert asyncio.run(throttled(1)) == 1
    throttled = five(functools.partial(Callable().__call__, 2))
    assert inspect.iscoroutinefunction(throttled)
    assert asyncio.run(throttled()) == 2


def test_errors_and_wrong_arguments():
    async def main():
        before = fetch.limiter.stats()
        with pytest.raises(OSError, match="-1") as caught:
            await fetch(-1)
        assert caught.value.__context__ is None
        with pytest.raises(TypeError, match="missing 1 required"):
            await fetch()
        with pytest.raises(TypeError, match="unexpected keyword"):
            await fetch(1, waits=1)
        after = fetch.limiter.stats()
        assert (after.abandoned - before.abandoned, after.completed - before.completed) == (1, 2)
        assert fetch.limiter.peek().in_flight == 0

    asyncio.run(main())


def test_recursion():
    @throttle("100 concurrent")
    async def factorial(n):
        return 1 if n <= 1 else n * await factorial(n - 1)

    assert asyncio.run(factorial(20)) == 2432902008176640000
    assert factorial.limiter.stats().completed == 20


def test_never_awaited_takes_nothing():
    fetch_once = throttle("1/hour")(fetch.__wrapped__)
    fetch_once(1).close()
    assert fetch_once.limiter.stats().granted == 0


# -- tasks, in virtual time -------------------------------------------------------------------------------------------


def test_task_group():
    limiter = Limiter("10/s burst 1")
    times = []

    async def work(number):
        await limiter.acquire_async()
        times.append((number, round(asyncio.get_running_loop().time(), 6)))

    async def main():
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(work(number))

    run(main())
    assert times == [(number, number / 10) for number in range(5)]


def test_task_group_over_the_verb_itself():
    async def main():
        limiter = Limiter("10/s burst 1")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limiter.acquire_async()) for _ in range(5)]
        assert all(task.result() for task in tasks)
        permits = await asyncio.gather(*(limiter.acquire_async("ann", timeout=None) for _ in range(5)))
        assert len({id(permit) for permit in permits}) == 5
        assert round(asyncio.get_running_loop().time(), 6) == 0.8
        task = asyncio.create_task(limiter.acquire_async())
        assert await task
        return limiter.stats().granted

    assert run(main()) == 11


def test_a_failing_task_of_a_group_takes_the_others_out_of_the_line():
    limiter = Limiter("1/minute")

    async def fail():
        await asyncio.sleep(1)
        raise OSError("mine")

    async def main():
        await limiter.acquire_async()
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(limiter.acquire_async())
                group.create_task(fail())
        assert [type(error) for error in caught.value.exceptions] == [OSError]
        assert limiter.stats().waiting == 0
        assert limiter.stats().granted == 1
        await limiter.acquire_async()
        assert round(asyncio.get_running_loop().time(), 6) == 60

    run(main())


def test_gather_of_throttled_coroutines():
    calls = throttle("3 concurrent")(fetch.__wrapped__)

    async def main():
        results = await asyncio.gather(
            *(calls(n, wait=1) for n in range(9)), calls(-1), return_exceptions=True
        )
        assert results[:9] == list(range(9))
        assert isinstance(results[9], OSError)
        assert asyncio.get_running_loop().time() == 3

    run(main())
    assert calls.limiter.peek().in_flight == 0


def test_wait_for_and_timeout_give_the_place_back():
    async def main():
        limiter = Limiter("1/minute")
        await limiter.acquire_async()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(limiter.acquire_async(), 5)
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout(5):
                async with limiter:
                    pytest.fail("there is no permit")
        with pytest.raises(RateLimited):
            await limiter.acquire_async(timeout=5)
        assert (limiter.stats().waiting, limiter.stats().granted) == (0, 1)
        assert asyncio.get_running_loop().time() == 10  # the last one knew at once
        assert await asyncio.wait_for(limiter.acquire_async(), 51)

    run(main())


def test_cancelled_while_it_runs_is_abandoned():
    calls = throttle("1 concurrent")(fetch.__wrapped__)

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(calls(1, wait=60), 1)
        assert calls.limiter.stats().abandoned == 1
        assert await calls(2) == 2

    run(main())


def test_async_with_is_per_task():
    limiter = Limiter("3 concurrent")
    order = []

    async def work(number):
        async with limiter as permit:
            await asyncio.sleep(3 - number)
            async with limiter as inner:
                assert inner is not permit
            assert inner.ended == "complete"
            assert permit.ended is None
            order.append(number)
        assert permit.ended == "complete"

    async def main():
        await asyncio.gather(*(work(number) for number in range(2)))

    run(main())
    assert order == [1, 0]
    assert limiter.peek().in_flight == 0


# -- loops ------------------------------------------------------------------------------------------------------------


def test_one_loop_after_another():
    limiter = Limiter("200/s burst 1")
    later = throttle(limiter)(worker.double_later)

    async def main():
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(3)]
        return await asyncio.gather(later(1), *tasks)

    for number in range(1, 4):
        assert asyncio.run(main())[0] == 2
        assert limiter.stats().granted == 5 * number - 1
        assert limiter.acquire()  # and without any loop between
        limiter.reset()
    assert limiter.stats().waiting == 0


def test_a_loop_that_ends_takes_its_waiters_along():
    limiter = Limiter("1 concurrent")

    async def leave_waiters():
        for _ in range(3):
            asyncio.ensure_future(limiter.acquire_async())  # noqa: RUF006 - left alone on purpose
        await asyncio.sleep(0.01)
        assert limiter.stats().waiting == 3

    with limiter.acquire():
        asyncio.run(leave_waiters())
        assert limiter.stats().waiting == 0
    assert limiter.try_acquire().complete() is None  # type: ignore[union-attr]


def test_a_loop_that_was_closed_with_waiters_in_it():
    limiter = Limiter("1 concurrent")
    permit = limiter.acquire()
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(limiter.acquire_async())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert limiter.stats().waiting == 1
    loop.close()
    permit.complete()  # rings in a loop that is gone
    task._log_destroy_pending = False
    del task, loop
    gc.collect()
    assert limiter.stats().waiting == 0
    limiter.acquire(timeout=0).complete()


def start(*functions):
    """A future for each, run in a thread that does not outlive us: a lost wake-up fails the test, and does not hang."""

    def work(future, function):
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    futures: list[Future[Any]] = []
    for function in functions:
        futures.append(Future())
        threading.Thread(target=work, args=(futures[-1], function), daemon=True).start()
    return futures


@pytest.mark.realtime
def test_two_loops_and_threads_at_once():
    """One permit goes around between tasks of two loops and four threads: each of them is woken by another."""
    limiter = Limiter("1 concurrent")
    inside = []
    seen = []

    def visit(caller):
        inside.append(caller)
        assert len(inside) == 1
        seen.append(caller)

    async def task(caller):
        for _ in range(40):
            async with limiter:
                visit(caller)
                await asyncio.sleep(0)
                inside.remove(caller)

    async def loop(number):
        await asyncio.gather(*(task((number, i)) for i in range(4)))

    def thread(caller):
        for _ in range(40):
            with limiter:
                visit(caller)
                time.sleep(0)
                inside.remove(caller)

    loops = start(*(functools.partial(asyncio.run, loop(number)) for number in (1, 2)))
    threads = start(*(functools.partial(thread, number) for number in range(4)))
    for done in loops + threads:
        done.result(timeout=NEVER)
    assert len(seen) == 12 * 40
    assert (limiter.stats().waiting, limiter.peek().in_flight) == (0, 0)
    assert limiter.stats().completed == 12 * 40


@pytest.mark.realtime
def test_waiters_of_two_loops_in_one_line_are_served_in_order():
    limiter = Limiter("1 concurrent")
    order = []
    turn = threading.Barrier(2)

    async def wait(caller):
        async with limiter:
            order.append(caller)

    async def loop(number):
        tasks = []
        for i in range(5):
            if i or number:
                while limiter.stats().waiting < 2 * i + number:  # noqa: ASYNC110 - the other loop makes it so
                    await asyncio.sleep(0.001)
            tasks.append(asyncio.create_task(wait((i, number))))
            await asyncio.sleep(0)
        turn.wait()  # all stand in line
        await asyncio.gather(*tasks)

    permit = limiter.acquire()
    loops = start(*(functools.partial(asyncio.run, loop(number)) for number in (0, 1)))
    while limiter.stats().waiting < 10:
        time.sleep(0.001)
    permit.complete()
    for done in loops:
        done.result(timeout=NEVER)
    assert order == [(i, number) for i in range(5) for number in (0, 1)]


# -- the wrong verb in the wrong place --------------------------------------------------------------------------------


BLOCKERS = {
    "acquire": lambda limiter: limiter.acquire(),
    "with": lambda limiter: limiter.__enter__(),
    "hold": lambda limiter: limiter.hold().__enter__(),
    "throttle": lambda limiter: throttle(limiter)(lambda: 0)(),
}


@pytest.mark.realtime
@pytest.mark.parametrize("verb", BLOCKERS)
def test_a_verb_that_blocks_the_loop_warns_once(verb):
    limiter = Limiter("100/s burst 1")

    async def main():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            BLOCKERS[verb](limiter)
            assert caught == [], "it did not have to wait"
            for _ in range(3):
                BLOCKERS[verb](limiter)
        return caught

    (warning,) = asyncio.run(main())
    assert warning.category is RuntimeWarning
    assert "running event loop" in str(warning.message)
    assert "acquire_async()" in str(warning.message)
    assert "async with limiter" in str(warning.message)


@pytest.mark.realtime
def test_where_the_warning_points_to():
    limiter = Limiter("100/s burst 1")

    async def main():
        limiter.acquire()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            limiter.acquire()
        return caught

    (warning,) = asyncio.run(main())
    assert warning.filename == __file__


@pytest.mark.realtime
def test_waiting_for_a_reserved_permit_blocks_the_loop_too():
    limiter = Limiter("100/s burst 1")

    async def main():
        limiter.acquire()
        permit = limiter.reserve()
        with pytest.warns(RuntimeWarning, match="running event loop"):
            permit.wait()

    asyncio.run(main())


def test_a_warning_made_an_error_leaves_no_waiter_in_the_queue():
    limiter = Limiter("1/hour")

    async def main():
        limiter.acquire()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="running event loop"):
                limiter.acquire()

    asyncio.run(main())
    assert limiter.stats().waiting == 0


def test_no_loop_no_waiting():
    limiter = Limiter("1/hour")
    with pytest.raises(StopIteration):  # nothing to wait for, so nothing is needed
        limiter.acquire_async().send(None)
    with pytest.raises(UnsupportedAsync, match="no asyncio event loop is running here"):
        limiter.acquire_async().send(None)
    assert limiter.stats().waiting == 0, "it left the line"
    with pytest.raises(UnsupportedAsync, match="worker thread"):
        throttle(limiter)(worker.double_later.__wrapped__)(1).send(None)
    limiter.reset()
    assert limiter.try_acquire()


def test_asyncio_half_imported_by_another_thread(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))
    assert headway.flows.drive.running_loop() is None
