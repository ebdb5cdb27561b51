"""pause: nothing is granted until it ends, waiters hear of it, the longest holds, 0 lifts it."""

# mypy: disable-error-code="union-attr"

import asyncio
import math
import time
from datetime import timedelta

import pytest

from engines.waiting import NEVER, Callers, eventually, eventually_async
from headway import RateLimited, Spacing, Window


def waits(limiter, number):
    eventually(lambda: limiter.stats().waiting == number, f"{number} waiters")


def test_nothing_is_granted_during_a_pause(make, kind, call):
    limiter = make(kind.limit)
    call(limiter.pause, HALF_AN_HOUR)
    for key in (None, "a"):
        denied = call(limiter.try_acquire, key)
        assert (bool(denied), denied.reason, denied.status.remaining) == (False, "paused", 0)
        assert HALF_AN_HOUR - NEVER < denied.retry_after <= HALF_AN_HOUR * 1.002
        status = call(limiter.peek, key)
        assert status.remaining == 0
        assert HALF_AN_HOUR - NEVER < status.retry_after <= HALF_AN_HOUR * 1.002
    with pytest.raises(RateLimited, match=r"\(paused\)$") as caught:
        call(limiter.acquire, timeout=1)
    assert (caught.value.reason, caught.value.retry_after > HALF_AN_HOUR - NEVER) == ("timeout", True)
    assert limiter.stats().granted == 0
    call(limiter.pause, 0)
    permit = call(limiter.try_acquire)
    assert permit
    permit.complete()


HALF_AN_HOUR = 1800


def test_a_pause_runs_out_by_itself(make, kind, call):
    limiter = make(kind.limit)
    begin = time.monotonic()
    call(limiter.pause, timedelta(milliseconds=100))
    call(limiter.acquire, timeout=NEVER).complete()
    assert time.monotonic() - begin >= 0.1


def test_a_pause_of_one_key_leaves_the_others_alone(make, kind, call):
    limiter = make(kind.limit)
    call(limiter.pause, 60, "a")
    assert call(limiter.try_acquire, "a").reason == "paused"
    permits = [call(limiter.try_acquire, key) for key in ("b", None)]
    call(limiter.pause, 0, "a")
    permits.append(call(limiter.try_acquire, "a"))
    for permit in filter(None, permits):
        permit.complete()
    assert all(permits)


def test_the_reason_is_that_of_the_own_key(make):
    limiter = make("1/hour")
    limiter.pause(60, "a")
    limiter.acquire("b")
    assert limiter.try_acquire("b").reason == "limit"
    with pytest.raises(RateLimited, match=r"[^)]$"):
        limiter.acquire("b", timeout=1)


def test_a_pause_holds_for_all_limiters_of_the_name(make, call):
    first, second = make("5/hour"), make("5/hour")
    call(first.pause, 60)
    assert call(second.try_acquire).reason == "paused"
    assert call(second.try_acquire, "a").reason == "paused"
    call(second.pause, 0)
    assert call(first.try_acquire)
    assert call(first.try_acquire, "a")


@pytest.mark.parametrize(
    ("options", "reason"), [({"timeout": 5}, "timeout"), ({"max_waiting": 0}, "max_waiting")]
)
def test_a_caller_that_cannot_wait_for_the_end_of_a_pause_is_told_of_the_pause(make, call, options, reason):
    limiter = make("1/hour", **options)
    limiter.pause(60, "a")
    with pytest.raises(RateLimited, match=r"\(paused\)$") as caught:
        call(limiter.acquire, "a")
    assert caught.value.reason == reason
    assert 60 - NEVER < caught.value.retry_after < 61


def test_a_longer_pause_holds(make):
    limiter = make("5/hour")
    limiter.pause(60)
    limiter.pause(HALF_AN_HOUR)
    assert limiter.try_acquire().retry_after > HALF_AN_HOUR - NEVER
    limiter.pause(0)
    assert limiter.try_acquire()


