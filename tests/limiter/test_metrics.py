"""Several metrics in one atomic step, and scoped keys: one limit per host under one for all."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import re

import pytest

from headway import Limiter, RateLimited, Window
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


def test_a_metric_that_is_not_named_costs_one(clock):
    limiter = Limiter(LLM, clock=clock)
    permit = limiter.acquire(cost={"tokens": 40})
    assert left(limiter) == [4, 60]
    assert permit.cost == {"requests": 1, "tokens": 40}
    limiter.acquire()
    assert left(limiter) == [3, 59]


def test_a_metric_may_cost_nothing(clock):
    limiter = Limiter(LLM, clock=clock)
    permit = limiter.acquire(cost={"requests": 0, "tokens": 100})
    assert permit.cost == {"tokens": 100}
    assert left(limiter) == [5, 0]
    assert limiter.try_acquire(cost={"tokens": 0})
    assert not limiter.try_acquire()
    assert limiter.try_acquire(cost={"requests": 0, "tokens": 0})
    assert left(limiter) == [4, 0]


def test_all_or_none(clock):
    limiter = Limiter(LLM, clock=clock)
    limiter.acquire(cost={"tokens": 90})
    denied = limiter.try_acquire(cost={"tokens": 20})
    assert (str(denied.limit), denied.retry_after) == ("100/minute", 60)
    assert left(limiter) == [4, 10]
    assert limiter.stats().granted == 1


@pytest.mark.parametrize(
    ("settled", "remaining"),
    [
        ({"tokens": 30}, [4, 70]),
        ({"tokens": 120}, [4, 0]),
        ({"tokens": 0, "requests": 0}, [5, 100]),
        ({}, [4, 20]),
    ],
)
def test_settling(clock, settled, remaining):
    limiter = Limiter(LLM, clock=clock)
    limiter.acquire(cost={"tokens": 80}).settle(settled)
    assert left(limiter) == remaining


def test_debt_is_paid_before_the_next_grant(clock):
    limiter = Limiter({"requests": "5/minute", "tokens": "10/s burst 10"}, clock=clock)
    limiter.acquire(cost={"tokens": 10}).settle({"tokens": 30})
    assert limiter.peek().retry_after == 2.1


def test_a_cancelled_permit_gives_everything_back(clock):
    limiter = Limiter(LLM, clock=clock)
    permit = limiter.acquire(cost={"tokens": 80})
    permit.cancel()
    assert left(limiter) == [5, 100]
    assert limiter.stats().cancelled == 1


def test_scoped_keys(clock):
    limiter = Limiter(HOSTS, clock=clock)
    assert limiter.try_acquire({"host": "a"})
    assert limiter.try_acquire({"host": "a"})
    denied = limiter.try_acquire({"host": "a"})
    assert (str(denied.limit), denied.key) == ("2/minute", {"host": "a"})
    assert left(limiter, {"host": "a"}) == [0, 3]
    assert left(limiter, {"host": "b"}) == [2, 3]
    for host in "bbc":
        assert limiter.try_acquire({"host": host})
    assert str(limiter.try_acquire({"host": "c"}).limit) == "5/minute"
    # Not named: the unkeyed ledger. A plain key: a ledger of its own for every metric.
    assert left(limiter) == [2, 0]
    assert left(limiter, "a") == [0, 5]


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


def test_cancelling_in_two_lines_at_once(clock):
    limiter = Limiter({"host": "1 concurrent", "all": "2 concurrent"}, clock=clock)

    async def main():
        a, b = limiter.acquire({"host": "a"}), limiter.acquire({"host": "b"})
        both = asyncio.create_task(limiter.acquire_async({"host": "a"}))
        await asyncio.sleep(0)
        other = asyncio.create_task(limiter.acquire_async({"host": "c"}))
        await asyncio.sleep(0)
        assert limiter.stats().waiting == 2
        both.cancel()
        await asyncio.gather(both, return_exceptions=True)
        b.complete()
        (await other).complete()
        a.complete()
        assert (limiter.stats().waiting, limiter.stats().granted) == (0, 3)
        assert left(limiter, {"host": "a"}) == [1, 2]

    run(main(), clock=clock)


def test_holding_several(clock):
    limiter = Limiter({"calls": "3 concurrent", "rate": "10/s burst 5"}, clock=clock)
    with limiter.hold(cost={"calls": 2, "rate": 5}):
        assert left(limiter) == [1, 0]
    assert left(limiter) == [3, 0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"cost": 2}, "a mapping from metrics"),
        ({"cost": {"words": 2}}, "only metrics of this limiter: requests, tokens"),
        (
            {"cost": {"tokens": -1}},
            r"^cost=\{'tokens': -1\} is not accepted; give an integer from 0 to 2\*\*62$",
        ),
        ({"cost": {"tokens": 1.5}}, "an integer from 0 to 2"),
        ({"cost": {"tokens": True}}, "an integer from 0 to 2"),
        ({"cost": {"tokens": 101}}, r"^cost=\{'tokens': 101\} is not accepted; give at most 100, all that"),
        ({"cost": {"tokens": None}}, "an integer from 0 to 2"),
        ({"key": {"host": "a"}}, "only metrics of this limiter: requests, tokens"),
        ({"key": {"tokens": 5}}, r"key must be a str or None, not int$"),
    ],
)
def test_mistakes_change_nothing(clock, arguments, complaint):
    limiter = Limiter(LLM, clock=clock)
    limiter.acquire(cost={"tokens": 7})
    before = limiter.peek().parts, limiter.stats()
    for verb in (limiter.try_acquire, limiter.acquire, limiter.peek):
        with pytest.raises((ValueError, TypeError), match=complaint):
            verb(**arguments)
    assert (limiter.peek().parts, limiter.stats()) == before


@pytest.mark.parametrize("wrong", [5, {"words": 3}, {"tokens": -1}, {"tokens": 0.5}, {"tokens": True}, None])
def test_a_mistake_in_settling_leaves_the_permit_as_it_was(clock, wrong):
    limiter = Limiter(LLM, clock=clock)
    permit = limiter.acquire(cost={"tokens": 7})
    before = limiter.peek().parts, limiter.stats()
    with pytest.raises((ValueError, TypeError), match=re.escape(f"cost={wrong!r} is not accepted")):
        permit.settle(wrong)
    assert (limiter.peek().parts, limiter.stats(), permit.ended) == (before[0], before[1], None)
    permit.settle({"tokens": 0})
    assert left(limiter) == [4, 100]


@pytest.mark.parametrize("wrong", [{}, {"": "5/s"}, {5: "5/s"}, {"a": "5 cows"}, {"a": 5}])
def test_wrong_metrics(clock, wrong):
    with pytest.raises((ValueError, TypeError)):
        Limiter(wrong, clock=clock)


def test_one_metric_may_be_given_as_a_number(clock):
    limiter = Limiter({"tokens": "10/s"}, clock=clock)
    assert limiter.acquire(cost=4)
    assert limiter.acquire(cost={"tokens": 4})
    assert limiter.peek().remaining == 2
    with pytest.raises(ValueError, match=r"^cost=11 is not accepted; give at most 10"):
        limiter.acquire(cost=11)


def test_retargeting_metrics(clock):
    limiter = Limiter(LLM, clock=clock)
    limiter.acquire(cost={"tokens": 50})
    limiter.set_limit({"requests": "5/minute", "tokens": "60/minute"})
    assert left(limiter) == [4, 10]
    assert limiter.limit == {"requests": Window(5, per=60), "tokens": Window(60, per=60)}


def test_a_time_out_that_one_metric_cannot_meet(clock):
    limiter = Limiter(LLM, clock=clock)
    limiter.acquire(cost={"tokens": 90})
    with pytest.raises(RateLimited) as caught:
        limiter.acquire(cost={"tokens": 20}, timeout=59)
    assert str(caught.value.limit) == "100/minute"
    assert left(limiter) == [4, 10]


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
