"""The same random commands on every engine: the same verdicts, the same counts, the same waits.

The oracle is the ledger in memory on a clock that the test owns, which follows the real one; `tests/limiter` and
`tests/core` check it against simpler programs and against the laws. An engine is asked first, and the oracle then, at
the time at which the engine was asked. So the two differ by no more than a command takes: that is `slack`, and it is
measured. A machine that stands still for a second makes a trace say less, and never makes it fail.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from engines.limits import FAST, HOUR, REMOTE, Kind, kinds
from engines.waiting import eventually
from headway import AllOf, Bucket, Concurrency, FixedWindow, Limiter, Spacing, Window
from headway.testing import ManualClock

KEYS = (None, "a")
COUNT = 5


class Twins:
    """A limiter on the engine, and the oracle beside it."""

    def __init__(self, limiter: Limiter, slack: float = 0.0) -> None:
        self.limiter = limiter
        self.clock = ManualClock(start=time.monotonic(), wall=time.time())
        # As the engine keeps it: a slot of a Spacing may have an allowance for the way.
        self.oracle = Limiter(limiter.limit, clock=self.clock)
        self.out: list[tuple[Any, Any]] = []
        self.slack = slack

    def follow(self) -> None:
        """What time it is, for the oracle."""
        self.clock.advance_ns(max(0, time.monotonic_ns() - self.clock.now()))

    def acquire(self, key: Any, cost: Any) -> bool:
        """Both are asked; of two verdicts that part, one was given a moment earlier."""
        self.follow()
        begin = time.monotonic()
        answer: Any = self.limiter.try_acquire(key, cost=cost)
        expected: Any = self.oracle.try_acquire(key, cost=cost)
        self.slack = max(self.slack, time.monotonic() - begin)
        if answer and not expected:
            assert expected.retry_after <= 2 * self.slack + 0.001, f"granted too early: {expected}"
            self.clock.advance(expected.retry_after)
            expected = self.oracle.try_acquire(key, cost=cost)
        elif expected and not answer:
            assert answer.retry_after <= 2 * self.slack + 0.005, f"granted too late: {answer}"
            expected.cancel()
            return False
        assert bool(answer) == bool(expected), (answer, expected)
        if answer:
            assert (answer.key, answer.cost) == (expected.key, expected.cost)
            self.out.append((answer, expected))
        else:
            assert answer.reason == expected.reason
        return bool(answer)

    def end(self, index: int, how: str, *args: Any) -> None:
        self.follow()
        begin = time.monotonic()
        for permit in self.out.pop(index):
            getattr(permit, how)(*args)
        self.heard()
        self.slack = max(self.slack, time.monotonic() - begin)

    def heard(self) -> None:
        """Wait until the engine knows how a permit ended."""
        want = [in_flight(self.oracle, key) for key in KEYS]
        eventually(lambda: [in_flight(self.limiter, key) for key in KEYS] == want, "an end")

    def both(self, verb: str, *args: Any) -> None:
        self.follow()
        for limiter in (self.limiter, self.oracle):
            getattr(limiter, verb)(*args)

    def __enter__(self) -> Twins:
        return self

    def __exit__(self, *error: object) -> None:
        for pair in self.out:
            for permit in pair:
                permit.cancel()


def in_flight(limiter: Limiter, key: Any) -> list[int]:
    status = limiter.peek(key)
    return [part.in_flight for part in status.parts or (status,)]


def agree(twins: Twins, kind: Kind, told: list[Any]) -> None:
    """All that can be seen of both."""
    for key in KEYS:
        twins.follow()
        ours, theirs = twins.limiter.peek(key), twins.oracle.peek(key)
        pairs = list(zip(ours.parts or (ours,), theirs.parts or (theirs,), strict=True))
        for one, other in [(ours, theirs), *pairs]:
            facts = (
                "limit",
                "remaining",
                "in_flight",
                "exact",
            )  # of `waiting` test_status.py knows differences
            got, want = ({fact: getattr(it, fact) for fact in facts} for it in (one, other))
            assert got == want, told
            assert one.retry_after == pytest.approx(other.retry_after, rel=0.01, abs=1 + twins.slack), told


# -- time stands still -------------------------------------------------------------------------------------------


def another(kind: Kind, count: int) -> Any:
    """The same kind of limit, with another number."""
    return {
        "window": Window(count, per=HOUR),
        "window-remote": Window(count, per=HOUR, remote=REMOTE),
        "bucket": Bucket((count, HOUR), burst=count),
        "fixed-window": FixedWindow(count, per="month"),
        "concurrency": Concurrency(count),
        "all-of": AllOf(Window(count, per=HOUR), Concurrency(COUNT + 2)),
        "metrics": {"calls": Window(count, per=HOUR), "slots": Concurrency(COUNT + 2)},
    }[kind.id]


def command(twins: Twins, kind: Kind, dice: random.Random, paused: set[Any]) -> Any:
    """One random command for both; returns what it was."""
    key = dice.choice(KEYS)
    what = dice.choice(["acquire"] * 6 + ["end"] * 6 + ["reset", "pause", "limit"])
    if what == "acquire":
        cost = kind.cost(dice.choice([1, 1, 2]) if kind.count > 1 else 1)
        return (what, key, cost, twins.acquire(key, cost))
    if what == "end" and twins.out:
        how = dice.choice(["complete", "complete", "cancel", "abandon", "settle"])
        args = (kind.cost(dice.randrange(4)),) if how == "settle" else ()
        index = dice.randrange(len(twins.out))
        twins.end(index, how, *args)
        return (how, index, *args)
    if what == "reset":
        for pair in twins.out:  # what is ended after a reset has a test of its own
            for permit in pair:
                permit.complete()
        twins.out.clear()
        twins.heard()
        twins.both("reset", key)
        paused.discard(key)
        return (what, key)
    if what == "pause" and kind.id not in ("bucket", "spacing", "metrics"):  # test_pause.py knows differences
        twins.both("pause", 0 if key in paused else 600, key)
        paused.symmetric_difference_update({key})
        return (what, key, key in paused)
    if what == "limit" and kind.id != "spacing":
        count = dice.randint(2, 7)
        twins.both("set_limit", another(kind, count))
        return (what, count)
    return None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", kinds(COUNT), ids=lambda kind: kind.id)
def test_the_same_commands_have_the_same_answers(make, kind, seed):
    dice = random.Random(f"{kind.id} {seed}")
    told: list[Any] = []
    paused: set[Any] = set()
    with Twins(make(kind.limit)) as twins:
        for _ in range(30):
            told.append(command(twins, kind, dice, paused))
            agree(twins, kind, told[-12:])


# -- time passes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_the_same_moments_have_the_same_answers(anew, seed):
    """All kinds in step, so that they share the time that has to pass."""
    dice = random.Random(seed)
    # The transit of a permit that nothing is heard of begins with its grant, or when its lease ends if it has one.
    remote = Window(2, per=0.08, remote=REMOTE)
    moving = [replace(kind, limit=remote) if kind.id == "window-remote" else kind for kind in FAST]
    # A command at the edge of two windows of the calendar may be counted in either: those have a test of their own.
    moving = [kind for kind in moving if kind.id != "fixed-window"]
    verdicts: dict[str, set[bool]] = {kind.id: set() for kind in moving}
    with ExitStack() as stack:
        every = [(kind, stack.enter_context(Twins(anew(kind.limit)))) for kind in moving]
        for _ in range(25):
            time.sleep(dice.choice((0, 0, 0.01, 0.03, 0.06)))
            for kind, twins in every:
                if twins.out and dice.random() < 0.5:
                    twins.end(0, "complete" if dice.random() < 0.8 else "cancel")
                cost = kind.cost(dice.choice([1, 1, 2]) if kind.count > 1 else 1)
                verdicts[kind.id].add(twins.acquire(None, cost))
    assert all(True in seen for seen in verdicts.values())


def test_no_window_of_the_calendar_grants_too_much(make):
    per, limiter = 0.25, make(FixedWindow(2, per=0.25))
    grants, end = [], time.monotonic() + 0.8
    while time.monotonic() < end:
        before, answer = time.time(), limiter.try_acquire()
        if answer:
            grants.append((before // per, time.time() // per))
        time.sleep(0.01)
    certain = [first for first, last in grants if first == last]
    assert max(map(certain.count, certain), default=0) <= 2
    assert len(grants) >= 4


def test_an_engine_that_grants_too_much_is_found_out(make):
    """The traces can fail: the same, with an oracle that has one permit less."""
    twins = Twins(make(Window(COUNT, per=HOUR)))
    twins.oracle.set_limit(Window(COUNT - 1, per=HOUR))
    for _ in range(COUNT - 1):
        assert twins.acquire(None, 1)
    with pytest.raises(AssertionError, match="granted too early"):
        twins.acquire(None, 1)
    twins = Twins(make(Spacing(HOUR), name=f"{twins.limiter.name} and spacing"))
    twins.oracle.acquire()
    with pytest.raises(AssertionError, match="granted too early"):
        twins.acquire(None, 1)
