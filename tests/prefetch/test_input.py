"""Bad input is refused where it is given, with what to give instead."""

from datetime import timedelta

import pytest

from headway import InvalidArgument, Limiter, Prefetcher, Window


def fetch(amount):
    return amount, 60.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fetch": 5}, "fetch=5 is not accepted; give a function of one amount that returns"),
        ({"predict_window": 0}, "predict_window=0 is not accepted; give seconds from 1 ns to a day, or a timedelta"),
        ({"predict_window": "soon"}, "predict_window='soon' is not accepted"),
        ({"predict_window": 86401}, "predict_window=86401 is not accepted"),
        ({"min_prefetch": 0}, "min_prefetch=0 is not accepted; give an integer from 1 to 2"),
        ({"min_prefetch": 1.5}, "min_prefetch=1.5 is not accepted"),
        ({"max_prefetch": 5}, "max_prefetch=5 is not accepted; give an integer from 10 to 2"),
        ({"close_wait": 0}, "close_wait=0 is not accepted; give seconds from 0.001 to a day"),
        ({"fetch_timeout": -1}, "fetch_timeout=-1 is not accepted; give seconds from 0.001 to a day"),
        ({"fetch_timeout": None}, "fetch_timeout=None is not accepted"),
        ({"optimistic": 1}, "optimistic=1 is not accepted; give True or False"),
        ({"max_debt": 5}, "max_debt=5 is not accepted; give it with optimistic=True"),
        ({"optimistic": True, "max_debt": -1}, "max_debt=-1 is not accepted; give an integer from 0 to 2"),
        ({"on_engine_error": "local"}, "on_engine_error='local' is not accepted; give 'closed', 'open', a limit"),
        ({"on_engine_error": "5/minuts"}, "on_engine_error='5/minuts' is not accepted"),
        ({"on_engine_error": 5}, "on_engine_error=5 is not accepted"),
        ({"timeout": -1}, "timeout=-1 is not accepted; give seconds from 0 up"),
        ({"name": 5}, "name=5 is not accepted; give a str, or None"),
        ({"clock": 5}, "clock=5 is not accepted; give a clock with now"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_wrong_option_is_named(options, message):
    with pytest.raises(InvalidArgument) as caught:
        Prefetcher(**{"fetch": fetch, **options})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("cost", [0, -1, 1.0, True, None, "1", 2**63])
def test_a_wrong_cost_is_named_also_where_permits_are_at_hand(cost):
    prefetcher = Prefetcher(fetch)
    prefetcher.acquire()
    for verb in (prefetcher.try_acquire, prefetcher.acquire):
        with pytest.raises(InvalidArgument, match=r"cost=.* is not accepted; give an integer from 1 to"):
            verb(cost)


def test_a_wrong_timeout_is_named_also_where_nothing_is_waited_for():
    prefetcher = Prefetcher(fetch)
    prefetcher.acquire()
    with pytest.raises(InvalidArgument, match="timeout=-1 is not accepted"):
        prefetcher.acquire(timeout=-1)


def test_durations_may_be_timedeltas():
    second = timedelta(seconds=1)
    prefetcher = Prefetcher(
        lambda amount: (amount, second, second),
        predict_window=second,
        close_wait=second,
        fetch_timeout=second,
    )
    assert prefetcher.acquire(timeout=timedelta(seconds=30))


@pytest.mark.parametrize("fallback", ["closed", "open", "10/s", Window(5, per=1), Limiter("3/s")], ids=str)
def test_fallbacks_that_are_accepted(fallback):
    assert Prefetcher(fetch, on_engine_error=fallback).acquire(timeout=30)
