"""Prefetchers in the blocks of `headway.testing`."""

import threading
import time

from headway import Prefetcher
from headway.testing import ManualClock, disabled, virtual_time


def test_in_virtual_time_a_prefetcher_starts_anew_and_gets_its_permits_back():
    prefetcher = Prefetcher(lambda amount: (amount, 60.0))
    prefetcher.acquire()
    with virtual_time(ManualClock()) as clock:
        assert prefetcher.stats().available == 0
        assert prefetcher.acquire()
        clock.advance(61)
        assert prefetcher.stats().available == 0
        inside = Prefetcher(lambda amount: (amount, 60.0))
        inside.acquire()
    assert prefetcher.stats().available == 9
    assert inside.stats().available == 0, "its permits end by another time"


def test_an_answer_of_another_time_is_not_taken(server):
    server.gate.clear()
    prefetcher = Prefetcher(server.fetch)
    prefetcher.try_acquire()
    with virtual_time(ManualClock()):
        server.gate.set()
        while server.running or not server.asked:
            time.sleep(0.001)
        prefetcher._fetching.close()
    for thread in threading.enumerate():
        if thread.name == "headway prefetch":
            thread.join(1)
    assert prefetcher.stats().fetched == 0


def test_disabled_lets_every_request_pass():
    prefetcher = Prefetcher(lambda amount: (0, 60.0))
    with disabled():
        assert prefetcher.try_acquire(10**6)
        assert prefetcher.acquire()
    assert not prefetcher.try_acquire()
    assert prefetcher.stats().spent == 0
