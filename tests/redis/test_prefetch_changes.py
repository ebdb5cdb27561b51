# mypy: disable-error-code="union-attr, var-annotated"
"""A limiter with `prefetch` over time: pauses, resets, other limits, its end, forks, and its thread."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from tests.redis.callers import Callers
from tests.redis.workers import Use, most_for_certain

from headway import Bucket, Concurrency, Limiter, LimiterClosed, Window
from headway.limiter.prefetch_options import Prefetch
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime


def fill(limiter, count, key=None):
    """Have a limiter hold at least so many tokens."""
    limiter.acquire(key, cost=count, timeout=NEVER).cancel()
    assert limiter.peek(key).lease.tokens >= count


@pytest.fixture
def direct(lender, name):
    """A limiter without prefetch on the same ledger."""

    def direct(limit, **options):
        return Limiter(limit, name=name, engine=lender, **options)

    return direct


# -- pauses


def test_a_pause_holds_here_at_once_and_elsewhere_from_the_next_call_on(borrow, direct, call):
    here, there = borrow("100/minute"), borrow("100/minute")
    fill(here, 5)
    fill(there, 5)
    call(here, "pause", 60)
    assert here.try_acquire().reason == "paused"
    assert direct("100/minute").try_acquire().reason == "paused"
    # Until it hears of the pause it may be denied as its share is used up.
    wait_until(lambda: not (found := there.try_acquire()) and found.reason == "paused", "the pause")
    call(here, "pause", 0)
    assert here.acquire(timeout=NEVER)
    wait_until(there.try_acquire, "the end of the pause")


def test_a_pause_of_everything_that_is_lifted_elsewhere_ends_here_too(borrow):
    here, there = borrow("100/minute"), borrow("100/minute")
    fill(here, 5, "alice")
    here.pause(600)
    assert here.try_acquire("alice").reason == "paused"
    there.pause(0)
    wait_until(lambda: here.try_acquire("alice"), "the end of the pause")


def test_an_answer_that_left_before_a_pause_does_not_lift_it(make_proxy, valkey, name):
    proxy = make_proxy(valkey)
    limiter = Limiter(
        "100/minute", name=name, engine=proxy.url, prefetch=Prefetch(ttl=1.5), engine_timeout=NEVER
    )
    try:
        fill(limiter, 5)
        limiter.pause(600)
        limiter.pause(0)
        leases = limiter._leases
        for _ in range(3):
            assert leases.wait_for_answers(leases.call_all(), NEVER)
            # The server answers before it hears of the pause, and the answer is here after.
            proxy.delay(answers=0.6)
            before = leases.call_all()
            time.sleep(0.2)
            proxy.delay()
            limiter.pause(600)
            (place,) = before
            assert place in leases._under_way
            wait_until(lambda: leases._answers[place] > before[place], "the answer", every=0.001)  # noqa: B023
            assert limiter.try_acquire().reason == "paused"
            limiter.pause(0)
    finally:
        proxy.heal()
        limiter.close()


# -- resets


def test_a_reset_lets_the_tokens_here_start_anew(borrow, call):
    limiter = borrow("5/hour")
    limiter.acquire(cost=5, timeout=NEVER)
    assert not limiter.try_acquire()
    call(limiter, "reset")
    assert limiter.acquire(cost=5, timeout=NEVER)
    assert not limiter.try_acquire()
    time.sleep(1)
    assert not limiter.try_acquire(), "tokens were minted"


def test_a_reset_of_one_key_leaves_the_others(borrow):
    limiter = borrow("1/hour")
    for key in "alice", "bob":
        limiter.acquire(key, timeout=NEVER)
    limiter.reset("alice")
    assert limiter.acquire("alice", timeout=NEVER)
    assert not limiter.try_acquire("bob")


# -- other limits


class Users:
    """Threads that use limiters as fast as they may; the times of their uses."""

    def __init__(self, *limiters):
        self.uses, self.going = [], True
        self.threads = [threading.Thread(target=self.work, args=(limiter,)) for limiter in limiters]
        for thread in self.threads:
            thread.start()

    def work(self, limiter):
        while self.going:
            asked = time.monotonic()
            if limiter.try_acquire():
                self.uses.append(Use(time.monotonic(), asked))
            time.sleep(0.002)

    def end(self):
        self.going = False
        for thread in self.threads:
            thread.join(NEVER)
        return sorted(self.uses)


def test_a_higher_limit_is_used(borrow, call):
    limiter = borrow("2/hour")
    limiter.acquire(cost=2, timeout=NEVER)
    call(limiter, "set_limit", "6/hour")
    assert limiter.acquire(cost=4, timeout=NEVER)
    assert not limiter.try_acquire()
    assert limiter.limit == Window(6, per=3600)


@pytest.mark.parametrize("kind", ["one", "two", "direct"])
def test_a_lower_limit_is_kept_from_its_return_on(borrow, direct, call, kind):
    high, low = "40/s", "10/s"
    limiter = borrow(high, ttl=1.5)
    others = {"one": [], "two": [borrow(high, ttl=1.5)], "direct": [direct(high)]}[kind]
    users = Users(limiter, *others)
    wait_until(lambda: len(users.uses) > 60, "uses")
    call(limiter, "set_limit", low)
    since = time.monotonic()
    wait_until(lambda: users.uses[-1] > since + 2.5, "uses under the lower limit")
    uses = [use for use in users.end() if use.asked >= since]
    assert most_for_certain(1.0, uses) <= 10
    assert len(uses) > 10


def test_a_slower_bucket_is_kept_from_its_return_on(borrow, call):
    limiter, other = (borrow(Bucket("40/s", burst=10), ttl=1.5) for _ in range(2))
    users = Users(limiter, other)
    wait_until(lambda: len(users.uses) > 60, "uses")
    call(limiter, "set_limit", Bucket("5/s", burst=5))
    since = time.monotonic()
    wait_until(lambda: users.uses[-1] > since + 2.5, "uses under the lower limit")
    uses = [use for use in users.end() if use.asked >= since]
    for span in (0.5, 1.0, 2.0):
        assert most_for_certain(span, uses) <= 5 + 5 * span + 1
    assert len(uses) > 5


def test_a_lower_limit_below_what_is_asked_for_refuses_the_waiter(borrow):
    limiter = borrow("5/hour")
    limiter.acquire(cost=5, timeout=NEVER)
    waiter = Callers(lambda: limiter.acquire(cost=4))
    wait_until(lambda: limiter.stats().waiting, "the waiter")
    limiter.set_limit("3/hour")
    assert waiter.join()[0].reason == "never"


# -- the end


def test_close_hands_back_at_once_and_ends_every_wait(borrow, direct, call, threads):
    limiter = borrow("20/hour", ttl=600)
    fill(limiter, 20)
    used = limiter.acquire(cost=5)
    waiter = Callers(lambda: limiter.acquire(cost=16))
    wait_until(lambda: limiter.stats().waiting, "the waiter")
    call(limiter, "close")
    assert used
    assert isinstance(waiter.join()[0], LimiterClosed)
    assert direct("20/hour").acquire(cost=15, timeout=SOON)
    wait_until(lambda: threads() == [], "the end of the thread")
    with pytest.raises(LimiterClosed):
        limiter.try_acquire()
    limiter.close()


def test_close_while_a_call_is_under_way_hands_back_what_that_brings(valkey, make_proxy, name, threads):
    proxy = make_proxy(valkey)
    limiter = Limiter("20/hour", name=name, engine=proxy.url, prefetch=Prefetch(ttl=600), engine_timeout=5)
    fill(limiter, 1)
    proxy.delay(answers=0.3)
    waiter = Callers(lambda: limiter.acquire(cost=20))
    wait_until(lambda: limiter.stats().waiting, "the waiter")
    limiter._leases.call_all()
    time.sleep(0.1)
    limiter.close()
    assert isinstance(waiter.join()[0], LimiterClosed)
    assert Limiter("20/hour", name=name, engine=valkey.url).acquire(cost=20, timeout=SOON)
    wait_until(lambda: threads() == [], "the end of the thread")


def test_slots_in_use_are_not_lent_to_others_after_close(borrow, direct, threads):
    limiter = borrow(Concurrency(3), ttl=0.6)
    permit = limiter.acquire(timeout=NEVER)
    limiter.close()
    other = direct(Concurrency(3))
    ends = [other.acquire(timeout=SOON) for _ in range(2)]
    time.sleep(1.5)
    assert not other.try_acquire()
    permit.complete()
    ends.append(other.acquire(timeout=SOON))
    wait_until(lambda: threads() == [], "the end of the thread")
    for end in ends:
        end.complete()


def test_a_limiter_that_is_dropped_hands_back_and_its_thread_ends(borrow, direct, lender, name, threads):
    limiter = Limiter("20/hour", name=name, engine=lender, prefetch=Prefetch(ttl=600))
    fill(limiter, 20)
    assert len(threads()) == 1
    del limiter
    gc.collect()
    wait_until(lambda: threads() == [], "the end of the thread")
    assert direct("20/hour").acquire(cost=20, timeout=SOON)


EXIT = """
from headway import Limiter
from headway.limiter.prefetch_options import Prefetch
limiter = Limiter("20/hour", name={name!r}, engine={url!r}, prefetch=Prefetch(ttl=600), engine_timeout=5)
limiter.acquire(cost=20).cancel()
assert limiter.peek().lease.tokens == 20
{rest}
"""


@pytest.mark.parametrize(
    "rest",
    ["", "raise SystemExit(0)", "import sys; sys.exit()", "del limiter"],
    ids=["end", "raise", "exit", "drop"],
)
def test_a_process_that_ends_hands_back(valkey, name, rest):
    script = EXIT.format(name=name, url=valkey.url, rest=rest)
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=NEVER)
    assert Limiter("20/hour", name=name, engine=valkey.url).acquire(cost=20, timeout=SOON)


CHILD = """
import multiprocessing
kept = []
def work():
{script}
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
raise SystemExit(child.exitcode)
"""


@pytest.mark.parametrize("rest", ["", "kept.append(limiter)"], ids=["drop", "keep"])
def test_a_child_of_multiprocessing_hands_back(valkey, name, rest):
    """Which runs no atexit, and so would leave its tokens to the end of their lease, and then some."""
    script = textwrap.indent(EXIT.format(name=name, url=valkey.url, rest=rest), "    ")
    subprocess.run([sys.executable, "-c", CHILD.format(script=script)], check=True, timeout=NEVER)
    assert Limiter("20/hour", name=name, engine=valkey.url).acquire(cost=20, timeout=SOON)


LATE = """
import atexit
def late():
    try:
        limiter.acquire()
    except Exception as error:
        print(type(error).__name__)
