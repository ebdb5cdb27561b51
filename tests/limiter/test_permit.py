"""Permits: four ends, each of them once; what is given back; what happens to those that are dropped."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import gc
import random
import socket
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from headway import Limiter, Permit, PermitFinished, Remote, Window
from headway.testing import ManualClock
from waiting import NEVER

pytestmark = pytest.mark.both_forms

SECOND = 10**9
ENDS = ("complete", "cancel", "abandon")
EXACT = Remote(resolution=0, drift_ppm=0, max_transit=10)
SLOW = Remote(resolution=0, drift_ppm=0, max_transit=10**6)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def remote(clock):
    """A limiter on which the three ends look different: see `outcome`."""
    return Limiter(Window(3, per=1, remote=EXACT), clock=clock)


def outcome(limiter):
    """How the only permit of `remote` ended."""
    status = limiter.peek()
    return {(3, 0): "cancel", (2, 0): "complete", (2, 1): "abandon"}[status.remaining, status.in_flight]


def end(permit, how):
    permit.settle(1) if how == "settle" else getattr(permit, how)()


# -- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDS)
def test_the_ends_of_a_held_permit(clock, remote, how):
    permit = remote.acquire()
    assert (permit.ended, remote.peek().in_flight) == (None, 1)
    clock.advance(0.5)
    end(permit, how)
    assert (permit.ended, outcome(remote)) == (how, how)
    back = {"complete": 0.5 + 1, "cancel": 0.5, "abandon": 10 + 1}[how]
    clock.advance_ns(int((back - 0.5) * SECOND))
    assert remote.peek().remaining == 3 - (how != "cancel")  # 1 ns of our own clock's tick is missing
    clock.advance_ns(2)
    assert remote.peek().remaining == 3


# -- giving back -------------------------------------------------------------------------------------------------

GIVE_BACK = ["10/minute", "10/m burst 10", "10/day aligned", "10 concurrent"]


@pytest.mark.parametrize(
    ("limit", "wait"), [("10/minute", 60), ("10/m burst 10", 18), ("10/day aligned", 86400)]
)
def test_debt_is_paid_before_the_next_grant(clock, limit, wait):
    limiter = Limiter(limit, clock=clock)
    limiter.acquire(cost=5).settle(12)
    assert limiter.try_acquire().retry_after == wait
    clock.advance_ns(wait * SECOND - 1)
    assert not limiter.try_acquire()
    clock.advance_ns(1)
    assert limiter.try_acquire()


def test_debt_of_a_spacing_is_so_many_slots(clock):
    limiter = Limiter("1 every 6s", clock=clock)
    limiter.acquire().settle(3)
    assert limiter.peek().retry_after == 18


def test_a_debt_beyond_all_numbers_is_kept_as_the_longest_there_is(clock):
    limiter = Limiter("10/m burst 10", clock=clock)
    limiter.acquire(cost=2).settle((1 << 62) - 1)
    assert limiter.peek().retry_after > 70 * 365 * 86400
    clock.advance(60)
    assert not limiter.try_acquire()


# -- with --------------------------------------------------------------------------------------------------------


class Answered(Exception):
    response = "404"


class Wrapped(Exception):
    pass


def refused():
    try:
        raise ConnectionRefusedError
    except OSError as error:
        wrapped = Wrapped()
        wrapped.__cause__ = error
        return wrapped


HOW = [
    (None, "complete"),
    (ValueError(), "complete"),
    (KeyError("x"), "complete"),
    (Answered(), "complete"),
    (ConnectionRefusedError(), "cancel"),
    (socket.gaierror(), "cancel"),
    (refused(), "cancel"),
    (TimeoutError(), "abandon"),
    (ConnectionResetError(), "abandon"),
    (RuntimeError(), "abandon"),
    (KeyboardInterrupt(), "abandon"),
]


# -- dropped -----------------------------------------------------------------------------------------------------


def test_a_dropped_permit_of_a_window_counts_until_their_transit_is_over(clock, remote):
    with pytest.warns(ResourceWarning):
        remote.acquire()
    assert outcome(remote) == "abandon"
    clock.advance(11.1)
    assert remote.peek().remaining == 3


def test_a_permit_dropped_in_a_cycle_through_its_listener(clock):
    class Client:
        def __init__(self):
            self.limiter = Limiter("1 concurrent", on_event=self.note, clock=clock)
            self.permit = self.limiter.acquire()

        def note(self, event):
            pass

    Client()
    with pytest.warns(ResourceWarning):
        gc.collect()


def test_a_permit_dropped_while_another_thread_is_inside():
    """Finalizers run anywhere, also inside the lock; nothing blocks and nothing is lost."""
    limiter = Limiter("2 concurrent; 1000000/s")
    stop = threading.Event()

    def look():
        while not stop.is_set():
            limiter.peek()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(300):
            limiter.acquire(timeout=10)
    stop.set()
    for thread in threads:
        thread.join(NEVER)
    assert limiter.peek().in_flight == 0
    assert (limiter.stats().abandoned, limiter.stats().granted) == (300, 300)


# -- every permit is its own -------------------------------------------------------------------------------------

KEPT = ["100/s", "100/s burst 100", "100 concurrent", Window(100, per=1, remote=EXACT)]


@pytest.mark.parametrize("limit", KEPT, ids=str)
def test_an_ended_permit_that_is_kept_never_comes_to_life_again(clock, limit):
    limiter = Limiter(limit, clock=clock)
    kept = limiter.acquire("mine")
    kept.complete()
    holders: list[Any] = [(kept,), kept.complete, partial(id, kept), iter([kept])]
    del kept
    for _ in range(5):
        other = limiter.acquire("yours")
        other.complete()
        with pytest.raises(PermitFinished):
            holders[1]()
        assert (holders[0][0].key, holders[2].args[0].ended, other.key) == ("mine", "complete", "yours")
    assert limiter.peek("mine").in_flight == 0


@pytest.mark.filterwarnings("ignore:answers take:RuntimeWarning")
@pytest.mark.parametrize("limit", ["7 concurrent", Window(7, per=1, remote=SLOW)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_costs_do_not_leak_from_one_permit_to_the_next(clock, limit, seed):
    """Take, end, keep and drop in random order: what is out is always the sum of what was asked for."""
    limiter = Limiter(limit, clock=clock)
    dice = random.Random(seed)
    out: list[Permit] = []
    kept: list[Permit] = []
    for _ in range(2000):
        if dice.random() < 0.5:
            cost = dice.choice([1, 1, 1, 2, 3])
            permit: Any = limiter.try_acquire(cost=cost)
            if permit:
                assert permit.cost == cost
                out.append(permit)
        elif out:
            permit = out.pop(dice.randrange(len(out)))
            end(
                permit,
                dice.choice(["complete", "complete", "cancel", "abandon"])
                if isinstance(limit, str)
                else "complete",
            )
            if dice.random() < 0.3:
                kept.append(permit)
            clock.advance(1.1)
        assert limiter.peek().in_flight == sum(permit.cost for permit in out)
        permit = None
    assert {permit.ended for permit in kept} <= {"complete", "cancel", "abandon"}
    for permit in out:
        permit.complete()
    clock.advance(2)
    assert limiter.peek().remaining == 7


class Relay:
    """Permits that one thread takes and another ends."""

    def __init__(self, limiter):
        self.limiter = limiter
        self.lock = threading.Lock()
        self.handed: list[Permit] = []
        self.errors: list[str] = []

    def take(self):
        for _ in range(400):
            permit = self.limiter.acquire(timeout=20)
            with self.lock:
                if any(permit is other for other in self.handed):
                    self.errors.append("the same permit twice")
                self.handed.append(permit)

    def next_one(self):
        while True:
            with self.lock:
                if self.handed:
                    return self.handed.pop()
            time.sleep(0.0001)

    def finish(self):
        for _ in range(800):
            permit = self.next_one()
            permit.complete()
            with suppress(PermitFinished):
                permit.complete()
                self.errors.append("ended twice")


@pytest.mark.parametrize("limit", ["1 concurrent", Window(1, per=1, remote=Remote(max_transit=1))], ids=str)
def test_a_permit_object_that_was_used_before_can_be_dropped_too(clock, limit):
    """A held permit is recycled when it is completed. The caller that gets it next may still drop it."""
    limiter = Limiter(limit, clock=clock)
    for _ in range(3):
        limiter.try_acquire().complete()
        clock.advance(5)
    with pytest.warns(ResourceWarning, match="dropped without an end"):
        limiter.try_acquire()
    clock.advance(5)
    assert limiter.stats().abandoned == 1
    limiter.try_acquire().complete()


# -- status ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["3/minute", "10/s burst 3", "3/day aligned", "3 concurrent", "3/s; 9/minute"]
)
def test_a_permit_has_the_status_after_its_grant(limit):
    limiter = Limiter(limit, clock=ManualClock())
    permit = limiter.acquire("ann")
    assert permit.status == limiter.peek("ann")
    assert permit.status.remaining == 2
    other = limiter.acquire("ann", cost=2)
    assert (other.status.remaining, other.status.denied) == (0, False)
    assert "Retry-After" not in other.status.headers()
    assert other.status.parts == limiter.peek("ann", cost=2).parts
    for done in (permit, other):
        done.complete()
        assert done.status.remaining == limiter.peek("ann").remaining


def test_the_status_of_a_permit_that_has_ended():
    clock = ManualClock()
    limiter = Limiter("2/s", remote=Remote(resolution=0, drift_ppm=0), clock=clock)
    with limiter as permit:
        assert (permit.status.remaining, permit.status.in_flight) == (1, 1)
    status = permit.status
    assert (status.remaining, status.in_flight, status.reset_after) == (1, 0, 1.000000001)
    assert status.headers()["RateLimit"] == '"window-0";r=1;t=2'


def test_the_status_of_a_permit_of_several_metrics():
    limiter = Limiter({"host": "2/minute", "all": "9/minute"}, clock=ManualClock())
    permit = limiter.acquire({"host": "there"}, cost={"all": 4})
    assert (permit.status["host"].remaining, permit.status["all"].remaining) == (1, 5)
    assert limiter.acquire(cost={"host": 0}).status["host"].remaining == 2
