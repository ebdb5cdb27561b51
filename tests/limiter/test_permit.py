"""Permits: four ends, each of them once; what is given back; what happens to those that are dropped."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import gc
import random
import socket
import threading
import time
import warnings
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import pytest

from headway import Limiter, Permit, PermitFinished, RateLimited, Remote, Window
from headway.testing import ManualClock, run

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


@pytest.mark.parametrize(
    "limit", ["5 concurrent", "5/s", "5/s burst 5", "1 every 1s", "5/day aligned", "5/s; 5 concurrent"]
)
@pytest.mark.parametrize("first", [*ENDS, "settle"])
@pytest.mark.parametrize("second", [*ENDS, "settle"])
def test_a_permit_ends_once(clock, limit, first, second):
    limiter = Limiter(limit, clock=clock)
    permit = limiter.acquire()
    end(permit, first)
    before = limiter.peek(), limiter.stats()
    with pytest.raises(PermitFinished) as caught:
        end(permit, second)
    assert (caught.value.ended, caught.value.asked) == (first, second)
    assert (limiter.peek(), limiter.stats(), permit.ended) == (*before, first)
    with permit:
        pass
    assert (limiter.peek(), limiter.stats()) == before


def test_a_permit_that_has_ended_still_answers(clock):
    for limit in ("5 concurrent", "5/s"):
        permit = Limiter(limit, clock=clock).acquire("a")
        permit.complete()
        assert (permit.key, permit.cost, permit.delay, bool(permit)) == ("a", 1, 0, True)
        assert repr(permit) == "<Permit for 'a': complete>"
        assert permit.wait() is permit
        assert run(permit.wait_async()) is permit


# -- giving back -------------------------------------------------------------------------------------------------

GIVE_BACK = ["10/minute", "10/m burst 10", "10/day aligned", "10 concurrent"]


@pytest.mark.parametrize("limit", GIVE_BACK)
def test_a_cancelled_permit_goes_back_as_it_was(clock, limit):
    limiter = Limiter(limit, clock=clock)
    limiter.acquire(cost=2).abandon()
    before = limiter.peek()
    limiter.acquire(cost=7).cancel()
    assert limiter.peek() == before


@pytest.mark.parametrize("limit", GIVE_BACK[:3])
@pytest.mark.parametrize(("actual", "left"), [(0, 10), (2, 8), (5, 5), (9, 1), (12, 0)])
def test_settling(clock, limit, actual, left):
    limiter = Limiter(limit, clock=clock)
    permit = limiter.acquire(cost=5)
    permit.settle(actual)
    assert (limiter.peek().remaining, permit.ended) == (left, "settle")
    assert limiter.stats().completed == 1


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


def test_settling_calls_who_waits(clock):
    limiter = Limiter("10/minute", clock=clock)

    async def main():
        permit = limiter.acquire(cost=10)
        waiter = asyncio.create_task(limiter.acquire_async(cost=4))
        await clock.sleep_async(1)
        permit.settle(6)
        await waiter
        return clock.now() // SECOND

    assert run(main(), clock=clock) == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, "3", float("nan"), {"tokens": 1}, 1 << 62])
@pytest.mark.parametrize("limit", ["10/minute", "10/m burst 10", "5 concurrent"])
def test_a_mistake_in_settling_changes_nothing(clock, limit, wrong):
    limiter = Limiter(limit, clock=clock)
    permit = limiter.acquire(cost=2)
    before = limiter.peek(), limiter.stats()
    with pytest.raises((ValueError, TypeError)):
        permit.settle(wrong)
    assert (limiter.peek(), limiter.stats(), permit.ended) == (*before, None)
    permit.settle(0)


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


@pytest.mark.parametrize(
    ("error", "how"), HOW, ids=lambda value: value if isinstance(value, str) else repr(value)
)
@pytest.mark.parametrize("form", ["limiter", "hold", "permit"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["with", "async with"])
def test_how_a_block_ends_its_permit(clock, remote, error, how, form, asynchronous):
    manager = {"limiter": lambda: remote, "hold": remote.hold, "permit": remote.acquire}[form]()
    seen = []

    def body(permit):
        seen.append(permit)
        if error is not None:
            raise error

    async def asynchronously():
        async with manager as permit:
            body(permit)

    def synchronously():
        with manager as permit:
            body(permit)

    with nullcontext() if error is None else pytest.raises(type(error)):
        run(asynchronously(), clock=clock) if asynchronous else synchronously()
    assert (seen[0].ended, outcome(remote)) == (how, how)


def test_the_caller_knows_better(clock, remote):
    with pytest.raises(RuntimeError), remote.hold(answered=RuntimeError):
        raise RuntimeError
    assert outcome(remote) == "complete"
    remote.reset()
    with pytest.raises(RuntimeError), remote.hold(not_sent=lambda error: "dns" in str(error)):
        raise RuntimeError("dns failed")
    assert outcome(remote) == "cancel"
    with pytest.raises(ValueError, match="x"), remote.hold(answered=(KeyError,)):
        raise ValueError("x")
    assert outcome(remote) == "abandon"


@pytest.mark.parametrize("wrong", ["ValueError", 5, (ValueError, 3), int])
def test_a_proof_that_proves_nothing(remote, wrong):
    with pytest.raises(ValueError, match="answered"):
        remote.hold(answered=wrong)


@pytest.mark.parametrize("how", [*ENDS, "settle"])
def test_an_explicit_end_makes_leaving_a_no_op(clock, remote, how):
    with remote.hold() as permit:
        end(permit, how)
    assert permit.ended == how
    with pytest.raises(TimeoutError), remote as permit:  # noqa: PT012 - that both happen is the point
        end(permit, how)
        raise TimeoutError
    assert permit.ended == how


def test_with_is_re_entrant(clock):
    limiter = Limiter("3 concurrent", clock=clock)
    with limiter as outer:
        with limiter as middle, limiter as inner:
            assert len({id(outer), id(middle), id(inner)}) == 3
            assert limiter.peek().in_flight == 3
        assert (inner.ended, middle.ended, outer.ended) == ("complete", "complete", None)
    assert limiter.peek().in_flight == 0


def test_with_belongs_to_its_task(clock):
    limiter = Limiter("9 concurrent", clock=clock)
    own = []

    async def task(number):
        async with limiter as outer:
            await clock.sleep_async((7 * number % 5) / 10)
            with limiter as inner:
                await clock.sleep_async((3 * number % 4) / 10)
                assert (outer.ended, inner.ended) == (None, None)
            assert (outer.ended, inner.ended) == (None, "complete")
            await clock.sleep_async(0.05)
        own.append(outer.ended)

    async def main():
        await asyncio.gather(*(task(number) for number in range(4)))

    run(main(), clock=clock)
    assert own == ["complete"] * 4
    assert limiter.peek().in_flight == 0


def test_with_belongs_to_its_thread():
    limiter = Limiter("20 concurrent")
    gate = threading.Barrier(4)
    wrong: list[object] = []

    def work():
        for _ in range(50):
            with limiter as outer:
                gate.wait(10)
                with limiter as inner:
                    gate.wait(10)
                if (outer.ended, inner.ended) != (None, "complete"):
                    wrong.append((outer, inner))
            if outer.ended != "complete":
                wrong.append(outer)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
    assert (limiter.peek().in_flight, limiter.stats().granted) == (0, 400)


def test_a_block_left_by_another_thread(clock):
    """A generator with `with limiter: yield` may be resumed elsewhere: FastAPI's dependencies, for instance."""
    limiter = Limiter("2 concurrent", clock=clock)

    @contextmanager
    def dependency():
        with limiter:
            yield

    block = dependency()
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join(10)
    assert limiter.peek().in_flight == 0