atexit.register(late)
"""


def test_what_is_asked_at_the_end_of_a_process_does_not_wait_for_ever(valkey, name):
    script = LATE + EXIT.format(name=name, url=valkey.url, rest="")
    ran = subprocess.run([sys.executable, "-c", script], check=True, timeout=NEVER, capture_output=True)
    assert ran.stdout.decode().strip() == "LimiterClosed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_lease_of_its_own_and_the_parent_goes_on(borrow):
    limiter = borrow("20/hour")
    limiter.acquire(cost=10, timeout=NEVER)
    client = limiter._leases.client
    child = os.fork()
    if child == 0:
        signal.alarm(int(NEVER))
        good = limiter._leases.client != client and limiter.peek().lease.tokens == 0
        good = good and all(limiter.acquire(timeout=NEVER) for _ in range(4))
        limiter.close()
        os._exit(0 if good else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert limiter.acquire(cost=6, timeout=NEVER)
    with pytest.raises(Exception, match="20/hour"):
        limiter.acquire(timeout=1)


# -- shares


def test_one_caller_that_waits_gets_as_much_as_many(borrow, direct):
    """It asks for its next permit when it has one, so that its demand never looks larger than what it gets."""
    limit = Window(20, per=1, remote=False)
    limiters = {"many": borrow(limit, ttl=1.5), "one": borrow(limit, ttl=1.5), "direct": direct(limit)}
    uses, over = dict.fromkeys(limiters, 0), threading.Event()

    def work(side):
        while not over.is_set():
            limiters[side].acquire(timeout=NEVER)
            uses[side] += 1

    sides = [*["many"] * 8, "one", "direct"]
    threads = [threading.Thread(target=work, args=(side,)) for side in sides]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(uses.values()) >= 80, "the first while")
    before = dict(uses)
    wait_until(lambda: sum(uses.values()) >= sum(before.values()) + 60, "sixty more")
    over.set()
    for thread in threads:
        thread.join(NEVER)
    assert all(uses[side] - before[side] >= 10 for side in limiters), (before, uses)


# -- the thread


def test_there_is_no_thread_before_it_is_needed_and_one_for_many_keys(borrow, threads):
    limiter = borrow("5/minute")
    limiter.peek()
    wait_until(lambda: threads() == [], "the end of the thread")
    for key in "abcdef":
        assert limiter.acquire(key, timeout=NEVER)
    assert len(threads()) == 1


def test_an_idle_limiter_hands_back_and_its_thread_ends(borrow, direct, threads):
    # On a busy machine so short a lease may end before it is renewed, and its tokens count as spent then.
    limiter = borrow("20/2s", ttl=0.3)
    fill(limiter, 20)
    wait_until(lambda: threads() == [], "the end of the thread")
    assert direct("20/2s").acquire(cost=10, timeout=NEVER)
    leases = limiter._leases
    assert (leases._plan, leases._whole, leases._answers) == ({}, {}, {})
    assert limiter.acquire(cost=10, timeout=NEVER)


def test_a_thread_that_failed_is_followed_by_another(borrow, monkeypatch):
    limiter = borrow("20/hour", ttl=0.6)
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    collect = limiter._leases._collect

    def broken(now):
        limiter._leases._collect = collect
        raise MemoryError

    limiter._leases._collect = broken
    limiter.try_acquire()
    wait_until(lambda: failed, "the failure")

    def trying():
        time.sleep(0.05)
        return limiter.try_acquire()

    wait_until(trying, "a permit")


def test_tasks_of_several_event_loops_and_threads_share_the_tokens(borrow):
    limiter = borrow("200/hour")

    async def take():
        for _ in range(10):
            await limiter.acquire_async(timeout=NEVER)

    callers = Callers(
        *[lambda: asyncio.run(take())] * 3, *[lambda: limiter.acquire(cost=10, timeout=NEVER)] * 3
    )
    callers.join()
    assert limiter.stats().granted == 33
    assert limiter.acquire(cost=140, timeout=NEVER)
    assert not limiter.try_acquire()
