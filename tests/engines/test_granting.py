"""try_acquire and acquire where nothing is waited for: what is granted, what is denied, and what a denial says."""

# mypy: disable-error-code="union-attr"

import math
import time

import pytest

from engines.limits import HOUR
from engines.waiting import counts, eventually
from headway import Limiter, RateLimited, Window


def test_grants_what_the_limit_has_and_not_one_more(make, kind, call):
    limiter = make(kind.limit)
    permits = [call(limiter.try_acquire) for _ in range(kind.count)]
    assert all(permits)
    denied = call(limiter.try_acquire)
    assert (bool(denied), denied.reason, denied.key) == (False, "limit", None)
    assert denied.retry_after > 0
    stats = limiter.stats()
    assert (stats.granted, stats.denied, stats.waiting) == (kind.count, 1, 0)
    for permit in permits:
        permit.complete()


def test_acquire_does_not_wait_for_what_is_there(make, kind, call):
    limiter = make(kind.limit)
    permits = [call(limiter.acquire, timeout=0) for _ in range(kind.count)]
    with pytest.raises(RateLimited):
        call(limiter.acquire, timeout=0)
    assert limiter.stats().granted == kind.count
    for permit in permits:
        permit.complete()


def test_a_cost_is_taken_at_once_or_not_at_all(make, kind, call):
    limiter = make(kind.limit)
    permit = call(limiter.try_acquire, cost=kind.cost(kind.count))
    assert permit.cost == kind.cost(kind.count)
    assert not call(limiter.try_acquire, cost=kind.cost(1))
    permit.cancel()
    if kind.count > 1:
        eventually(lambda: limiter.peek().remaining == kind.count, "what was given back")
        first = call(limiter.try_acquire)
        assert not call(limiter.try_acquire, cost=kind.cost(kind.count))
        rest = call(limiter.try_acquire, cost=kind.cost(kind.count - 1))
        assert rest, "a denial takes nothing"
        for one in (first, rest):
            one.complete()


def test_a_denial_says_what_peek_says(make, kind):
    limiter = make(kind.limit)
    permit = limiter.try_acquire("a", cost=kind.cost(kind.count))
    denied, status = limiter.try_acquire("a"), limiter.peek("a")
    assert denied.key == "a"
    for said in (denied, denied.status, status):
        assert said.limit == status.limit
        assert said.retry_after == pytest.approx(status.retry_after, abs=NOISE)
    assert denied.status.exact == status.exact == kind.exact
    assert denied.status.remaining == status.remaining == 0
    assert denied.status.in_flight == status.in_flight
    assert [part.remaining for part in denied.status.parts] == [part.remaining for part in status.parts]
    permit.complete()


NOISE = 30.0
"""Seconds by which two answers about an hour may differ: a busy machine takes its time between them."""


def test_keys_have_ledgers_of_their_own(make, kind, call):
    limiter = make(kind.limit)
    keys = (None, "a", "b", "")
    permits = [call(limiter.try_acquire, key, cost=kind.cost(kind.count)) for key in keys]
    assert all(permits)
    assert [permit.key for permit in permits] == list(keys)
    assert not any(call(limiter.try_acquire, key) for key in keys)
    for permit in permits:
        permit.complete()


def test_limiters_of_one_name_share_a_ledger(make, anew, kind):
    first, second, stranger = make(kind.limit), make(kind.limit), anew(kind.limit)
    permit = first.try_acquire("a", cost=kind.cost(kind.count))
    assert not second.try_acquire("a")
    assert first.name == second.name != stranger.name
    permits = [permit, stranger.try_acquire("a", cost=kind.cost(kind.count))]
    assert all(permits)
    for permit in permits:
        permit.cancel()
    eventually(lambda: second.peek("a").remaining == kind.count, "what was given back through the other")


