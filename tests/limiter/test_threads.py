"""Threads, event loops and Ctrl-C on one limiter: no waiter is forgotten, nothing is lost."""

import asyncio
import random
import threading
import time
from itertools import pairwise

import pytest

from headway import Limiter, RateLimited
from headway.clock import Clock
from headway.testing import ManualClock, run, virtual_time
from waiting import NEVER

pytestmark = pytest.mark.both_forms

SECOND = 10**9
PATIENCE = 60
"""Real seconds after which a thread counts as forgotten."""


def start(*targets):
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    end = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not [thread for thread in threads if thread.is_alive()], "a thread was not woken"


class Work:
    """Calls of one limiter from threads and tasks; counts what they got, and how many were inside at once."""

    def __init__(self, limiter, rounds, seed):
        self.limiter, self.rounds, self.seed = limiter, rounds, seed
        self.lock = threading.Lock()
        self.inside = self.most = self.granted = self.given_up = 0

    def enter(self, cost):
        with self.lock:
            self.granted += 1
            self.inside += cost
            self.most = max(self.most, self.inside)

    def leave(self, permit, cost, dice):
        with self.lock:
            self.inside -= cost
        dice.choice((permit.complete, permit.complete, permit.cancel, permit.abandon))()

    def give_up(self):
        with self.lock:
            self.given_up += 1

    def thread(self, number):
        dice = random.Random(self.seed * 100 + number)
        for _ in range(self.rounds):
            cost = dice.randint(1, 3)
            try:
                permit = self.limiter.acquire(cost=cost, timeout=dice.choice((None, None, 0.001)))
            except RateLimited:
                self.give_up()
                continue
            self.enter(cost)
            if dice.random() < 0.2:
                time.sleep(0.0001)
            self.leave(permit, cost, dice)

    async def task(self, number):
        dice = random.Random(self.seed * 100 + number)
        for _ in range(self.rounds):
            cost = dice.randint(1, 3)
            try:
                permit = await asyncio.wait_for(
                    self.limiter.acquire_async(cost=cost), dice.choice((None, None, 0.001))
                )
            except TimeoutError:
                self.give_up()
                continue
            self.enter(cost)
            await asyncio.sleep(0)
            self.leave(permit, cost, dice)

    def loop(self, numbers):
        async def main():
            await asyncio.gather(*map(self.task, numbers))

        asyncio.run(main())

    def run(self):
        workers = [lambda n=n: self.thread(n) for n in range(6)]
        loops = [lambda n=n: self.loop(range(n, n + 6)) for n in (6, 12)]
        join(start(*workers, *loops))
        assert self.granted + self.given_up == 18 * self.rounds


@pytest.mark.realtime
def test_threads_and_two_loops_share_a_rate():
    limiter = Limiter("2000/s burst 5")
    began = time.monotonic()
    work = Work(limiter, 40, 3)
    work.run()
    # Costs are 2 on average; what was given back by cancel() went to others. Never faster than the rate:
    stats = limiter.stats()
    cancelled = stats.cancelled * 3
    assert work.granted - cancelled - 5 <= 2000 * (time.monotonic() - began)
    assert stats.waiting == 0
    time.sleep(0.01)
    assert limiter.peek().remaining <= 5


def test_threads_wait_in_order():
    with virtual_time() as clock:
        limiter = Limiter("10/s burst 1")
        limiter.acquire()
        trace = []

        def wait(number):
            limiter.acquire(cost=1)
            trace.append((number, clock.now() // 10**6))

        threads = []
        for number in range(8):
            # One after another: a clock that jumps would wake the first before the last has come.
            threads += start(lambda number=number: wait(number))
            while limiter.stats().waiting + len(trace) <= number:
                time.sleep(0.0005)
        join(threads)
    assert [number for number, _ in trace] == list(range(8))
    assert all(later - earlier >= 100 for (_, earlier), (_, later) in pairwise(trace))


class Interrupted(Clock):
    """A clock in Python during whose reading other threads run: the worst that can happen between two lines."""

    def __init__(self):
        self.meanwhile = None

    def now(self):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return time.monotonic_ns()

    def sleep(self, seconds):
        time.sleep(seconds)


@pytest.mark.realtime
def test_a_caller_that_comes_to_wait_while_a_permit_is_being_handed_back_is_woken():
    clock = Interrupted()
    limiter = Limiter("1 concurrent", clock=clock)
    permit = limiter.acquire()
    threads = []

    def start_a_waiter():
        threads.extend(start(lambda: limiter.acquire(timeout=20).complete()))
        end = time.monotonic() + 5
        while limiter.stats().waiting == 0 and time.monotonic() < end:
            time.sleep(0.001)

    clock.meanwhile = start_a_waiter
    permit.complete()
    threads[0].join(NEVER)
    assert not threads[0].is_alive()
    assert limiter.stats().granted == 2


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


@pytest.mark.realtime
def test_ctrl_c_lets_those_behind_move_up(ctrl_c):
    limiter = Limiter("2 concurrent")
    permit = limiter.acquire()
    threads = []

    def behind():
        while limiter.stats().waiting == 0:
            time.sleep(0.001)
        limiter.acquire().complete()

    threads = start(behind)
    ctrl_c(0.1)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire(cost=2)
    join(threads)
    permit.complete()
    assert limiter.stats().granted == 2


# -- a blocking verb inside a loop -------------------------------------------------------------------------------


def test_blocking_inside_a_loop_warns_once():
    clock = ManualClock()
    limiter = Limiter("10/s burst 1", clock=clock)

    async def main():
        limiter.acquire()
        with pytest.warns(RuntimeWarning, match="await limiter.acquire_async"):
            limiter.acquire()
        limiter.acquire()
        return clock.now()

    assert run(main(), clock=clock) == 2 * SECOND // 10