def test_pauses_of_a_key_and_of_all_hold_both(make):
    limiter = make("5/hour")
    limiter.pause(60)
    limiter.pause(HALF_AN_HOUR, "a")
    assert limiter.try_acquire("a").retry_after > HALF_AN_HOUR - NEVER
    assert limiter.try_acquire("b").retry_after < 61
    limiter.pause(0)
    assert limiter.try_acquire("a").reason == "paused"
    assert limiter.try_acquire("b")
    limiter.pause(60)
    limiter.pause(0, "a")
    assert limiter.try_acquire("a").retry_after < 61


@pytest.mark.parametrize(("limit", "alone"), [("3/hour burst 3", 1200), ("1 every 1h", 3600)])
def test_what_cools_cools_during_a_pause_too(engine, make, limit, alone, known):
    if engine.shared and "burst" in limit:
        known("a pause moves what a Bucket owes by its length, as it moves promised slots")
    limiter = make(limit)
    limiter.acquire(cost=limiter.limit.capacity)
    limiter.pause(600)
    assert alone - NEVER < limiter.peek().retry_after <= alone * 1.02


def test_a_shorter_pause_does_not_cut_a_longer_one_short(make, call):
    limiter = make("5/hour")
    for key in (None, "a"):
        call(limiter.pause, HALF_AN_HOUR, key)
        call(limiter.pause, 1, key)
        assert call(limiter.try_acquire, key).retry_after > HALF_AN_HOUR - NEVER
        call(limiter.pause, 0, key)
        assert call(limiter.try_acquire, key)


def test_a_reset_of_a_key_does_not_lift_the_pause_of_all(make, kind):
    limiter = make(kind.limit)
    limiter.pause(600)
    limiter.reset("a")
    answers = [limiter.try_acquire(key) for key in ("a", None)]
    for permit in filter(None, answers):
        permit.complete()
    assert [getattr(answer, "reason", "granted") for answer in answers] == ["paused", "paused"]


@pytest.mark.parametrize(
    ("limit", "key", "per"),
    [
        ("5/s burst 1", None, 0.2),
        ("1/200ms", None, 0.2),
        ("1 every 200ms", None, 0.2),
        ("1 concurrent", None, 0.2),
        ("1/200ms; 1 concurrent", None, 0.2),
        (
            "1/800ms",
            "alice",
            0.8,
        ),  # the news of a pause of all keys takes a moment to reach the waiters of one key
    ],
)
def test_callers_that_wait_already_wait_for_the_end_of_the_pause(hasty, limit, key, per):
    """The lease is short: a shared ledger may not tell the waiters when a pause ends by itself."""
    limiter = hasty(limit)
    begin = time.monotonic()
    held = limiter.acquire(key)
    callers = Callers()
    callers.start(lambda: limiter.acquire(key).complete())
    eventually(lambda: limiter.stats().waiting == 1 or callers.ended, "one waiter")
    paused = time.monotonic()
    limiter.pause(1.2 * per)
    punctual = time.monotonic() - begin < per / 2  # on a busy machine its time had come before the pause
    held.complete()
    assert callers.join() == [None]
    assert not punctual or time.monotonic() - paused >= 1.2 * per


@pytest.mark.parametrize(
    "limit",
    [
        Window(3, per=1),
        Spacing(0.2),
        "10/s burst 1",
        "2 concurrent",
        "3/s; 2 concurrent",
        {"a": "3/s", "b": "9/s"},
    ],
    ids=str,
)
@pytest.mark.parametrize("key", [None, "alice"])
def test_waiters_go_when_the_pause_is_lifted(make, limit, key):
    limiter = make(limit)
    callers = Callers()
    limiter.pause(600)
    for number in (1, 2):
        callers.start(lambda: limiter.acquire(key).complete())
        waits(limiter, number)
    limiter.pause(0)
    assert callers.join() == [None, None]


