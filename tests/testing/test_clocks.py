"""ManualClock without an event loop: threads, order, exactness."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from headway.errors import InvalidArgument
from headway.testing import ManualClock
from waiting import NEVER

SECOND = 10**9


def in_threads(*functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    for thread in threads:
        thread.join(NEVER)
        assert not thread.is_alive()


def test_it_stands_still_and_advances_exactly():
    clock = ManualClock(5)
    assert clock.now() == 5 * SECOND
    clock.advance(0.1)
    clock.advance(timedelta(microseconds=1))
    clock.advance(2)
    clock.advance_ns(1)
    assert clock.now() == 7_100_001_001
    assert clock.time() == 7.100001001
    assert "7.1" in repr(clock)


def test_wall_moves_along():
    clock = ManualClock(100, wall=datetime(2030, 1, 1, tzinfo=UTC))
    clock.advance(1)
    assert clock.wall() == (int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) + 1) * SECOND
    assert ManualClock().wall() == 1_704_067_200 * SECOND
    assert ManualClock(wall=7).wall() == 7 * SECOND


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ManualClock().advance(-1),
        lambda: ManualClock().advance(float("inf")),
        lambda: ManualClock(wall=datetime(2030, 1, 1)),  # noqa: DTZ001
        lambda: ManualClock(resolution=-1),
        lambda: ManualClock(drift_ppm=float("nan")),
        lambda: ManualClock(float("inf")),
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        wrong()


def test_faults_are_told():
    clock = ManualClock(resolution=0.016, drift_ppm=50)
    assert (clock.resolution, clock.drift_ppm) == (0.016, 50)


def test_an_hour_alone_takes_no_time():
    clock, began = ManualClock(autojump=True), time.monotonic()
    for _ in range(3600):
        clock.sleep(1)
    assert clock.now() == 3600 * SECOND
    assert time.monotonic() - began < NEVER


def sleepers_trace():
    """Three threads that sleep in steps: when each of them woke."""
    clock, trace = ManualClock(), []

    def sleeper(name, step):
        def work():
            for _ in range(3):
                clock.sleep(step)
                trace.append((clock.now(), name))

        return work

    threads = []
    for name, step in (("a", 1), ("b", 1.5), ("c", 1)):
        threads += in_threads(sleeper(name, step))
        clock.settle()
    clock.advance(10)
    join(threads)
    assert clock.sleepers == 0
    return trace


def test_advance_wakes_threads_in_order_each_at_its_own_time():
    trace = sleepers_trace()
    assert trace == [
        (SECOND, "a"),
        (SECOND, "c"),
        (1_500_000_000, "b"),
        (2 * SECOND, "a"),
        (2 * SECOND, "c"),
        (3 * SECOND, "b"),
        (3 * SECOND, "a"),
        (3 * SECOND, "c"),
        (4_500_000_000, "b"),
    ]
    assert sleepers_trace() == trace


def test_threads_with_autojump_wake_in_order():
    clock, trace = ManualClock(autojump=True), []

    def sleeper(name, step):
        def work():
            for _ in range(50):
                clock.sleep(step)
                trace.append((clock.now(), name))

        return work

    for _ in range(2):  # the second time main is known to be elsewhere
        trace.clear()
        start = clock.now()
        join(in_threads(sleeper("a", 2), sleeper("b", 3)))
        assert [moment - start for moment, name in trace if name == "a"] == [
            2 * SECOND * n for n in range(1, 51)
        ]
        assert [moment - start for moment, name in trace if name == "b"] == [
            3 * SECOND * n for n in range(1, 51)
        ]
        assert [moment for moment, _ in trace] == sorted(moment for moment, _ in trace)


def test_park_until_a_time_and_until_a_wake_up():
    clock = ManualClock(autojump=True)
    waker = threading.Lock()
    waker.acquire()
    clock.park(waker, 1_000_000_001)
    assert clock.now() == 1_000_000_001
    assert waker.locked()  # only a wake-up releases it
    clock.park(waker, 5)  # past: returns at once
    waker.release()
    clock.park(waker, None)  # woken before: returns at once, and takes the wake-up
    assert waker.locked()
    assert clock.now() == 1_000_000_001
    assert clock.sleepers == 0


def test_a_wake_up_stops_time():
    """A thread that was woken is awake, even if it has not noticed: time does not jump to its deadline."""
    clock, seen = ManualClock(autojump=True), []
    waker = threading.Lock()
    waker.acquire()

    def parked():
        clock.park(waker, 100 * SECOND)
        seen.append(clock.now())

    def wake():
        clock.sleep(1)
        waker.release()
        clock.sleep(1000)

    join(in_threads(parked, wake))
    assert seen == [SECOND]
    assert clock.now() == 1001 * SECOND


def test_a_thread_parked_without_end_lets_others_jump():
    clock = ManualClock(autojump=True)
    waker = threading.Lock()
    waker.acquire()
    (parked,) = in_threads(lambda: clock.park(waker, None))
    clock.sleep(3600)
    assert clock.now() == 3600 * SECOND
    assert parked.is_alive()
    waker.release()
    join([parked])


def test_advance_without_autojump_leaves_later_sleepers_asleep():
    clock, woke = ManualClock(), []

    def sleeper():
        clock.sleep(5)
        woke.append(clock.now())

    threads = in_threads(sleeper)
    clock.settle()
    clock.advance(4.999)
    assert (woke, clock.sleepers) == ([], 1)
    clock.advance(0.001)
    join(threads)
    assert woke == [5 * SECOND]


def test_advancing_from_many_threads_adds_up():
    clock = ManualClock()

    def work():
        for _ in range(200):
            clock.advance_ns(1)

    join(in_threads(*[work] * 8))
    assert clock.now() == 1600


def test_sleeping_no_time_returns_at_once():
    clock = ManualClock()
    clock.sleep(0)
    clock.sleep(-1)
    assert (clock.now(), clock.sleepers) == (0, 0)
