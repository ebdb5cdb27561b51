"""Spacing: never closer than an interval, slots ahead up to a number, and late holders push those behind them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings

from core.strategies import COMMANDS, SPACINGS, traced
from core.traces import Desk, rule_of
from headway.core.limits import Spacing

S = 10**9


@settings(traced)
@given(SPACINGS, COMMANDS)
def test_slots_are_a_step_apart(case, commands) -> None:
    limit, _ = case
    grants = Desk(rule_of(limit).open()).play(commands).grants
    step = limit.interval_ns + (limit.expire_after_ns or 0) * limit.strict
    slots = sorted(grant.at for grant in grants if grant.happened)
    assert all(later - earlier >= step for earlier, later in pairwise(slots))


@settings(traced)
@given(SPACINGS, COMMANDS)
def test_used_permits_are_never_closer_than_the_interval(case, commands) -> None:
    limit, _ = case
    grants = Desk(rule_of(limit).open()).play(commands).grants
    used = sorted(grant.used for grant in grants if grant.used >= 0 and grant.happened)
    assert not limit.strict or all(later - earlier >= limit.interval_ns for earlier, later in pairwise(used))


@settings(traced)
@given(SPACINGS, COMMANDS, SPACINGS, COMMANDS)
def test_a_new_interval_holds_from_its_first_moment(case, before, other, after) -> None:
    desk = Desk(rule_of(case[0]).open()).play(before)
    changed = desk.now
    desk.ledger.adopt(rule_of(other[0]), changed)
    grants = desk.play(after).grants
    used = sorted(grant.used for grant in grants if grant.used > changed and grant.happened)
    strict = case[0].strict and other[0].strict
    assert not strict or all(later - earlier >= other[0].interval_ns for earlier, later in pairwise(used))


@settings(traced)
@given(SPACINGS, COMMANDS)
def test_no_more_slots_are_reserved_than_allowed(case, commands) -> None:
    limit, _ = case
    commands = [(verb, x, 1) for verb, x, _ in commands]  # nobody else has a say in the slots

    def check(desk: Desk) -> None:
        ahead = sum(grant.at > desk.now for grant in desk.grants if grant.happened)
        assert ahead <= limit.max_reserved
        slot = desk.ledger.slot(desk.now, 1)
        wait = desk.ledger.wait(desk.now, 1)
        assert slot in (desk.now + wait, -1)
        assert slot >= 0 or (wait > 0 and desk.ledger.copy().slot(desk.now + wait, 1) >= 0)

    Desk(rule_of(limit).open()).play(commands, check)


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
