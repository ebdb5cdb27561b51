"""Signal handlers that raise, at any moment of a hot loop: no lock stays held, no place taken, nothing is minted."""

import contextlib
import random
import signal
import threading

import pytest

from headway import AcquireTimeout, Prefetcher

pytestmark = [
    pytest.mark.realtime,
    # An exception that comes inside a finalizer, of whatever object, is lost, as Python has it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

INTERRUPTS = 300


class JobTimeout(Exception):
    """What a job runner raises in its handler."""


@pytest.fixture
def alarm():
    def interrupt(number, frame):
        raise JobTimeout

    before = signal.signal(signal.SIGALRM, interrupt)
    # Again a little later: an exception that is raised inside a finalizer is lost.
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds, 0.5 if seconds else 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("optimistic", [False, True], ids=["strict", "optimistic"])
@pytest.mark.parametrize("verb", ["try_acquire", "acquire"])
def test_an_interrupt_at_any_moment_leaves_a_prefetcher_whole(alarm, verb, optimistic):
    granted = [0]

    def fetch(amount):
        granted[0] += amount
        return amount, 0.01

    prefetcher = Prefetcher(fetch, min_prefetch=20, close_wait=0.001, fetch_timeout=20, optimistic=optimistic)
    draw = random.Random(0)
    ended = threading.Event()

    def other():
        while not ended.is_set():
            with contextlib.suppress(AcquireTimeout):
                prefetcher.acquire(timeout=0.001)

    thread = threading.Thread(target=other)
    thread.start()
    admitted = interrupted = 0
    try:
        for _ in range(INTERRUPTS):
            try:
                alarm(draw.uniform(1e-5, 2e-3))
                while True:
                    admitted += bool(getattr(prefetcher, verb)(draw.choice((1, 3))))
            except JobTimeout:
                alarm(0)
                interrupted += 1
    finally:
        alarm(0)
        ended.set()
        thread.join(30)
    assert interrupted == INTERRUPTS
    assert not thread.is_alive()
    ledger, stats = prefetcher._ledger, prefetcher.stats()
    assert ledger.available == sum(count for _, count in ledger.pool) >= 0
    assert stats.waiting == 0
    assert admitted > INTERRUPTS
    assert stats.spent <= granted[0] + 60
    assert prefetcher.acquire(timeout=30)
