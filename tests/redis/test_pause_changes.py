"""A pause that is lifted or made longer while callers sleep until its end: no caller is left, no window is broken."""

import asyncio
import threading
import time

import pytest
from tests.redis.servers import eventually
from tests.redis.workers import most_in_any

from headway import Limiter, RateLimited, Spacing, Window
from headway.engines.redis.client.batching import thread_batcher

pytestmark = pytest.mark.realtime

SOON = 5


class Sleepers:
    """Threads that each take a permit, and when they had it."""

    def __init__(self, limiter):
        self.limiter = limiter
        self.went: list[float] = []
        self.threads: list[threading.Thread] = []

    def send(self, number, key=None):
        before = len(self.limiter._shared.ledgers.registry.waiters)
        for _ in range(number):
            self.threads.append(threading.Thread(target=self._go, args=(key,)))
            self.threads[-1].start()
        eventually(
            lambda: len(self.limiter._shared.ledgers.registry.waiters) == before + number, "the sleepers"
        )

    def _go(self, key):
        self.limiter.acquire(key, timeout=60)
        self.went.append(time.monotonic())

    def join(self):
        for thread in self.threads:
            thread.join(60)
        return sorted(self.went)


@pytest.fixture
def make(valkey, name, connect):
    """make(limit): with a lease that is longer than the test, so that messages alone are quick."""
    made = []

    def make(limit):
        made.append(Limiter(limit, name=name, engine=connect(f"{valkey.url}?lease=300"), engine_timeout=2))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def test_a_pause_that_is_made_longer_gives_no_permit_twice(make):
    """The permit of a sleeper counts from when the sleeper goes, not from when the first pause ended."""
    limiter = make(Window(3, per=1))
    sleepers = Sleepers(limiter)
    limiter.pause(0.4)
    sleepers.send(3)
    limiter.pause(2.0)
    sleepers.send(3)
    assert most_in_any(0.95, sleepers.join()) == 3


def test_a_lifted_pause_does_not_free_permits_that_still_rest(make):
    limiter = make(Window(3, per=2))
    sleepers = Sleepers(limiter)
    for _ in range(3):
        sleepers._go(None)
    limiter.pause(1.5)
    sleepers.send(2)
    limiter.pause(0)
    assert most_in_any(1.9, sleepers.join()) == 3


@pytest.mark.parametrize("key", [None, "alice"])
@pytest.mark.parametrize("limit", [Window(3, per=1), Spacing(0.5)])
def test_a_sleeper_until_the_end_of_a_pause_goes_when_it_is_lifted(make, limit, key):
    """Whether it was a pause of its own key or of all; and what it takes is back in time."""
    limiter = make(limit)
    sleepers = Sleepers(limiter)
    limiter.pause(50)
    sleepers.send(1, key)
    limiter.pause(0)
    lifted = time.monotonic()
    assert sleepers.join()[0] - lifted < SOON
    eventually(lambda: limiter.peek(key).reset_after == 0, "a ledger as new", within=SOON)


@pytest.mark.parametrize("limit", [Window(1, per=0.1), Spacing(0.1), "10/s burst 1"])
def test_all_waiters_of_a_key_go_when_a_pause_of_all_is_lifted(make, limit):
    """In several processes: nothing was promised for after the pause that could be in anybody's way."""
    one, other = make(limit), make(limit)
    one.acquire("alice")
    here, there = Sleepers(one), Sleepers(other)
    one.pause(50)
    for sleepers in (here, there, here, there):
        sleepers.send(1, "alice")
    one.pause(0)
    lifted = time.monotonic()
    assert max(here.join() + there.join()) - lifted < SOON
    eventually(lambda: one.peek("alice").reset_after == 0, "a ledger as new", within=SOON)


@pytest.mark.parametrize("limit", [Window(3, per=1), Spacing(0.1), "10/s burst 1"])
def test_a_key_that_is_no_longer_paused_waits_for_the_end_of_a_pause_of_all(make, limit):
    limiter = make(limit)
    sleepers = Sleepers(limiter)
    limiter.pause(20, key="alice")
    sleepers.send(2, "alice")
    limiter.pause(2.5)
    ends = time.monotonic() + 2.4
    sleepers.send(2, "alice")
    limiter.pause(0, key="alice")
    assert min(sleepers.join()) > ends


def test_a_caller_gives_up_at_once_if_a_pause_of_all_ends_too_late(make):
    limiter = make(Spacing(1))
    limiter.pause(30)
    with pytest.raises(RateLimited) as error:
        limiter.acquire("alice", timeout=20)
    assert 25 < error.value.retry_after < 31


def test_what_was_reserved_for_a_key_is_not_moved_into_a_pause_of_all(make):
    limiter = make(Spacing(1))
    limiter.pause(40, key="alice")
    permit = limiter.reserve("alice")
    limiter.pause(20)
    limiter.pause(0, key="alice")
    assert 15 < permit.delay < 21
    permit.cancel()


def test_a_longer_pause_of_all_holds_up_sleepers_until_its_end(make):
    limiter = make(Window(3, per=1))
    sleepers = Sleepers(limiter)
    limiter.pause(0.5)
    sleepers.send(2, "alice")
    limiter.pause(1.5)
    ends = time.monotonic() + 1.4
    assert min(sleepers.join()) > ends


def test_a_recalled_sleeper_that_is_cancelled_gives_its_slot_back(make):
    """The slot would have gone back with its next request, which is not sent."""
    limiter, other = make(Spacing(100)), make(Spacing(100))

    async def main():
        limiter.acquire()
        task = asyncio.create_task(limiter.acquire_async(timeout=500))
        ledger = limiter._shared.ledgers.registry.ledger((None,))
        while not ledger.sleepers:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        [acquire] = ledger.sleepers
        ledger.recall(acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    eventually(lambda: other.peek().waiting == 0, "a slot that is free", within=SOON)


def test_a_sleeper_recalled_during_another_request_gives_its_slot_back_with_its_own(make):
    """It waits until the batcher is free. The slot that it gives back must not wait any longer than that."""
    limiter = make(Spacing(2))
    limiter.acquire()
    sleepers = Sleepers(limiter)
    sleepers.send(1)
    ledger = limiter._shared.ledgers.registry.ledger((None,))
    eventually(lambda: ledger.sleepers, "one sleeper")
    batcher = thread_batcher(ledger)
    with batcher.lock:
        [acquire] = ledger.sleepers
        ledger.recall(acquire)
        eventually(lambda: batcher.queue, "one request that is queued")
    batcher._call_next()  # as the caller that gives the lock back does
    eventually(lambda: acquire not in ledger.sleepers and ledger.sleepers, "one sleeper again")
    [again] = ledger.sleepers
    assert again.marks[0] == acquire.marks[0]
    sleepers.join()
