"""How permits end: complete, cancel, abandon, settle, each of them once; and what becomes of those that are dropped."""

# mypy: disable-error-code="union-attr"

import gc
import random
import threading
import time
import warnings
from contextlib import suppress

import pytest

from engines.limits import HOUR, KINDS, REMOTE, SINGLE, kinds
from engines.waiting import NEVER, Callers, counts, eventually, in_line
from headway import AllOf, Concurrency, Limiter, PermitFinished, Remote, Window

ENDS = ("complete", "cancel", "abandon")
TEN = {kind.id: kind for kind in kinds(10)}


def end(permit, how):
    permit.settle(1) if how == "settle" else getattr(permit, how)()


def ends_as(limiter, expected, key=None):
    """Wait until the ledger has heard of it, and stays so."""
    eventually(lambda: counts(limiter, key) == expected, f"{expected} left and out")


@pytest.mark.parametrize("how", ENDS)
def test_what_an_end_gives_back(make, kind, how):
    limiter = make(kind.limit)
    other = limiter.acquire("another")
    permit = limiter.acquire("a", timeout=0)
    assert permit.ended is None
    assert counts(limiter, "a")[1] == out_of(kind, 1)
    end(permit, how)
    assert permit.ended == how
    full, used, slots = kind.count, kind.count - 1, kind.count + 2
    several = {
        "complete": ((used, slots), (0, 0)),
        "cancel": ((full, slots), (0, 0)),
        "abandon": ((used, slots), (0, 0)),
    }
    single = {
        "complete": (full if kind.comes_back else used, 0),
        "cancel": (full, 0),
        "abandon": (full, 0) if kind.comes_back else (used, out_of(kind, 1)),
    }
    ends_as(limiter, (several if kind.id in ("all-of", "metrics") else single)[how], "a")
    other.complete()


def out_of(kind, number):
    """What is in flight while so many are out."""
    if kind.id in ("all-of", "metrics"):
        return (0, number)
    return number if kind.held else 0


@pytest.mark.parametrize("first", [*ENDS, "settle"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.id != "metrics"], ids=lambda kind: kind.id)
def test_a_permit_ends_once(make, kind, first):
    limiter = make(kind.limit)
    permit = limiter.acquire()
    end(permit, first)
    before = limiter.stats()
    for second in (*ENDS, "settle"):
        with pytest.raises(PermitFinished) as caught:
            end(permit, second)
        assert (caught.value.ended, caught.value.asked) == (first, second)
    with permit:
        pass
    assert (limiter.stats(), permit.ended) == (before, first)


def test_a_permit_that_has_ended_still_answers(make, kind):
    limiter = make(kind.limit)
    permit = limiter.acquire("a")
    permit.complete()
    assert (permit.key, permit.cost, permit.delay, bool(permit)) == ("a", kind.cost(1), 0, True)
    assert repr(permit) == "<Permit for 'a': complete>"
    assert permit.wait() is permit


def test_a_permit_says_for_how_long_it_may_be_spent(engine, make, kind):
    permit = make(kind.limit).acquire()
    assert permit.expires_in > 0
    permit.check()
    assert engine.shared or permit.expires_in == float("inf")
    permit.complete()


# -- settling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [TEN["window"], TEN["bucket"], TEN["fixed-window"]], ids=lambda kind: kind.id
)
@pytest.mark.parametrize(("actual", "left"), [(0, 10), (2, 8), (5, 5), (9, 1), (12, 0)])
def test_settling_for_less_or_more(make, kind, actual, left):
    limiter = make(kind.limit)
    permit = limiter.acquire(cost=5)
    permit.settle(actual)
    ends_as(limiter, (left, 0))
    assert (permit.ended, limiter.stats().completed) == ("settle", 1)


