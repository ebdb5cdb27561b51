# mypy: disable-error-code="arg-type, var-annotated"
"""What a subscription asks of its gate, step by step: what it believes, and what it checks."""

import pytest

from headway.core.once import Change, EventStatus, Pending, Snapshot
from headway.engines.base import GateLog, GateView
from headway.once.subscription import PARK, READ, SNAPSHOT, Subscription

SUBMITTED, PUBLISHED = EventStatus.SUBMITTED, EventStatus.PUBLISHED
BEGAN = 10**18


class Unasked:
    """A gate that tells what it is given."""

    def __init__(self):
        self.log = None

    def news(self, since):
        log = self.log
        if log is None or not log.oldest <= since <= log.clock:
            return None
        return log._replace(changes=log.changes[since - log.oldest :])

    def next_look_ns(self):
        return None


def line(clock, id="a", status=SUBMITTED):
    return Change(clock, status, id, id, None, BEGAN + clock * 1000)


def log_of(*lines, run=1, clock=None):
    oldest = lines[0].clock - 1 if lines else clock
    return GateLog(BEGAN, lines[-1].clock if lines else clock, oldest, list(lines), run)


def begin(subscription, answer=None):
    """The first thing that it wants; or what it hands out."""
    steps = subscription._steps()
    try:
        return steps, next(steps)
    except StopIteration as end:
        return None, end.value


def tell(steps, answer):
    try:
        return steps.send(answer)
    except StopIteration as end:
        return end.value


@pytest.fixture
def at_two():
    """A subscription that has handed out lines 1 and 2, on the first run."""
    gate = Unasked()
    subscription = Subscription(gate, None, 0)
    steps, wanted = begin(subscription)
    assert wanted == (READ, 0)
    assert tell(steps, log_of(line(1), line(2, status=PUBLISHED))).clock == 1
    assert begin(subscription)[1].clock == 2
    return gate, subscription


def test_news_is_believed_on_the_run_that_was_checked(at_two):
    gate, subscription = at_two
    gate.log = log_of(line(2, status=PUBLISHED), line(3, "b"))
    assert begin(subscription)[1].clock == 3


def test_news_without_the_last_line_is_asked_for(at_two):
    """It may be of another server; the next news has the line that is handed out now."""
    gate, subscription = at_two
    gate.log = log_of(clock=2)
    assert begin(subscription)[1] == (PARK, None)
    gate.log = log_of(line(3, "b"))
    steps, wanted = begin(subscription)
    assert wanted == (READ, 1)
    assert tell(steps, log_of(line(2, status=PUBLISHED), line(3, "b"))).clock == 3
    gate.log = log_of(line(3, "b"), line(4, "c"))
    assert begin(subscription)[1].clock == 4


def test_another_run_is_checked_with_the_last_line(at_two):
    gate, subscription = at_two
    gate.log = log_of(line(3, "b"), run=2)
    steps, wanted = begin(subscription)
    assert wanted == (READ, 1)
    assert tell(steps, log_of(line(2, status=PUBLISHED), line(3, "b"), run=2)).clock == 3


def test_news_that_has_another_last_line_is_not_believed(at_two):
    """The server that the news comes from is not the one that commands reach."""
    gate, subscription = at_two
    gate.log = log_of(line(2, "other"), line(3, "b"))
    steps, wanted = begin(subscription)
    assert wanted == (READ, 1)
    assert tell(steps, log_of(line(2, status=PUBLISHED))) == (PARK, None)


@pytest.mark.parametrize(
    "answer", [log_of(clock=1, run=2), log_of(line(2, "other"), run=2)], ids=["less", "other"]
)
def test_a_run_on_which_lines_are_missing_stays_unchecked_until_there_is_a_key_frame(at_two, answer):
    gate, subscription = at_two
    steps, wanted = begin(subscription)
    assert wanted == (READ, 1)
    assert tell(steps, answer) == (SNAPSHOT, None)
    steps.close()  # the engine does not answer
    gate.log = log_of(line(3, "b"), run=2)
    steps, wanted = begin(subscription)
    assert wanted == (READ, 1), "and not line 3"


def test_a_key_frame_comes_with_its_last_line():
    gate = Unasked()
    subscription = Subscription(gate, None, None)
    steps, wanted = begin(subscription)
    assert wanted == (SNAPSHOT, None)
    pending = (Pending("a", "a", None, BEGAN + 1000, BEGAN + 9000, 1),)
    view = GateView(BEGAN, Snapshot(1, BEGAN + 1000, pending))
    assert tell(steps, view) == (READ, 0)
    # Another line 1, which is later than the key frame: lines were lost in between.
    other = line(1, "b")._replace(time=BEGAN + 2000)
    assert tell(steps, log_of(other, run=2)) == (SNAPSHOT, None)
    assert tell(steps, GateView(BEGAN, Snapshot(1, BEGAN + 3000, ()))) == (READ, 0)
    assert tell(steps, log_of(other, line(2, "c"), run=2)).clock == 1
    assert begin(subscription)[1].id == "c"
    gate.log = log_of(line(2, "c"), line(3, "d"), run=2)
    assert begin(subscription)[1].id == "d"


def test_a_key_frame_whose_last_line_is_not_kept_is_one_too():
    subscription = Subscription(Unasked(), None, None)
    steps, _ = begin(subscription)
    assert tell(steps, GateView(BEGAN, Snapshot(5, BEGAN, ()))) == (READ, 4)
    assert tell(steps, GateLog(BEGAN, 5, 5, None, 1)).clock == 5
    assert begin(subscription)[1] == (READ, 5)
