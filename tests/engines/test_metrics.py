"""Several metrics in one atomic step, and scoped keys: one limit per host under one for all."""

# mypy: disable-error-code="union-attr"

import asyncio
import re

import pytest

from engines.limits import HOUR
from engines.waiting import NEVER, Callers, eventually, eventually_async
from headway import RateLimited, Window

LLM = {"requests": "5/hour", "tokens": "100/hour"}
HOSTS = {"host": "2/hour", "all": "5/hour"}


def left(limiter, key=None):
    return [part.remaining for part in limiter.peek(key).parts]


def becomes(limiter, expected, key=None):
    eventually(lambda: left(limiter, key) == expected, f"{expected} left")


def test_a_metric_that_is_not_named_costs_one(make, call):
    limiter = make(LLM)
    permit = call(limiter.acquire, cost={"tokens": 40})
    assert left(limiter) == [4, 60]
    assert permit.cost == {"requests": 1, "tokens": 40}
    call(limiter.acquire)
    assert left(limiter) == [3, 59]


def test_a_metric_may_cost_nothing(make, call):
    limiter = make(LLM)
    permit = call(limiter.acquire, cost={"requests": 0, "tokens": 100})
    assert permit.cost == {"tokens": 100}
    assert left(limiter) == [5, 0]
    assert call(limiter.try_acquire, cost={"tokens": 0})
    assert not call(limiter.try_acquire)
    assert call(limiter.try_acquire, cost={"requests": 0, "tokens": 0})
    assert left(limiter) == [4, 0]


def test_all_or_none(make, call):
    limiter = make(LLM)
    call(limiter.acquire, cost={"tokens": 90})
    denied = call(limiter.try_acquire, cost={"tokens": 20})
    assert denied.limit == Window(100, per=HOUR)
    assert HOUR - NEVER < denied.retry_after <= HOUR * 1.002
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
def test_settling(make, settled, remaining):
    limiter = make(LLM)
    limiter.acquire(cost={"tokens": 80}).settle(settled)
    becomes(limiter, remaining)


def test_a_cancelled_permit_gives_everything_back(make):
    limiter = make(LLM)
    limiter.acquire(cost={"tokens": 80}).cancel()
    becomes(limiter, [5, 100])
    assert limiter.stats().cancelled == 1


def test_scoped_keys(make, call):
    limiter = make(HOSTS)
    assert call(limiter.try_acquire, {"host": "a"})
    assert call(limiter.try_acquire, {"host": "a"})
    denied = call(limiter.try_acquire, {"host": "a"})
    assert (denied.limit, denied.key) == (Window(2, per=HOUR), {"host": "a"})
    assert left(limiter, {"host": "a"}) == [0, 3]
    assert left(limiter, {"host": "b"}) == [2, 3]
    for host in "bbc":
        assert call(limiter.try_acquire, {"host": host})
    assert call(limiter.try_acquire, {"host": "c"}).limit == Window(5, per=HOUR)
    # Not named: the unkeyed ledger. A plain key: a ledger of its own for every metric.
    assert left(limiter) == [2, 0]
    assert left(limiter, "a") == [0, 5]


def test_a_waiter_for_one_host_does_not_block_other_hosts(make):
    limiter = make({"all": "5 concurrent", "host": "1 concurrent"})

    async def main():
        held = await limiter.acquire_async({"host": "a"})
        waiter = asyncio.create_task(limiter.acquire_async({"host": "a"}))
        await eventually_async(lambda: limiter.peek({"host": "a"}).waiting == 1, "one waiter")
        other = await asyncio.wait_for(limiter.acquire_async({"host": "b"}), NEVER)
        assert not waiter.done()
        held.complete()
        for permit in (await asyncio.wait_for(waiter, NEVER), other):
            permit.complete()

    asyncio.run(main())


def test_a_waiter_for_one_host_is_counted_at_that_host(engine, make, known):
    if engine.shared:
        known(
            "all waiters of a limiter with metrics stand in one queue: peek of another host counts them too"
        )
    limiter = make({"all": "5 concurrent", "host": "1 concurrent"})
    held = limiter.acquire({"host": "a"})
    callers = Callers()
    callers.start(lambda: limiter.acquire({"host": "a"}).complete())
    eventually(lambda: limiter.peek({"host": "a"}).waiting == 1, "one waiter")
    seen = limiter.peek({"host": "b"})
    held.complete()
    callers.join()
    assert seen.waiting == 0


