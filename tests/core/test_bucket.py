"""Bucket: any time d admits at most `burst + rate * d`, in exact arithmetic, whatever is given back."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings

from core.strategies import BUCKETS, COMMANDS, traced
from core.traces import Grant, Player, random_commands, rule_of
from headway.core.limits import Bucket

S = 10**9


def assert_promise(limit: Bucket, grants: list[Grant], tick_ns: int = 1) -> None:
    """No interval that ends at a grant holds more than the promise; a debt counts from when it was made.

    Where a permit takes no whole number of ticks, the last tick counts as a part of the interval.
    """
    rate = limit.count * tick_ns
    last = 1 if limit.per_ns % rate else 0
    events = [(grant.at, grant.happened, grant.turn) for grant in grants]
    debts = [(grant.ended, grant.extra, grant.end_turn) for grant in grants]
    for end, cost, turn in events:
        if cost == 0:
            continue
        known = [(at, spent) for at, spent, _ in events if at <= end]
        known += [(at, extra) for at, extra, made in debts if at <= end and made < turn]
        newest_first = sorted(known, reverse=True)
        totals = accumulate(spent for _, spent in newest_first)
        for (start, _), total in zip(newest_first, totals, strict=True):
            assert (total - limit.burst) * limit.per_ns <= rate * (end - start + last)


@settings(traced)
@given(BUCKETS, COMMANDS)
def test_never_above_its_promise(case, commands) -> None:
    limit, unit = case
    assert_promise(limit, Player(rule_of(limit).open(), unit).play(commands).grants)


def small_bucket(dice: Random) -> Bucket:
    return Bucket((dice.randint(1, 7), f"{dice.randint(1, 30)}ns"), burst=dice.randint(1, 5))


GIVING_BACK = ("pass", "nap", "take", "reserve", "reserve", "cancel", "cancel", "settle")


@pytest.mark.parametrize("size", [7, 10, 20])
def test_never_above_its_promise_in_many_traces(size) -> None:
    """What is given back too generously shows in one trace of a thousand: more of them, and shorter ones."""
    dice = Random(size)
    for _ in range(6_000):
        limit = small_bucket(dice)
        player = Player(rule_of(limit).open()).play(random_commands(dice, size, GIVING_BACK))
        assert_promise(limit, player.grants)


def test_a_new_rate_holds_in_many_traces() -> None:
    dice = Random(0)
    for _ in range(6_000):
        player = Player(rule_of(small_bucket(dice)).open()).play(random_commands(dice, 6, GIVING_BACK))
        known = len(player.grants)
        limit = small_bucket(dice)
        player.ledger.reconfigure(rule_of(limit), player.now)
        assert_promise(limit, player.play(random_commands(dice, 10, GIVING_BACK)).grants[known:])


@settings(traced)
@given(BUCKETS, COMMANDS, BUCKETS, COMMANDS)
def test_a_new_rate_holds_from_its_first_moment(case, before, other, after) -> None:
    player = Player(rule_of(case[0]).open()).play(before)
    known = len(player.grants)
    player.ledger.reconfigure(rule_of(other[0]), player.now)
    assert_promise(other[0], player.play(after).grants[known:])


@settings(traced)
@given(BUCKETS, BUCKETS)
def test_a_new_rate_forgives_nothing(case, other) -> None:
    old, new = case[0], other[0]
    ledger = rule_of(old).open()
    ledger.exhaust(100)
    ledger.reconfigure(rule_of(new), 100)
    # Either way `old.burst` permits are owed; the new rate earns them, and the new burst is what may be owed at most.
    owed = max(0, old.burst + 1 - new.burst)
    assert abs(ledger.wait(100, 1) - owed * new.per_ns / new.count) <= 2


def test_a_new_rate_keeps_clear_of_slots_that_were_promised() -> None:
    ledger = rule_of(Bucket("1/s")).open()
    for _ in range(4):
        ledger.take(ledger.slot(0, 1), 1)  # at 0, 1, 2 and 3 s
    ledger.reconfigure(rule_of(Bucket("10/s", burst=5)), 0)
    assert ledger.slot(0, 1) > 3 * S + S // 10


def test_a_pause_at_rate_zero_forgives_nothing() -> None:
    ledger = rule_of(Bucket("10/s", burst=3)).open()
    ledger.exhaust(0)
    ledger.reconfigure(rule_of(Bucket((0, 1))), 0)
    assert ledger.remaining(0) == 0
    ledger.reconfigure(rule_of(Bucket("10/s", burst=3)), 0)
    assert ledger.wait(0, 1) == S // 10


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_three_per_second_do_not_drift_in_a_million(burst) -> None:
    ledger = rule_of(Bucket("3/s", burst=burst)).open()
    wait, take = ledger.wait, ledger.take
    now = 0
    for _ in range(1_000_000):
        now += wait(now, 1)
        take(now, 1)
    assert now == -(-(1_000_000 - burst) * S // 3)


def test_the_worked_example() -> None:
    ledger = rule_of(Bucket("10/s", burst=3)).open()
    ms = 10**6
    assert [ledger.take(0, 1) for _ in range(3)] == [100 * ms, 200 * ms, 300 * ms]
    assert ledger.wait(0, 1) == 100 * ms
    assert ledger.wait(100 * ms, 1) == 0


def test_settling_for_less_gives_back_and_for_more_is_paid_first() -> None:
    ledger = rule_of(Bucket("1/s", burst=10)).open()
    mark = ledger.take(0, 8)
    ledger.settle(0, 8, mark, ledger.tally, 3)
    assert ledger.remaining(0) == 7
    mark = ledger.take(0, 7)
    ledger.settle(0, 7, mark, ledger.tally, 12)
    assert [ledger.wait(0, cost) for cost in (1, 2)] == [6 * S, 7 * S]


def test_a_refund_is_what_the_permit_still_weighs() -> None:
    ledger = rule_of(Bucket("1/s", burst=4)).open()
    mark, tally = ledger.take(0, 2), ledger.tally
    ledger.take(S, 1)
    ledger.cancel(S, 2, mark, tally)  # one of the two has been earned again meanwhile
    assert ledger.remaining(S) == 3
    mark, tally = ledger.take(S, 1), ledger.tally
    ledger.cancel(9 * S, 1, mark, tally)
    assert ledger.remaining(9 * S) == 4


def test_cancels_from_the_end_leave_no_trace() -> None:
    ledger = rule_of(Bucket("3/s", burst=2)).open()
    first, second = [(ledger.take(0, 1), ledger.tally) for _ in range(2)]
    ledger.cancel(1, 1, *second)
    assert ledger.remaining(1) == 1
    ledger.cancel(2, 1, *first)
    assert ledger.remaining(2) == 2


def test_a_cancelled_slot_gives_back_only_what_was_not_reserved_after_it() -> None:
    ledger = rule_of(Bucket("1/s")).open()
    first, second = [(ledger.take(ledger.slot(0, 1), 1), ledger.tally) for _ in range(2)]
    third = (ledger.take(ledger.slot(0, 1), 1), ledger.tally)
    assert ledger.slot(0, 1) == 3 * S
    ledger.cancel(0, 1, *second)
    assert ledger.slot(0, 1) == 3 * S
    ledger.cancel(0, 1, *third)
    assert ledger.slot(0, 1) == 2 * S
    ledger.cancel(0, 1, *first)
    assert ledger.slot(0, 1) == 2 * S


def test_debt_beyond_146_years_is_kept_as_that() -> None:
    ledger = rule_of(Bucket((1, 60))).open()
    for _ in range(3):
        mark = ledger.take(0, 1)
        ledger.settle(0, 1, mark, ledger.tally, 2**60)
    assert 2**61 < ledger.wait(0, 1) < 2**63


def test_slots_beyond_146_years_are_refused() -> None:
    ledger = rule_of(Bucket((1, f"{2**61}ns"))).open()
    slots = []
    while (slot := ledger.slot(5, 1)) >= 0:
        slots.append(slot)
        ledger.take(slot, 1)
    assert slots == [5, 5 + 2**61]
