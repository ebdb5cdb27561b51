"""The same worlds with real tasks: waiting in the queue, and cancelled at any await.

`simulate` replaces the queue of waiting callers by a count, because tasks are slow. Here every worker is an asyncio
task on virtual time that does `async with limiter.hold()` and sleeps for the time of its request. Now and then one is
cancelled, wherever it happens to be: in the queue, between its wake-up and its next step, or while its request or the
answer is under way. A request that has left arrives all the same.
"""

from __future__ import annotations

import asyncio
import warnings
from random import Random
from typing import Any

from headway.lab.audit import Verdict, audit
from headway.lab.clocks import TaskClock
from headway.lab.worlds import World
from headway.limiter.limiter import Limiter
from headway.testing import ManualClock, run

PATIENCE = 400


class Crew:
    """The workers of one world, and what the remote saw of them."""

    def __init__(self, world: World, true: ManualClock) -> None:
        self.world = world
        self.true = true
        self.rng = Random(world.seed)
        self.arrivals: list[int] = []
        self.cancelled = 0
        naps = [self.rng.choice((0, -world.nap_error, world.nap_error)) for _ in range(64)]
        clock = TaskClock(true, world.local_clock(), world.le_ppm, naps)
        self.limiter = Limiter(world.limit(), clock=clock)

    async def worker(self) -> None:
        while len(self.arrivals) < self.world.events:
            async with self.limiter.hold(self.world.key, cost=self.world.cost):
                await self._request()

    async def _request(self) -> None:
        world, rng = self.world, self.rng
        out = min(world.out + int(rng.random() * world.out_more), world.max_transit)
        self.arrivals.append(self.true.now() + out)
        back = world.back + int(rng.random() * world.back_more)
        await self._pass(out + back)
        if world.fault_every and rng.randrange(world.fault_every) == 0:
            raise rng.choice((ValueError, TimeoutError, OSError))

    async def _pass(self, ns: int) -> None:
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self.true.park_async(waker, self.true.now() + ns)

    async def main(self) -> None:
        """Keep the number of workers constant, and cancel one of them at random moments."""
        workers = [asyncio.ensure_future(self.worker()) for _ in range(self.world.workers)]
        step = max(1, (self.world.per + self.world.out_more + self.world.back_more) // 5)
        for _ in range(PATIENCE):
            if len(self.arrivals) >= self.world.events:
                break
            await self._pass(self.rng.randrange(1, 2 * step))
            victim = self.rng.randrange(len(workers))
            self.cancelled += workers[victim].cancel()
            for place, task in enumerate(workers):
                if task.done():
                    _forget(task)
                    workers[place] = asyncio.ensure_future(self.worker())
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it at the end


def run_tasks(world: World) -> tuple[Verdict, Crew]:
    """Run a world with tasks and audit it.

    >>> from headway.lab.worlds import draw
    >>> run_tasks(draw(3, events=50, per=10**9, workers=5))[0].violations
    0
    """
    with warnings.catch_warnings():
        # Many abandoned permits and long latencies are intended here.
        warnings.simplefilter("ignore")
        true = ManualClock(autojump=True)
        crew = Crew(world, true)
        run(crew.main(), clock=true)
        del crew.limiter
    return audit(world, crew.arrivals), crew
