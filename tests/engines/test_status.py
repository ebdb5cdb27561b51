"""What a limiter says of itself: peek, stats, events, errors that travel."""

# mypy: disable-error-code="union-attr"

import math
import pickle
import warnings

import pytest

from engines.limits import HOUR, REMOTE
from engines.waiting import NEVER, Callers, counts, eventually, in_line
from headway import LimiterEvent, RateLimited, Window


def about(seconds):
    """So long, less what has passed, and a little more where another clock has to be waited for."""
    return pytest.approx(seconds, abs=NEVER + 0.02 * seconds) if math.isfinite(seconds) else seconds


@pytest.mark.parametrize(
    ("limit", "before", "after"),
    [
        ("3/hour", (3, 0, 0, 0, True), (0, HOUR, HOUR, 0, True)),
        ("3/hour burst 3", (3, 0, 0, 0, True), (0, HOUR / 3, HOUR, 0, True)),
        ("3 concurrent", (3, 0, 0, 0, True), (0, 0, math.inf, 3, False)),
        (Window(3, per=HOUR, remote=REMOTE), (3, 0, 0, 0, True), (0, HOUR, 2 * HOUR, 3, False)),
    ],
    ids=str,
)
def test_the_facts_of_each_kind(engine, make, call, limit, before, after):
    limiter = make(limit)

    def check(status, expected):
        remaining, retry, reset, out, exact = expected
        assert (status.remaining, status.in_flight, status.exact) == (remaining, out, exact)
        assert status.retry_after == about(retry)
        if not (engine.shared and out):  # until its lease ends, for all that a shared ledger knows
            assert status.reset_after == about(reset)

    check(call(limiter.peek), before)
    permit = limiter.acquire(cost=3)
    check(call(limiter.peek), after)
    denied = call(limiter.try_acquire)
    assert denied.retry_after > 0
    check(denied.status, after)
    permit.complete()


def test_the_reset_of_a_calendar_quota_is_in_every_status(make):
    limiter = make("3/month aligned")
    assert 0 < limiter.peek().reset_after <= 31 * 86400
    limiter.acquire(cost=3)
    status = limiter.peek()
    assert status.retry_after == about(status.reset_after)


def test_of_several_limits_the_one_that_binds(make, call):
    limiter = make("5/minute; 8/hour; 20/day")
    assert limiter.peek().limit == Window(5, per=60)
    limiter.acquire(cost=5)
    status = call(limiter.peek, cost=4)
    assert status.limit == Window(8, per=HOUR)
    assert [str(part.limit) for part in status.parts] == ["5/minute", "8/hour", "20/day"]
    assert [part.remaining for part in status.parts] == [0, 3, 15]
    assert [part.retry_after > 0 for part in status.parts] == [True, True, False]


def test_headers(make):
    limiter = make("5/hour")
    headers = limiter.peek().headers()
    assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("5", "5")
    assert "Retry-After" not in headers
    limiter.acquire(cost=5)
    headers = limiter.try_acquire().status.headers()
    assert headers["X-RateLimit-Remaining"] == "0"
    assert int(headers["Retry-After"]) == about(HOUR)


def test_looking_changes_nothing(make, kind, call):
    limiter = make(kind.limit)
    permit = limiter.acquire("a")
    before = counts(limiter, "a"), limiter.stats()
    for _ in range(20):
        call(limiter.peek, "a")
    assert (counts(limiter, "a"), limiter.stats()) == before
    permit.complete()


@pytest.mark.parametrize("limit", ["10/hour", "10/hour burst 10"])
def test_a_waiter_is_counted_once_whatever_it_costs(engine, make, limit, known):
    if engine.shared and "burst" in limit:
        known("status.waiting counts permits, not waiters, where waiters are promised times: 4 here")
    limiter = make(limit)
    limiter.acquire(cost=10)
    callers = Callers()
    callers.start(limiter.acquire, cost=4)
    eventually(lambda: limiter.peek().waiting, "a waiter")
    seen = limiter.peek().waiting
    limiter.close()
    callers.join()
    assert seen == 1


@pytest.mark.parametrize(
    "limit", ["1/hour", "1/hour burst 1", "1 every 1h", "1/month aligned", "1/hour; 2/hour"]
)
def test_peek_counts_the_queue(engine, make, limit, known):
    if engine.shared and limit in ("1/hour", "1/month aligned", "1/hour; 2/hour"):
        known(
            "where a shared ledger keeps a queue, retry_after is a lower bound that does not count the waiters"
        )
    limiter = make(limit)
    limiter.acquire()
    alone = limiter.peek().retry_after
    callers = Callers()
    for number in (1, 2):
        callers.start(limiter.acquire)
        in_line(limiter, number)
    status = limiter.peek()
    limiter.close()
    callers.join()
    assert status.waiting == 2
    assert status.retry_after > (1.9 if "aligned" in limit else 2.9) * (alone - NEVER)


