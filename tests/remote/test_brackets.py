# mypy: disable-error-code="union-attr"
"""Whatever brackets a call counts as the remote does: a strict server refuses nothing, and counts from where it is.

A server allows 20 in any second, by its own clock and when the request reaches it. The way there takes 0 to 60 ms, and
is never the same. Virtual time, but for the processes at the end.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import random
import time
import warnings
from collections import deque
from typing import Any

import pytest

from headway import AllOf, Bucket, Limiter, Remote, Window, throttle
from headway.errors import InvalidArgument
from headway.testing import ManualClock, run

COUNT, CALLS = 20, 100


class Strict:
    """Never more than `count` in any second: how many it refused, and the most that it saw."""

    def __init__(self, count=COUNT):
        self.count = count
        self.times: deque[Any] = deque()
        self.refused = self.most = 0

    def arrive(self, now):
        while self.times and self.times[0] <= now - 1:
            self.times.popleft()
        self.times.append(now)
        self.most = max(self.most, len(self.times))
        self.refused += len(self.times) > self.count


def with_limiter(limiter):
    return limiter


def with_hold(limiter):
    return limiter.hold()


@contextlib.asynccontextmanager
async def with_a_bare_permit(limiter):
    permit = await limiter.acquire_async()
    await asyncio.sleep(0.01)
    async with permit:
        yield


@contextlib.asynccontextmanager
async def with_a_bare_permit_of_a_thread(limiter):
    permit = limiter.try_acquire()
    while not permit:
        await asyncio.sleep(permit.retry_after)
        permit = limiter.try_acquire()
    with permit:
        yield


@contextlib.asynccontextmanager
async def bare(limiter):
    await limiter.acquire_async()
    yield


BRACKETS = (with_limiter, with_hold, with_a_bare_permit, with_a_bare_permit_of_a_thread)


async def crowd(enter, arrive, calls=CALLS):
    """So many calls at once, each as soon as it may; the way there and back takes what it takes."""
    chance = random.Random(5)

    async def call():
        async with enter():
            await asyncio.sleep(chance.random() * 0.06)
            arrive()
            await asyncio.sleep(chance.random() * 0.02)

    await asyncio.gather(*[call() for _ in range(calls)])


def served(enter, limit="20/s", **options):
    """What the server saw of a crowd, in virtual time."""
    clock, server = ManualClock(autojump=True), Strict()
    limiter = Limiter(limit, clock=clock, **options)
    run(crowd(lambda: enter(limiter), lambda: server.arrive(clock.now() / 1e9)), clock=clock)
    assert limiter.peek().in_flight == 0
    return server


@pytest.mark.parametrize("enter", BRACKETS)
@pytest.mark.parametrize("limit", ["20/s", "20/s; 1000/hour; 50 concurrent"])
def test_whatever_brackets_a_call_counts_as_the_remote_does(enter, limit):
    server = served(enter, limit)
    assert (server.refused, server.most) == (0, COUNT)


@pytest.mark.parametrize("enter", [*BRACKETS, bare])
def test_with_a_remote_every_permit_does(enter):
    # One that is never ended counts until its transit is over.
    remote = Remote(max_transit=0.06) if enter is bare else True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert served(enter, remote=remote).refused == 0


@pytest.mark.parametrize("enter", [*BRACKETS, bare])
def test_a_limit_of_ones_own_counts_at_the_decision(enter):
    assert served(enter, remote=False).refused > 5


def test_a_bare_permit_counts_at_the_decision():
    assert served(bare).refused > 5


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_decorated_call_counts_as_the_remote_does(asynchronous):
    clock, server, chance = ManualClock(autojump=True), Strict(), random.Random(5)

    async def call():
        await asyncio.sleep(chance.random() * 0.06)
        server.arrive(clock.now() / 1e9)

    def blocking():
        clock.sleep(chance.random() * 0.06)
        server.arrive(clock.now() / 1e9)

    limited = throttle("20/s", clock=clock)
    if asynchronous:

        async def crowded():
            await asyncio.gather(*[limited(call)() for _ in range(CALLS)])

        run(crowded(), clock=clock)
    else:
        for _ in range(CALLS):
            limited(blocking)()
    assert server.refused == 0


def test_metrics_count_as_the_remote_does():
    clock = ManualClock(autojump=True)
    limiter = Limiter({"requests": "20/s", "tokens": "1000/s"}, clock=clock)
    server = Strict()
    run(crowd(lambda: limiter, lambda: server.arrive(clock.now() / 1e9)), clock=clock)
    assert (server.refused, server.most) == (0, COUNT)
    with limiter.hold(cost={"tokens": 30}) as permit:
        assert [part.in_flight for part in limiter.peek().parts] == [1, 30]
        permit.settle({"tokens": 10})
    assert limiter.peek().in_flight == 0


# -- one permit ------------------------------------------------------------------------------------------------------


def gap():
    return 1.016504  # of Remote() and a ManualClock, rounded


def test_a_block_that_is_left_cools_for_the_gap():
    clock = ManualClock()
    limiter = Limiter("1/s", clock=clock)
    with limiter:
        status = limiter.peek()
        assert (status.in_flight, status.remaining, status.exact) == (1, 0, False)
        clock.advance(5)
    status = limiter.peek()
    assert (status.in_flight, round(status.retry_after, 2), status.exact) == (0, 1.02, True)


def test_a_block_that_is_left_by_a_time_out_counts_until_its_transit_is_over():
    clock = ManualClock()
    limiter = Limiter("1/s", clock=clock)
    with contextlib.suppress(TimeoutError), limiter:
        raise TimeoutError
    clock.advance(10.9)
    assert not limiter.try_acquire()
    clock.advance(0.2)
    assert limiter.try_acquire()
    assert limiter.stats().abandoned == 1


def test_a_permit_may_be_entered_twice_and_ended_in_the_block():
    clock = ManualClock()
    limiter = Limiter("2/s", clock=clock)
    permit = limiter.acquire()
    with permit, permit:
        assert limiter.peek().in_flight == 1
        permit.complete()
        assert limiter.peek().in_flight == 0
    with permit:
        assert limiter.peek().in_flight == 0
    assert limiter.stats().completed == 1


def test_a_bare_permit_that_is_entered_late_is_paid_for_by_the_next():
    clock = ManualClock()
    limiter = Limiter("1/s", clock=clock)
    late = limiter.acquire("k")
    clock.advance(1.5)
    assert limiter.try_acquire("k")
    with late:
        clock.advance(1)
        assert limiter.peek("k").in_flight == 1
        assert not limiter.try_acquire("k")
    clock.advance(1.01)
    assert not limiter.try_acquire("k")
    clock.advance(0.01)
    assert limiter.try_acquire("k")


def test_a_bare_permit_finds_its_ledger_again_when_that_was_forgotten():
    clock = ManualClock()
    limiter = Limiter("1/s", clock=clock)
    late = limiter.acquire("k")
    clock.advance(5)
    for i in range(3000):
        limiter.try_acquire(f"other {i}")
    with late:
        assert limiter.peek("k").in_flight == 1
        assert not limiter.try_acquire("k")


def test_a_bare_permit_that_is_cancelled_in_its_block_goes_back():
    limiter = Limiter("1/minute", clock=ManualClock())
    with limiter.acquire() as permit:
        permit.cancel()
    assert limiter.peek().remaining == 1


def test_a_bare_permit_has_nothing_to_end_and_a_bracket_that_is_dropped_is_abandoned():
    limiter = Limiter("5/s", clock=ManualClock())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limiter.acquire()
        limiter.try_acquire()
        gc.collect()
    permit = limiter.hold().__enter__()
    with pytest.warns(ResourceWarning, match="dropped without an end"):
        del permit
    assert limiter.stats().abandoned == 1
    assert limiter.peek().in_flight == 1


def test_a_permit_that_was_entered_is_not_handed_out_again_as_held():
    """A permit object is used again when no caller has it: a bare one is bare, whatever became of it before."""
    clock = ManualClock()
    limiter = Limiter("1000/s", clock=clock)
    for _ in range(10):
        with limiter.acquire():
            pass
        limiter.acquire()
        with limiter:
            pass
    assert limiter.peek().in_flight == 0
    assert limiter.peek().remaining == 970
    assert limiter.stats().completed == 20
    clock.advance(1)
    assert limiter.peek().remaining == 980  # the bare ones are back, the others cool a little longer


def test_those_in_line_learn_that_a_bare_permit_was_entered():
    clock = ManualClock(autojump=True)
    limiter = Limiter("1/s", clock=clock)

    async def main():
        permit = await limiter.acquire_async()
        waiter = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0.5)
        async with permit:
            await asyncio.sleep(2)
        await waiter
        return clock.now() / 1e9

    assert run(main(), clock=clock) == pytest.approx(2.5 + gap(), abs=0.001)


# -- what is not ignored ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["5/s burst 2", "5 concurrent", {"a": "1 every 6s", "b": "5/day aligned"}])
@pytest.mark.parametrize("remote", [True, Remote()])
def test_a_remote_needs_a_window(limit, remote):
    with pytest.raises(InvalidArgument, match="Window"):
        Limiter(limit, remote=remote)
    with pytest.raises(InvalidArgument, match="Window"):
        throttle(limit, remote=remote)
    for harmless in (None, False):
        Limiter(limit, remote=harmless)
        throttle(limit, remote=harmless)
    Limiter(AllOf("5/s", Bucket("5/s", burst=2)), remote=remote)


@pytest.mark.parametrize("remote", [True, False, Remote()])
def test_a_ready_made_limiter_has_its_own_remote(remote):
    with pytest.raises(InvalidArgument, match=r"Limiter\(\.\.\., remote=\.\.\.\)"):
        throttle(Limiter("5/s"), remote=remote)


def test_a_window_of_its_own_wins():
    own, other = Window(5, per=1, remote=False), Window(5, per=1)
    limiter = Limiter(AllOf(own, other), remote=Remote(max_transit=3))
    assert [part.remote for part in limiter.limit.limits] == [False, Remote(max_transit=3)]


# -- processes -------------------------------------------------------------------------------------------------------


def worker(engine, way, times, seed):
    """Calls through one limiter, and when each reached the server; by a clock that all processes share."""
    limiter = Limiter("20/s", name=f"brackets {way}", engine=engine, engine_timeout=5)
    chance = random.Random(seed)

    def call():
        time.sleep(chance.random() * 0.06)
        times.append(time.monotonic())

    decorated = limiter(call)
    for _ in range(CALLS // 4):
        if way == "with":
            with limiter:
                call()
        elif way == "hold":
            with limiter.hold():
                call()
        elif way == "throttle":
            decorated()
        else:
            with limiter.acquire():
                call()


@pytest.mark.realtime
@pytest.mark.parametrize("way", ["with", "hold", "throttle", "permit"])
def test_four_processes_on_one_ledger_are_never_above_the_limit(way, tmp_path):
    context = multiprocessing.get_context("spawn")
    engine = f"embedded://{tmp_path}"
    with context.Manager() as manager:
        times = manager.list()
        crew = [context.Process(target=worker, args=(engine, way, times, seed)) for seed in range(4)]
        for process in crew:
            process.start()
        for process in crew:
            process.join(60)
            assert process.exitcode == 0
        assert len(times) == CALLS
        server = Strict()
        for at in sorted(times):
            server.arrive(at)
    assert server.refused == 0, server.most
