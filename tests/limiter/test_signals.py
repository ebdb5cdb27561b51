"""Signal handlers that raise, at any moment of a hot loop: no lock stays held, no waiter stays queued, no seat is lost.

RQ and Celery end a job so, with an exception of their own; Ctrl-C is the same with KeyboardInterrupt. Both forms.
"""

import contextlib
import functools
import gc
import inspect
import logging
import random
import signal
import sys
import threading
import time

import pytest

import headway
from headway import AllOf, Limiter, LimiterEvent, Window
from headway.core.window import WindowRule

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.filterwarnings("ignore:.*dropped without an end:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*were abandoned, and each counts:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:answers take:RuntimeWarning"),
    # An exception that comes inside a finalizer, of whatever object, is lost, as Python has it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.both_forms,
]

INTERRUPTS = 200


class JobTimeout(Exception):
    """What a job runner raises in its handler."""


@pytest.fixture
def alarm():
    """`alarm(seconds)` raises JobTimeout in this thread that much later, wherever it is; 0 takes it back."""

    # On a busy machine the kernel may give the signal to a thread that runs only after the alarm was taken back.
    armed = False

    def interrupt(number, frame):
        if armed:
            raise JobTimeout

    def alarm(seconds):
        nonlocal armed
        armed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, interrupt)
    yield alarm
    alarm(0)
    signal.signal(signal.SIGALRM, before)
    release_locks_of_logging()


def release_locks_of_logging():
    """`logging` takes a lock before the `try` that releases it: an exception in between leaves it held, and every other
    thread that logs would wait for ever. (Python 3.13 has mended that.)"""
    for lock in (logging._lock, *(handler.lock for handler in logging.root.handlers)):  # type: ignore[attr-defined]
        while lock is not None and lock._is_owned():
            lock.release()


SHORT = headway.Remote(resolution=0, drift_ppm=0, max_transit=0.001)
LIMITS = {
    "seats": "2 concurrent",
    "bucket": "100000/s burst 2",
    "slow bucket": "3000/s burst 1",
    "window": Window(1000, per="1ms", remote=False),
    "remote window": Window(1000, per="1ms", remote=SHORT),
    "small remote window": Window(2, per="1us", remote=SHORT),
    "coarse remote window": Window(5000, per="1ms", remote=SHORT),
    "entered window": "1000/ms",
    "calendar": "1000000/second aligned",
    "spacing": "1 every 1us",
    "several": AllOf("2 concurrent", "100000/s burst 2", Window(1000, per="1ms", remote=SHORT)),
    "metrics": {"requests": "2 concurrent", "tokens": Window(1000, per="1ms", remote=SHORT)},
}


def acquire(limiter):
    limiter.acquire().complete()


def try_acquire(limiter):
    permit = limiter.try_acquire()
    if permit:
        permit.cancel()


def hold(limiter):
    with limiter.hold():
        pass


def timed(limiter):
    with limiter.acquire(timeout=5):
        pass


def keyed(limiter):
    limiter.acquire("alice").complete()


@functools.lru_cache(1)
def decorated(limiter):
    return headway.throttle(limiter)(lambda: 1)


def throttled(limiter):
    decorated(limiter)()


WAYS = (acquire, try_acquire, hold, timed, keyed, throttled)


def interrupt_often(limiter, call, alarm, count=INTERRUPTS):
    dice = random.Random(7)

    def work():
        """In a function of its own: Python 3.13 does not catch what comes while a loop jumps back inside a `try`."""
        alarm(dice.uniform(0.00002, 0.0006))
        until = time.monotonic() + 0.05
        try:
            while time.monotonic() < until:
                call(limiter)
        finally:
            alarm(0)

    for number in range(count):
        with contextlib.suppress(JobTimeout):
            work()
        assert limiter.stats().waiting == 0, f"a ticket is left after {number} interrupts"
        if number % 20 == 0:
            assert is_free(limiter._store.lock), f"the lock is held after {number} interrupts"