def test_a_pause_that_is_made_longer_holds_the_waiters_that_slept_until_its_end(make):
    limiter = make(Window(3, per=1))
    callers = Callers()
    begin = time.monotonic()
    limiter.pause(0.2)
    callers.start(limiter.acquire)
    waits(limiter, 1)
    longer = time.monotonic()
    limiter.pause(0.4)
    if callers.ended:
        assert time.monotonic() - begin >= 0.2
        return
    callers.join()
    assert time.monotonic() - longer >= 0.4


def test_the_end_of_a_pause_is_no_burst(make):
    limiter = make("20/s burst 1")
    limiter.pause(0.2)
    callers = Callers()
    begin = time.monotonic()
    for _ in range(4):
        callers.start(limiter.acquire)
    eventually(lambda: limiter.stats().waiting == 4 or callers.ended, "four waiters")
    punctual = not callers.ended
    callers.join()
    assert not punctual or time.monotonic() - begin >= 3 * 0.05


def test_tasks_hear_of_a_pause_and_of_its_end(make):
    limiter = make("20/s burst 1")

    async def main():
        await limiter.acquire_async()
        await limiter.pause_async(600)
        sleepers = [asyncio.create_task(limiter.acquire_async("alice")) for _ in range(3)]
        await eventually_async(lambda: limiter.stats().waiting == 3, "three waiters")
        assert (await limiter.try_acquire_async("bob")).reason == "paused"
        await limiter.pause_async(0)
        await asyncio.wait_for(asyncio.gather(*sleepers), NEVER)
        assert await limiter.try_acquire_async("bob")

    asyncio.run(main())


ONE_METRIC = {"calls": "50/s burst 1"}
TWO_METRICS = {"calls": "50/s burst 1", "slots": "9 concurrent"}


@pytest.mark.parametrize("limit", [ONE_METRIC, TWO_METRICS], ids=str)
@pytest.mark.parametrize("lifted", [True, False])
def test_waiters_for_a_metric_go_when_the_pause_of_their_key_ends(make, limit, lifted):
    limiter = make(limit)
    callers, begin = Callers(), time.monotonic()
    limiter.pause(HALF_AN_HOUR if lifted else 0.3, "a")
    for number in (1, 2, 3):
        callers.start(lambda: limiter.acquire("a").complete())
        eventually(lambda number=number: limiter.stats().waiting == number or callers.ended, "one more")
    limiter.acquire("b", timeout=NEVER).complete()
    if lifted:
        assert not callers.ended
        limiter.pause(0, "a")
    assert callers.join() == [None] * 3
    assert lifted or time.monotonic() - begin >= 0.3


def test_a_pause_of_a_key_holds_whatever_metric_it_is_the_key_of(make, call):
    limiter = make({"host": "5/hour", "all": "9/hour"})
    call(limiter.pause, HALF_AN_HOUR, "a")
    denied = call(limiter.try_acquire, {"host": "a"})
    assert denied.reason == "paused"
    assert denied.retry_after > HALF_AN_HOUR - NEVER
    assert call(limiter.try_acquire, {"host": "b"})
    assert call(limiter.peek, {"host": "a"}).remaining == 0
    call(limiter.reset, {"host": "a"})
    assert call(limiter.try_acquire, {"host": "a"})


def test_a_bad_pause_changes_nothing(make, call):
    limiter = make("1/hour")
    for seconds in (-1, math.nan, math.inf, "5", "soon", "", None, True):
        with pytest.raises(ValueError, match=r"^seconds=.* is not accepted; give seconds from 0 up"):
            call(limiter.pause, seconds)
    assert call(limiter.try_acquire)


@pytest.mark.parametrize("key", [5, b"a"])
def test_a_bad_key(make, call, key):
    limiter = make("1/hour")
    with pytest.raises(TypeError, match=r"key must be a str or None, not (int|bytes)$"):
        call(limiter.pause, 5, key)
    assert call(limiter.try_acquire)
