"""A ledger that was written down as a script stores it, and read again, plays on as if nothing had happened."""

from __future__ import annotations

from random import Random

import pytest

from core.script_traces import KINDS, START, play, random_trace, rule_of
from headway.core.fixed_window import FixedWindowRule
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.remote import Remote
from headway.engines.redis.script.codec import EPOCH, decode, encode, rule_in

pytestmark = pytest.mark.both_forms

NAME = b"an epoch of twenty-four."
SEEDS = range(24)


class Rewritten:
    """A ledger that is written down and read again before each command, under the rule as it was stored."""

    def __init__(self, rule, dice):
        self.rule = rule
        self.ledger = rule.open()
        self.dice = dice

    def __getattr__(self, name):
        if name == "tally":
            return self.ledger.tally
        return lambda *numbers: self.run(name, *numbers)

    def run(self, name, *numbers):
        if name == "state":
            return self.ledger.state()
        now = numbers[0] if name != "reconfigure" else numbers[1]
        key = self.dice.choice((1, 3))
        stored = encode(self.ledger, key, now, NAME)
        assert (stored.key, stored.epoch) == ((1, b"") if key == 1 else (3, NAME))
        twin = decode(stored)
        answer = getattr(twin, name)(*numbers)
        self.rule = self.rule if name != "reconfigure" else numbers[0]
        # Of a calendar only two periods are stored, so it goes on under the rule itself.
        self.ledger = self.rule.open()
        self.ledger.restore(twin.state(), twin.tally)
        return answer


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_plays_on_as_what_was_written(kind) -> None:
    assert len(NAME) == EPOCH
    for seed in SEEDS:
        trace = random_trace(seed, kind, 150)
        dice = Random(seed)
        again = play(trace, lambda rule: Rewritten(rule, dice))  # noqa: B023 - played at once
        for command, ours, theirs in zip(trace, play(trace), again, strict=True):
            assert ours == theirs, (seed, command)


LIMITS: list[Limit] = [
    Bucket("3/s", burst=7),
    Window(5, per=1),
    Window(5_000, per=60, remote=Remote()),
    Spacing("250ms", max_reserved=3, expire_after="3ms"),
    FixedWindow(9, per="month", tz="Europe/Berlin"),
    Concurrency(4),
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_rule_that_is_read_has_the_numbers_of_the_one_that_was_written(limit) -> None:
    rule = rule_of(limit, 10**9)
    read = rule_in(encode(rule.open(), 1, START))
    assert type(read) is type(rule)
    names = {name for kind in type(rule).__mro__ for name in getattr(kind, "__slots__", ())} or set(dir(rule))
    for name in sorted(names):
        ours, theirs = getattr(rule, name), getattr(read, name)
        if not name.startswith("__") and name != "limit" and not callable(ours):
            assert ours == theirs, name
    assert read.limit.capacity == rule.limit.capacity
    if isinstance(rule, FixedWindowRule):
        assert isinstance(read, FixedWindowRule)
        start, end = rule.window_of(START)
        for at in (start, end - 1, end, end + 1):
            assert read.window_of(at) == rule.window_of(at)
