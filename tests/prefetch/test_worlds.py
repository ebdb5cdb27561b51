"""Tasks that use one prefetcher in a world of lost, late and failed answers, on virtual time."""

import asyncio
from bisect import bisect_left
from random import Random

import pytest

from headway import AcquireTimeout, EngineUnavailable, Prefetcher
from headway.lab.prefetch import FixedWindowServer
from headway.testing import run

SECOND = 10**9


async def world(seed, optimistic):  # noqa: C901 - a world is told in one piece
    random = Random(seed)
    loop = asyncio.get_running_loop()
    server = FixedWindowServer(limit := random.choice((5, 40)), SECOND)
    spent = []
    calm = 20.0

    async def fetch(amount):
        fate = random.random() if loop.time() < calm else 1.0
        granted = server.grant(amount, round(loop.time() * SECOND))
        if fate < 0.2:
            await asyncio.Event().wait()
        await asyncio.sleep(random.uniform(0, random.choice((0.05, 0.5, 5.0))) if fate < 0.9 else 0.05)
        if fate < 0.3:
            raise OSError("reset")
        return granted.amount, granted.valid_ns / SECOND

    prefetcher = Prefetcher(
        fetch, min_prefetch=random.choice((1, 10)), fetch_timeout=1, optimistic=optimistic
    )

    async def caller():
        for _ in range(120):
            cost = random.choice((1, 1, 1, 3))
            try:
                if random.random() < 0.5:
                    admitted = bool(await prefetcher.try_acquire_async(cost))
                else:
                    wait = prefetcher.acquire_async(cost, timeout=random.uniform(0, 3))
                    admitted = bool(await asyncio.wait_for(wait, random.uniform(0.1, 5)))
            except (AcquireTimeout, TimeoutError, EngineUnavailable):
                admitted = False
            if admitted:
                spent.extend([round(loop.time() * SECOND)] * cost)
            await asyncio.sleep(random.uniform(0, 0.5))

    await asyncio.gather(*(caller() for _ in range(random.choice((1, 4)))))
    stats = prefetcher.stats()
    # asyncio's wait_for may cancel a wait that has just been admitted.
    assert len(spent) <= stats.spent <= len(spent) + 20
    assert stats.waiting == 0
    assert stats.spent + stats.available + stats.expired <= stats.fetched + stats.debt + 40 * stats.in_flight
    if not optimistic:
        for begin, granted in server.windows:
            assert bisect_left(spent, begin + SECOND) - bisect_left(spent, begin) <= granted <= limit
    assert await prefetcher.acquire_async(timeout=10), "no jam"
    return len(spent)


@pytest.mark.parametrize("optimistic", [False, True], ids=["strict", "optimistic"])
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_worlds_of_tasks(first, optimistic):
    assert all(run(world(seed, optimistic)) > 0 for seed in range(first, first + 10))
