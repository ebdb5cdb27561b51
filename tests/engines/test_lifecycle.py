"""From the beginning to the end: closing, pickling, threads, and event loops one after another and at once."""

# mypy: disable-error-code="union-attr"

import asyncio
import copy
import pickle
import random
import threading
import warnings

import pytest

from engines.waiting import NEVER, Callers, eventually, eventually_async, in_line
from headway import LimiterClosed, RateLimited, Spacing

# -- close -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        "1/hour",
        "1/hour burst 1",
        "1 every 1h",
        "1/month aligned",
        "1 concurrent",
        "1/hour; 2/hour",
        Spacing(3600, max_reserved=0),
    ],
    ids=str,
)
def test_closing_ends_every_wait(make, call, limit):
    limiter = make(limit)
    held = limiter.acquire()
    callers = Callers()
    callers.start(limiter.acquire)
    callers.start(lambda: asyncio.run(limiter.acquire_async()))
    eventually(lambda: limiter.stats().waiting == 2, "two waiters")
    call(limiter.close)
    assert [type(outcome) for outcome in callers.join()] == [LimiterClosed, LimiterClosed]
    assert limiter.stats().waiting == 0
    held.complete()


def test_nothing_is_granted_after_closing(make, call):
    limiter = make("5/hour burst 5")
    call(limiter.close)
    call(limiter.close)
    for verb in (limiter.try_acquire, limiter.acquire, limiter.reserve, limiter.peek, limiter.reset):
        with pytest.raises(LimiterClosed):
            call(verb)
    with pytest.raises(LimiterClosed):
        call(limiter.pause, 5)
    for ask in (limiter.__enter__, limiter.hold().__enter__, lambda: limiter.acquire(timeout=0)):
        with pytest.raises(LimiterClosed):
            ask()
    assert limiter.stats().granted == 0


def test_closing_one_limiter_leaves_another_of_its_name_alone(make):
    first, second = make("5/hour"), make("5/hour")
    first.acquire()
    first.close()
    assert second.try_acquire()


def test_a_name_can_be_used_again_after_closing(make):
    make("2/hour").close()
    assert make("2/hour").try_acquire()


def test_a_permit_can_be_ended_after_closing(make):
    limiter = make("1 concurrent")
    permit = limiter.acquire()
    limiter.close()
    permit.complete()
    assert limiter.stats().completed == 1


# -- pickling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "there_and_back", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy], ids=["pickle", "copy"]
)
def test_a_limiter_is_copied_by_its_configuration_or_not_at_all(engine, make, kind, there_and_back):
    limiter = make(kind.limit, timeout=5)
    if not engine.shared:
        with pytest.raises(TypeError, match="memory://"):
            there_and_back(limiter)
        return
    permit = limiter.acquire(cost=kind.cost(kind.count))
    other = there_and_back(limiter)
    assert (other.name, other.limit) == (limiter.name, limiter.limit)
    assert not other.try_acquire()
    assert other.stats().granted == 0
    permit.cancel()
    other.close()


def test_a_copy_says_what_was_said_last(engine, make):
    if not engine.shared:
        return  # a limiter in memory is not copied
    limiter = make("100/hour")
    limiter.set_limit("50/hour")
    copied = pickle.loads(pickle.dumps(limiter))
    assert copied.limit == limiter.limit
    copied.acquire()
    assert limiter.peek().remaining == 49
    copied.close()


# -- threads and loops -------------------------------------------------------------------------------------------


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
        callers = Callers()
        for number in range(4):
            callers.start(self.thread, number)
        for number in (4, 8):
            callers.start(self.loop, range(number, number + 4))
        assert [outcome for outcome in callers.join() if outcome] == []
        assert self.granted + self.given_up == 12 * self.rounds


@pytest.mark.parametrize("limit", ["4 concurrent", "4 concurrent; 1000000/s burst 1000"])
def test_threads_and_two_loops_share_what_is_held(make, limit):
    limiter = make(limit)
    work = Work(limiter, 15, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # how many are abandoned is not the subject here
        work.run()
    assert work.most <= 4
    eventually(lambda: limiter.peek().in_flight == limiter.peek().waiting == 0, "a ledger as new")
    stats = limiter.stats()
    assert stats.waiting == 0
    assert work.granted <= stats.granted <= work.granted + work.given_up
    limiter.acquire(cost=4, timeout=NEVER).complete()


def test_two_runs_one_after_the_other_and_at_once(make):
    limiter = make("400/s burst 1")

    async def main():
        await asyncio.gather(*(limiter.acquire_async() for _ in range(10)))

    asyncio.run(main())
    asyncio.run(main())
    callers = Callers()
    for _ in range(2):
        callers.start(lambda: asyncio.run(main()))
    assert callers.join() == [None, None]
    assert (limiter.stats().granted, limiter.stats().waiting) == (40, 0)


def test_a_task_and_a_thread_call_each_other(make):
    limiter = make("1 concurrent")
    held = limiter.acquire()

    async def main():
        task = asyncio.create_task(limiter.acquire_async())
        await eventually_async(lambda: limiter.stats().waiting == 1, "a task that waits")
        callers = Callers()
        callers.start(held.complete)
        permit = await asyncio.wait_for(task, NEVER)
        callers.join()
        callers.start(lambda: limiter.acquire().complete())
        await asyncio.to_thread(in_line, limiter, 1)
        permit.complete()
        await asyncio.to_thread(callers.join)

    asyncio.run(main())
    assert limiter.stats().completed == 3
