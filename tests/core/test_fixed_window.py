"""FixedWindow: at most n in each window of the calendar, and the end of it is known."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from core.strategies import COMMANDS, FIXED_WINDOWS, traced
from core.traces import Player, rule_of
from headway.core.limits import FixedWindow

HOUR = 3600 * 10**9


@settings(traced)
@given(FIXED_WINDOWS, COMMANDS)
def test_never_above_its_promise(case, commands) -> None:
    limit, _ = case
    grants = Player(rule_of(limit).open()).play(commands).grants
    window = {grant.turn: limit.window_of(grant.at) for grant in grants}
    for grant in grants:
        start, end = window[grant.turn]
        together = [
            other for other in grants if window[other.turn] == (start, end) and other.turn <= grant.turn
        ]
        debts = [
            other.extra for other in grants if start <= other.ended < end and other.end_turn < grant.turn
        ]
        assert not grant.happened or sum(other.happened for other in together) + sum(debts) <= limit.count


@settings(traced)
@given(FIXED_WINDOWS, COMMANDS)
def test_nothing_is_withheld_and_the_end_is_known(case, commands) -> None:
    limit, _ = case

    def check(player: Player) -> None:
        start, end = limit.window_of(player.now)
        used = sum(grant.happened for grant in player.grants if start <= grant.at and grant.ended < end)
        used += sum(grant.cost for grant in player.grants if start <= grant.at and not grant.end)
        used += sum(grant.extra for grant in player.grants if start <= grant.ended)
        assert player.ledger.remaining(player.now) == max(0, limit.count - used)
        assert player.ledger.reset_after(player.now) == end - player.now

    Player(rule_of(limit).open()).play(commands, check)


@settings(traced)
@given(FIXED_WINDOWS, st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 5)), max_size=40))
def test_a_clock_that_is_set_back_counts_nothing_twice(case, steps) -> None:
    limit, _ = case
    ledger = rule_of(limit).open()
    now, newest = 1000, 0
    used: Counter[int] = Counter()
    for step, cost in steps:
        now += step
        newest = max(newest, limit.window_of(now)[1])
        assert ledger.reset_after(now) == newest - now
        if ledger.wait(now, cost) == 0:
            ledger.take(now, cost)
            used[newest] += cost
    assert all(count <= limit.count for count in used.values())


@settings(traced)
@given(FIXED_WINDOWS, COMMANDS, FIXED_WINDOWS, COMMANDS)
def test_a_new_limit_holds_from_its_first_moment(case, before, other, after) -> None:
    limit = other[0]
    player = Player(rule_of(case[0]).open()).play(before)
    known = len(player.grants)
    used = player.ledger.copy()
    player.ledger.reconfigure(rule_of(limit), player.now)
    owed = case[0].count - used.remaining(player.now)
    assert player.ledger.remaining(player.now) <= max(0, limit.count - owed)
    windows: Counter[int] = Counter()
    for grant in player.play(after).grants[known:]:
        windows[limit.window_of(grant.at)[0]] += grant.happened
    assert all(count <= limit.count for count in windows.values())


def test_the_worked_example() -> None:
    ledger = rule_of(FixedWindow(3, per="day")).open()
    evening = int(datetime(2024, 2, 29, 23, 59, tzinfo=UTC).timestamp()) * 10**9
    for _ in range(3):
        assert ledger.wait(evening, 1) == 0
        ledger.take(evening, 1)
    assert ledger.wait(evening, 1) == 60 * 10**9
    assert ledger.remaining(evening + 60 * 10**9) == 3


def test_a_cancel_is_worth_nothing_in_another_window() -> None:
    ledger = rule_of(FixedWindow(3, per="day")).open()
    mark, tally = ledger.take(22 * HOUR, 3), ledger.tally
    ledger.reconfigure(rule_of(FixedWindow(3, per="hour")), 22 * HOUR)
    assert (ledger.remaining(22 * HOUR), ledger.reset_after(22 * HOUR)) == (0, HOUR)
    ledger.take(23 * HOUR, 3)  # this window ends with the day, as the first one did
    ledger.cancel(23 * HOUR, 3, mark, tally)
    assert ledger.remaining(23 * HOUR) == 0
