"""Pacers in a forked child, in blocks of `headway.testing`, and called in every way that Python allows."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings

import pytest

import headway.testing
from headway import Pacer
from headway.errors import InvalidArgument
from headway.testing import ManualClock, disabled, virtual_time
from programs.test_processes import in_child
from waiting import NEVER, SOON

pytestmark = [
    pytest.mark.both_forms,
    # From 3.12 Python itself warns about forking with threads; that is what is tested here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")
MS = 1_000_000
SECOND = 1_000_000_000


def law(pacer):
    stats = pacer.stats()
    assert stats.consumed_ns + stats.active_ns + stats.burst_ns + stats.waiting_ns == stats.elapsed_ns
    return stats


# -- calling


def test_every_way_to_call():
    clock = ManualClock()
    pacer = Pacer(1e12, clock=clock)
    clock.advance(1)
    pacer.acquire()
    pacer.acquire(2)
    pacer.acquire(ops=3)
    name = "OPS".lower()  # equal, but not the same object
    pacer.acquire(**{name: 4})
    Pacer.acquire(pacer, ops=5)
    assert pacer.try_acquire(ops=6)
    assert pacer.stats().ops == 21


@pytest.mark.parametrize(
    ("args", "names"),
    [((1, 2), {}), ((), {"op": 1}), ((1,), {"ops": 1}), ((), {"ops": 1, "more": 2}), ((), {"more": 2})],
)
def test_wrong_calls(args, names):
    with pytest.raises(TypeError, match=r"acquire\(\)"):
        Pacer(1e12).acquire(*args, **names)


@pytest.mark.parametrize("ops", [0, -1, 1.0, "1", None, True, 2**63, 2**80, -(2**63), -(2**80)])
def test_bad_ops_by_name(ops):
    with pytest.raises(InvalidArgument):
        Pacer(10).acquire(ops=ops)


# -- fork


@needs_fork
@pytest.mark.parametrize("verb", ["acquire", "acquire by name", "try_acquire", "async", "over"])
def test_a_forked_pacer_warns_once_and_works(verb):
    clock = ManualClock(autojump=True)
    pacer = Pacer("100/s", clock=clock)
    clock.advance(1)

    def ask():
        if verb == "try_acquire":
            assert pacer.try_acquire()
        elif verb == "acquire by name":
            pacer.acquire(ops=1)
        elif verb == "async":
            asyncio.run(pacer.acquire_async())
        elif verb == "over":
            assert list(pacer.over("a")) == ["a"]
        else:
            assert pacer.acquire() == 990 * MS

    def child():
        ask()
        pacer.acquire()
        return law(pacer).ops

    ops, (message,) = in_child(child)
    assert ops == 2
    assert "Pacer '100/s' was forked" in message
    assert "twice as much" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask()  # and nothing changed here


@needs_fork
def test_where_the_warning_points_to():
    pacer = Pacer("100/s")

    def child():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pacer.acquire()
        return [warning.filename for warning in caught]

    assert in_child(child)[0] == [__file__]


@needs_fork
def test_a_thread_of_a_child_is_one_more_thread():
    pacer = Pacer("1000/s,thread")
    pacer.acquire()
    thread = threading.Thread(target=pacer.acquire, args=(10**6,), daemon=True)
    thread.start()
    while pacer.stats().waiters < 1:
        time.sleep(0.001)

    def child():
        pacer.acquire()
        return law(pacer).ops, len(pacer._threads())

    assert in_child(child) == ((2, 1), []), "the pools of the other thread are not here"
    assert law(pacer).ops == 10**6 + 1
    pacer.set_rate("1e9/s")
    thread.join()


@needs_fork
def test_waiters_of_the_parent_do_not_wait_in_the_child():
    pacer = Pacer("2/s")
    crowd = [threading.Thread(target=pacer.acquire, daemon=True) for _ in range(100)]
    for thread in crowd:
        thread.start()
    while pacer.stats().waiters < 80:
        time.sleep(0.001)

    def child():
        begin = time.monotonic()
        waiters = pacer.stats().waiters
        pacer.acquire()
        law(pacer)
        return waiters, time.monotonic() - begin < SOON

    assert in_child(child)[0] == (0, True)
    assert pacer.stats().waiters >= 3
    pacer.set_rate("1000/s")
    for thread in crowd:
        thread.join()


@needs_fork
def test_fork_while_threads_are_in_the_middle_of_it():
    pacer = Pacer(1e9)
    over = False

    def work():
        while not over:
            pacer.acquire()
            pacer.stats()

    crowd = [threading.Thread(target=work) for _ in range(3)]
    for thread in crowd:
        thread.start()

    def child():
        crew = [
            threading.Thread(target=lambda: [law(pacer) for _ in range(9)], daemon=True) for _ in range(2)
        ]
        for thread in crew:
            thread.start()
        for _ in range(10):
            pacer.acquire()
            law(pacer)
        for thread in crew:
            thread.join(NEVER)
        return [thread.is_alive() for thread in crew]

    try:
        for _ in range(20):
            assert in_child(child)[0] == [False, False]
    finally:
        over = True
        for thread in crowd:
            thread.join()


@needs_fork
def test_a_lock_that_another_thread_holds_is_waited_for():
    """Otherwise the child would find it locked by a thread that it does not have, or the pools half changed."""
    pacer = Pacer("1000/s")
    holding, seen = threading.Event(), []

    def hold():
        with pacer._lock:
            holding.set()
            time.sleep(0.2)
            seen.append("released")

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    result, _ = in_child(lambda: (list(seen), pacer.acquire() >= 0))
    thread.join()
    assert result == (["released"], True)


# -- blocks


def test_a_pacer_that_exists_runs_in_virtual_time():
    pacer = Pacer("10/s")
    time.sleep(0.02)
    before = pacer.stats()
    with virtual_time() as clock:
        assert law(pacer)[:2] == (0, 0)
        for number in range(1, 51):
            assert pacer.acquire() == 0
            assert clock.now() == number * 100 * MS
        clock.advance(60)
        assert pacer.acquire() == 60 * SECOND - 100 * MS
        pacer.set_rate("20/s", ratio=2)
        law(pacer)
    after = law(pacer)
    assert after.ops == before.ops == 0
    assert 0 <= after.elapsed_ns - before.elapsed_ns < 30 * SECOND
    assert (after.rate, after.ratio) == (10, 1.1)


def test_a_pacer_with_a_clock_of_its_own_is_left_alone():
    own = ManualClock()
    pacer = Pacer("10/s", clock=own)
    own.advance(1)
    pacer.acquire()
    before = pacer.stats()
    with virtual_time():
        assert pacer.stats() == before
    assert pacer.stats() == before


def test_a_stopped_pacer_is_stopped_inside_and_after():
    pacer = Pacer("10/s,configure")
    with virtual_time() as clock:
        clock.advance(5)
        assert not pacer.try_acquire()
        pacer.start()
        pacer.acquire()
        assert clock.now() == 5 * SECOND + 100 * MS
    assert "stopped" in repr(pacer)


def test_blocks_nest():
    pacer = Pacer("10/s")
    with virtual_time() as outer:
        pacer.acquire()
        with virtual_time() as inner:
            for _ in range(30):
                pacer.acquire()
            assert inner.now() == 3 * SECOND
        assert pacer.stats().ops == 1
        pacer.acquire()
        assert outer.now() == 200 * MS
    assert pacer.stats().ops == 0


def test_a_pacer_made_inside_starts_anew_after_it():
    with virtual_time(ManualClock(10**9)) as clock:  # far ahead of this machine
        pacer = Pacer("1000/s")
        clock.advance(3600)
        assert pacer.wait_time_ns > 3599 * SECOND
    assert pacer.wait_time_ns < 30 * SECOND
    pacer.acquire()
    assert law(pacer).ops == 1


def test_pools_of_threads_are_set_aside_too():
    pacer = Pacer("10/s,thread")
    assert pacer.wait_time_ns < SECOND
    with virtual_time() as clock:
        for _ in range(7):
            pacer.acquire()
        assert clock.now() == 700 * MS
        assert pacer.stats().ops == 7
        pacer.set_rate("20/s")
        pacer.acquire()
        assert clock.now() == 750 * MS
    assert law(pacer).ops == 0
    assert pacer._mine()._pools.rule.rate == 10


def test_run_takes_existing_pacers_along():
    pacer = Pacer("10/s")

    async def main():
        for _ in range(10):
            await pacer.acquire_async()
        return asyncio.get_running_loop().time()

    assert headway.testing.run(main()) == 1.0
    assert pacer.stats().ops == 0


@pytest.mark.realtime
def test_a_waiter_from_before_a_block_goes_on_in_its_own_time():
    pacer = Pacer("5/s")
    begin, ended = time.monotonic(), []

    def work():
        pacer.acquire()
        ended.append(time.monotonic() - begin)

    thread = threading.Thread(target=work)
    thread.start()
    while pacer.stats().waiters < 1:
        time.sleep(0.001)
    with virtual_time() as clock:
        thread.join(NEVER)
        assert not thread.is_alive()
        assert clock.now() == 0, "it slept on this clock, and made it jump"
    assert 0.199 <= ended[0] < 10
    law(pacer)
    assert pacer.stats().waiters == 0


def test_disabled_takes_nothing():
    clock = ManualClock()
    pacer = Pacer("100/s", clock=clock)
    clock.advance(1)
    before = pacer.stats()
    with disabled():
        for _ in range(100):
            assert pacer.acquire() == 0
            assert pacer.try_acquire()
            assert asyncio.run(pacer.acquire_async()) == 0
        assert pacer.stats() == before
        with pytest.raises(InvalidArgument):
            pacer.acquire(0)
        with disabled():
            pass
        assert pacer.acquire() == 0
    assert pacer.acquire() == 990 * MS


@pytest.mark.parametrize("scope", ["shared", "thread"])
def test_disabled_for_pacers_of_before_and_of_inside(scope):
    old = Pacer("1/day", scope=scope)
    with disabled():
        for pacer in (old, Pacer("1/day", scope=scope), Pacer("1/day,stop", scope=scope)):
            assert pacer.acquire() == 0
            assert pacer.try_acquire()
    assert not old.try_acquire()
    assert not pacer.try_acquire()


def test_waiters_are_let_go_when_limits_are_disabled():
    clock = ManualClock()
    pacer = Pacer("1/day", clock=clock)
    thread = threading.Thread(target=pacer.acquire, daemon=True)
    thread.start()
    clock.settle()
    assert pacer.stats().waiters == 1
    with disabled():
        thread.join(NEVER)
        assert not thread.is_alive()
    assert law(pacer)[:1] == (0,)
