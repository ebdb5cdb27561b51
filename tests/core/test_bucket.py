"""Bucket: any time d admits at most `burst + rate * d`, in exact arithmetic, whatever is given back."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.strategies import BUCKETS, COMMANDS, traced
from core.traces import Desk, Grant, rule_of
from headway.core.limits import Bucket
from headway.errors import InvalidArgument

S = 10**9


def assert_promise(limit: Bucket, grants: list[Grant]) -> None:
    """No interval that ends at a grant holds more than the promise; a debt counts from when it was made."""
    events = [(grant.at, grant.happened, grant.turn) for grant in grants]
    debts = [(grant.ended, grant.extra, grant.end_turn) for grant in grants]
    for end, cost, turn in events:
        if cost == 0:
            continue
        known = [event for event in events if event[0] <= end]
        known += [(at, extra) for at, extra, made in debts if made < turn and at <= end]
        newest_first = sorted((event[:2] for event in known), reverse=True)
        totals = accumulate(spent for _, spent in newest_first)
        for (start, _), total in zip(newest_first, totals, strict=True):
            assert (total - limit.burst) * limit.per_ns <= limit.count * (end - start)


@traced
@given(BUCKETS, COMMANDS)
def test_never_above_its_promise(case, commands) -> None:
    limit, unit = case
    assert_promise(limit, Desk(rule_of(limit).open(), unit).play(commands).grants)