def is_free(lock):
    """Whether another thread can take it."""
    taken = []

    def take():
        taken.append(lock.acquire(timeout=20))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def all_is_back(limiter, key=None):
    """Whether every permit can be had again, once transits and windows are over."""
    store = limiter._store
    if store.freed or store.dropped:
        assert not store.uncontended, "the next call does not come by to finish what an interrupt left"
        store.tidy()
    assert store.depth == 0
    assert not store.dropped
    assert not store.freed
    assert not store.queues.by_place
    windows = [keyed.peek(key) for keyed in store.keyed_ledgers if isinstance(keyed.rule, WindowRule)]
    for window in windows:
        out = 0 if window.out is None else window.out.total
        assert window.free + window.cooling.total + out == window.rule.capacity
    if any(window.rule.bracketed for window in windows):
        return  # a block that was interrupted is out until its transit is over, for ten seconds
    deadline = time.monotonic() + 20
    while True:
        status = limiter.peek(key)
        parts = status.parts or (status,)
        if all(part.in_flight == 0 and part.remaining == part.limit.capacity for part in parts):
            return
        assert time.monotonic() < deadline, parts
        time.sleep(0.001)


@pytest.mark.parametrize("call", WAYS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("listening", [False, True], ids=["", "listening"])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_signal_handler_that_raises_anywhere_loses_nothing(alarm, limit, listening, call):
    if limit == "metrics" and call is keyed:
        return  # a limiter with metrics has a mapping of keys
    heard = []
    limiter = Limiter(LIMITS[limit], on_event=(lambda event: heard.append(event.kind)) if listening else None)  # type: ignore[arg-type]
    interrupt_often(limiter, call, alarm, INTERRUPTS // 8)
    all_is_back(limiter, "alice" if call is keyed else None)


def test_of_blocks_of_the_limiter_itself_few_are_lost_interpreted_and_none_compiled(alarm):
    """Interpreted, an exception may come when `__exit__` begins, and nothing but the limiter has the permit then."""

    def block(limiter):
        with limiter:
            pass

    limiter = Limiter("1000 concurrent")
    interrupt_often(limiter, block, alarm)
    lost = limiter.peek().in_flight
    del limiter
    gc.collect()  # now, and not in another test: permits are dropped with it
    assert lost <= (0 if headway.compiled else INTERRUPTS // 10)


def test_a_crowd_of_waiters_outlives_the_interrupts_of_one(alarm):
    limiter = Limiter("1 concurrent")
    stop = threading.Event()
    turns = [0, 0]

    def wait(index):
        while not stop.is_set():
            with limiter.hold():
                turns[index] += 1

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    dice = random.Random(3)
    for _ in range(INTERRUPTS // 2):
        with contextlib.suppress(JobTimeout):
            alarm(dice.uniform(0.0001, 0.002))
            until = time.monotonic() + 1
            while time.monotonic() < until:
                limiter.acquire().complete()
        alarm(0)
    before = list(turns)
    deadline = time.monotonic() + 20
    while any(now <= then for now, then in zip(turns, before, strict=True)) and time.monotonic() < deadline:
        time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert all(now > then for now, then in zip(turns, before, strict=True))
    all_is_back(limiter)


@pytest.mark.parametrize("call", [hold, throttled, acquire], ids=lambda call: call.__name__)
@pytest.mark.parametrize("listening", [False, True], ids=["", "listening"])
def test_near_the_recursion_limit_no_seat_is_lost(call, listening):
    limiter = Limiter("5 concurrent", on_event=(lambda event: None) if listening else None)

    def dive(depth):
        return call(limiter) if depth == 0 else dive(depth - 1)

    room = sys.getrecursionlimit() - len(inspect.stack())
    failed = 0
    for depth in range(room - 80, room):
        try:
            dive(depth)
        except RecursionError:
            failed += 1
    assert failed > 5
    all_is_back(limiter)


def test_an_exception_of_a_signal_handler_in_a_listener_reaches_the_program(alarm):
    def slow(event):
        if event.kind == "granted" and not begun:
            begun.append(event)
            # Armed here: what the collector calls on the way would swallow the exception.
            alarm(0.01)
            until = time.monotonic() + 20
            while time.monotonic() < until:
                pass

    begun: list[LimiterEvent] = []
    limiter = Limiter("5 concurrent", on_event=slow)
    with pytest.raises(JobTimeout):
        limiter.try_acquire()
    all_is_back(limiter)
