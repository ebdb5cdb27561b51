"""The predictor: counting demand in 20 sub-slots, and saying how many permits to ask for, and when not to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.predictor import Predictor
from headway.core.sliding_count import SLOTS

MS = 1_000_000
SECOND = 1000 * MS


def new(**options):
    return Predictor(**{"window_ns": SECOND, "minimum": 10, "close_wait_ns": 500 * MS, **options})


demand = st.lists(st.tuples(st.integers(0, 300 * MS), st.integers(1, 50)), max_size=60)


@given(demand, st.integers(0, 3 * SECOND), st.integers(1, 3 * SECOND))
def test_the_count_is_what_was_asked_for_in_the_last_twenty_sub_slots(steps, later, window):
    predictor = new(window_ns=window)
    slot = -(-window // SLOTS)
    now, seen = 0, []
    for step, cost in steps:
        now += step
        predictor.note(now, cost)
        seen.append((now, cost))
    now += later
    expected = sum(cost for at, cost in seen if now // slot - at // slot < SLOTS)
    assert predictor.count(now) == expected
    assert predictor.desired(now) == max(expected, 10)


@given(demand, st.integers(1, 3 * SECOND))
def test_the_count_covers_the_window_but_for_one_sub_slot(steps, window):
    predictor = new(window_ns=window)
    slot = -(-window // SLOTS)
    now, seen = 0, []
    for step, cost in steps:
        now += step
        predictor.note(now, cost)
        seen.append((now, cost))
        surely = sum(cost for at, cost in seen if now - at <= (SLOTS - 1) * slot)
        at_most = sum(cost for at, cost in seen if now - at < SLOTS * slot)
        assert surely <= predictor.count(now) <= at_most


@given(demand, st.integers(-20, 100), st.integers(0, 80))
def test_it_asks_below_half_and_fills_up_to_what_is_desired_or_needed(steps, available, needed):
    predictor = new()
    now = 0
    for step, cost in steps:
        now += step
        predictor.note(now, cost)
    desired = predictor.desired(now)
    amount = predictor.amount(now, available, needed)
    if available >= needed and 2 * available >= desired:
        assert amount == 0
    else:
        assert amount == max(desired, needed) - available > 0


@given(
    st.integers(0, 10 * SECOND),
    st.integers(0, 40),
    st.integers(1, 40),
    st.integers(0, SECOND),
    st.integers(0, SECOND),
)
def test_a_short_answer_closes_for_the_close_wait_from_the_sending(sent_at, granted, asked, wait, later):
    predictor = new(close_wait_ns=wait)
    predictor.answered(sent_at, asked, granted)
    closed = granted < asked and later < wait
    assert (predictor.amount(sent_at + later, 0, 1) == 0) == closed


def test_a_time_that_the_server_names_comes_before_the_close_wait():
    for retry_ns in (0, 100 * MS, 3 * SECOND):
        predictor = new()
        predictor.answered(SECOND, 10, 5, retry_ns=retry_ns)
        assert predictor.closed_until == SECOND + retry_ns


def test_it_is_closed_no_longer_than_the_permits_of_the_answer_last():
    predictor = new()
    predictor.answered(SECOND, 10, 5, ends=SECOND + 200 * MS)
    assert predictor.closed_until == SECOND + 200 * MS
    predictor.answered(2 * SECOND, 10, 5, ends=60 * SECOND)
    assert predictor.closed_until == 2 * SECOND + 500 * MS


@pytest.mark.parametrize("ends", [SECOND, SECOND - 1, 0, None])
def test_permits_that_have_ended_when_the_fetch_was_sent_do_not_open_it(ends):
    predictor = new()
    predictor.answered(SECOND, 10, 0, ends=ends)
    assert predictor.closed_until == SECOND + 500 * MS


def test_a_server_that_grants_nothing_for_a_moment_again_and_again_is_asked_once_in_a_close_wait():
    predictor = new()
    now, asked_at = 0, []
    while now < 10 * SECOND:
        if predictor.amount(now, 0, 1):
            asked_at.append(now)
            predictor.answered(now, 10, 0, ends=now + 2 * MS)
        now += MS
    assert 19 <= len(asked_at) <= 40


def test_at_the_end_of_every_window_of_a_server_it_is_asked_at_once():
    predictor = new()
    for second in range(5):
        start = second * SECOND
        assert predictor.amount(start, 0, 1) == 10
        predictor.answered(start, 10, 10, ends=start + SECOND)
        predictor.answered(start + 600 * MS, 10, 0, ends=start + SECOND)
        assert predictor.closed_until == start + SECOND


def test_a_full_answer_opens_it():
    predictor = new()
    predictor.answered(0, 10, 5)
    assert predictor.amount(MS, 0, 1) == 0
    predictor.answered(0, 10, 10)
    assert predictor.amount(MS, 0, 1) == 10


def test_a_maximum_bounds_what_is_desired_and_not_what_is_needed():
    predictor = new(maximum=25)
    predictor.note(0, 1000)
    assert predictor.desired(0) == 25
    assert predictor.amount(0, 0) == 25
    assert predictor.amount(0, 0, 40) == 40


def test_an_earlier_time_counts_as_the_latest_seen():
    predictor = new()
    predictor.note(5 * SECOND, 3)
    predictor.note(4 * SECOND, 2)
    assert predictor.count(4 * SECOND) == predictor.count(5 * SECOND) == 5


def test_the_example_of_the_essay():
    """A request every 25 ms, answers after 0.2 s; from 1.95 s on the server grants 8 at a time."""
    predictor = new()
    available = 0
    due: list[tuple[int, int, int]] = []
    asked = []
    for now in range(0, 2600 * MS, 25 * MS):
        if due and due[0][0] <= now:
            _, sent_at, amount = due.pop()
            granted = amount if sent_at < 1950 * MS else min(8, amount)
            available += granted
            predictor.answered(sent_at, amount, granted)
        predictor.note(now, 1)
        if not due and (amount := predictor.amount(now, available, 1)):
            asked.append((now // MS, available, amount))
            due.append((now + 200 * MS, now, amount))
        available = max(0, available - 1)
    assert asked == [
        (0, 0, 10), (300, 6, 7), (500, 7, 14), (700, 14, 15), (950, 19, 20), (1450, 19, 20), (1950, 19, 20),
        (2450, 7, 32),
    ]  # fmt: skip
