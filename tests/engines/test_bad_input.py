"""Mistakes get a clear error, and change nothing."""

import math
from datetime import timedelta
from decimal import Decimal

import pytest

from engines.waiting import counts

LIMITS = ["10/hour", "10/hour burst 10", "10/month aligned", "10 concurrent", "10/hour; 20/day"]


@pytest.fixture(params=LIMITS)
def unchanged(request, make):
    """A limiter in use, of which nothing may have changed when the test is over."""
    limiter = make(request.param)
    permits = [limiter.acquire(cost=3), limiter.acquire("a")]
    before = counts(limiter), counts(limiter, "a"), limiter.stats()
    yield limiter
    assert (counts(limiter), counts(limiter, "a"), limiter.stats()) == before
    for permit in permits:
        permit.complete()


def refuses(limiter, call, error, complaint, *args, **kwargs):
    """All verbs that take permits say the same."""
    for verb in (limiter.try_acquire, limiter.acquire, limiter.peek):
        with pytest.raises(error, match=complaint):
            call(verb, *args, **kwargs)
    with pytest.raises(error, match=complaint):
        limiter.hold(*args, **kwargs).__enter__()


def test_a_cost_that_is_none(unchanged, call):
    for cost in (
        0,
        -1,
        -(1 << 70),
        1.0,
        1.5,
        math.nan,
        math.inf,
        True,
        False,
        "1",
        None,
        Decimal(1),
        [1],
        1j,
    ):
        refuses(
            unchanged,
            call,
            ValueError,
            r"cost=.* is not accepted; give an integer from 1 to 2\*\*62",
            cost=cost,
        )


def test_a_cost_above_the_limit(unchanged, call):
    for cost in (11, 1000, (1 << 62) - 1, 1 << 62):
        refuses(unchanged, call, ValueError, "at most 10, all that '10.*' can ever grant", cost=cost)
    for cost in ((1 << 62) + 1, 1 << 63, 1 << 64, 10**30):
        refuses(unchanged, call, ValueError, "cost", cost=cost)


def test_a_key_that_is_none(unchanged, call):
    for key in (5, 0, 1.5):
        refuses(unchanged, call, TypeError, rf"did you mean cost={key!r}\?", key)
    for other in (b"a", True, object(), ["a"], ("a", "b")):
        refuses(unchanged, call, TypeError, "key must be a str or None, not", other)


@pytest.mark.parametrize("arguments", [{"key": {"host": "a"}}, {"cost": {"tokens": 2}}])
def test_metrics_where_there_are_none(unchanged, call, arguments):
    refuses(unchanged, call, ValueError, "it has no metrics", **arguments)


def test_a_time_out_that_is_none(make, call):
    limiter = make("1/hour")
    limiter.acquire()
    before = counts(limiter), limiter.stats()
    for timeout in (-1, -0.001, math.nan, "5", timedelta(seconds=-1), True, [1]):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            call(limiter.acquire, timeout=timeout)
        with pytest.raises((ValueError, TypeError), match="timeout"):
            limiter.hold(timeout=timeout).__enter__()
        with pytest.raises((ValueError, TypeError), match="timeout"):
            make("1/hour", timeout=timeout)
    assert (counts(limiter), limiter.stats()) == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": "10/parsec"}, ValueError),
        ({"limit": "-1/s"}, ValueError),
        ({"limit": f"{(1 << 62) + 1}/s"}, ValueError),
        ({"limit": "nan/s"}, ValueError),
        ({"limit": ""}, ValueError),
        ({"limit": None}, (ValueError, TypeError)),
        ({"limit": 10}, (ValueError, TypeError)),
        ({"start": "half"}, ValueError),
        ({"max_waiting": -1}, ValueError),
        ({"max_waiting": 1.5}, ValueError),
        ({"max_waiting": True}, ValueError),
        ({"on_event": "print"}, ValueError),
        ({"name": 5}, (ValueError, TypeError)),
        ({"remote": "yes"}, ValueError),
        ({"clock": 5}, ValueError),
        ({"overrides": {"a": "1/parsec"}}, ValueError),
        ({"overrides": 5}, (ValueError, TypeError)),
        ({"overrides": {5: "1/s"}}, ValueError),
        ({"overrides": {None: "1/s"}}, ValueError),
        ({"engine": None}, ValueError),
        ({"engine": "bogus://"}, ValueError),
        ({"colour": "red"}, TypeError),
    ],
    ids=str,
)
def test_a_limiter_that_cannot_be(make, arguments, error):
    with pytest.raises(error):
        make(**{"limit": "1/s", **arguments})


def test_a_failed_construction_leaves_no_ledger_behind(make):
    with pytest.raises(ValueError, match=r"overrides|invalid"):
        make("5/s", overrides={"a": "1/s; 2/s"})
    assert make("5 concurrent").peek().remaining == 5
