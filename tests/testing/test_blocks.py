"""virtual_time, disabled and the fixtures, against the contract of the memory engine."""

import asyncio
import threading

import pytest

from headway.clock import SYSTEM
from headway.errors import InvalidArgument
from headway.testing import ManualClock, disabled, run, virtual_time
from headway.testing.blocks import current_clock

pytest_plugins = ["pytester"]
SECOND = 10**9


@pytest.fixture(autouse=True)
def _nothing_stays():
    yield
    assert current_clock() is None
    assert SYSTEM.now() > 10 * SECOND  # the machine's clock again


def test_the_system_clock_is_replaced_and_comes_back(memory):
    with virtual_time() as clock:
        assert SYSTEM.now() == 0
        SYSTEM.sleep(60)
        assert clock.now() == SYSTEM.now() == 60 * SECOND
        assert clock.time() == 60
        assert SYSTEM.wall() == clock.wall()
    assert memory.calls == [("set_aside", 0), ("bring_back", 0)]


def test_nested_blocks(memory):
    with virtual_time() as outer:
        SYSTEM.sleep(10)
        with virtual_time(ManualClock(1)) as inner:
            assert SYSTEM.now() == SECOND
            inner.advance(1)
            assert SYSTEM.now() == 2 * SECOND
        assert SYSTEM.now() == outer.now() == 10 * SECOND
    assert memory.calls == [("set_aside", 0), ("set_aside", 1), ("bring_back", 1), ("bring_back", 0)]


def test_an_error_inside_ends_the_block(memory):
    with pytest.raises(KeyError), virtual_time():
        raise KeyError
    assert memory.calls[-1] == ("bring_back", 0)


def test_as_a_decorator():
    @virtual_time()
    def test(seconds):
        SYSTEM.sleep(seconds)
        return SYSTEM.now()

    assert [test(5), test(7)] == [5 * SECOND, 7 * SECOND]

    @virtual_time()
    async def test_async(seconds):
        await SYSTEM.sleep_async(seconds)
        return SYSTEM.now()

    assert asyncio.run(test_async(3600)) == 3600 * SECOND

    with pytest.raises(InvalidArgument):

        @virtual_time()
        def fixture():
            yield


def test_async_with():
    async def main():
        async with virtual_time() as clock:
            await SYSTEM.sleep_async(5)
            return clock.now()

    assert asyncio.run(main()) == 5 * SECOND


def test_threads_see_it():
    seen = []

    def sleeper():
        SYSTEM.sleep(9)
        seen.append(SYSTEM.now())

    with virtual_time():
        thread = threading.Thread(target=sleeper)
        thread.start()
        thread.join()
    assert seen == [9 * SECOND]


def test_run_replaces_the_system_clock(memory):
    async def main():
        await SYSTEM.sleep_async(5)
        await asyncio.sleep(5)
        return SYSTEM.now()

    assert run(main()) == 10 * SECOND
    assert memory.calls == [("set_aside", 0), ("bring_back", 0)]


def test_run_joins_the_block_around_it(memory):
    async def main():
        await asyncio.sleep(5)

    with virtual_time() as clock:
        SYSTEM.sleep(1)
        run(main())
        assert clock.now() == 6 * SECOND
        assert memory.calls == [("set_aside", 0)]
        run(main(), clock=ManualClock())
        assert clock.now() == 6 * SECOND


def test_disabled(memory):
    with disabled():
        assert memory.disabled == [True]
        with disabled():
            pass
        assert memory.disabled == [True]
    assert memory.disabled == [False]

    @disabled()
    def test():
        return list(memory.disabled)

    assert test() == [True]


def test_fixtures(memory, pytester):
    pytester.makeconftest('pytest_plugins = ["headway.testing.plugin"]')
    pytester.makepyfile(
        """
        from headway.clock import SYSTEM

        def test_clock(headway_clock):
            SYSTEM.sleep(3600)
            assert headway_clock.time() == 3600

        def test_disabled(headway_disabled):
            from headway.engines import memory
            assert memory.set_disabled(True) is True
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)
