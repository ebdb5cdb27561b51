"""What all task queues share: what runs now, what comes back when, and what a promise is worth then."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from headway import InvalidArgument, Limiter, Permit, Spacing
from headway.errors import EngineUnavailable
from headway.integrations import tasks
from headway.integrations.tasks import Later, TaskLimit
from headway.limiter.promises import lateness

pytestmark = pytest.mark.realtime


@pytest.fixture(params=["thread", "task"])
def begin(request):
    """`begin` as a thread and as a task call it."""

    def begin(limit, *args, promise=None, longest=None, **kwargs):
        if request.param == "thread":
            return limit.begin(args, kwargs, promise, longest)
        return asyncio.run(limit.begin_async(args, kwargs, promise, longest))

    return begin


_names = itertools.count()


@pytest.fixture
def make(valkey):
    """A limit of its own name: this process would notice that the ledger of a name was lost between two tests."""

    def make(limit, **options):
        name = f"tasks-{next(_names)}"
        return TaskLimit(limit, name=name, engine=f"{valkey.url}?lease=120", engine_timeout=10, **options)

    return make


def test_a_task_runs_while_there_is_room_and_then_comes_back_with_a_promise(make, begin):
    limit = _far(make("1/hour burst 2"))
    assert isinstance(begin(limit), Permit)
    assert isinstance(begin(limit), Permit)
    delays = [0.0]
    for _ in range(3):
        later = begin(limit)
        assert isinstance(later, Later)
        assert later.promise is not None
        delays.append(later.seconds)
    # Each has a slot of its own, in the order in which they came; it comes back a little before.
    assert [round((b - a) / 3600) for a, b in itertools.pairwise(delays)] == [1, 1, 1]


def _far(limit):
    limit.max_delay = 10**6
    return limit


def test_a_promise_is_used_and_nothing_is_asked(make, begin):
    limit = make("2/s burst 1", early=0.3)
    begin(limit)
    # A new task goes back, though it would wait no longer than one that came back too early may wait.
    later = next(
        later for _ in range(50) if isinstance(later := begin(limit), Later)
    )  # a busy machine may be late
    assert later.promise is not None
    granted = limit.limiter.stats().granted
    time.sleep(later.seconds)
    permit = begin(limit, promise=later.promise)
    if isinstance(permit, Permit):  # else this machine was so busy that its slot is over
        assert lateness(permit) >= 0
        assert limit.limiter.stats().granted == granted


def test_a_task_that_comes_too_early_goes_back_with_the_same_slot(make, begin):
    limit = _far(make("1/hour burst 1"))
    begin(limit)
    first = begin(limit)
    again = begin(limit, promise=first.promise)
    assert isinstance(again, Later)
    assert again.seconds == pytest.approx(first.seconds, rel=0.02)
    assert again.promise is not None
    assert limit.limiter.reserve().delay == pytest.approx(7200, rel=0.02)  # and took no other


def test_a_task_that_comes_too_late_asks_again(make, begin):
    limit = make("1/s burst 1", late=0)
    begin(limit)
    while not isinstance(later := begin(limit), Later):
        pass  # a busy machine took longer than a second
    granted = limit.limiter.stats().granted
    time.sleep(later.seconds + 0.5)
    begin(limit, promise=later.promise)
    assert limit.limiter.stats().granted == granted + 1


def test_a_task_may_be_late_by_less_than_a_permit(make):
    for text, late in (("50/s burst 1", 0.018), ("10/minute burst 3", 5.4), ("1000/s burst 1", 0.01)):
        limit = make(text)
        assert limit._late(Limiter("9/s burst 9").acquire()) == pytest.approx(late)
        limit.limiter.close()
    assert make("5/s burst 1", late=2)._late(Limiter("9/s burst 9").acquire()) == 2
    assert make(Spacing(3))._late(Limiter("9/s burst 9").acquire()) == float("inf")


def test_one_process_reserves_ahead_and_another_begins(make, begin):
    limit = _far(make("1/hour burst 1", late=3600))
    now, later, last = (limit.ahead((), {}) for _ in range(3))
    assert now.seconds == 0
    assert isinstance(begin(limit, promise=now.promise), Permit)
    assert later.seconds == pytest.approx(3600, rel=0.02)
    assert begin(limit, promise=later.promise).seconds == pytest.approx(3600, rel=0.02)
    # It may come to another such process, and keeps its slot; what it gets there is another text of the same promise.
    again = limit.ahead((), {}, last.promise)
    assert again.seconds == pytest.approx(7200, rel=0.02)
    assert limit.limiter.reserve().delay == pytest.approx(10800, rel=0.02)


def test_a_slot_that_is_over_is_reserved_anew(make):
    limit = _far(make("1/hour burst 1", late=0))
    now = limit.ahead((), {})
    time.sleep(0.02)
    again = limit.ahead((), {}, now.promise)
    assert again.seconds == pytest.approx(3600, rel=0.02)
    assert limit.ahead((), {}, "not a promise").seconds == pytest.approx(7200, rel=0.02)


def test_nothing_is_taken_ahead_where_no_time_is_promised(make):
    far = make("1/hour burst 1", max_delay=100)
    far.ahead((), {})
    assert far.ahead((), {}) is None
    assert far.ahead((), {}, longest=10) is None
    assert far.limiter.peek().retry_after < 3700
    for limit in ("1/hour", "1 concurrent"):
        own = make(limit)
        assert own.ahead((), {}) is None
        assert own.limiter.stats().granted == 0
    assert TaskLimit("1/hour burst 1").ahead((), {}) is None


def test_an_engine_that_is_away_is_told_to_what_asks_ahead(valkey):
    limit = TaskLimit("1/hour burst 1", name="away-ahead", engine=valkey.url, engine_timeout=0.1)
    limit.limiter.acquire(timeout=30)
    valkey.stop()
    try:
        with pytest.raises(EngineUnavailable):
            limit.ahead((), {})
    finally:
        valkey.cont()


def test_short_ones_wait(make, begin):
    limit = make("5/s burst 1", wait=20)
    begun = time.monotonic()
    assert all(isinstance(begin(limit), Permit) for _ in range(3))
    assert time.monotonic() - begun >= 0.4


@pytest.mark.parametrize("limit", ["1/hour", "1 concurrent", "1/hour burst 1; 1 every 1s"])
def test_without_a_promise_a_task_comes_back_to_ask(make, begin, limit):
    own = _far(make(limit))
    with begin(own) as held:
        spent = [begin(own) for _ in range(5)]
        assert all(isinstance(later, Later) and later.promise is None for later in spent)
        assert len({later.seconds for later in spent}) == 5  # not all at once
        assert held.ended is None
    assert all(later.seconds >= tasks.LEAST_LATE for later in spent)


def test_in_memory_there_are_no_promises(begin):
    limit = TaskLimit("1/hour burst 1")
    assert isinstance(begin(limit), Permit)
    later = begin(limit, promise="of another time")
    assert later.promise is None
    assert 300 <= later.seconds <= 600


def test_no_task_is_sent_further_away_than_max_delay(make, begin):
    limit = make("1/hour burst 1", max_delay=100)
    begin(limit)
    for longest in (None, 10):
        most = longest or 100
        spent = [begin(limit, longest=longest) for _ in range(5)]
        assert all(later.promise is None and most / 2 <= later.seconds <= most for later in spent)
    # Nothing was reserved for them.
    assert limit.limiter.peek().retry_after < 3700


def test_too_many_reservations(make, begin):
    limit = _far(make(Spacing(3600, max_reserved=1)))
    begin(limit)
    assert begin(limit).promise is not None
    later = begin(limit)
    assert later.promise is None
    assert later.seconds > 0


def test_an_engine_that_is_away_costs_no_promise(valkey, begin):
    limit = TaskLimit("1/hour burst 1", name="away", engine=valkey.url, engine_timeout=0.1)
    limit.max_delay = 10**6
    limit.limiter.acquire(timeout=30)
    later = begin(limit)
    valkey.stop()
    try:
        away = begin(limit, promise=later.promise)
    finally:
        valkey.cont()
    assert away.promise == later.promise
    assert 1 <= away.seconds <= 2


def test_keys_and_costs_are_functions_of_the_arguments(make, begin):
    limit = make("4/hour burst 4", key=lambda shop, size=1: shop, cost=lambda shop, size=1: size)
    with begin(limit, "a", size=3) as permit:
        assert (permit.key, permit.cost) == ("a", 3)
    with begin(limit, 7) as permit:
        assert (permit.key, permit.cost) == ("7", 1)
    assert begin(limit, "a", size=2).seconds > 0


def test_bad_input():
    for wrong in ({"wait": -1}, {"late": -0.1}, {"max_delay": float("inf")}, {"early": float("nan")}):
        with pytest.raises(InvalidArgument):
            TaskLimit("1/s", **wrong)
    with pytest.raises(InvalidArgument):
        TaskLimit(Limiter("1/s"), name="x")
