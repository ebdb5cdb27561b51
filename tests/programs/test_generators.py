"""Throttled generators: a permit from the first value to the end, and everything else as in the plain one."""

import asyncio
import contextlib
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import headway
from headway import RateLimited

pytestmark = pytest.mark.both_forms

# The attributes that a throttled function has beyond its type are looked at here, and wrong calls are made.
throttle: Callable[..., Callable[[Any], Any]] = headway.throttle


def echo(log):
    """Says back what it is sent; turns a ValueError into a value, and does not stop for a LookupError."""
    said = "started"
    try:
        while said != "stop":
            try:
                said = yield said
            except ValueError as error:
                said = f"caught {error}"
        return "result"
    finally:
        log.append("cleaned up")


async def echo_async(log):
    said = "started"
    try:
        while said != "stop":
            await asyncio.sleep(0)
            try:
                said = yield said
            except ValueError as error:
                said = f"caught {error}"
    finally:
        await asyncio.sleep(0)
        log.append("cleaned up")


def flying(function):
    return function.limiter.peek().in_flight


def ends(function):
    stats = function.limiter.stats()
    return {
        name: number
        for name in ("granted", "completed", "cancelled", "abandoned")
        if (number := getattr(stats, name))
    }


@pytest.fixture
def log():
    return []


@pytest.fixture
def throttled(log):
    return throttle("2 concurrent", timeout=0)(echo)


@pytest.fixture
def throttled_async(log):
    return throttle("2 concurrent", timeout=0)(echo_async)


def test_it_is_still_a_generator_function(throttled, throttled_async):
    assert inspect.isgeneratorfunction(throttled)
    assert inspect.isasyncgenfunction(throttled_async)
    assert not inspect.iscoroutinefunction(throttled_async)
    for function in (throttled, throttled_async):
        assert inspect.signature(function) == inspect.signature(function.__wrapped__)
        assert function.__name__ == function.__wrapped__.__name__


def test_taken_at_the_first_value_and_completed_at_the_end(throttled, log):
    generator: Any = throttled(log)
    assert inspect.isgenerator(throttled(log))
    assert flying(throttled) == 0
    assert next(generator) == "started"
    assert flying(throttled) == 1
    assert generator.send("hello") == "hello"
    assert flying(throttled) == 1
    with pytest.raises(StopIteration) as stopped:
        generator.send("stop")
    assert stopped.value.value == "result"
    assert flying(throttled) == 0
    assert ends(throttled) == {"granted": 1, "completed": 1}
    assert log == ["cleaned up"]


def test_yield_from_gets_the_result(throttled, log):
    def outer():
        return (yield from throttled(log))

    generator = outer()
    next(generator)
    with pytest.raises(StopIteration, match="result"):
        generator.send("stop")


def test_never_started_takes_nothing(throttled, log):
    throttled(log)
    throttled(log).close()
    gc.collect()
    assert ends(throttled) == {}
    assert log == []


def test_throw(throttled, log):
    generator = throttled(log)
    next(generator)
    assert generator.throw(ValueError("you")) == "caught you"
    problem = LookupError("not handled")
    with pytest.raises(LookupError) as caught:
        generator.throw(problem)
    assert caught.value is problem
    assert log == ["cleaned up"]
    # The default of `answered`: a LookupError comes from looking at an answer.
    assert ends(throttled) == {"granted": 1, "completed": 1}


@pytest.mark.parametrize("how", ["close", "drop", "break"])
def test_left_early(throttled, log, how):
    if how == "break":
        for _ in throttled(log):
            assert flying(throttled) == 1
            break
    else:
        generator = throttled(log)
        next(generator)
        if how == "close":
            generator.close()
        del generator
    gc.collect()
    assert flying(throttled) == 0
    assert log == ["cleaned up"]
    # It has yielded something, but more may be under way: the wrapper cannot know. `answered=` can say so.
    assert ends(throttled) == {"granted": 1, "abandoned": 1}


def test_left_early_and_known_to_be_answered(log):
    throttled = throttle("2 concurrent", answered=GeneratorExit)(echo)
    generator = throttled(log)
    next(generator)
    generator.close()
    assert ends(throttled) == {"granted": 1, "completed": 1}


