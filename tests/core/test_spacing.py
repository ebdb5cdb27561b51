"""Spacing: never closer than an interval, slots ahead up to a number, and late holders push those behind them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from core.strategies import COMMANDS, SPACINGS, ns, traced
from core.traces import Player, rule_of
from headway.core.limits import Spacing

S = 10**9


@settings(traced)
@given(SPACINGS, COMMANDS)
def test_slots_are_a_step_apart(case, commands) -> None:
    limit, _ = case
    grants = Player(rule_of(limit).open()).play(commands).grants
    step = limit.interval_ns + (limit.expire_after_ns or 0) * limit.strict
    slots = sorted(grant.at for grant in grants if grant.happened)
    assert all(later - earlier >= step for earlier, later in pairwise(slots))


@settings(traced)
@given(SPACINGS, COMMANDS)
def test_used_permits_are_never_closer_than_the_interval(case, commands) -> None:
    limit, _ = case
    grants = Player(rule_of(limit).open()).play(commands).grants
    used = sorted(grant.used for grant in grants if grant.used >= 0 and grant.happened)
    assert not limit.strict or all(later - earlier >= limit.interval_ns for earlier, later in pairwise(used))


@settings(traced)
@given(SPACINGS, COMMANDS, SPACINGS, COMMANDS)
def test_a_new_interval_holds_from_its_first_moment(case, before, other, after) -> None:
    player = Player(rule_of(case[0]).open()).play(before)
    changed = player.now
    player.ledger.reconfigure(rule_of(other[0]), changed)
    grants = player.play(after).grants
    used = sorted(grant.used for grant in grants if grant.used > changed and grant.happened)
    strict = case[0].strict and other[0].strict
    assert not strict or all(later - earlier >= other[0].interval_ns for earlier, later in pairwise(used))


@settings(traced)
@given(SPACINGS, COMMANDS)
def test_no_more_slots_are_reserved_than_allowed(case, commands) -> None:
    limit, _ = case
    commands = [(verb, x, 1) for verb, x, _ in commands]  # no slot is later than this limit needs

    def check(player: Player) -> None:
        ahead = sum(grant.at > player.now for grant in player.grants if grant.happened)
        assert ahead <= limit.max_reserved
        slot = player.ledger.slot(player.now, 1)
        wait = player.ledger.wait(player.now, 1)
        assert slot in (player.now + wait, -1)
        assert slot >= 0 or (wait > 0 and player.ledger.copy().slot(player.now + wait, 1) >= 0)

    Player(rule_of(limit).open()).play(commands, check)


def test_a_slot_is_refused_only_while_all_are_taken() -> None:
    ledger = rule_of(Spacing(6, max_reserved=2)).open()
    assert [ledger.take(ledger.slot(0, 1), 1) for _ in range(3)] == [0, 6 * S, 12 * S]
    assert ledger.slot(6 * S - 1, 1) == -1
    assert ledger.slot(6 * S, 1) == 18 * S


def test_the_worked_example() -> None:
    ledger = rule_of(Spacing(6)).open()
    trace = []
    for now in (3 * S, 10 * S, 15 * S, 31 * S // 2):
        trace.append(ledger.slot(now, 1))
        ledger.take(trace[-1], 1)
    assert trace == [3 * S, 10 * S, 16 * S, 22 * S]


def test_a_late_holder_pushes_the_next_one() -> None:
    ledger = rule_of(Spacing(6)).open()
    first, second = (ledger.take(ledger.slot(0, 1), 1) for _ in range(2))
    assert ledger.use(S, first) == 0  # it had its slot at 0
    assert ledger.use(second, second) == S
    assert ledger.use(7 * S - 1, second) == 1
    assert ledger.use(7 * S, second) == 0
    assert ledger.wait(7 * S, 1) == 6 * S


def test_cancelled_slots_come_back_from_the_end() -> None:
    ledger = rule_of(Spacing(6)).open()
    taken = [(ledger.take(ledger.slot(0, 1), 1), ledger.tally) for _ in range(3)]
    ledger.cancel(0, 1, *taken[1])
    assert ledger.slot(0, 1) == 18 * S
    ledger.cancel(0, 1, *taken[2])
    assert ledger.slot(0, 1) == 12 * S


def test_a_debt_is_so_many_steps() -> None:
    ledger = rule_of(Spacing(6)).open()
    mark = ledger.take(0, 1)
    ledger.settle(0, 1, mark, ledger.tally, 4)
    assert ledger.wait(0, 1) == 24 * S


ALLOWANCES = st.lists(st.integers(0, 9), min_size=1, max_size=4)
STEPS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=40
)


@settings(traced)
@given(st.integers(1, 12), ALLOWANCES, STEPS)
def test_holders_late_by_their_own_allowance_are_never_closer_than_the_interval(
    interval, late, steps
) -> None:
    """Clients of one shared ledger, each with a rule of its own. No client reports a use, and some cancel."""
    rules = [rule_of(Spacing(ns(interval), max_reserved=9, expire_after=ns(allowed))) for allowed in late]
    ledger, now = rules[0].open(), 1_000
    held: list[tuple[int, int, int, int]] = []  # slot, used at, mark, tally
    for passed, client, lateness, whim in steps:
        now += passed
        rule = rules[client % len(rules)]
        ledger.reconfigure(rule, now)
        slot = ledger.slot(now, 1)
        if slot >= 0:
            assert slot == now + ledger.wait(now, 1)
            mark = ledger.take(slot, 1)
            held.append((slot, slot + min(lateness, rule.allowance), mark, ledger.tally))
        if whim < 4 and held and held[-1][0] > now:  # any of those whose time has not come
            waiting = [grant for grant in held if grant[0] > now]
            grant = waiting[-1 - whim % len(waiting)]
            held.remove(grant)
            ledger.cancel(now, 1, grant[2], grant[3])
    used = [at for _, at, _, _ in held]
    assert used == sorted(used)
    assert all(later - earlier >= interval for earlier, later in pairwise(used))


def test_the_next_slot_follows_the_allowance_of_the_last_one() -> None:
    uncontended = rule_of(Spacing(6, expire_after=2))
    swift = rule_of(Spacing(6, expire_after=1))
    ledger = uncontended.open()
    ledger.take(0, 1)
    ledger.reconfigure(swift, 0)
    assert ledger.slot(0, 1) == 8 * S
    ledger.take(8 * S, 1)
    ledger.reconfigure(uncontended, 0)
    assert ledger.slot(0, 1) == 15 * S
    mark, tally = ledger.take(15 * S, 1), ledger.tally
    assert ledger.slot(0, 1) == 23 * S
    ledger.cancel(0, 1, mark, tally)
    assert ledger.slot(0, 1) == 15 * S


def test_slots_cancelled_from_the_end_are_never_given_too_early() -> None:
    rules = [rule_of(Spacing(6, expire_after=late)) for late in (3, 1, 1, 2)]
    ledger = rules[0].open()
    taken = []
    for rule in rules:
        ledger.reconfigure(rule, 0)
        taken.append((ledger.take(ledger.slot(0, 1), 1), ledger.tally))
    assert [mark for mark, _ in taken] == [0, 9 * S, 16 * S, 23 * S]
    ledger.cancel(0, 1, *taken[3])
    assert ledger.slot(0, 1) == 23 * S
    ledger.cancel(0, 1, *taken[2])
    assert ledger.slot(0, 1) == 18 * S  # 16 would do: of the older ones only the largest allowance is known
    ledger.cancel(0, 1, *taken[1])
    assert ledger.slot(0, 1) == 9 * S


def test_a_debt_leaves_the_last_holder_his_allowance() -> None:
    ledger = rule_of(Spacing(6, expire_after=60)).open()
    mark, tally = ledger.take(0, 1), ledger.tally
    ledger.reconfigure(rule_of(Spacing(6)), 0)
    ledger.settle(0, 1, mark, tally, 2)
    assert ledger.wait(0, 1) >= 66 * S


def test_a_use_that_was_cancelled_holds_nothing_up() -> None:
    ledger = rule_of(Spacing(6)).open()
    for at in (100, 200):
        mark = ledger.take(at, 1)
        assert ledger.use(at, mark) == 0
        ledger.cancel(at, 1, mark, ledger.tally)
        assert ledger.wait(at, 1) == 0
    first = ledger.take(300, 1)
    assert ledger.use(300, first) == 0
    ledger.cancel(301, 1, ledger.take(300 + 6_000_000_000, 1), ledger.tally)
    assert ledger.wait(301, 1) == 6_000_000_000 - 1
