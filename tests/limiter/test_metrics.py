"""Several metrics in virtual time: debt, and turns that come to the millisecond. The rest is in tests/engines."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio

import pytest

from headway import Limiter
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms


@pytest.fixture
def clock():
    return ManualClock()


def test_debt_is_paid_before_the_next_grant(clock):
    limiter = Limiter({"requests": "5/minute", "tokens": "10/s burst 10"}, clock=clock)
    limiter.acquire(cost={"tokens": 10}).settle({"tokens": 30})
    assert limiter.peek().retry_after == 2.1


def test_who_waits_for_its_host_does_not_block_others_and_does_not_starve(clock):
    limiter = Limiter({"host": "1/s", "all": "4/s"}, clock=clock)
    trace = []

    async def wait(name, host):
        await limiter.acquire_async({"host": host})
        trace.append((name, clock.now() // 10**6))

    async def flood():
        for number in range(12):
            await wait(f"flood {number}", f"host {number}")

    async def main():
        await limiter.acquire_async({"host": "a"})
        slow = [asyncio.create_task(wait(f"a{n}", "a")) for n in range(2)]
        await asyncio.sleep(0)
        await asyncio.gather(*slow, flood())

    run(main(), clock=clock)
    turns = dict(trace)
    # Three of the flood go at once, and every second four go; of them one is for "a", in its turn.
    assert (turns["a0"], turns["a1"]) == (1000, 2000)
    flooded = [moment for name, moment in trace if name.startswith("flood")]
    assert flooded == [0] * 3 + [1000] * 3 + [2000] * 3 + [3000] * 3
