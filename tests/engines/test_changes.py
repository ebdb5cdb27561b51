"""Another limit under the same name, and reset: what was used stays used, or not, and waiters hear of it."""

# mypy: disable-error-code="union-attr"

import time

import pytest

from engines.limits import HOUR, KINDS, REMOTE, SINGLE
from engines.waiting import Callers, counts, eventually, in_line
from headway import Bucket, Concurrency, FixedWindow, InvalidUse, LimitMismatch, RateLimited, Window

# -- another limit -----------------------------------------------------------------------------------------------

OTHERS = {
    "window": lambda n: Window(n, per=HOUR),
    "window-remote": lambda n: Window(n, per=HOUR, remote=REMOTE),
    "bucket": lambda n: Bucket((n, HOUR), burst=n),
    "fixed-window": lambda n: FixedWindow(n, per="month"),
    "concurrency": Concurrency,
}


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.id)
def test_what_was_used_stays_used(make, call, kind):
    limiter = make(kind.limit)
    held = [limiter.acquire(), limiter.acquire("a")]
    other = OTHERS[kind.id](5)
    call(limiter.set_limit, other)
    assert limiter.limit == other
    assert [call(limiter.peek, key).remaining for key in (None, "a", "new")] == [4, 4, 5]
    call(limiter.set_limit, OTHERS[kind.id](1))
    assert call(limiter.peek).remaining == 0
    assert not call(limiter.try_acquire)
    assert call(limiter.try_acquire, "new").cancel() is None
    for permit in held:
        permit.cancel()


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.id)
def test_a_limiter_that_comes_with_another_number_governs(make, kind):
    first = make(kind.limit)
    held = first.acquire(cost=2)
    second = make(OTHERS[kind.id](2))
    assert second.peek().remaining == 0
    assert first.peek().remaining == 0
    third = make(OTHERS[kind.id](7))
    assert (third.peek().remaining, first.peek().remaining) == (5, 5)
    held.cancel()


def test_of_a_window_no_more_than_the_new_limit_is_granted(make):
    limiter = make(Window(6, per=0.2))
    assert limiter.try_acquire(cost=4)
    begin = time.monotonic()
    limiter.set_limit(Window(3, per=0.2))
    for _ in range(4):
        limiter.acquire()
    # Three of the new window, and a window for the one after them.
    assert time.monotonic() - begin >= 0.2


def test_a_raised_limit_lets_waiters_in(make, call):
    limiter = make("1 concurrent")
    held = limiter.acquire()
    callers = Callers()
    callers.start(limiter.acquire)
    in_line(limiter, 1)
    call(limiter.set_limit, "2 concurrent")
    (permit,) = callers.join()
    assert counts(limiter) == (0, 2)
    for one in (held, permit):
        one.complete()


@pytest.mark.parametrize("nothing", ["0 concurrent", "1 concurrent"])
def test_a_limit_lowered_below_a_waiting_cost_refuses_it(make, nothing):
    limiter = make("2 concurrent")
    held = limiter.acquire()
    callers = Callers()
    callers.start(limiter.acquire, cost=2)
    in_line(limiter, 1)
    limiter.set_limit(nothing)
    (error,) = callers.join()
    assert isinstance(error, RateLimited)
    assert error.reason == "never"
    eventually(lambda: limiter.peek().waiting == limiter.stats().waiting == 0, "an empty line")
    with pytest.raises((ValueError, RateLimited)):
        limiter.acquire(cost=2)
    held.complete()


def test_fewer_at_a_time_than_are_out(make):
    limiter = make("4 concurrent")
    permits = [limiter.acquire() for _ in range(4)]
    limiter.set_limit("2 concurrent")
    for left, out in ((0, 4), (0, 3), (0, 2), (1, 1)):
        eventually(lambda left=left, out=out: counts(limiter) == (left, out), f"{left} left, {out} out")
        permits.pop().complete()
    eventually(lambda: counts(limiter) == (2, 0), "all of the new limit")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_another_kind_is_refused_and_changes_nothing(make, call, kind):
    limiter = make(kind.limit)
    permit = limiter.acquire()
    before = counts(limiter), limiter.stats(), limiter.limit
    others = ["9 concurrent", "9/hour", "9/hour burst 1", "9/hour; 5/s", {"tokens": "9/hour"}]
    same = {"window": 1, "window-remote": 1, "bucket": 2, "concurrency": 0}.get(kind.id)
    for number, other in enumerate(others):
        if number == same:
            continue
        with pytest.raises(LimitMismatch):
            call(limiter.set_limit, other)
    with pytest.raises(ValueError, match="unit"):
        call(limiter.set_limit, "5/parsec")
    assert (counts(limiter), limiter.stats(), limiter.limit) == before
    permit.complete()


@pytest.mark.parametrize(
    "other", ["5 concurrent", "5/hour burst 5", "5/hour; 5/s", {"tokens": "5/hour"}], ids=str
)
def test_another_kind_under_the_same_name_is_an_error(make, name, other):
    first = make("5/hour")
    first.acquire()
    with pytest.raises(LimitMismatch, match=r"kept as '5/hour'.*: use another name") as caught:
        make(other).acquire()
    assert caught.value.name == name
    assert first.peek().remaining == 4


def test_metrics_change_together(make, call):
    limiter = make({"requests": "5/hour", "tokens": "100/hour"})
    limiter.acquire(cost={"tokens": 50})
    call(limiter.set_limit, {"requests": "4/hour", "tokens": "60/hour"})
    assert counts(limiter)[0] == (3, 10)
    assert limiter.limit == {"requests": Window(4, per=HOUR), "tokens": Window(60, per=HOUR)}