def test_a_failed_entry_leaves_nothing_behind(clock):
    limiter = Limiter("1 concurrent", timeout=0, clock=clock)
    with limiter:
        with pytest.raises(RateLimited), limiter:
            raise AssertionError
        with pytest.raises(RateLimited), limiter.hold():
            raise AssertionError
    assert (limiter.peek().in_flight, limiter.stats().waiting) == (0, 0)


# -- dropped -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["2 concurrent", "2 concurrent; 5/s", {"calls": "2 concurrent", "rate": "5/s"}]
)
def test_a_dropped_permit_is_abandoned_with_a_warning(clock, limit):
    limiter = Limiter(limit, clock=clock)
    for number in range(3):
        with pytest.warns(ResourceWarning, match=r"for 'a'.* was dropped without an end"):
            limiter.acquire("a")
        assert limiter.peek("a").in_flight == 0
        stats = limiter.stats()
        assert (stats.abandoned, stats.completed) == (number + 1, 0)
        clock.advance(1)


def test_a_dropped_permit_of_a_window_counts_until_their_transit_is_over(clock, remote):
    with pytest.warns(ResourceWarning):
        remote.acquire()
    assert outcome(remote) == "abandon"
    clock.advance(11.1)
    assert remote.peek().remaining == 3


def test_dropping_what_need_not_be_ended_is_fine(clock):
    for limit in ("5/s", "5/s burst 5", "1 every 1s", "5/day aligned", "5/s; 9/m"):
        Limiter(limit, clock=clock).acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()