def test_stats(make, call):
    limiter = make("3 concurrent")
    permits = [limiter.acquire(key) for key in "aaabbb"]
    assert not limiter.try_acquire("a")
    callers = Callers()
    callers.start(limiter.acquire, "a")
    in_line(limiter, 1, "a")
    with pytest.raises(RateLimited):
        call(limiter.acquire, "b", timeout=0.02)
    assert limiter.stats().waiting == 1
    permits[0].complete()
    permits[1].cancel()
    permits[2].abandon()
    permits[3].settle(1)
    with permits[4]:
        pass
    callers.join()[0].complete()
    stats = limiter.stats()
    assert (stats.granted, stats.denied, stats.waiting) == (7, 2, 0)
    assert (stats.completed, stats.cancelled, stats.abandoned, stats.keys) == (4, 1, 1, 2)
    permits[5].complete()


# -- events ------------------------------------------------------------------------------------------------------


def tell(event):
    return (event.kind, event.key, event.cost, event.seconds)


def test_events_of_trying_and_ending(make, name):
    seen: list[LimiterEvent] = []
    limiter = make("2 concurrent", on_event=seen.append)
    first, second = limiter.try_acquire("a"), limiter.try_acquire("a")
    limiter.try_acquire("a")
    first.complete()
    second.abandon()
    eventually(lambda: limiter.peek("a").in_flight == 0, "both ends")
    limiter.try_acquire("a", cost=2).cancel()
    eventually(lambda: limiter.peek("a").in_flight == 0, "its end")
    limiter.try_acquire("a").settle(1)
    limiter.pause(5)
    assert [tell(event) for event in seen] == [
        ("granted", "a", 1, None),
        ("granted", "a", 1, None),
        ("denied", "a", 1, None),
        ("completed", "a", 1, None),
        ("abandoned", "a", 1, None),
        ("granted", "a", 2, None),
        ("cancelled", "a", 2, None),
        ("granted", "a", 1, None),
        ("settled", "a", 1, None),
        ("paused", None, None, 5.0),
    ]
    assert {event.limiter for event in seen} == {name}


def test_events_of_waiting(make, call):
    seen: list[LimiterEvent] = []
    limiter = make("1 concurrent", on_event=seen.append)
    held = limiter.acquire("alice")
    callers = Callers()
    callers.start(lambda: limiter.acquire("alice").complete())
    in_line(limiter, 1, "alice")
    held.complete()
    callers.join()
    (waited,) = [event.seconds for event in seen if event.kind == "waited"]
    assert waited is not None
    assert 0 < waited < NEVER
    held = call(limiter.acquire, "bob")
    with pytest.raises(RateLimited):
        call(limiter.acquire, "bob", timeout=0.01)
    held.complete()
    kinds = sorted(event.kind for event in seen if event.key == "bob")
    assert kinds == ["completed", "denied", "granted"]


def test_a_reservation_is_told(make, call):
    seen: list[LimiterEvent] = []
    call(make("1/hour burst 1", on_event=seen.append).reserve)
    assert [event.kind for event in seen] == ["granted"]


def test_a_dropped_permit_is_told(make):
    seen: list[LimiterEvent] = []
    limiter = make("1 concurrent", on_event=seen.append)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        limiter.acquire()
    assert [tell(event) for event in seen] == [("granted", None, 1, None), ("abandoned", None, 1, None)]


def test_with_a_listener_everything_is_granted_as_without(anew, kind):
    granted = []
    for listener in (None, lambda event: None):
        limiter = anew(kind.limit, on_event=listener)
        permits = [limiter.try_acquire() for _ in range(5)]
        granted.append([bool(permit) for permit in permits])
        for permit in filter(None, permits):
            permit.complete()
    assert granted[0] == granted[1] == [number < kind.count for number in range(5)]


def test_a_listener_hears_of_its_own_limiter_only(make):
    told: list[object] = []
    loud, quiet = make("5 concurrent", on_event=told.append), make("5 concurrent")
    for _ in range(3):
        loud.acquire().complete()
        told.clear()
        quiet.acquire().complete()
        assert told == []


# -- errors and logs ---------------------------------------------------------------------------------------------


def test_errors_travel(make, call):
    limiter = make("1/hour; 5/s")
    limiter.acquire("a")
    with pytest.raises(RateLimited) as caught:
        call(limiter.acquire, "a", timeout=1)
    error = pickle.loads(pickle.dumps(caught.value))
    for name in ("retry_after", "limit", "key", "status", "reason", "timeout"):
        assert getattr(error, name) == getattr(caught.value, name)
    assert (error.key, error.reason, error.timeout) == ("a", "timeout", 1)
    assert str(error) == str(caught.value)
    assert error.status.parts[0].remaining == 0


def test_a_long_wait_is_logged_once(make, name, caplog, monkeypatch):
    """A minute in earnest."""
    monkeypatch.setattr("headway.diagnostics.LONG_WAIT_NS", 20_000_000)
    limiter = make("10/s burst 1")
    for _ in range(3):
        limiter.acquire()
    [record] = [record for record in caplog.records if "was waited for" in record.getMessage()]
    assert repr(name) in record.getMessage()
