"""Everything at once, in virtual time: whatever happens, no waiter sleeps for ever and nothing stays taken."""

import asyncio
import random

import pytest

from headway import Limiter, RateLimited
from headway.testing import ManualClock, run

pytestmark = [
    pytest.mark.both_forms,
    pytest.mark.filterwarnings("ignore:answers take:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.* were abandoned:RuntimeWarning"),
    # A task that is cancelled while it has a permit drops it.
    pytest.mark.filterwarnings("ignore:.*dropped without an end:ResourceWarning"),
]

HOSTS = ("a", "b", "c", None)
LIMITS = {
    "several": "5 concurrent; 20/s burst 6; 30/s",
    "hosts": {"host": "2 concurrent", "rate": "4/s burst 4", "all": "5 concurrent"},
    "windows": {"host": "3/s", "all": "6/s"},
    "slots": {"host": "4/s burst 4", "all": "10/s burst 5"},
}


class Chaos:
    def __init__(self, limit, seed):
        self.clock = ManualClock()
        self.limiter = Limiter(limit, clock=self.clock)
        self.dice = random.Random(seed)
        self.scoped = isinstance(limit, dict)
        self.ends = {"served": 0, "refused": 0, "cancelled": 0}

    def key(self):
        host = self.dice.choice(HOSTS)
        return {"host": host} if self.scoped else host

    async def wait(self):
        try:
            permit = await self.limiter.acquire_async(
                self.key(),
                cost=1 if self.scoped else self.dice.randint(1, 4),
                timeout=self.dice.choice((None, None, 0, 0.3, 2)),
            )
            await self.clock.sleep_async(self.dice.choice((0, 0.05, 0.5)))
        except RateLimited:
            self.ends["refused"] += 1
        except asyncio.CancelledError:
            self.ends["cancelled"] += 1
        else:
            self.ends["served"] += 1
            self.dice.choice((permit.complete, permit.cancel, permit.abandon))()

    def meddle(self, tasks):
        limiter, dice = self.limiter, self.dice
        match dice.randrange(8):
            case 0 | 1 | 2:
                dice.choice(tasks).cancel()
            case 3:
                limiter.pause(dice.choice((0, 0.2, 1)), dice.choice(HOSTS))
            case 4:
                limiter.peek(self.key())
            case 5:
                permit = limiter.try_acquire(self.key())
                if permit:
                    permit.cancel()
            case 6:
                limiter.set_limit(limiter.limit)
            case 7:
                self.reserve()

    def reserve(self):
        try:
            permit = self.limiter.reserve(self.key())
        except (TypeError, RateLimited):
            return
        if self.dice.random() < 0.5:
            permit.cancel()

    async def main(self):
        tasks = []
        for _ in range(400):
            tasks.append(asyncio.create_task(self.wait()))
            await self.clock.sleep_async(self.dice.choice((0, 0.001, 0.1)))
            if self.dice.random() < 0.5:
                self.meddle(tasks)
        self.limiter.pause(0)
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", LIMITS)
def test_no_waiter_sleeps_for_ever(limit, seed):
    chaos = Chaos(LIMITS[limit], seed)
    run(chaos.main(), clock=chaos.clock)
    limiter = chaos.limiter
    assert chaos.ends["served"] > 50
    assert limiter.stats().waiting == 0
    chaos.clock.advance(60)
    for host in HOSTS:
        status = limiter.peek({"host": host} if chaos.scoped else host)
        assert all(part.in_flight == part.waiting == 0 for part in status.parts)
        assert all(part.remaining == part.limit.capacity for part in status.parts)