def test_who_waits_is_called_when_a_permit_is_dropped(clock):
    limiter = Limiter("1 concurrent", clock=clock)

    async def main():
        kept = [limiter.acquire()]
        waiter = asyncio.create_task(limiter.acquire_async())
        await clock.sleep_async(5)
        with pytest.warns(ResourceWarning):
            kept.clear()
        (await waiter).complete()
        return clock.now() // SECOND

    assert run(main(), clock=clock) == 5


def test_a_permit_dropped_in_a_cycle(clock):
    limiter = Limiter("1 concurrent", clock=clock)

    class Client:
        def __init__(self):
            self.itself = self
            self.permit = limiter.acquire()

    async def main():
        Client()
        waiter = asyncio.create_task(limiter.acquire_async())
        await clock.sleep_async(5)
        with pytest.warns(ResourceWarning):
            gc.collect()
        (await waiter).complete()
        return clock.now() // SECOND

    gc.collect()
    assert run(main(), clock=clock) == 5


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
        thread.join(10)
    assert limiter.peek().in_flight == 0
    assert (limiter.stats().abandoned, limiter.stats().granted) == (300, 300)


# -- every permit is its own -------------------------------------------------------------------------------------

KEPT = ["100/s", "100/s burst 100", "100 concurrent", Window(100, per=1, remote=EXACT)]


@pytest.mark.parametrize("limit", KEPT, ids=str)
def test_permits_that_are_out_together_are_different_ones(clock, limit):
    limiter = Limiter(limit, clock=clock)
    permits = [limiter.try_acquire(f"key {number % 3}") for number in range(90)]
    assert len(set(map(id, permits))) == 90
    assert [permit.key for permit in permits] == [f"key {number % 3}" for number in range(90)]
    random.Random(1).shuffle(permits)
    for permit in permits:
        permit.complete()
        with pytest.raises(PermitFinished):
            permit.complete()
    again = [limiter.try_acquire("new") for _ in range(90)]
    assert not set(map(id, permits)) & set(map(id, again))
    assert {permit.ended for permit in permits} == {"complete"}
    assert {permit.ended for permit in again} == {None}
    for permit in again:
        permit.cancel()


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


@pytest.mark.parametrize("limit", KEPT, ids=str)
def test_a_bound_method_keeps_its_permit(clock, limit):
    limiter = Limiter(limit, clock=clock)
    ends = [limiter.acquire().cancel for _ in range(50)]
    assert limiter.peek().remaining == 50
    for finish in reversed(ends):
        finish()
    assert limiter.peek().remaining == 100
    assert limiter.stats().cancelled == 50


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


def test_permits_of_limiters_of_one_name_do_not_mix(clock):
    told: list[object] = []
    loud = Limiter("5 concurrent", name="test_permit:mix", on_event=told.append, clock=clock)
    quiet = Limiter("5 concurrent", name="test_permit:mix", clock=clock)
    for _ in range(3):
        loud.acquire().complete()
        told.clear()
        quiet.acquire().complete()
        assert told == []
    assert quiet.peek().in_flight == 0


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


def test_permits_travel_between_threads():
    limiter = Limiter("8 concurrent")
    relay = Relay(limiter)
    targets = [relay.take] * 4 + [relay.finish] * 2
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert relay.errors == []
    assert (limiter.peek().in_flight, limiter.stats().granted, limiter.stats().completed) == (0, 1600, 1600)


@pytest.mark.parametrize("limit", ["1 concurrent", Window(1, per=1, remote=Remote(max_transit=1))], ids=str)
def test_a_permit_object_that_was_used_before_can_be_dropped_too(clock, limit):
    """A held permit is recycled when it is completed; whoever gets it next may still drop it."""
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
