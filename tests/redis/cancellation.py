"""Tasks that ask in all ways and are cancelled at any moment, and what must be true of the ledger when all is quiet."""

import asyncio
import gc
from random import Random
from typing import Any

from headway import AllOf, RateLimited, Remote, Spacing, Window
from headway.errors import EngineUnavailable
from waiting import NEVER, wait_until

REMOTE = Remote(resolution=0, max_transit=60)
HELD = Window(1000, per=60, remote=REMOTE)
MANY = 2000
STORMS: dict[str, Any] = {
    "window": f"{MANY}/hour",
    "window with a remote": Window(MANY, per=3600, remote=REMOTE),
    "concurrency": "5 concurrent",
    "both": AllOf(f"{MANY}/hour", "5 concurrent"),
    "metrics": {"calls": f"{MANY}/hour", "slots": "5 concurrent"},
    "bucket": "1000/s burst 5",
    "spacing": Spacing("1ms", expire_after="50ms", max_reserved=20),
}


class Storm:
    """Tasks that ask in all ways and are cancelled at random moments, and the permits that were not given back."""

    def __init__(self, kind, limiter, seed=0):
        self.limiter = limiter
        self.random = Random(f"{kind} {seed}")
        self.most = 1 if kind in ("metrics", "spacing") else 2
        self.kept = []
        self.ended = 0
        self.errors = []

    async def call(self, number):
        limiter, random = self.limiter, self.random
        key = random.choice([None, "a", "b"]) if number % 3 else None
        cost = random.choice([1, 1, 1, self.most])
        match random.randrange(6):
            case 0:
                return await limiter.try_acquire_async(key, cost=cost)
            case 1:
                return await limiter.acquire_async(key, timeout=0)
            case 2:
                return await limiter.acquire_async(key, cost=cost, timeout=random.random() * 0.02)
            case 3:
                return await asyncio.wait_for(limiter.acquire_async(key, cost=cost), random.random() * 0.02)
            case 4:
                async with asyncio.timeout(random.random() * 0.02):
                    return await limiter.acquire_async(key)
            case _:
                return await limiter.acquire_async(key)

    async def one(self, number):
        random = self.random
        try:
            permit = await self.call(number)
        except (RateLimited, TimeoutError):
            return
        except EngineUnavailable as error:
            self.errors.append(error)
            return
        if permit:
            # No await between the grant and here: a task that has a permit is not cancelled.
            if random.random() < 0.3:
                permit.cancel()
                return
            self.kept.append(permit)
            try:
                await asyncio.sleep(random.random() * 0.01)
            finally:
                permit.complete()
                self.ended += 1

    async def leave(self):
        """Be gone with the loop, while fifty ask."""
        tasks = [asyncio.create_task(self.one(number)) for number in range(50)]
        await asyncio.sleep(self.random.random() * 0.01)
        return tasks

    async def rage(self, number, vandal=None):
        random, tasks = self.random, []
        for turn in range(number):
            tasks.append(asyncio.create_task(self.one(turn)))
            if random.random() < 0.3:
                await (
                    asyncio.sleep(random.random() * 0.005)
                    if random.random() < 0.5
                    else turns(random.randrange(4))
                )
            if random.random() < 0.5:
                random.choice(tasks).cancel()
            if vandal is not None and turn % 40 == 39:
                await vandal(turn)
        for task in tasks:
            if random.random() < 0.3:
                task.cancel()
        async with asyncio.timeout(NEVER):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
                raise outcome


def run(main, loop_factory=None):
    """As `asyncio.run`; nothing may be complained of."""
    complaints = []

    async def listening():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        return await main

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(listening())
    finally:
        gc.collect()
        assert not complaints


async def turns(number):
    for _ in range(number):
        await asyncio.sleep(0)


def settled(limiter, kind, storm):
    """The ledgers have what was used. No permit is out, and no caller waits."""
    worker = limiter._shared._engine.worker

    def peek():
        worker.wake()
        return [limiter.peek(key) for key in (None, "a", "b")]

    wait_until(
        lambda: worker.wake() or not (worker.unknown_outcomes or worker._has_releases()),
        "nothing left to say",
    )
    wait_until(
        lambda: {(one.waiting, one.in_flight) for one in peek()} == {(0, 0)}, "no waiter and no permit out"
    )
    if kind == "concurrency":
        assert {one.remaining for one in peek()} == {5}
    elif kind.startswith("window"):
        assert sum(MANY - one.remaining for one in peek()) == sum(permit.cost for permit in storm.kept)
    assert limiter.stats().waiting == 0