def test_a_key_with_an_override_keeps_it(make):
    for own in ("3/hour", "2/hour"):
        limiter = make("2/hour", overrides={"vip": own}, name=f"overridden {own} {id(make)}")
        limiter.acquire("a")
        limiter.acquire("vip")
        limiter.set_limit("9/hour")
        left = [limiter.peek(key).remaining for key in ("a", "vip", "new")]
        assert left == [8, int(own[0]) - 1, 9]


@pytest.mark.parametrize("how", ["complete", "cancel"])
def test_a_permit_taken_before_can_be_ended_after(make, how):
    limiter = make(Window(5, per=HOUR, remote=REMOTE))
    first, second = limiter.acquire(), limiter.acquire()
    limiter.set_limit(Window(3, per=HOUR, remote=REMOTE))
    assert limiter.peek().in_flight == 2
    getattr(first, how)()
    eventually(lambda: counts(limiter) == (2 if how == "cancel" else 1, 1), how)
    second.complete()
    eventually(lambda: counts(limiter) == (2 if how == "cancel" else 1, 0), "complete")


# -- reset -------------------------------------------------------------------------------------------------------


def test_all_keys_start_anew_in_memory_and_shared_engines_say_what_to_do(engine, make, call):
    limiter = make("1/hour")
    for key in (None, "a"):
        assert limiter.try_acquire(key)
    if engine.shared:
        with pytest.raises(InvalidUse, match=r"write `limiter.reset\(key\)`"):
            call(limiter.reset_all)
        return
    call(limiter.reset_all)
    assert all(limiter.try_acquire(key) for key in (None, "a"))


def test_a_reset_lets_a_key_start_anew(make, kind, call):
    limiter = make(kind.limit)
    permits = [limiter.acquire(key, cost=kind.cost(kind.count)) for key in (None, "a", "b")]
    fresh = counts(limiter, "fresh")
    call(limiter.reset, "a")
    assert [counts(limiter, key) == fresh for key in (None, "a", "b")] == [False, True, False]
    call(limiter.reset)
    assert [counts(limiter, key) == fresh for key in (None, "a", "b")] == [True, True, False]
    for permit in permits:
        permit.cancel()
    eventually(lambda: limiter.peek("b").in_flight == 0, "what was not reset")


def test_nothing_comes_back_for_what_was_taken_before_a_reset(make, kind):
    limiter = make(kind.limit)
    before = limiter.acquire(cost=kind.cost(kind.count))
    limiter.reset()
    after = limiter.acquire(cost=kind.cost(kind.count), timeout=0)
    before.cancel()
    used = counts(limiter)
    for _ in range(5):
        assert not limiter.try_acquire()
        assert counts(limiter) == used
        time.sleep(0.01)
    after.cancel()
    eventually(lambda: limiter.peek().remaining == kind.count, "what was taken after it")


def test_what_was_out_at_a_reset_is_out_no_more(make):
    limiter = make("2 concurrent")
    permit = limiter.acquire("a")
    limiter.reset("a")
    assert counts(limiter, "a") == (2, 0)
    permit.complete()
    late = limiter.acquire("a", cost=2)
    limiter.reset("a")
    late.settle(3)
    time.sleep(0.02)
    assert counts(limiter, "a") == (2, 0)


@pytest.mark.parametrize(
    "limit", ["1 concurrent", "1/hour; 9 concurrent", {"a": "1/hour", "b": "9/hour"}], ids=str
)
def test_a_reset_wakes_the_waiters_of_the_key(make, call, limit):
    limiter = make(limit)
    held = [limiter.acquire(key) for key in ("a", "b")]
    callers = Callers()
    for key in ("a", "b"):
        callers.start(lambda key=key: limiter.acquire(key).complete(), label=key)
    eventually(lambda: limiter.stats().waiting == 2, "two waiters")
    for key in ("a", "b"):
        eventually(lambda key=key: limiter.peek(key).waiting, "one in line")
    call(limiter.reset, "a")
    eventually(lambda: callers.ended == [("a", None)], "the one whose key was reset")
    call(limiter.reset, "b")
    assert callers.labels() == ["a", "b"]
    for permit in held:
        permit.complete()


@pytest.mark.parametrize("limit", ["1/hour", "1/hour burst 1", "1 every 1h", "1/month aligned"])
def test_a_reset_wakes_a_waiter_or_keeps_the_time_it_was_promised(engine, make, call, limit):
    """A waiter in the queue is served. A waiter that was promised a time keeps it, and a newcomer is served."""
    limiter = make(limit)
    limiter.acquire()
    callers = Callers()
    callers.start(limiter.acquire)
    in_line(limiter, 1)
    call(limiter.reset)
    # A `Window` promises no time while a bare permit cools that may still be entered.
    if engine.keeps_promised_times and limit not in ("1/hour", "1/month aligned"):
        assert call(limiter.try_acquire)
        limiter.close()
    callers.join()


def test_a_reset_lifts_the_pause_of_the_key(make, call):
    limiter = make("1/hour")
    limiter.pause(60, "a")
    call(limiter.reset, "a")
    assert call(limiter.try_acquire, "a")


@pytest.mark.parametrize("key", [5, b"a"])
def test_a_bad_key_to_reset(make, call, key):
    limiter = make("1/hour")
    limiter.acquire()
    with pytest.raises(TypeError, match=r"key must be a str or None, not (int|bytes)$"):
        call(limiter.reset, key)
    assert not limiter.try_acquire()


def test_a_reset_of_a_metric_alone(make, call):
    limiter = make({"host": "1/hour", "all": "3/hour"})
    assert limiter.try_acquire({"host": "a"})
    assert limiter.try_acquire({"host": "b"})
    call(limiter.reset, {"host": "a"})
    assert limiter.peek({"host": "a"}).parts[0].remaining == 1
    assert limiter.peek({"host": "b"}).parts[0].remaining == 0
