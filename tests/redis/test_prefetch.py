# mypy: disable-error-code="attr-defined, var-annotated"
"""A limiter with `prefetch`: every verb and option, decided with borrowed tokens."""

import asyncio
import pickle
import threading
import time

import pytest
from tests.redis.callers import Callers, outcome_of

from headway import (
    AcquireTimeout,
    AllOf,
    Bucket,
    Concurrency,
    FixedWindow,
    InvalidArgument,
    InvalidLimit,
    InvalidUse,
    Limiter,
    LimiterClosed,
    NotPromised,
    RateLimited,
    Remote,
    Spacing,
    Window,
    throttle,
)
from headway.limiter.prefetch_options import Prefetch
from headway.status import LeaseStatus
from waiting import NEVER, wait_until

pytestmark = pytest.mark.realtime

REMOTE = Remote(resolution=0, max_transit=0.2)
KINDS = {
    "window": Window(5, per=60, remote=False),
    "bracketed": Window(5, per=60),
    "remote": Window(5, per=60, remote=REMOTE),
    "bucket": Bucket("5/minute", burst=5),
    "fixed_window": FixedWindow(5, per="day"),
    "concurrency": Concurrency(5),
    "all_of": AllOf(Window(5, per=60), Bucket("9/minute", burst=9), Concurrency(7)),
}


def granted_in_the_end(limiter, *args, **options):
    """Try until a permit is there: its tokens are on their way."""
    got = []

    def trying():
        got.append(limiter.try_acquire(*args, **options))
        return bool(got[-1])

    wait_until(trying, "a permit")
    return got[-1]


# -- granting


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_as_the_limit_are_granted_and_no_more(borrow, call, kind):
    limiter = borrow(KINDS[kind])
    permits = [call(limiter, "acquire", timeout=NEVER) for _ in range(5)]
    assert all(permits)
    denied = call(limiter, "try_acquire")
    assert not denied
    assert (denied.reason, denied.retry_after > 0) == ("limit", True)
    with pytest.raises(AcquireTimeout):
        call(limiter, "acquire", timeout=0.2)
    assert limiter.stats().granted == 5
    for permit in permits:
        permit.complete()


def test_the_first_try_is_denied_with_a_time_and_a_later_one_granted(borrow, call):
    limiter = borrow("5/minute")
    denied = call(limiter, "try_acquire")
    assert not denied
    assert (denied.reason, denied.retry_after) == ("limit", pytest.approx(3 / 12))
    assert not denied.status.exact
    granted_in_the_end(limiter)


def test_a_first_request_whose_timeout_is_short_still_asks_for_tokens(borrow, call):
    """How soon tokens come is not known before they are there: nothing is certain that could be said at once."""
    limiter = borrow("5/minute")

    def trying():
        try:
            return call(limiter, "acquire", timeout=0.01)
        except AcquireTimeout:
            return None

    wait_until(trying, "a permit")


def test_decisions_with_tokens_at_hand_make_no_call(borrow):
    limiter = borrow("1000/minute", ttl=60)
    limiter.acquire()
    wait_until(lambda: limiter.peek().lease.tokens > 100, "tokens")
    calls = limiter.stats().calls
    for _ in range(50):
        assert limiter.try_acquire()
    assert limiter.stats().calls == calls


def test_a_cost_of_more_than_is_held_is_waited_for(borrow, call):
    limiter = borrow("20/minute")
    call(limiter, "acquire", timeout=NEVER)
    assert call(limiter, "acquire", cost=19, timeout=NEVER).cost == 19
    assert not call(limiter, "try_acquire")


def test_ends_bring_tokens_back_as_they_do_without_prefetch(borrow):
    limiter = borrow(Concurrency(1))
    permit = limiter.acquire()
    assert not limiter.try_acquire()
    permit.complete()
    limiter.try_acquire().complete()
    window = borrow("2/minute", name="other")
    window.acquire(cost=2).cancel()
    assert window.acquire(cost=2, timeout=NEVER)


# -- keys, overrides, metrics


def test_keys_have_tokens_of_their_own(borrow, call):
    limiter = borrow("1/minute")
    assert call(limiter, "acquire", "alice", timeout=NEVER).key == "alice"
    assert call(limiter, "acquire", "bob", timeout=NEVER).key == "bob"
    assert not call(limiter, "try_acquire", "alice")
    assert call(limiter, "peek", "alice").lease.tokens == 1
    assert call(limiter, "peek", "carol").lease.tokens == 0


