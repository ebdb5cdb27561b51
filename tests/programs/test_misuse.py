"""Async verbs that are misused say what to write instead, and stay coroutines for everything else."""

# mypy: disable-error-code="misc, attr-defined"

import asyncio
import inspect
import warnings
from collections.abc import Coroutine

import pytest

from headway import InvalidUse, Limiter, Permit

pytestmark = pytest.mark.both_forms


def test_awaiting_a_blocking_verb():
    limiter = Limiter("1/hour")

    async def acquire():
        await limiter.acquire()

    async def try_acquire():
        await limiter.try_acquire()

    async def hold():
        async with limiter.hold() as permit:
            await permit

    with pytest.raises(InvalidUse, match=r"write `await limiter\.acquire_async\(\)`"):
        asyncio.run(acquire())
    with pytest.raises(InvalidUse, match=r"write `await limiter\.try_acquire_async\(\)`"):
        asyncio.run(try_acquire())
    limiter.reset()
    with pytest.raises(InvalidUse):
        asyncio.run(hold())


def test_a_forgotten_await_is_an_error_at_once():
    limiter = Limiter("0/s")

    async def main():
        if limiter.try_acquire_async("ann"):  # type: ignore[truthy-bool]
            return "passed"
        return "denied"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidUse, match=r"write `if await limiter\.try_acquire_async\(\):`"):
            asyncio.run(main())


@pytest.mark.parametrize("verb", ["try_acquire_async", "reserve_async"])
def test_entering_a_coroutine(verb):
    limiter = Limiter("5/s burst 5")

    async def main():
        async with getattr(limiter, verb)():
            pass

    with pytest.raises(InvalidUse, match=rf"write `.*await limiter\.{verb}\(\)"):
        asyncio.run(main())


@pytest.mark.parametrize("verb", ["try_acquire_async", "reserve_async", "acquire_async"])
def test_async_verbs_are_coroutines(verb):
    limiter = Limiter("9/s burst 9")
    call = getattr(limiter, verb)

    async def main():
        permits = [
            await call(),
            await asyncio.create_task(call()),
            await asyncio.wait_for(call(), 5),
            *await asyncio.gather(call("ann"), call(cost=2)),
        ]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call())
            assert verb in repr(task)
        permits.append(task.result())
        return permits

    permits = asyncio.run(main())
    assert [type(permit) for permit in permits] == [Permit] * 6
    assert asyncio.run(call()), "asyncio.run takes it"
    coroutine = call()
    assert isinstance(coroutine, Coroutine)
    assert asyncio.iscoroutine(coroutine)
    assert inspect.isawaitable(coroutine)
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    assert isinstance(stop.value.value, Permit)
    coroutine = call()
    with pytest.raises(KeyError):
        coroutine.throw(KeyError("x"))
    call().close()


def test_a_coroutine_that_is_never_awaited_is_warned_about():
    with pytest.warns(RuntimeWarning, match="try_acquire_async.* was never awaited"):
        Limiter("9/s").try_acquire_async()  # type: ignore[unused-coroutine]
