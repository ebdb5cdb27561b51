"""The heap: order, exactness, and nothing left behind."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InvalidArgument
from headway.testing.alarms import NEVER, Alarms, to_ns


@pytest.mark.parametrize(
    ("seconds", "ns"),
    [
        (0, 0),
        (0.1, 100_000_000),
        (1.1 + 2.2, 3_300_000_000),
        (1e-12, 1),
        (1.0000000001, 1_000_000_001),
        (3, 3_000_000_000),
        (timedelta(days=1, microseconds=1), 86_400_000_001_000),
        (math.inf, NEVER),
    ],
)
def test_seconds_become_ns_rounded_up(seconds, ns):
    assert to_ns(seconds) == ns


def test_nan_is_refused():
    with pytest.raises(InvalidArgument):
        to_ns(math.nan)


@given(st.integers(0, 2**52))
def test_a_float_made_of_ns_comes_back(ns):
    assert to_ns(ns / 10**9) == ns


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans())))
def test_order_and_cancelling(asked):
    alarms, expected, live = Alarms(), [], []
    for number, (due, is_thread, cancelled) in enumerate(asked):
        alarm = alarms.add(due, lambda: None, is_thread=is_thread)
        live.append((alarm, cancelled))
        if not cancelled:
            expected.append((due, number, alarm))
    for alarm, cancelled in live:
        if cancelled:
            alarms.cancel(alarm)
            alarms.cancel(alarm)
    expected.sort(key=lambda entry: entry[:2])
    assert len(alarms) == len(expected)
    rung = []
    while alarms.head() is not None:
        batch = alarms.pop()
        assert len({alarm.due for alarm in batch}) == 1
        assert len(batch) == 1 or not any(alarm.is_thread for alarm in batch)
        rung += batch
    assert rung == [entry[2] for entry in expected]
    assert len(alarms) == 0


def test_cancelled_alarms_are_not_kept():
    alarms = Alarms()
    first = alarms.add(1, lambda: None)
    for due in range(10_000):
        alarms.cancel(alarms.add(10 + due, lambda: None))
    assert len(alarms) == 1
    assert len(alarms._heap) <= 4
    alarms.cancel(first)
    assert alarms._heap == []
