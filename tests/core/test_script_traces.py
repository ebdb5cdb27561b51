"""The traces that scripts are compared on: repeatable, exact in doubles, and with something happening in them."""

from __future__ import annotations

from collections import Counter

import pytest

from core.script_traces import KINDS, START, numbers_of, play, random_trace, rule_of
from headway.core.ledger import FOREVER, LONG_AGO
from headway.core.limits import Limit

SEEDS = range(60)
SIZE = 200


def is_exact(number: int) -> bool:
    return abs(number) < 1 << 53 or number in (FOREVER, LONG_AGO)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_is_repeatable_and_plays_as_it_was_drawn(kind) -> None:
    for seed in SEEDS:
        trace = random_trace(seed, kind, SIZE)
        assert trace == random_trace(seed, kind, SIZE)
        assert len(trace) == len(play(trace)) == SIZE
        times = [now for _, now, *_ in trace]
        assert times == sorted(times)
        assert START <= times[0] <= times[-1] < 1 << 53


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_exact_in_a_double(kind) -> None:
    for seed in SEEDS:
        trace = random_trace(seed, kind, SIZE)
        for command, (answer, state, tally) in zip(trace, play(trace), strict=True):
            given = [x for x in command[1:] if not isinstance(x, Limit)]
            if command[0] in ("open", "adopt"):
                given += numbers_of(rule_of(*command[2:4])).values()
                given.remove(command[3])
            assert all(map(is_exact, [*given, *answer, *state, tally])), (seed, command, answer, state, tally)


@pytest.mark.parametrize("kind", KINDS)
def test_something_happens_in_them(kind) -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        trace = random_trace(seed, kind, SIZE)
        for (verb, now, *_), (answer, _, _) in zip(trace, play(trace), strict=True):
            seen[verb] += 1
            if verb in ("take", "hold", "reserve"):
                seen["granted" if len(answer) == 3 else "refused"] += 1
            if verb == "reserve" and len(answer) == 3:
                seen["ahead"] += answer[0] > now
            if verb == "renew":
                seen["expired"] += answer[0] == -1
    rare = {"ahead"} if kind != "concurrency" else {"expired"}
    verbs = {
        "wait",
        "look",
        "hold",
        "enter",
        "complete",
        "abandon",
        "cancel",
        "settle",
        "renew",
        "adopt",
    }
    assert min(seen[what] for what in rare | verbs | {"granted", "refused"}) >= 30, seen
