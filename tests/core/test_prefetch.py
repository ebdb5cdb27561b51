"""The ledger of prefetched permits: what is spent was granted and has not expired; what is owed is paid."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.predictor import Predictor
from headway.core.prefetch import NEVER, PrefetchLedger

MS = 1_000_000
SECOND = 1000 * MS
TIMEOUT = 2 * SECOND


def new(**options):
    predictor = Predictor(SECOND, minimum=10, close_wait_ns=500 * MS)
    return PrefetchLedger(predictor, TIMEOUT, **options)


def fetched(ledger, granted, valid_ns, *, at=0, took=0):
    """The ledger after a fetch that was sent at `at` and granted so many."""
    fetch = ledger.begin(at, granted)
    ledger.answer(fetch, at + took, granted, valid_ns)
    return fetch


class Worlds(RuleBasedStateMachine):
    """Any order of requests, answers (late, twice, never), errors and deadlines. An oracle keeps every permit."""

    @initialize(
        optimistic=st.booleans(), max_debt=st.none() | st.integers(0, 15), drift=st.sampled_from([0, 250_000])
    )
    def start(self, optimistic, max_debt, drift):
        self.now = 0
        self.drift = drift
        self.optimistic, self.max_debt = optimistic, max_debt
        self.ledger = new(optimistic=optimistic, max_debt=max_debt, drift_ppb=drift, resolution_ns=1)
        self.sent = []
        self.admitted = 0
        self.permits = []  # when each permit that was granted ends, at the latest
        self.seen = set()
        self.largest = 10

    @rule(step=st.integers(0, 700 * MS))
    def wait(self, step):
        self.now += step

    @rule(cost=st.integers(1, 12))
    def request(self, cost):
        ledger = self.ledger
        ledger.predictor.note(self.now, cost)
        if (fetch := ledger.begin(self.now, cost)) is not None:
            self.sent.append(fetch)
        before = ledger.available
        in_flight = 0 if ledger.fetch is None else ledger.fetch.advance
        if ledger.take(self.now, cost):
            self.admitted += cost
            advanced = (0 if ledger.fetch is None else ledger.fetch.advance) - in_flight
            assert advanced in (0, cost)
            if not advanced:
                assert before >= cost
                live = sorted(end for end in self.permits if end > self.now)
                assert len(live) >= cost, "spent a permit that was not granted, or had expired"
                for end in live[:cost]:
                    self.permits.remove(end)
            else:
                assert self.optimistic

    @rule(
        which=st.integers(0, 5), share=st.integers(0, 12), valid=st.none() | st.integers(0, 3 * SECOND),
        retry=st.none() | st.integers(0, SECOND),
    )  # fmt: skip
    def answer(self, which, share, valid, retry):
        """Of any fetch that was ever sent, also one that was answered or given up."""
        if not self.sent:
            return
        fetch = self.sent[-1 - which % len(self.sent)]
        granted = share * fetch.amount // 10
        owed, live = self.ledger.debt, fetch is self.ledger.fetch
        advances = list(fetch.spent) if live else []
        self.ledger.answer(fetch, self.now, granted, valid, retry)
        if id(fetch) in self.seen:
            return
        self.seen.add(id(fetch))
        self.largest = max(self.largest, granted)
        # From when it was sent, by a clock that is as slow as it may be, less its tick.
        end = NEVER if valid is None else fetch.sent_at + valid * (10**9 - self.drift) // 10**9 - 1
        mine = [end] * granted
        for at, cost in advances:
            for _ in range(cost):
                if mine and at < end:
                    mine.pop()
                else:
                    owed += 1
        self.permits += mine
        for _ in range(owed):
            live_permits = sorted(one for one in self.permits if one > self.now)
            if live_permits:
                self.permits.remove(live_permits[0])

    @rule()
    def error(self):
        if self.ledger.fetch is not None:
            self.ledger.fail(self.ledger.fetch, self.now)
            assert self.ledger.failed

    @rule()
    def deadline(self):
        fetch = self.ledger.fetch
        overdue = self.ledger.overdue(self.now)
        assert (overdue is not None) == (fetch is not None and self.now >= fetch.sent_at + TIMEOUT)

    @rule()
    def never_jams(self):
        """Whatever happened: from some moment on it asks again, and what is then granted is spent."""
        ledger, later = self.ledger, self.now + TIMEOUT
        overdue = ledger.overdue(later)
        assert ledger.fetch is None
        later = ledger.next_change(later)
        assert later <= self.now + TIMEOUT + SECOND + SECOND
        if ledger.available < 10 + ledger.debt:
            fetch = ledger.begin(later, ledger.available + 1)
            assert fetch is not None
            ledger.give_up(fetch)
        assert overdue is None or overdue.deadline <= later
        self.now = later

    @invariant()
    def nothing_is_minted_lost_or_forgotten(self):
        if not hasattr(self, "ledger"):
            return
        ledger = self.ledger
        advance = 0 if ledger.fetch is None else ledger.fetch.advance
        assert self.admitted + ledger.available + ledger.expired == ledger.granted + ledger.debt + advance
        assert ledger.available == sum(count for _, count in ledger.pool) >= 0
        assert ledger.pool == sorted(ledger.pool)
        assert ledger.debt >= 0
        if not self.optimistic:
            assert ledger.debt == advance == 0
            assert self.admitted <= ledger.granted
        most = self.largest if self.max_debt is None else min(self.max_debt, self.largest)
        assert ledger.debt + advance <= most


TestWorlds = Worlds.TestCase
TestWorlds.settings = settings(max_examples=150, stateful_step_count=60)


def test_validity_counts_from_before_the_fetch_was_sent():
    ledger = new()
    fetched(ledger, 10, SECOND, at=100, took=200 * MS)
    assert ledger.take(99 + SECOND, 1)
    assert not ledger.take(100 + SECOND, 1)
    assert ledger.expired == 9


def test_a_slow_clock_stops_earlier():
    ledger = new(drift_ppb=250_000, resolution_ns=16 * MS)
    fetched(ledger, 10, SECOND)
    end = SECOND - 250_000 - 16 * MS
    assert ledger.take(end - 1, 1)
    assert not ledger.take(end, 1)


def test_permits_that_end_first_are_spent_first():
    ledger = new()
    fetched(ledger, 10, 5 * SECOND)
    fetched(ledger, 20, 2 * SECOND, at=MS)
    ledger.take(2 * MS, 15)
    assert ledger.pool == [(2 * SECOND + MS, 5), (5 * SECOND, 10)]


def test_permits_without_an_end_do_not_expire():
    ledger = new()
    fetched(ledger, 10, None)
    assert ledger.take(10**6 * SECOND, 10)


def test_one_fetch_at_a_time():
    ledger = new()
    assert ledger.begin(0, 1) is not None
    assert ledger.begin(1, 1000) is None


def test_a_cost_is_taken_whole_or_not_at_all():
    ledger = new()
    fetched(ledger, 10, SECOND)
    assert not ledger.take(1, 11)
    assert ledger.available == 10
    fetch = ledger.begin(1, 11)
    assert fetch.amount == 1, "what is missing is asked for"


def test_a_duplicated_answer_is_taken_once():
    ledger = new()
    fetch = fetched(ledger, 10, SECOND)
    ledger.answer(fetch, 1, 10, SECOND)
    assert ledger.available == ledger.granted == 10


def test_a_late_answer_is_a_grant_and_changes_nothing_else():
    ledger = new()
    late = ledger.begin(0, 1)
    assert ledger.overdue(TIMEOUT) is late
    assert ledger.failed
    second = ledger.begin(TIMEOUT, 1)
    assert second is not None, "it asks again at once"
    ledger.answer(late, TIMEOUT + 1, 4, 10 * SECOND)
    assert (ledger.available, ledger.failed, ledger.fetch) == (4, True, second)
    ledger.answer(second, TIMEOUT + 2, 10, 10 * SECOND)
    ledger.answer(late, TIMEOUT + 3, 4, 10 * SECOND)
    assert (ledger.available, ledger.granted, ledger.failed) == (14, 14, False)


def test_a_late_answer_that_has_expired_mints_nothing():
    ledger = new()
    late = ledger.begin(0, 1)
    ledger.overdue(TIMEOUT)
    ledger.answer(late, TIMEOUT, 10, SECOND)
    assert (ledger.available, ledger.expired) == (0, 10)


def test_after_an_error_it_asks_again_when_the_close_wait_is_over():
    ledger = new()
    ledger.fail(ledger.begin(0, 1), 100 * MS)
    assert ledger.failed
    assert ledger.begin(599 * MS, 1) is None
    assert ledger.begin(600 * MS, 1) is not None


def test_an_advance_is_paid_by_its_answer():
    ledger = new(optimistic=True)
    fetch = ledger.begin(0, 1)
    assert all(ledger.take(now, 1) for now in range(4))
    ledger.answer(fetch, 10, 10, SECOND)
    assert (ledger.available, ledger.debt) == (6, 0)


def test_a_shortfall_is_owed_until_it_is_paid():
    ledger = new(optimistic=True)
    fetch = ledger.begin(0, 1)
    assert [ledger.take(now, 1) for now in range(12)] == [True] * 10 + [False] * 2
    ledger.answer(fetch, 100, 2, SECOND)
    assert (ledger.available, ledger.debt) == (0, 8)
    second = ledger.begin(SECOND, 1)
    assert second.amount == 18, "what is owed is asked for, too"
    ledger.answer(second, SECOND, 3, SECOND)
    assert (ledger.available, ledger.debt) == (0, 5)
    third = ledger.begin(3 * SECOND, 1)
    ledger.answer(third, 3 * SECOND, 15, SECOND)
    assert (ledger.available, ledger.debt) == (10, 0)


def test_what_was_spent_after_the_end_of_the_permits_is_owed_to_the_next():
    ledger = new(optimistic=True)
    fetch = ledger.begin(0, 1)
    assert ledger.take(90 * MS, 2)
    assert ledger.take(110 * MS, 3)
    ledger.answer(fetch, 200 * MS, 10, 100 * MS)
    assert (ledger.available, ledger.debt, ledger.expired) == (0, 3, 8)


@pytest.mark.parametrize("ending", ["fail", "overdue", "give_up"])
def test_an_advance_without_an_answer_is_owed(ending):
    ledger = new(optimistic=True)
    fetch = ledger.begin(0, 1)
    ledger.take(0, 4)
    if ending == "fail":
        ledger.fail(fetch, MS)
    elif ending == "overdue":
        assert ledger.overdue(TIMEOUT) is fetch
    else:
        ledger.give_up(fetch)
    assert ledger.debt == 4
    ledger.answer(fetch, TIMEOUT, 10, 10 * SECOND)
    assert (ledger.available, ledger.debt) == (6, 0), "it comes late, and covers what was owed"


def test_max_debt_bounds_the_advance():
    ledger = new(optimistic=True, max_debt=3)
    ledger.begin(0, 1)
    assert [ledger.take(now, 1) for now in range(5)] == [True] * 3 + [False] * 2


def test_what_is_owed_counts_against_the_next_advance():
    ledger = new(optimistic=True)
    fetch = ledger.begin(0, 1)
    assert ledger.take(0, 8)
    ledger.give_up(fetch)
    assert ledger.begin(1, 1) is not None
    assert [ledger.take(1, 1) for _ in range(4)] == [True, True, False, False]


def test_nothing_is_advanced_to_a_server_that_failed():
    ledger = new(optimistic=True)
    ledger.fail(ledger.begin(0, 1), 0)
    assert ledger.begin(SECOND, 1) is not None
    assert not ledger.take(SECOND, 1)


def test_a_limit_of_zero_admits_nothing():
    ledger = new()
    for now in range(0, 60 * SECOND, 50 * MS):
        ledger.predictor.note(now, 1)
        if (fetch := ledger.begin(now, 1)) is not None:
            ledger.answer(fetch, now, 0, SECOND)
        assert not ledger.take(now, 1)


def test_an_optimist_is_wrong_about_a_limit_of_zero_once():
    ledger = new(optimistic=True)
    admitted, fetch = 0, None
    for now in range(0, 600 * SECOND, 20 * MS):
        if fetch is not None and now >= fetch.sent_at + 200 * MS:
            ledger.answer(fetch, now, 0, SECOND)
        ledger.predictor.note(now, 1)
        fetch = ledger.begin(now, 1) or ledger.fetch
        admitted += ledger.take(now, 1)
    assert admitted == ledger.debt == 10


def test_an_optimist_hopes_at_the_end_of_a_servers_window_and_not_before():
    ledger = new(optimistic=True)
    fetch = ledger.begin(0, 20)
    ledger.answer(fetch, 0, 12, SECOND)  # less than it asked for: there is no more in this window
    ledger.take(0, 12)
    ledger.begin(600 * MS, 1)
    assert not ledger.take(600 * MS, 1)
    assert ledger.take(SECOND, 1)


def windowed(**options):
    """A ledger that has learned from two answers that permits end together, at 1 s; answers take 0.1 s."""
    ledger = new(**options)
    first = ledger.begin(0, 10)
    ledger.answer(first, 100 * MS, 10, SECOND)
    ledger.take(100 * MS, 10)
    second = ledger.begin(200 * MS, 10)
    ledger.answer(second, 300 * MS, 10, 800 * MS)
    ledger.take(300 * MS, 10)
    return ledger


def test_permits_that_would_have_ended_when_they_come_are_not_asked_for():
    ledger = windowed()
    assert ledger.begin(900 * MS, 1) is None
    assert ledger.next_change(900 * MS) == SECOND
    assert ledger.retry_at(950 * MS) == SECOND + 100 * MS
    assert ledger.begin(SECOND, 1) is not None
    ledger = windowed()
    assert ledger.begin(900 * MS - 1, 1) is not None


def test_an_optimist_asks_for_them_as_long_as_the_server_has_more():
    ledger = windowed(optimistic=True)
    assert ledger.begin(950 * MS, 1) is not None
    assert ledger.take(950 * MS, 1)


def test_a_server_whose_permits_end_one_after_another_is_asked_at_any_time():
    ledger = new()
    for at in range(5):
        fetch = ledger.begin(at * 300 * MS, 10)
        ledger.answer(fetch, at * 300 * MS + 100 * MS, 10, SECOND)
        ledger.take(at * 300 * MS + 100 * MS, 10)
        assert not ledger.aligned


@given(st.integers(0, 10 * SECOND), st.integers(0, SECOND))
def test_a_refusal_names_the_time_at_which_an_answer_should_be_there(sent_at, took):
    ledger = new()
    fetch = ledger.begin(sent_at, 10)
    ledger.answer(fetch, sent_at + took, 5, None)
    assert ledger.retry_at(sent_at + took) == max(sent_at + took, sent_at + 500 * MS) + took
    later = sent_at + took + SECOND
    ledger.take(later, 5)
    ledger.begin(later, 1)
    assert ledger.retry_at(later) == later + took
    assert ledger.next_change(later) == later + TIMEOUT


def test_the_example_of_the_essay():
    ledger = new(optimistic=True)
    due: list[tuple[int, Any, int, int]] = []
    asked, admitted = [], []
    left, end = 0, 0
    for now in range(0, 1300 * MS, 50 * MS):
        if due and due[0][0] <= now:
            _, fetch, granted, valid = due.pop()
            ledger.answer(fetch, now, granted, valid)
        ledger.predictor.note(now, 1)
        if (fetch := ledger.begin(now, 1)) is not None:
            if now >= end:
                left, end = 20, now + SECOND
            granted = min(left, fetch.amount)
            left -= granted
            asked.append((now // MS, ledger.available, fetch.amount, granted))
            due.append((now + 200 * MS, fetch, granted, end - now))
        advance = 0 if ledger.fetch is None else ledger.fetch.advance
        assert ledger.take(now, 1)
        if ledger.fetch is not None and ledger.fetch.advance > advance:
            admitted.append(now // MS)
    assert asked == [(0, 0, 10, 10), (300, 4, 6, 6), (550, 5, 7, 4), (1000, 0, 20, 20)]
    assert admitted == [0, 50, 100, 150, 1000, 1050, 1100, 1150]