def test_each_one_has_a_permit_of_its_own(throttled, log):
    first, second, third = (throttled(log) for _ in range(3))
    next(first)
    next(second)
    with pytest.raises(RateLimited):
        next(third)
    with contextlib.suppress(StopIteration):
        first.send("stop")
    assert next(throttled(log)) == "started"
    with pytest.raises(StopIteration):
        next(third)  # a generator that raised has ended
    second.close()


def test_skipped_ones_are_empty():
    throttled = throttle("1/hour", on_limit="skip", timeout=0)(lambda: (yield from (1, 2)))
    assert [list(throttled()) for _ in range(3)] == [[1, 2], [], []]

    async def numbers():
        for number in (1, 2):
            yield number

    throttled = throttle("1/hour", on_limit="skip", timeout=0)(numbers)

    async def main():
        return [[number async for number in throttled()] for _ in range(3)]

    assert asyncio.run(main()) == [[1, 2], [], []]


def test_wrong_arguments(throttled, throttled_async):
    with pytest.raises(TypeError, match="missing 1 required"):
        next(throttled())

    async def main():
        with pytest.raises(TypeError, match="missing 1 required"):
            await anext(throttled_async())

    asyncio.run(main())
    for function in (throttled, throttled_async):
        assert ends(function) == {"granted": 1, "completed": 1}
        assert flying(function) == 0


def test_methods_key_and_settle():
    class Client:
        name = "ann"

        @throttle("10/hour", key=lambda self, count: self.name, cost=lambda self, count: count, settle=len)
        def pages(self, count):
            yield from range(count)
            return "ab"

    assert list(Client().pages(5)) == [0, 1, 2, 3, 4]
    assert Client.pages.limiter.peek("ann").remaining == 8


def test_async_taken_and_completed(throttled_async, log):
    async def main():
        generator: Any = throttled_async(log)
        assert inspect.isasyncgen(throttled_async(log))
        assert flying(throttled_async) == 0
        assert await anext(generator) == "started"
        assert flying(throttled_async) == 1
        assert await generator.asend("hello") == "hello"
        with pytest.raises(StopAsyncIteration):
            await generator.asend("stop")

    asyncio.run(main())
    assert flying(throttled_async) == 0
    assert ends(throttled_async) == {"granted": 1, "completed": 1}
    assert log == ["cleaned up"]


def test_async_throw(throttled_async, log):
    async def main():
        generator = throttled_async(log)
        await anext(generator)
        assert await generator.athrow(ValueError("you")) == "caught you"
        assert await generator.asend("on") == "on"
        problem = LookupError("not handled")
        with pytest.raises(LookupError) as caught:
            await generator.athrow(problem)
        assert caught.value is problem
        assert problem.__context__ is None
        assert log == ["cleaned up"]

    asyncio.run(main())
    assert ends(throttled_async) == {"granted": 1, "completed": 1}


@pytest.mark.parametrize("how", ["aclose", "drop", "break"])
def test_async_left_early(throttled_async, log, how):
    async def main():
        if how == "break":
            async for _ in throttled_async(log):
                break
        else:
            generator = throttled_async(log)
            await anext(generator)
            if how == "aclose":
                await generator.aclose()
            del generator
        gc.collect()
        for _ in range(5):  # asyncio closes what was dropped in a task of its own
            await asyncio.sleep(0)
        assert log == ["cleaned up"]

    asyncio.run(main())
    assert flying(throttled_async) == 0
    assert ends(throttled_async) == {"granted": 1, "abandoned": 1}


def test_async_cancelled_inside(throttled_async, log):
    @throttle("2 concurrent")
    async def slow():
        yield 1
        await asyncio.sleep(60)
        yield 2

    async def main():
        async def consume():
            async for _ in slow():
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.01)
        assert flying(slow) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert flying(slow) == 0
    assert ends(slow) == {"granted": 1, "abandoned": 1}


def test_async_generator_that_will_not_be_closed():
    @throttle("2 concurrent")
    async def stubborn():
        try:
            yield 1
        finally:
            yield 2

    async def main():
        generator = stubborn()
        await anext(generator)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            await generator.aclose()

    asyncio.run(main())
    assert flying(stubborn) == 0


def test_generators_as_context_managers(throttled):
    manager = contextlib.contextmanager(throttle("1 concurrent")(lambda: (yield "value")))
    with manager() as value:
        assert value == "value"
    with pytest.raises(OSError, match="mine"), manager():
        raise OSError("mine")
    with manager():
        pass