@pytest.mark.parametrize(("actual", "left"), [(0, 10), (2, 8), (5, 5), (9, 1), (12, 0)])
def test_settling_what_is_held(make, actual, left):
    limiter = make(TEN["window-remote"].limit)
    limiter.acquire(cost=5).settle(actual)
    ends_as(limiter, (left, 0))
    seats = make("10 concurrent", name=f"{limiter.name} seats")
    seats.acquire(cost=5).settle(actual)
    ends_as(seats, (10, 0))


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [(Window(10, per=HOUR), HOUR - NEVER, HOUR), ("10/hour burst 10", 1080 - NEVER, 1080)],
    ids=["window", "bucket"],
)
def test_debt_is_paid_before_the_next_grant(make, limit, least, most):
    limiter = make(limit)
    limiter.acquire(cost=5).settle(12)
    ends_as(limiter, (0, 0))
    denied = limiter.try_acquire()
    assert least < denied.retry_after <= most * 1.002


def test_debt_of_a_spacing_is_so_many_slots(engine, make):
    limiter = make("1 every 1h")
    limiter.acquire().settle(3)
    allowance = 0.03 * HOUR if engine.lateness else 0
    eventually(lambda: limiter.peek().retry_after > 2 * HOUR, "the debt")
    assert 3 * HOUR - NEVER < limiter.peek().retry_after <= (3 * HOUR + allowance) * 1.002


def test_debt_is_paid_by_waiting(make):
    limiter = make("10/100ms burst 2")
    begin = time.monotonic()
    limiter.acquire(cost=2).settle(22)
    eventually(lambda: limiter.peek().remaining == 0 or time.monotonic() - begin > 0.2, "the debt")
    limiter.acquire()
    assert time.monotonic() - begin >= 0.2


def test_settling_for_less_wakes_a_waiter(make):
    """It stands in the queue. Where waiters are promised times instead, a promised time is kept."""
    limiter = make("10/hour; 20 concurrent")
    permit = limiter.acquire(cost=10)
    callers = Callers()
    callers.start(lambda: limiter.acquire(cost=4).complete())
    in_line(limiter, 1)
    permit.settle(6)
    assert callers.join() == [None]
    assert (limiter.stats().granted, limiter.stats().waiting) == (2, 0)


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.id)
def test_a_mistake_in_settling_changes_nothing(make, kind):
    limiter = make(kind.limit)
    permit = limiter.acquire(cost=2)
    before = counts(limiter), limiter.stats()
    for wrong in (-1, 1.5, True, None, "3", float("nan"), {"tokens": 1}, 1 << 62):
        with pytest.raises((ValueError, TypeError)):
            permit.settle(wrong)
    assert (counts(limiter), limiter.stats(), permit.ended) == (*before, None)
    permit.settle(0)


# -- giving back never mints -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.id)
def test_a_cancelled_permit_goes_back_as_it_was(make, kind):
    limiter = make(kind.limit)
    limiter.acquire().abandon()
    eventually(lambda: not kind.comes_back or counts(limiter) == (3, 0), "its end")
    before = counts(limiter)
    limiter.acquire(cost=2).cancel()
    ends_as(limiter, before)
    assert limiter.stats().cancelled == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.id)
def test_whatever_is_cancelled_no_more_is_granted_than_the_limit(make, kind, seed):
    """Of what was not given back, at most the limit is out or used."""
    limiter = make(kind.limit)
    dice = random.Random(seed)
    out, kept = [], 0
    for _ in range(30):
        if dice.random() < 0.6:
            permit = limiter.try_acquire(cost=dice.choice([1, 1, 2]))
            if permit:
                out.append(permit)
        elif out:
            permit = out.pop(dice.randrange(len(out)))
            if dice.random() < 0.5 and not kind.comes_back:
                permit.complete()
                kept += permit.cost
            else:
                permit.cancel()
        assert kept + sum(permit.cost for permit in out) <= kind.count
    for permit in out:
        permit.cancel()


# -- dropped -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["2 concurrent", "2 concurrent; 5/hour", {"calls": "2 concurrent", "rate": "5/hour"}]
)
def test_a_dropped_permit_is_abandoned_with_a_warning(hasty, limit):
    limiter = hasty(limit)
    for number in range(3):
        with pytest.warns(ResourceWarning, match=r"for 'a'.* was dropped without an end"):
            limiter.acquire("a", timeout=NEVER)
        eventually(lambda: limiter.peek("a").in_flight == 0, "the end of a dropped permit")
        stats = limiter.stats()
        assert (stats.abandoned, stats.completed) == (number + 1, 0)