def test_overrides_and_exempt_keys(borrow, call):
    limiter = borrow("1/minute", overrides={"gold": "3/minute", "free": None})
    for _ in range(3):
        assert call(limiter, "acquire", "gold", timeout=NEVER)
    assert not call(limiter, "try_acquire", "gold")
    before = limiter.stats().calls
    for _ in range(20):
        assert call(limiter, "try_acquire", "free")
    assert limiter.stats().calls <= before + 2
    assert call(limiter, "acquire", "other", timeout=NEVER)
    assert not call(limiter, "try_acquire", "other")
    assert limiter.peek("free").lease is None


def test_overrides_by_a_function(borrow):
    limiter = borrow("1/minute", overrides=lambda key: "3/minute" if key.startswith("gold") else None)
    for _ in range(3):
        assert limiter.acquire("gold 1", timeout=NEVER)
    assert limiter.acquire("plain", timeout=NEVER)
    assert not limiter.try_acquire("plain")


def test_metrics_are_lent_each_on_its_own(borrow, call):
    limiter = borrow({"requests": "2/minute", "tokens": "1000/minute"})
    cost = {"requests": 1, "tokens": 600}
    permit = call(limiter, "acquire", "alice", cost=cost, timeout=NEVER)
    assert permit.cost == cost
    assert not call(limiter, "try_acquire", "alice", cost=cost)
    assert call(limiter, "acquire", "alice", cost={"requests": 1, "tokens": 400}, timeout=NEVER)
    status = call(limiter, "peek", "alice")
    assert (status["requests"].remaining, status["tokens"].remaining) == (0, 0)
    assert status["tokens"].lease.tokens == 1000
    permit.settle({"tokens": 100})
    assert limiter.peek("alice")["tokens"].remaining == 500


# -- waiting


def test_waiters_are_served_in_the_order_in_which_they_came(borrow):
    limiter = borrow("5/s")
    served = []
    lock = threading.Lock()

    def wait(number):
        limiter.acquire(timeout=NEVER)
        with lock:
            served.append(number)

    waiters = []
    for number in range(8):
        waiters.append(threading.Thread(target=wait, args=(number,)))
        waiters[-1].start()
        wait_until(
            lambda n=number: limiter.stats().waiting + limiter.stats().granted > n, "the waiter", every=0.001
        )
        time.sleep(0.01)
    for waiter in waiters:
        waiter.join(NEVER)
    # Those that are granted at once by the same answer note it in any order.
    assert sorted(served[:5]) == list(range(5))
    assert sorted(served[5:]) == [5, 6, 7]
    assert limiter.stats().granted == 8