def test_cancelling_a_wait_for_two_metrics(make):
    limiter = make({"host": "1 concurrent", "all": "2 concurrent"})

    async def main():
        a, b = limiter.acquire({"host": "a"}), limiter.acquire({"host": "b"})
        both = asyncio.create_task(limiter.acquire_async({"host": "a"}))
        await eventually_async(lambda: limiter.stats().waiting == 1, "one waiter")
        other = asyncio.create_task(limiter.acquire_async({"host": "c"}))
        await eventually_async(lambda: limiter.stats().waiting == 2, "two waiters")
        both.cancel()
        await asyncio.gather(both, return_exceptions=True)
        b.complete()
        (await asyncio.wait_for(other, NEVER)).complete()
        a.complete()
        assert (limiter.stats().waiting, limiter.stats().granted) == (0, 3)

    asyncio.run(main())
    becomes(limiter, [1, 2], {"host": "a"})


def test_holding_several(make):
    limiter = make({"calls": "3 concurrent", "rate": "10/hour burst 5"})
    with limiter.hold(cost={"calls": 2, "rate": 5}):
        assert left(limiter) == [1, 0]
    becomes(limiter, [3, 0])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"cost": 2}, "a mapping from metrics"),
        ({"cost": {"words": 2}}, "only metrics of this limiter: requests, tokens"),
        (
            {"cost": {"tokens": -1}},
            r"^cost=\{'tokens': -1\} is not accepted; give an integer from 0 to 2\*\*62$",
        ),
        ({"cost": {"tokens": 1.5}}, "an integer from 0"),
        ({"cost": {"tokens": True}}, "an integer from 0"),
        ({"cost": {"tokens": 101}}, r"^cost=\{'tokens': 101\} is not accepted; give at most 100, all that"),
        ({"cost": {"tokens": None}}, "an integer from 0"),
        ({"key": {"host": "a"}}, "only metrics of this limiter: requests, tokens"),
        ({"key": {"tokens": 5}}, r"key must be a str or None, not int$"),
    ],
)
def test_mistakes_change_nothing(make, call, arguments, complaint):
    limiter = make(LLM)
    limiter.acquire(cost={"tokens": 7})
    before = left(limiter), limiter.stats()
    for verb in (limiter.try_acquire, limiter.acquire, limiter.peek):
        with pytest.raises((ValueError, TypeError), match=complaint):
            call(verb, **arguments)
    assert (left(limiter), limiter.stats()) == before


@pytest.mark.parametrize("wrong", [5, {"words": 3}, {"tokens": -1}, {"tokens": 0.5}, {"tokens": True}, None])
def test_a_mistake_in_settling_leaves_the_permit_as_it_was(make, wrong):
    limiter = make(LLM)
    permit = limiter.acquire(cost={"tokens": 7})
    before = left(limiter), limiter.stats()
    with pytest.raises((ValueError, TypeError), match=re.escape(f"cost={wrong!r} is not accepted")):
        permit.settle(wrong)
    assert (left(limiter), limiter.stats(), permit.ended) == (*before, None)
    permit.settle({"tokens": 0})
    becomes(limiter, [4, 100])


@pytest.mark.parametrize("wrong", [{}, {"": "5/s"}, {5: "5/s"}, {"a": "5 cows"}, {"a": 5}])
def test_wrong_metrics(make, wrong):
    with pytest.raises((ValueError, TypeError)):
        make(wrong)


def test_one_metric_may_be_given_as_a_number(make):
    limiter = make({"tokens": "10/hour"})
    assert limiter.acquire(cost=4)
    assert limiter.acquire(cost={"tokens": 4})
    assert limiter.peek().remaining == 2
    with pytest.raises(ValueError, match=r"^cost=11 is not accepted; give at most 10"):
        limiter.acquire(cost=11)


def test_a_time_out_that_one_metric_cannot_meet(make, call):
    limiter = make(LLM)
    limiter.acquire(cost={"tokens": 90})
    with pytest.raises(RateLimited) as caught:
        call(limiter.acquire, cost={"tokens": 20}, timeout=59)
    assert caught.value.limit == Window(100, per=HOUR)
    assert left(limiter) == [4, 10]