@pytest.mark.parametrize(
    "limit",
    ["0/s", "0/s burst 5", "0 concurrent", "0/day aligned", "5/s; 0/minute", {"a": "5/s", "b": "0/s"}],
)
def test_a_count_of_zero_admits_nothing(make, call, limit):
    limiter = make(limit)
    denied = call(limiter.try_acquire)
    assert not denied
    assert denied.retry_after == math.inf
    for options in ({}, {"timeout": 5}, {"timeout": 0}):
        with pytest.raises(RateLimited) as caught:
            call(limiter.acquire, **options)
        assert caught.value.retry_after == math.inf
    with pytest.raises(RateLimited) as caught:
        call(limiter.acquire)
    assert caught.value.reason == "never"
    stats = limiter.stats()
    assert (stats.granted, stats.waiting, call(limiter.peek).remaining) == (0, 0, 0)


def test_after_the_promised_wait_there_is_a_permit(make, fast):
    """`retry_after` is exact: not a moment more has to be waited for."""
    limiter = make(fast.limit)
    begin = time.monotonic()
    limiter.acquire(cost=fast.cost(fast.count)).complete()
    waits = 0
    while not (answer := limiter.try_acquire()):
        assert answer.retry_after > 0
        if answer.status.exact:
            waits += 1
            assert waits <= 2, "the promised wait was too short"
        time.sleep(answer.retry_after)
    answer.complete()
    if fast.id != "fixed-window":
        assert time.monotonic() - begin >= fast.per


def test_a_window_is_kept_wherever_it_starts(make):
    limiter = make(Window(3, per=0.2))
    grants = []
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        before = time.monotonic()
        answer = limiter.try_acquire()
        if answer:
            grants.append((before, time.monotonic()))
        else:
            time.sleep(min(0.01, answer.retry_after))
    # The fourth was answered at least a window after the first was asked for.
    assert all(later[1] - first[0] >= 0.2 for first, later in zip(grants, grants[3:], strict=False))
    assert len(grants) >= 3


def test_limits_may_be_given_as_text_or_as_values(anew):
    for text, value in (("2/hour", Window(2, per=HOUR)), ({"a": "2/hour"}, {"a": Window(2, per=HOUR)})):
        assert anew(text).limit == anew(value).limit == value


def test_more_than_the_limit_can_ever_grant_is_an_error_at_once(make, kind, call):
    limiter = make(kind.limit)
    for verb in (limiter.try_acquire, limiter.acquire, limiter.peek):
        with pytest.raises(ValueError, match=f"at most {kind.count}"):
            call(verb, cost=kind.cost(kind.count + 1))
    assert counts(limiter)[1] in (0, (0, 0))


def test_a_limiter_begins_as_if_everything_had_just_been_used(engine, make):
    if engine.shared:
        with pytest.raises(ValueError, match="survives its clients"):
            make("3/hour", start="full")
        return
    limiter = make("3/hour", start="full")
    for key in (None, "a"):
        denied = limiter.try_acquire(key)
        assert (denied.status.remaining, bool(denied)) == (0, False)
        # What was just used may have bracketed calls, and cools for the gap of `Remote()`: by the drift of two clocks.
        assert HOUR - NOISE < denied.retry_after <= HOUR * 1.001


def test_a_shared_ledger_needs_a_name_and_one_in_memory_does_not(engine, uri):
    if engine.shared:
        with pytest.raises(ValueError, match="name"):
            Limiter("1/hour", engine=uri, **engine.options)
        return
    first, second = Limiter("1/hour", engine=uri), Limiter("1/hour", engine=uri)
    assert first.try_acquire()
    assert second.try_acquire()


def test_options_for_lost_ledgers_are_for_engines_that_can_lose_them(engine, make):
    options = {"on_engine_error": "open", "local_share": 0.2, "on_ledger_loss": "trust", "max_quarantine": 5}
    if engine.shared:
        assert make("1/hour", **options).try_acquire()
        return
    with pytest.raises(ValueError, match="shared engine"):
        make("1/hour", **options)


@pytest.mark.parametrize("limit", ["1/hour burst 1; 1 every 1s", "1/hour; 1 every 1s"])
def test_a_spacing_beside_another_limit(make, call, limit):
    """A slot of a `Spacing` has an allowance for the way to its holder there too: without one it is always over."""
    limiter = make(limit)
    assert call(limiter.acquire, timeout=0)
    with pytest.raises(RateLimited):
        call(limiter.acquire, timeout=0)
