"""Several metrics in one atomic step, and scoped keys: one limit per host under one for all."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio

import pytest

from headway import Limiter, RateLimited
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms

SECOND = 10**9
LLM = {"requests": "5/minute", "tokens": "100/minute"}
HOSTS = {"host": "2/minute", "all": "5/minute"}


@pytest.fixture
def clock():
    return ManualClock()


def left(limiter, key=None):
    return [part.remaining for part in limiter.peek(key).parts]


def test_debt_is_paid_before_the_next_grant(clock):
    limiter = Limiter({"requests": "5/minute", "tokens": "10/s burst 10"}, clock=clock)
    limiter.acquire(cost={"tokens": 10}).settle({"tokens": 30})
    assert limiter.peek().retry_after == 2.1


def test_a_waiter_for_one_host_does_not_block_other_hosts_and_does_not_starve(clock):
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


def test_a_status_is_read_by_the_name_of_a_metric():
    limiter = Limiter({"requests": "5/s; 100/minute", "tokens": "300/minute"}, clock=ManualClock())
    limiter.acquire(cost={"requests": 5, "tokens": 200})
    status = limiter.peek(cost={"tokens": 150})
    assert (status["tokens"].remaining, str(status["tokens"].limit)) == (100, "300/minute")
    assert (status["requests"].remaining, str(status["requests"].limit)) == (0, "5/s")
    assert [part.metric for part in status.parts] == ["requests", "requests", "tokens"]
    denied = limiter.try_acquire(cost={"tokens": 150})
    assert denied.status["tokens"].retry_after == 60
    with pytest.raises(RateLimited) as caught:
        limiter.acquire(cost={"tokens": 150}, timeout=1)
    assert caught.value.status["requests"].remaining == 0
    assert Limiter({"tokens": "5/s"}).peek()["tokens"].remaining == 5
    with pytest.raises(KeyError, match="the metrics are requests, tokens"):
        status["token"]
    with pytest.raises(KeyError, match="has no metrics"):
        Limiter("5/s").peek()["requests"]
