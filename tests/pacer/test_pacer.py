"""The pacer on virtual time: when each start comes, what is given back, what a change of pace does."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from fractions import Fraction

import pytest

import headway.testing
from headway import Pacer
from headway.errors import InvalidArgument, InvalidLimit
from headway.testing import ManualClock, virtual_time

pytestmark = pytest.mark.both_forms
MS = 1_000_000
SECOND = 1_000_000_000


def law(pacer):
    stats = pacer.stats()
    parts = (stats.consumed_ns, stats.active_ns, stats.burst_ns, stats.waiting_ns)
    assert min(parts) >= 0
    assert sum(parts) == stats.elapsed_ns
    return stats


def test_one_caller_starts_on_schedule():
    clock = ManualClock(autojump=True)
    pacer = Pacer("1000/s", clock=clock)
    trace = [(pacer.acquire(), clock.now()) for _ in range(5)]
    assert trace == [(0, n * MS) for n in range(1, 6)]
    assert law(pacer).ops == 5


def test_strict_after_idling():
    """5 s idle at 1,000/s, ratio 1.0, then full demand for 10 s."""
    clock = ManualClock(autojump=True)
    pacer = Pacer("1000/s", ratio=1.0, clock=clock)
    clock.advance(5)
    starts = []
    while clock.now() <= 15 * SECOND:
        pacer.acquire()
        starts.append(clock.now())
    starts = [at for at in starts if at <= 15 * SECOND]
    assert len(starts) == 10_002
    assert max(starts.count(at) for at in starts[:10]) == 2
    assert len(set(starts)) == 10_001
    law(pacer)


def test_catching_up_goes_at_the_ratio():
    clock = ManualClock(autojump=True)
    pacer = Pacer("1000/s", ratio=1.5, clock=clock)
    clock.advance(2)
    delays = [pacer.acquire() for _ in range(3000)]
    assert delays[0] == 2 * SECOND - MS
    # 3 at once, then 1.5 a millisecond
    assert clock.now() == pytest.approx(4 * SECOND, abs=2 * MS)
    while pacer.acquire() > 0:
        pass
    assert clock.now() == pytest.approx(6 * SECOND, rel=0.01)
    assert pacer.wait_time_ns == 0


def test_delay_is_what_the_schedule_says():
    """A stall of 1 s: each later operation is told how late it starts, until the schedule is met again."""
    clock = ManualClock(autojump=True)
    pacer = Pacer("10/s", ratio=2, clock=clock)
    for _ in range(10):
        assert pacer.acquire() == 0
    clock.advance(1)
    delays = [pacer.acquire() for _ in range(25)]
    assert delays[0] == 900 * MS
    assert delays == sorted(delays, reverse=True)
    assert delays[-1] == 0


def test_more_than_the_pools_hold_is_served_in_parts():
    clock = ManualClock(autojump=True)
    pacer = Pacer("1000/s", clock=clock)
    pacer.acquire(5000)
    assert clock.now() == 5 * SECOND
    with pytest.raises(InvalidArgument, match="at most 2, all that the pools ever hold"):
        pacer.try_acquire(5000)
    law(pacer)


@pytest.mark.parametrize("ops", [0, -1, 1.0, "1", None, True, 2**63, 2**80])
def test_bad_ops(ops):
    pacer = Pacer(10)
    for call in (pacer.acquire, pacer.try_acquire):
        with pytest.raises(InvalidArgument):
            call(ops)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pacer("0/s"),
        lambda: Pacer(0),
        lambda: Pacer(-1),
        lambda: Pacer(float("inf")),
        lambda: Pacer(float("nan")),
        lambda: Pacer("500,0.9"),
        lambda: Pacer(500, ratio=0.99),
        lambda: Pacer("500,halt"),
        lambda: Pacer("500,1.1", ratio=1.2),
        lambda: Pacer("start"),
        lambda: Pacer(500, scope="process"),
        lambda: Pacer(500, spin=-1),
        lambda: Pacer(500, spin=2),
    ],
)
def test_bad_input(make):
    with pytest.raises((InvalidArgument, InvalidLimit)):
        make()


def test_a_word_where_the_rate_belongs():
    with pytest.raises(InvalidLimit, match=r"^invalid pace 'fast', position 0: unknown word") as caught:
        Pacer("fast")
    assert "a rate from 0.000001" in caught.value.accepted


@pytest.mark.parametrize("rate", [0.001, 0.3, 7, 12_345.678, 1e6, 1e9, 1e12])
def test_the_law_on_random_traces(rate):
    dice, clock = random.Random(7), ManualClock(autojump=True)
    pacer = Pacer(rate, clock=clock)
    for _ in range(300):
        clock.advance_ns(dice.choice([0, 1, 17, 1000, 10**6, 10**9, 10**12]))
        verb = dice.choice(["acquire", "bulk", "try", "set_rate"])
        if verb == "set_rate":
            pacer.set_rate(Fraction(rate) * dice.randint(1, 9), ratio=dice.choice([1, 1.1, 3]))
        elif verb == "try":
            pacer.try_acquire()
        else:
            pacer.acquire(1 if verb == "acquire" else dice.randint(1, 1000))
        law(pacer)


def test_first_come_first_served_among_threads():
    with virtual_time() as clock:
        pacer = Pacer("10/s")
        trace = []

        def work(number):
            clock.sleep(number / 1000)
            pacer.acquire()
            trace.append((number, clock.now()))

        crowd = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    assert trace == [(n, (n + 1) * 100 * MS) for n in range(6)]


def test_first_come_first_served_among_tasks():
    async def main():
        pacer = Pacer("10/s")
        loop, trace = asyncio.get_running_loop(), []

        async def work(number):
            await pacer.acquire_async()
            trace.append((number, loop.time()))

        await asyncio.gather(*map(work, range(6)))
        return trace

    assert headway.testing.run(main()) == [(n, pytest.approx((n + 1) / 10)) for n in range(6)]


def test_cancelled_tasks_give_back_and_later_waiters_move_up():
    async def main():
        pacer = Pacer("10/s", ratio=1.0)
        loop, trace = asyncio.get_running_loop(), []

        async def work(number):
            await pacer.acquire_async()
            trace.append((number, round(loop.time(), 9)))

        tasks = [asyncio.create_task(work(number)) for number in range(6)]
        await asyncio.sleep(0.05)
        for number in (0, 2, 3):
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert law(pacer).ops == 3
        return trace

    assert headway.testing.run(main()) == [(1, 0.1), (4, 0.2), (5, 0.3)]


def test_thousands_give_up_quickly():
    async def main():
        pacer = Pacer("1/s")
        tasks = [asyncio.create_task(pacer.acquire_async()) for _ in range(3000)]
        await asyncio.sleep(0.5)
        random.Random(1).shuffle(tasks)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks)
        assert law(pacer).ops == 1
        return asyncio.get_running_loop().time()

    assert headway.testing.run(main()) == pytest.approx(1)


def test_a_new_rate_wakes_waiters():
    async def main():
        pacer = Pacer("0.001/s")
        waiting = asyncio.create_task(pacer.acquire_async())
        await asyncio.sleep(1)
        pacer.set_rate("2/s")
        await waiting
        return asyncio.get_running_loop().time()

    assert headway.testing.run(main()) == pytest.approx(1)


def test_a_new_rate_keeps_the_backlog_and_bursts_no_more_than_the_ratio():
    clock = ManualClock(autojump=True)
    pacer = Pacer("100/s", clock=clock)
    clock.advance(10)
    before = law(pacer)
    pacer.set_rate("1000/s", ratio=1.2)
    after = law(pacer)
    assert after.elapsed_ns == before.elapsed_ns
    assert after.consumed_ns == before.consumed_ns
    assert after.active_ns + after.burst_ns <= 2.4 * MS
    start, ops = clock.now(), 0
    while clock.now() < start + SECOND:
        pacer.acquire()
        ops += 1
    assert 1190 <= ops <= 1203


def test_stop_start_restart():
    clock = ManualClock(autojump=True)
    pacer = Pacer("10/s,configure", clock=clock)
    clock.advance(5)
    assert not pacer.try_acquire()
    assert "stopped" in repr(pacer)
    pacer.start()
    assert law(pacer).elapsed_ns == 0
    clock.advance(5)
    assert pacer.wait_time_ns > 4 * SECOND
    pacer.stop()
    clock.advance(60)
    assert law(pacer).elapsed_ns == 5 * SECOND
    pacer.set_rate("20/s,configure")
    assert not pacer.try_acquire()
    assert pacer.rate == 20
    pacer.restart()
    assert law(pacer)[:2] == (0, 0)
    assert pacer.wait_time_ns == 0


def test_a_stopped_pacer_holds_callers_until_it_starts():
    async def main():
        pacer = Pacer("10/s,configure")
        waiting = [asyncio.create_task(pacer.acquire_async()) for _ in range(3)]
        await asyncio.sleep(7)
        assert not any(task.done() for task in waiting)
        pacer.start()
        await asyncio.gather(*waiting)
        return asyncio.get_running_loop().time()

    assert headway.testing.run(main()) == pytest.approx(7.3)


def test_pools_of_each_thread():
    with virtual_time() as clock:
        pacer = Pacer("10/s,1.1,thread")
        ends = []

        def work():
            for _ in range(5):
                pacer.acquire()
            ends.append((clock.now(), pacer.wait_time_ns))
            both.wait()

        both = threading.Barrier(3)
        crowd = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in crowd:
            thread.start()
        while len(ends) < 2:
            time.sleep(0.001)
        assert law(pacer).ops == 10
        both.wait()
        for thread in crowd:
            thread.join()
    assert ends == [(500 * MS, 0)] * 2
    gc.collect()
    assert "thread" in repr(pacer)
    with pytest.raises(InvalidArgument):
        pacer.set_rate("10/s,shared")


def test_over_items():
    clock = ManualClock(autojump=True)
    pacer = Pacer("10/s", clock=clock)
    assert [(item, clock.now() // MS) for item in pacer.over("abc")] == [("a", 100), ("b", 200), ("c", 300)]
    assert list(pacer.over(["four", "is"], ops=len)) == ["four", "is"]
    assert clock.now() == 900 * MS
    assert pacer.stats().ops == 9


def test_over_items_in_a_task():
    async def characters():
        for character in "xy":
            yield character

    async def main():
        pacer, loop = Pacer("10/s"), asyncio.get_running_loop()
        return [(item, round(loop.time(), 9)) async for item in pacer.over("ab")] + [
            (item, round(loop.time(), 9)) async for item in pacer.over(characters())
        ]

    assert headway.testing.run(main()) == [("a", 0.1), ("b", 0.2), ("x", 0.3), ("y", 0.4)]
    with pytest.raises(InvalidArgument, match="async for"):
        list(Pacer(10).over(characters()))


def test_blocking_in_a_loop_is_warned_about():
    async def main():
        Pacer("10/s").acquire()

    with pytest.warns(RuntimeWarning, match="acquire_async"):
        headway.testing.run(main())


def test_disabled_means_disabled():
    with headway.testing.disabled():
        pacer = Pacer("1/day")
        assert pacer.acquire() == 0
        assert law(pacer).ops == 0


def test_spinning_and_napping_stay_out_of_virtual_time():
    with virtual_time() as clock:
        Pacer("10/s", spin=0.05).acquire()
        assert clock.now() == 100 * MS
        Pacer("100000/s").acquire(3)
        assert clock.now() == 100 * MS + 30_000


@pytest.mark.realtime
def test_real_time_and_spinning():
    for spin in (0, 0.0005):
        pacer = Pacer(500, spin=spin)
        start = time.monotonic()
        for _ in range(50):
            assert pacer.acquire() >= 0
        assert time.monotonic() - start >= 0.0999
        law(pacer)
