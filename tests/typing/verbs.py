"""What a type checker sees of the limiter's verbs."""

from datetime import timedelta
from typing import assert_type

from headway import Denied, Limiter, LimiterStats, Permit, RateLimited, Status

limiter = Limiter("100/minute", overrides={"ann": "5/s"}, timeout=timedelta(seconds=1))


def blocking() -> None:
    answer = limiter.try_acquire("ann", cost=2)
    assert_type(answer, Permit | Denied)
    if answer:
        assert_type(answer, Permit)
    else:
        assert_type(answer, Denied)
        assert_type(answer.retry_after, float)
    assert_type(limiter.acquire("ann", timeout=timedelta(seconds=1)), Permit)
    with limiter as permit:
        assert_type(permit, Permit)
    with limiter.hold("ann", answered=(ValueError, KeyError)) as permit:
        assert_type(permit, Permit)
    with limiter.acquire() as permit:
        assert_type(permit, Permit)
    assert_type(limiter.reserve().wait(), Permit)
    assert_type(limiter.reserve().delay, float)
    assert_type(limiter.peek({"host": "there"}, cost={"tokens": 5}), Status)
    assert_type(limiter.stats(), LimiterStats)

    limiter.acquire(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    limiter.acquire(cost=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def suspending() -> None:
    assert_type(await limiter.acquire_async("ann", timeout=None), Permit)
    assert_type(await limiter.try_acquire_async(), Permit | Denied)
    async with limiter as permit:
        assert_type(permit, Permit)
    async with limiter.hold("ann") as permit:
        assert_type(permit, Permit)
    async with await limiter.acquire_async() as permit:
        assert_type(permit, Permit)
    assert_type(await limiter.peek_async(), Status)
    try:
        await limiter.reserve_async()
    except RateLimited as error:
        assert_type(error.retry_after, float)


async def misused() -> None:
    await limiter.acquire()  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    async with limiter.acquire_async():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]
        pass
    async with limiter.try_acquire_async():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]
        pass
