"""Window: never more than n in any w, wherever it starts; with a remote, wherever in flight it was noted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.strategies import (
    BRACKETED_WINDOWS,
    COARSE_BRACKETED_WINDOWS,
    COARSE_REMOTE_WINDOWS,
    COARSE_WINDOWS,
    COMMANDS,
    REMOTE_WINDOWS,
    WINDOWS,
    traced,
)
from core.traces import Grant, Near, Player, rule_of
from headway.core.ledger import FOREVER
from headway.core.limits import Window
from headway.core.remote import Remote

S = 10**9
LOCAL = st.one_of(WINDOWS, COARSE_WINDOWS)
FINE = st.one_of(WINDOWS, REMOTE_WINDOWS, BRACKETED_WINDOWS)
COARSE = st.one_of(COARSE_WINDOWS, COARSE_REMOTE_WINDOWS, COARSE_BRACKETED_WINDOWS)
ALL = st.one_of(FINE, COARSE)


def spent(grant: Grant, rule: Any, now: int, turn: int) -> int:
    """How much of a grant may still have been noted later than `now - gap`, by what was known at `turn`."""
    held = grant.enter_turn <= turn  # from then on its end is waited for
    gap = rule.gap if held else rule.bare_gap
    due = grant.entered + rule.transit  # noted by then, or never
    ended = grant.end_turn <= turn
    known_early = ended and (grant.ended < due or not held)
    cost = grant.happened if known_early else grant.cost
    if held and not (known_early and grant.end in ("complete", "settle")):
        completed = due
    else:
        completed = grant.ended if held else grant.at
    still = cost if now < completed + gap else 0
    if ended and now < grant.ended + gap:
        still += grant.extra
    return still


def assert_promise(limit: Window, grants: list[Grant]) -> None:
    """Before each grant, what may still lie within the window and the grant itself are n at most."""
    rule = rule_of(limit)
    for i, grant in enumerate(grants):
        earlier = sum(spent(other, rule, grant.at, grant.turn) for other in grants[:i])
        assert earlier + grant.cost <= rule.capacity


@settings(traced)
@given(ALL, COMMANDS)
def test_never_above_its_promise(case, commands) -> None:
    limit, unit = case
    assert_promise(limit, Player(rule_of(limit).open(), unit).play(commands).grants)


@settings(traced)
@given(LOCAL, COMMANDS)
def test_any_window_wherever_it_starts(case, commands) -> None:
    limit, unit = case
    commands = [command for command in commands if command[0] != "settle"]
    events = [
        (grant.at, grant.happened) for grant in Player(rule_of(limit).open(), unit).play(commands).grants
    ]
    for start, _ in events:
        assert sum(cost for at, cost in events if start <= at < start + limit.per_ns) <= limit.count


def taken(player: Player, rule: Any) -> int:
    return sum(spent(grant, rule, player.now, player.turn) for grant in player.grants)


@settings(traced)
@given(FINE, COMMANDS)
def test_nothing_is_withheld(case, commands) -> None:
    limit, unit = case

    def check(player: Player) -> None:
        rule = player.ledger.get_rule()
        assert player.ledger.remaining(player.now) == max(0, rule.capacity - taken(player, rule))

    Player(rule_of(limit).open(), unit).play(commands, check)


class Later:
    """The same rule with every rounding at its worst."""

    def __init__(self, rule: Any) -> None:
        self.gap = rule.gap + rule.grid - 1
        self.bare_gap = rule.bare_gap + rule.grid - 1
        self.transit = rule.transit + rule.out_grid - 1


@settings(traced)
@given(COARSE, COMMANDS)
def test_a_grid_withholds_for_one_step_at_most(case, commands) -> None:
    limit, unit = case
    # A cancel between the true end of the transit and the rounded one gives back, as it should, but not in `spent`.
    commands = [command for command in commands if command[0] not in ("cancel", "settle")]

    def check(player: Player) -> None:
        left, rule = player.ledger.remaining(player.now), player.ledger.get_rule()
        assert rule.capacity - taken(player, Later(rule)) <= left
        assert left <= max(0, rule.capacity - taken(player, rule))

    Player(rule_of(limit).open(), unit).play(commands, check)


@settings(traced)
@given(ALL, COMMANDS)
def test_permits_are_neither_lost_nor_minted(case, commands) -> None:
    limit, unit = case

    def check(player: Player) -> None:
        ledger: Any = player.ledger
        out = ledger.out.total if ledger.out is not None else 0
        assert ledger.free + ledger.cooling.total + out == player.ledger.get_rule().capacity

    Player(rule_of(limit).open(), unit).play(commands, check)


@settings(traced)
@given(FINE, COMMANDS, FINE, COMMANDS)
def test_a_new_limit_holds_from_its_first_moment(case, before, other, after) -> None:
    player = Player(rule_of(case[0]).open()).play(before)
    known = len(player.grants)
    player.ledger.reconfigure(rule_of(other[0]), player.now)
    assert_promise(other[0], player.play(after).grants[known:])


@settings(traced)
@given(WINDOWS, COMMANDS, WINDOWS)
def test_a_new_limit_forgets_nothing_that_was_still_in_the_window(case, commands, other) -> None:
    commands = [command for command in commands if command[0] != "settle"]
    player = Player(rule_of(case[0]).open()).play(commands)
    old, new = case[0], other[0]
    per = min(old.per_ns, new.per_ns)
    player.ledger.reconfigure(rule_of(new), player.now)
    recent = sum(grant.happened for grant in player.grants if player.now < grant.at + per)
    assert player.ledger.remaining(player.now) == max(0, new.count - recent)


def test_a_million_a_day_costs_kilobytes() -> None:
    ledger: Any = rule_of(Window(1_000_000, per="day")).open()
    for i in range(30_000):
        now = i * 4 * S
        if ledger.wait(now, 30) == 0:
            ledger.take(now, 30)
    assert ledger.cooling.size <= 1025
    assert ledger.cooling.mask < 4096


def test_the_worked_example() -> None:
    remote = Remote(resolution="20ms", drift_ppm=0)
    ledger = rule_of(Window(2, per=1, remote=remote)).open()
    marks = [ledger.take(0, 1), ledger.take(0, 1)]
    assert (ledger.wait(50_000_000, 1), ledger.exact(50_000_000, 1)) == (1_020_000_000, False)
    ledger.complete(100_000_000, 1, marks[0])
    assert (ledger.wait(200_000_000, 1), ledger.exact(200_000_000, 1)) == (920_000_000, True)
    ledger.complete(300_000_000, 1, marks[1])
    assert [ledger.wait(S, cost) for cost in (1, 2)] == [120_000_000, 320_000_000]


def test_a_permit_without_an_end_counts_as_completed_when_its_transit_is_over() -> None:
    remote = Remote(resolution=0, drift_ppm=0, max_transit=10)
    ledger = rule_of(Window(1, per=1, remote=remote)).open()
    mark = ledger.take(0, 1)
    ledger.abandon(3 * S, 1, mark)
    assert ledger.in_flight(10 * S - 1) == 1
    assert ledger.in_flight(10 * S) == 0
    assert (ledger.wait(10 * S, 1), ledger.exact(10 * S, 1)) == (S, True)
    ledger.complete(10 * S, 1, mark)  # too late to matter
    assert ledger.wait(11 * S, 1) == 0


def test_while_only_abandoned_permits_are_missing_the_time_is_known() -> None:
    """Their transit has to pass: nothing that happens brings them back before."""
    remote = Remote(resolution=0, drift_ppm=0, max_transit=10)
    ledger = rule_of(Window(3, per=1, remote=remote)).open()
    first, second, third = ledger.take(0, 1), ledger.take(S, 1), ledger.take(2 * S, 1)
    ledger.abandon(3 * S, 1, second)
    # Two may still complete this instant, the third missing one is the abandoned one or one that is never ended.
    assert [ledger.wait(3 * S, cost) for cost in (1, 2, 3)] == [S, S, 8 * S]
    assert [ledger.exact(3 * S, cost) for cost in (1, 2, 3)] == [False] * 3
    ledger.abandon(3 * S, 1, first)
    ledger.complete(3 * S, 1, third)
    assert [ledger.wait(3 * S, cost) for cost in (1, 2, 3)] == [S, 8 * S, 9 * S]
    assert [ledger.exact(3 * S, cost) for cost in (1, 2, 3)] == [True] * 3
    assert [ledger.latest_wait(3 * S, cost) for cost in (1, 2, 3)] == [S, 8 * S, 9 * S]
    assert [ledger.wait(11 * S - 1, cost) for cost in (1, 2, 3)] == [0, 1, S + 1]
    assert [ledger.wait(11 * S, cost) for cost in (1, 2, 3)] == [0, 0, S]


def test_an_abandonment_that_comes_too_late_says_nothing_of_others() -> None:
    remote = Remote(resolution=0, drift_ppm=0, max_transit=10)
    ledger = rule_of(Window(1, per=1, remote=remote)).open()
    late = ledger.take(0, 1)
    ledger.take(12 * S, 1)
    ledger.abandon(12 * S, 1, late)
    assert (ledger.wait(12 * S, 1), ledger.exact(12 * S, 1)) == (S, False)


def test_a_debt_is_paid_before_the_next_grant() -> None:
    ledger = rule_of(Window(3, per=1)).open()
    mark = ledger.take(0, 2)
    ledger.settle(S // 2, 2, mark, ledger.tally, 3)
    assert [ledger.wait(S // 2, cost) for cost in (1, 2, 3)] == [S // 2, S // 2, S]
    mark = ledger.take(S, 1)
    ledger.settle(S, 1, mark, ledger.tally, 3)  # one above all there are
    assert [ledger.wait(S, cost) for cost in (1, 2, 3)] == [S, S, S]


def test_exhaust_keeps_a_debt() -> None:
    ledger = rule_of(Window(2, per=1)).open()
    mark = ledger.take(0, 2)
    ledger.settle(S // 2, 2, mark, ledger.tally, 4)
    ledger.exhaust(S // 2)
    assert ledger.wait(S // 2, 1) == S


def test_a_cancel_finds_its_own_permit_under_another_limit() -> None:
    ledger = rule_of(Window(2, per="100ns")).open()
    first, tally = ledger.take(0, 1), ledger.tally
    ledger.take(50, 1)
    ledger.reconfigure(
        rule_of(Window(2, per="50ns")), 50
    )  # now the second is usable when the first used to be
    ledger.cancel(50, 1, first, tally)
    assert ledger.remaining(50) == 1


def test_a_permit_of_a_local_window_ends_nothing_of_a_remote_one() -> None:
    ledger = rule_of(Window(1, per="100ns")).open()
    local, tally = ledger.take(0, 1), ledger.tally
    ledger.reconfigure(rule_of(Window(1, per="100ns", remote=Remote(resolution=0, drift_ppm=0))), 50)
    ledger.take(100, 1)
    ledger.complete(100, 1, local)
    ledger.cancel(100, 1, local, tally)
    assert ledger.in_flight(100) == 1


@pytest.mark.parametrize("drift", [0, 250, 999_999])
def test_gaps_and_transits_stay_within_146_years(drift) -> None:
    from headway.core.window import WindowRule

    longest = f"{2**62}ns"
    remote = Remote(resolution=0, drift_ppm=0, max_transit=longest, back_latency=longest)
    rule = WindowRule(Window(1, per=longest, remote=remote), 1, drift)
    assert 0 <= rule.gap + rule.transit <= FOREVER


RESERVING = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)), max_size=50)


@settings(traced)
@given(st.integers(1, 5), st.integers(1, 30), RESERVING)
def test_reserved_permits_keep_the_promise_too(count, per, steps) -> None:
    """A waiter at a shared ledger reserves where the time is known. Some waiters cancel before it."""
    ledger = rule_of(Window(count, per=f"{per}ns", remote=False)).open()
    now = 1_000
    held: list[tuple[int, int, int, int]] = []  # at, cost, mark, tally
    for passed, x, whim in steps:
        now += passed
        cost = 1 + x % count
        at = ledger.slot(now, cost)
        assert at == now + ledger.wait(now, cost)
        held.append((at, cost, ledger.take(at, cost), ledger.tally))
        waiting = [grant for grant in held if grant[0] > now]
        if whim < 3 and waiting:
            grant = waiting[whim % len(waiting)]
            held.remove(grant)
            ledger.cancel(now, *grant[1:])
    for start, *_ in held:
        assert sum(cost for at, cost, *_ in held if start <= at < start + per) <= count


def test_no_time_is_promised_while_permits_are_out_or_beyond_the_horizon() -> None:
    remote = rule_of(Window(1, per=1, remote=Remote())).open()
    assert remote.slot(0, 1) == 0
    remote.take(0, 1)
    assert remote.slot(0, 1) == -1
    long = rule_of(Window(1, per=f"{2**61}ns", remote=False)).open()
    slots = []
    while (slot := long.slot(5, 1)) >= 0:
        slots.append(slot)
        long.take(slot, 1)
    assert slots == [5, 5 + 2**61]


def near(count: int, per: str = "100ns", more: int = 10, transit: int = 1000) -> Any:
    return rule_of(Near(Window(count, per=per), more, transit)).open()


def test_what_brackets_a_call_is_out_and_a_bare_permit_counts_at_its_decision() -> None:
    ledger = near(2)
    mark = ledger.take_held(0, 1)
    ledger.take(0, 1)
    assert (ledger.in_flight(0), ledger.wait(0, 1), ledger.exact(0, 1)) == (1, 100, True)
    assert ledger.exact(0, 2) is False  # one of the two is out
    ledger.complete(50, 1, mark)
    assert [ledger.wait(60, cost) for cost in (1, 2)] == [40, 100]


def test_each_mode_counts_as_it_says() -> None:
    modes = {False: (0, False), True: (1, True), None: (0, True)}
    for remote, (bare, held) in modes.items():
        window = Window(1, per=1, remote=remote)
        one, other = rule_of(window).open(), rule_of(window).open()
        one.take(0, 1)
        other.take_held(0, 1)
        assert (one.in_flight(0), bool(other.in_flight(0))) == (bare, held), remote


def test_a_bare_permit_that_is_entered_is_out_from_then_on() -> None:
    ledger = near(1)
    mark, tally = ledger.take(0, 1), ledger.tally
    mark = ledger.enter(60, 1, mark, tally, 60)
    assert (ledger.in_flight(60), ledger.free, ledger.wait(60, 1), ledger.exact(60, 1)) == (1, 0, 110, False)
    assert ledger.enter(70, 1, mark, tally, 70) == mark  # once
    ledger.complete(200, 1, mark)
    assert (ledger.wait(200, 1), ledger.free) == (110, 0)


def test_a_bare_permit_that_is_entered_late_is_owed() -> None:
    ledger = near(1)
    mark, tally = ledger.take(0, 1), ledger.tally
    second = ledger.take(100, 1)  # the first has cooled
    mark = ledger.enter(150, 1, mark, tally, 150)
    assert (ledger.free, ledger.in_flight(150)) == (-1, 1)
    assert ledger.wait(200, 1) == 110  # the second is back, and pays for the first
    ledger.complete(160, 1, mark)
    assert (ledger.free, ledger.wait(200, 1)) == (0, 70)
    assert second == -200


def test_a_bare_permit_that_was_owed_and_never_dispatched_goes_back() -> None:
    ledger = near(1)
    mark, tally = ledger.take(0, 1), ledger.tally
    mark = ledger.enter(150, 1, mark, tally, 150)
    assert ledger.wait(150, 1) > 0
    ledger.cancel(160, 1, mark, tally)
    assert (ledger.free, ledger.idle(160)) == (1, True)


def test_an_entered_permit_is_found_under_another_limit() -> None:
    ledger = near(2)
    mark, tally = ledger.take(0, 1), ledger.tally
    ledger.reconfigure(rule_of(Near(Window(2, per="300ns"), 30, 1000)), 50)
    ledger.enter(60, 1, mark, tally, 60)
    assert (ledger.cooling.total, ledger.out.total, ledger.free) == (0, 1, 1)


def test_no_time_is_promised_while_a_bare_permit_may_be_entered() -> None:
    ledger = near(2, transit=60)
    mark = ledger.take_held(0, 1)
    ledger.complete(0, 1, mark)  # there again at 110, for certain
    assert ledger.slot(0, 2) == 110
    ledger.take(10, 1)  # there again at 110, unless it is entered by 70
    assert (ledger.wait(10, 1), ledger.exact(10, 1)) == (100, True)
    assert [ledger.slot(now, 1) for now in (10, 69, 70, 110)] == [-1, -1, 110, 110]


def test_two_gaps_do_not_mix() -> None:
    ledger = near(3)
    mark = ledger.take_held(0, 1)
    ledger.complete(0, 1, mark)  # there again at 110
    ledger.take(1, 1)  # and this one at 101
    assert [ledger.wait(1, cost) for cost in (1, 2, 3)] == [0, 100, 109]


@settings(traced)
@given(BRACKETED_WINDOWS, COMMANDS)
def test_every_permit_that_brackets_a_call_counts_as_with_a_remote(case, commands) -> None:
    """Used with `with` alone, a window without a remote is one with it."""
    (window, *_), unit = case
    usual = rule_of(case[0])
    strict = rule_of(Window(window.count, per=f"{window.per_ns}ns", remote=True))
    strict.recall(window, 1, (*usual.numbers()[:4], 1, 0))
    held = [("hold" if verb == "take" else verb, x, y) for verb, x, y in commands]
    one, other = Player(usual.open(), unit).play(held), Player(strict.open(), unit).play(held)
    assert one.log == other.log


@settings(traced)
@given(BRACKETED_WINDOWS, COMMANDS)
def test_without_a_bracket_it_is_the_log_of_its_decisions(case, commands) -> None:
    window, plain = case[0].limit, ("hold", "enter", "settle")
    bare = [command for command in commands if command[0] not in plain]
    own = Window(window.count, per=f"{window.per_ns}ns", remote=False)
    one, other = (
        Player(rule_of(case[0]).open()).play(bare),
        Player(rule_of(own).open()).play(bare),
    )
    assert one.log == other.log


@settings(traced)
@given(BRACKETED_WINDOWS, RESERVING)
def test_no_time_is_exact_that_may_be_earlier(case, steps) -> None:
    """In a shared ledger bare permits are promised for later, while others are out."""
    ledger: Any = rule_of(case[0]).open()
    now, out = 1_000, []
    for passed, x, whim in steps:
        now += passed
        cost = 1 + x % ledger.rule.capacity
        if whim < 4 and ledger.wait(now, cost) == 0:
            out.append((cost, ledger.take_held(now, cost)))
        elif ledger.slot(now, cost) >= 0:
            ledger.take(ledger.slot(now, cost), cost)
        best = ledger.copy()
        for taken, mark in out:
            best.complete(now, taken, mark)
        for wanted in range(1, ledger.rule.capacity + 1):
            wait, sure = ledger.wait(now, wanted), ledger.latest_wait(now, wanted)
            assert wait <= sure
            assert best.wait(now, wanted) >= wait
            assert ledger.copy().wait(now + sure, wanted) == 0
            if ledger.exact(now, wanted):
                assert wait == sure == best.wait(now, wanted)
        assert ledger.free + ledger.cooling.total + ledger.in_flight(now) == ledger.rule.capacity
        if whim == 9 and out:
            ledger.complete(now, *out.pop(x % len(out)))
