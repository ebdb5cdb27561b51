"""Concurrency: never more than n out, and every end hands back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from core.strategies import COMMANDS, CONCURRENCIES, traced
from core.traces import Desk, rule_of
from headway.core.ledger import FOREVER
from headway.core.limits import Concurrency


@settings(traced)
@given(CONCURRENCIES, COMMANDS)
def test_never_more_out_than_promised_and_never_less_offered(case, commands) -> None:
    limit, _ = case

    def check(desk: Desk) -> None:
        out = sum(grant.cost for grant in desk.open_grants())
        assert out <= limit.count
        assert desk.ledger.in_flight(desk.now) == out
        assert desk.ledger.remaining(desk.now) == limit.count - out

    Desk(rule_of(limit).open()).play(commands, check)


@settings(traced)
@given(CONCURRENCIES, COMMANDS, CONCURRENCIES, COMMANDS)
def test_a_new_limit_counts_who_is_out_already(case, before, other, after) -> None:
    desk = Desk(rule_of(case[0]).open()).play(before)
    desk.ledger.adopt(rule_of(other[0]), desk.now)
    known = len(desk.grants)

    def check(desk: Desk) -> None:
        out = sum(grant.cost for grant in desk.open_grants())
        assert desk.ledger.in_flight(desk.now) == out
        assert len(desk.grants) == known or out <= max(other[0].count, out - desk.grants[-1].cost)

    desk.play(after, check)


@pytest.mark.parametrize("end", ["complete", "abandon", "cancel", "settle"])
def test_the_worked_example(end) -> None:
    desk = Desk(rule_of(Concurrency(2)).open())
    desk.play([("take", 0, 0), ("take", 0, 0)])
    ledger = desk.ledger
    assert (ledger.wait(0, 1), ledger.exact(0, 1), ledger.sure(0, 1)) == (1, False, FOREVER)
    desk.play([(end, 0, 0)])
    assert (ledger.wait(0, 1), ledger.in_flight(0), ledger.reset_after(0)) == (0, 1, FOREVER)
