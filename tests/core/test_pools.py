"""The three pools: no token is made or lost, on any trace, at any rate, in both forms."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.ledger import FOREVER
from headway.core.pace import pace_of, rate_of, ratio_of
from headway.core.pools import PoolRule, Pools, Turn
from headway.errors import InvalidArgument, InvalidLimit

RATES = st.one_of(
    st.sampled_from([0.001, 0.3, 1, 3, 7, 1000, 12_000, 1e6, 1e7, 3e8, 1e9, 1e12]),
    st.floats(0.001, 1e9),
    st.integers(1, 10**9),
)
RATIOS = st.sampled_from([1, 1.0, 1.1, 1.5, 2, 1.000001, 3.7, 100, Fraction(4, 3)])
DELTAS = st.one_of(st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 10**10), st.integers(0, 10**16))
COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["fill", "take", "take", "join", "join", "cancel", "leave", "settle", "set_rate", "stop", "start"]
        ),
        DELTAS,
        st.integers(1, 5000),
    ),
    max_size=40,
)
traced = settings(derandomize=True)


def rule(rate, ratio=1.1):
    return PoolRule(rate_of(rate), ratio_of(ratio))


def conserved(pools):
    parts = (pools.consumed(), pools.active(), pools.burst(), pools.waiting)
    assert min(parts) >= 0
    assert sum(parts) == pools.elapsed()
    assert pools.pool <= pools.rule.full
    assert 0 <= pools.credit < pools.rule.parts
    assert 0 <= pools.carry < pools.rule.per


class Play:
    """Pools under commands, with the clock that fills them."""

    def __init__(self, first):
        self.pools = Pools(first, 0)
        self.now = 0

    def do(self, verb, delta, number, other):
        pools, turns = self.pools, list(self.pools.turns)
        self.now += delta
        if verb == "take":
            pools.take(self.now, min(number, pools.rule.most))
        elif verb == "join":
            pools.join(Turn(min(number, pools.rule.most)), self.now)
        elif verb == "cancel" and turns:
            pools.cancel(turns[number % len(turns)], self.now)
        elif verb == "leave" and turns and turns[0].due <= self.now:
            pools.leave(turns[0])
        elif verb == "settle":
            pools.fill(self.now)
            pools.settle()
        elif verb == "set_rate":
            pools.set_rate(other, self.now)
        elif verb in ("stop", "start"):
            pools.run(self.now, verb == "start")
        else:
            pools.fill(self.now)


@traced
@given(RATES, RATIOS, RATES, RATIOS, COMMANDS)
def test_tokens_are_neither_made_nor_lost(rate, ratio, other_rate, other_ratio, commands):
    play, other = Play(rule(rate, ratio)), rule(other_rate, other_ratio)
    for verb, delta, number in commands:
        play.do(verb, delta, number, other)
        conserved(play.pools)


def test_the_fill_steps_of_the_original():
    pools, seen = Pools(rule(10**7), 0), []
    for now in (1_000_000, 1_000_100, 1_000_110):
        pools.fill(now)
        seen.append((pools.active() + pools.burst() + pools.waiting, pools.waiting))
    assert seen == [(1_000_000, 0), (1_000_100, 90), (1_000_110, 99)]


@traced
@given(RATES, RATIOS, st.lists(DELTAS, max_size=20))
def test_each_fill_is_the_original_formula(rate, ratio, deltas):
    """With exact fractions where the original truncates: within the one token that is carried."""
    pools = Pools(rule(rate, ratio), 0)
    size, burst = pools.rule.active_size, pools.rule.burst_size
    for delta in deltas:
        pool, waiting = pools.pool, pools.waiting
        to_active = min(delta, max(0, size - pool))
        overflow = waiting + delta - to_active
        allowed = min(size + burst - pool - to_active, min(Fraction(delta, size), Fraction(1)) * burst)
        moved = min(allowed, overflow)
        pools.fill(pools.at + delta)
        assert abs(pools.pool - (pool + to_active + moved)) <= 1
        assert pools.pool + pools.waiting == pool + waiting + delta


@traced
@given(RATES, st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_costs_do_not_drift(rate, batches):
    """However it is cut into batches, n operations cost n times the cost, rounded up once."""
    pools = Pools(rule(rate), 0)
    cost = Fraction(pools.rule.whole) + Fraction(pools.rule.part, pools.rule.parts)
    for ops in batches:
        pools.join(Turn(min(ops, pools.rule.most)), 0)
        assert pools.charged == -(-pools.ops * cost.numerator // cost.denominator)


@traced
@given(RATES, RATIOS, st.lists(DELTAS, max_size=8), st.integers(1, 3000), st.lists(st.integers(1, 99)))
def test_the_promised_time_is_exact(rate, ratio, deltas, ops, stops):
    """Not a nanosecond earlier and none later, wherever fills come between."""
    pools = Pools(rule(rate, ratio), 0)
    for delta in deltas:
        pools.fill(pools.at + delta)
        pools.take(pools.at, 1)
    turn = Turn(min(ops, pools.rule.most))
    pools.join(turn, pools.at)
    start = pools.at
    if turn.due == start:
        assert pools.pool >= 0
        return
    for percent in sorted(stops):
        pools.fill(start + (turn.due - 1 - start) * percent // 100)
        assert pools.lag() == turn.due - pools.at
    pools.fill(turn.due - 1)
    assert pools.pool < 0
    pools.fill(turn.due)
    assert pools.pool >= 0


@traced
@given(RATES, RATIOS, st.lists(st.tuples(DELTAS, st.integers(1, 50)), max_size=60))
def test_no_burst_beyond_the_ratio(rate, ratio, calls):
    """In any time d at most what the pools hold and ratio times d, in tokens; one more for what is carried."""
    pools, taken = Pools(rule(rate, ratio), 0), []
    for delta, ops in calls:
        before = pools.charged
        pools.take(pools.at + delta, ops)
        taken.append((pools.at, pools.charged - before))
    for first in range(len(taken)):
        spent = 0
        for at, tokens in taken[first:]:
            spent += tokens
            assert spent <= pools.rule.full + (at - taken[first][0]) * pools.rule.ratio + 1


def test_strict_makes_nothing_up():
    """5 s idle at 1,000/s, then 10 s of full demand."""
    pools = Pools(rule(1000, 1.0), 0)
    at_once = 0
    while pools.take(5 * 10**9, 1) >= 0:
        at_once += 1
    assert at_once == 2
    started = at_once
    for now in range(5 * 10**9, 15 * 10**9 + 1, 100_000):
        started += pools.take(now, 1) >= 0
    assert started == 10_002
    assert pools.waiting == 5 * 10**9 - 2 * 10**6


def test_low_rates_do_not_starve():
    """Fills of 7 ns allow 0.7 tokens each: they add up."""
    pools = Pools(rule(0.001), 0)
    pools.fill(10**14)
    pools.take(pools.at, 2)
    assert pools.pool == pools.rule.burst_size
    for _ in range(1000):
        pools.fill(pools.at + 7)
    assert pools.pool - pools.rule.burst_size == 7000 + 700


def test_later_waiters_move_up_and_nothing_else_changes():
    pools = Pools(rule(1000, 1.0), 0)
    turns = [Turn(1) for _ in range(4)]
    for turn in turns:
        pools.join(turn, 0)
    assert [turn.due for turn in turns] == [1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert pools.cancel(turns[1], 0) is turns[3]
    pools.settle()
    assert [turn.due for turn in turns if turn is not turns[1]] == [1_000_000, 2_000_000, 3_000_000]
    assert pools.cancel(turns[3], 0) is None
    newcomer = Turn(1)
    pools.join(newcomer, 0)
    assert newcomer.due == 3_000_000
    conserved(pools)


@traced
@given(RATES, st.lists(st.integers(1, 100), min_size=1, max_size=12), st.randoms())
def test_giving_up_restores_exactly(rate, many, random):
    pools = Pools(rule(rate), 0)
    pools.fill(12_345_678)
    pools.take(pools.at, 1)
    before = (pools.pool, pools.waiting, pools.charged, pools.credit, pools.ops)
    turns = [Turn(ops) for ops in many]
    for turn in turns:
        pools.join(turn, pools.at)
    coming = [turn for turn in turns if turn.due > pools.at]
    came = [turn for turn in turns if turn.due <= pools.at]
    random.shuffle(coming)
    for turn in coming:
        pools.cancel(turn, pools.at)
    for turn in came:
        pools.leave(turn)
    if not came:
        assert (pools.pool, pools.waiting, pools.charged, pools.credit, pools.ops) == before
    conserved(pools)


@traced
@given(RATES, RATES, RATIOS, DELTAS)
def test_a_new_rate_keeps_the_backlog(rate, other_rate, ratio, idle):
    pools, other = Pools(rule(rate), 0), rule(other_rate, ratio)
    pools.fill(idle)
    before, consumed = pools.pool + pools.waiting, pools.consumed()
    pools.set_rate(other, idle)
    assert (pools.pool + pools.waiting, pools.consumed()) == (before, consumed)
    assert pools.pool <= other.full
    conserved(pools)


def test_a_new_rate_moves_waiters():
    pools = Pools(rule(1), 0)
    turns = [Turn(1), Turn(1)]
    for turn in turns:
        pools.join(turn, 0)
    pools.set_rate(rule(10), 50_000_000)
    assert [(turn.due, turn.moved) for turn in turns] == [(100_000_000, True), (200_000_000, True)]


def test_stopped_nothing_comes_and_no_time_counts():
    pools = Pools(rule(10), 0)
    turn = Turn(1)
    pools.join(turn, 0)
    pools.run(40_000_000, False)
    assert turn.due == FOREVER
    assert pools.take(10**9, 1) == -1
    pools.run(10**9, True)
    assert turn.due == 10**9 + 60_000_000
    assert pools.elapsed() == 40_000_000
    pools.restart(2 * 10**9)
    conserved(pools)


@pytest.mark.parametrize(
    ("spec", "rate", "ratio", "verb", "scope"),
    [
        ("12000", 12000, None, None, None),
        ("12000,1.1", 12000, Fraction(11, 10), None, None),
        ("12000:1.1;restart", 12000, Fraction(11, 10), "restart", None),
        (" 30 / minute , thread , stop ", Fraction(1, 2), None, "stop", "thread"),
        ("1e6 per s", 10**6, None, None, None),
        ("0.5/s,configure", Fraction(1, 2), None, "configure", None),
        ("1_000", 1000, None, None, None),
        ("restart", None, None, "restart", None),
    ],
)
def test_specs(spec, rate, ratio, verb, scope):
    assert pace_of(spec) == (rate, ratio, verb, scope)


@pytest.mark.parametrize(
    ("spec", "position"),
    [
        ("", 0),
        ("0", 0),
        ("-5/s", 0),
        ("1e16", 0),
        ("5/month", 2),
        ("5 every s", 2),
        ("500,0.9", 4),
        ("500,1.1,1.2", 8),
        ("500,reset", 4),
        ("500,1.1,start,stop", 14),
        ("500 1.1", 4),
        ("inf", 0),
        ("thread", 0),
        ("500,", 4),
    ],
)
def test_bad_specs_are_pointed_at(spec, position):
    with pytest.raises(InvalidLimit) as caught:
        pace_of(spec)
    assert caught.value.position == position


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), True, None, [], 1e16, 1e-7])
def test_bad_rates(rate):
    with pytest.raises(InvalidArgument):
        rate_of(rate)


@pytest.mark.parametrize("ratio", [0, 0.999, -1, float("inf"), float("nan"), True, 1001])
def test_bad_ratios(ratio):
    with pytest.raises(InvalidArgument):
        ratio_of(ratio)