def test_a_task_that_is_cancelled_gives_its_place_up(borrow):
    limiter = borrow("1/s")

    async def main():
        await limiter.acquire_async()
        waiting = [asyncio.create_task(limiter.acquire_async()) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert limiter.stats().waiting == 3
        for task in waiting[:2]:
            task.cancel()
        await asyncio.wait_for(waiting[2], NEVER)
        assert all(task.cancelled() for task in waiting[:2])

    asyncio.run(main())
    assert (limiter.stats().waiting, limiter.stats().granted) == (0, 2)


def test_max_waiting(borrow):
    limiter = borrow("1/hour", max_waiting=1)
    limiter.acquire()
    waiter = Callers(limiter.acquire)
    wait_until(lambda: limiter.stats().waiting == 1, "a waiter")
    with pytest.raises(RateLimited) as raised:
        limiter.acquire()
    assert raised.value.reason == "max_waiting"
    limiter.close()
    assert isinstance(waiter.join()[0], LimiterClosed)


def test_a_limit_of_zero_grants_nothing(borrow):
    limiter = borrow("0/minute")
    assert not limiter.try_acquire()
    with pytest.raises(RateLimited) as raised:
        limiter.acquire()
    assert raised.value.reason == "never"


# -- forms


def test_hold_with_and_throttle(lender, borrow, name):
    limiter = borrow("1 concurrent")
    with limiter.hold():
        assert limiter.peek().in_flight == 1
    with limiter:
        assert not limiter.try_acquire()

    async def main():
        async with limiter:
            assert not await limiter.try_acquire_async()

    asyncio.run(main())

    @throttle("2/minute", name=name + "f", engine=lender, prefetch=True, timeout=NEVER)
    def work():
        return "done"

    assert [work(), work()] == ["done", "done"]
    with pytest.raises(AcquireTimeout):
        throttle(work.limiter, timeout=0.1)(lambda: None)()
    work.limiter.close()


def test_a_copy_by_pickle_borrows_for_itself(borrow, lender):
    limiter = borrow("100/minute")
    limiter.acquire()
    copy = pickle.loads(pickle.dumps(limiter))
    try:
        assert copy._options["prefetch"] == Prefetch(ttl=3)
        assert copy.acquire(timeout=NEVER)
        assert copy._leases.client != limiter._leases.client
        assert repr(copy) == repr(limiter)
        assert f"engine='{lender}" in repr(limiter)
    finally:
        copy.close()


def test_a_subclass(borrow):
    class Mine(Limiter):
        pass

    limiter = borrow("5/minute", kind=Mine)
    assert limiter.acquire(timeout=NEVER)
    assert repr(limiter).startswith("Mine(")


def test_events(borrow):
    events = []
    limiter = borrow("1/minute", on_event=events.append)
    limiter.acquire(timeout=NEVER).complete()
    limiter.try_acquire()
    limiter.pause(60)
    limiter.pause(0)
    assert [event.kind for event in events] == ["waited", "completed", "denied", "paused", "paused"]
    assert {event.limiter for event in events} == {limiter.name}


def test_peek_and_stats_say_what_is_held_and_how_often_the_engine_was_called(borrow):
    limiter = borrow("20/minute")
    assert limiter.peek().lease == LeaseStatus(tokens=0, expires_in=0.0, elsewhere=None)
    limiter.acquire(timeout=NEVER)
    status = limiter.peek()
    assert 1 <= status.lease.tokens <= 20
    assert 0 < status.lease.expires_in <= 3
    assert status.lease.tokens + status.lease.elsewhere == 20
    assert status.remaining == status.lease.tokens - 1
    assert limiter.stats().calls >= 1


# -- refusals


@pytest.mark.parametrize(
    "limit", [Spacing("1s"), AllOf("5/minute", Spacing("1s")), {"a": "5/minute", "b": Spacing("1s")}], ids=str
)
def test_a_spacing_is_refused_with_the_reason(borrow, limit):
    with pytest.raises(InvalidLimit, match="one slot at a time, and nothing that could be lent ahead"):
        borrow(limit)


def test_a_spacing_is_refused_in_overrides_too(borrow):
    with pytest.raises((InvalidLimit, InvalidArgument)):
        borrow("5/minute", overrides={"slow": Spacing("1s")})


def test_memory_has_nothing_to_prefetch_from():
    with pytest.raises(InvalidArgument, match="prefetch"):
        Limiter("5/minute", prefetch=True)


@pytest.mark.parametrize("prefetch", [None, 1, "yes", 3.0])
def test_prefetch_is_true_false_or_options(borrow, prefetch):
    with pytest.raises(InvalidArgument, match="prefetch"):
        borrow("5/minute", prefetch=prefetch)


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0},
        {"ttl": 0.29},
        {"ttl": 3601},
        {"ttl": float("nan")},
        {"predict_window": 0},
        {"predict_window": None},
        {"min_tokens": 0},
        {"min_tokens": 1.5},
        {"min_tokens": True},
    ],
    ids=str,
)
def test_options_that_make_no_sense(options):
    (option,) = options
    with pytest.raises(InvalidArgument, match=option):
        Prefetch(**options)


def test_at_least_min_tokens_are_asked_for(borrow):
    limiter = borrow("100/minute", prefetch=Prefetch(min_tokens=60))
    limiter.acquire(timeout=NEVER)
    assert limiter.peek().lease.tokens >= 60
    few = borrow("5/minute", name="few", prefetch=Prefetch(min_tokens=60))
    few.acquire(timeout=NEVER)
    assert few.peek().lease.tokens == 5


def test_reserve_and_reset_all_are_refused_clearly(borrow, threads):
    limiter = borrow(Bucket("5/minute", burst=5))
    with pytest.raises(NotPromised, match="beyond the end of a lease"):
        limiter.reserve()
    assert isinstance(outcome_of(limiter.reset_all), InvalidUse)
    assert threads() == []