def test_a_dropped_permit_of_a_window_counts_until_their_transit_is_over(hasty):
    limiter = hasty(Window(3, per=0.1, remote=Remote(resolution=0, max_transit=0.2)))
    begin = time.monotonic()
    with pytest.warns(ResourceWarning):
        limiter.acquire()
    eventually(lambda: limiter.peek().remaining == 3, "its end")
    assert time.monotonic() - begin >= 0.3


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.held], ids=lambda kind: kind.id)
def test_what_need_not_be_ended_may_be_dropped(make, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(kind.limit).acquire()
        gc.collect()


def test_a_waiter_is_woken_when_a_permit_is_dropped(hasty):
    limiter = hasty("1 concurrent")
    kept = [limiter.acquire()]
    callers = Callers()
    callers.start(lambda: limiter.acquire().complete())
    in_line(limiter, 1)
    with pytest.warns(ResourceWarning):
        kept.clear()
    assert callers.join() == [None]


def test_a_permit_dropped_in_a_cycle(hasty):
    limiter = hasty("1 concurrent")

    class Client:
        def __init__(self):
            self.itself = self
            self.permit = limiter.acquire()

    gc.collect()
    Client()
    callers = Callers()
    callers.start(lambda: limiter.acquire().complete())
    in_line(limiter, 1)
    with pytest.warns(ResourceWarning):
        gc.collect()
    assert callers.join() == [None]


# -- every permit is its own -------------------------------------------------------------------------------------

HUNDRED = [
    "100/hour",
    "100/hour burst 100",
    "100 concurrent",
    Window(100, per=HOUR, remote=REMOTE),
    AllOf("100/hour", Concurrency(100)),
]


@pytest.mark.parametrize("limit", HUNDRED, ids=str)
def test_permits_that_are_out_together_are_different_ones(make, limit):
    limiter = make(limit)
    permits = [limiter.try_acquire(f"key {number % 3}") for number in range(60)]
    assert len(set(map(id, permits))) == 60
    assert [permit.key for permit in permits] == [f"key {number % 3}" for number in range(60)]
    random.Random(1).shuffle(permits)
    for permit in permits:
        permit.complete()
        with pytest.raises(PermitFinished):
            permit.complete()
    again = [limiter.try_acquire("new") for _ in range(60)]
    assert not set(map(id, permits)) & set(map(id, again))
    assert {permit.ended for permit in permits} == {"complete"}
    assert {permit.ended for permit in again} == {None}
    for permit in again:
        permit.cancel()


@pytest.mark.parametrize("limit", HUNDRED, ids=str)
def test_a_bound_method_keeps_its_permit(make, limit):
    limiter = make(limit)
    ends = [limiter.acquire().cancel for _ in range(50)]
    assert limiter.peek().remaining == 50
    for left, finish in enumerate(reversed(ends), 51):
        finish()
        # One after the other: releases need not reach a shared ledger in their order, and a `Bucket` gives less back
        # for a permit after which others were taken.
        eventually(lambda left=left: limiter.peek().remaining == left, "what was given back")
    assert limiter.stats().cancelled == 50


class Relay:
    """Permits that one thread takes and another ends."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.lock = threading.Lock()
        self.handed: list[object] = []
        self.errors: list[str] = []

    def take(self):
        for _ in range(60):
            permit = self.limiter.acquire(timeout=NEVER)
            with self.lock:
                if any(permit is other for other in self.handed):
                    self.errors.append("the same permit twice")
                self.handed.append(permit)

    def next_one(self):
        while True:
            with self.lock:
                if self.handed:
                    return self.handed.pop()
            time.sleep(0.0005)

    def finish(self):
        for _ in range(120):
            permit = self.next_one()
            permit.complete()
            with suppress(PermitFinished):
                permit.complete()
                self.errors.append("ended twice")


def test_permits_travel_between_threads(make):
    limiter = make("8 concurrent")
    relay = Relay(limiter)
    callers = Callers()
    for target in [relay.take] * 4 + [relay.finish] * 2:
        callers.start(target)
    assert callers.join() == [None] * 6
    assert relay.errors == []
    eventually(lambda: limiter.peek().in_flight == 0, "nothing that is out")
    assert (limiter.stats().granted, limiter.stats().completed) == (240, 240)
