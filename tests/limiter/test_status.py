"""What a limiter says of itself: Status, Denied, headers, stats, events, errors."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import math
import pickle

import pytest

from headway import Limiter, LimiterEvent, RateLimited, Remote, Window
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms

SECOND = 10**9
EXACT = Remote(resolution=0, drift_ppm=0, max_transit=10)


@pytest.fixture
def clock():
    return ManualClock()


def facts(status):
    return (status.remaining, status.retry_after, status.reset_after, status.in_flight, status.exact)


@pytest.mark.parametrize(
    ("limit", "before", "after"),
    [
        ("3/minute", (3, 0, 0, 0, True), (0, 60, 60, 0, True)),
        ("10/s burst 3", (3, 0, 0, 0, True), (0, 0.1, 0.3, 0, True)),
        ("3/day aligned", (3, 0, 86400, 0, True), (0, 86400, 86400, 0, True)),
        ("3 concurrent", (3, 0, 0, 0, True), (0, 1e-9, math.inf, 3, False)),
        (Window(3, per=1, remote=EXACT), (3, 0, 0, 0, True), (0, 1.000000001, 11.000000002, 3, False)),
    ],
    ids=str,
)
def test_the_facts_of_each_kind(clock, limit, before, after):
    limiter = Limiter(limit, clock=clock)
    assert facts(limiter.peek()) == before
    permit = limiter.acquire(cost=3)
    status = limiter.peek()
    assert facts(status) == after
    denied = limiter.try_acquire()
    assert (bool(denied), denied.status, denied.limit, denied.key, denied.reason) == (
        False, status, status.limit, None, "limit",
    )  # fmt: skip
    assert denied.retry_after == status.retry_after
    permit.complete()


def test_a_denial_says_how_things_stood_then(clock):
    limiter = Limiter("1/minute", clock=clock)
    limiter.acquire("a")
    denied = limiter.try_acquire("a")
    clock.advance(59)
    assert (denied.retry_after, denied.key) == (60, "a")
    assert repr(denied) == "<Denied: 1/minute, retry after 60 s, key='a'>"


def test_a_denial_does_not_read_as_a_promise(clock):
    """While permits are out the least that it can be is a nanosecond, which tells nobody when to come back."""
    seats = Limiter("1 concurrent", clock=clock)
    permit = seats.acquire()
    assert repr(seats.try_acquire()) == "<Denied: 1 concurrent, permits are out>"
    permit.complete()
    api = Limiter("1/s", remote=True, clock=clock)
    permit = api.acquire()
    assert repr(api.try_acquire()) == "<Denied: 1/s, retry after 1.02 s or more>"
    permit.complete()
    assert repr(Limiter("0/s", clock=clock).try_acquire()) == "<Denied: 0/s, never granted>"


def test_of_several_limits_the_one_that_binds(clock):
    limiter = Limiter("5/s; 8/minute; 20/hour", clock=clock)
    assert str(limiter.peek().limit) == "5/s"
    limiter.acquire(cost=5)
    assert (str(limiter.peek().limit), limiter.peek().retry_after) == ("5/s", 1)
    clock.advance(1)
    status = limiter.peek(cost=4)
    assert (str(status.limit), status.remaining, status.retry_after) == ("8/minute", 3, 59)
    assert [str(part.limit) for part in status.parts] == ["5/s", "8/minute", "20/hour"]
    assert [part.retry_after for part in status.parts] == [0, 59, 0]


def test_looking_changes_nothing(clock):
    for limit in ("5/minute", "5/s burst 5", "1 every 6s", "5/day aligned", "5 concurrent", "5/s; 9/minute"):
        limiter = Limiter(limit, clock=clock)
        permit = limiter.acquire("a")
        before = limiter.stats()
        seen = {limiter.peek("a") for _ in range(100)}
        assert (len(seen), limiter.stats()) == (1, before)
        assert run(limiter.peek_async("a"), clock=clock) in seen
        permit.complete()


def test_stats(clock):
    limiter = Limiter("3 concurrent", clock=clock)

    async def main():
        permits = [limiter.acquire(key) for key in "aaabbb"]
        assert not limiter.try_acquire("a")
        waiter = asyncio.create_task(limiter.acquire_async("a"))
        with pytest.raises(RateLimited):
            await limiter.acquire_async("b", timeout=1)
        assert limiter.stats().waiting == 1
        permits[0].complete()
        permits[1].cancel()
        permits[2].abandon()
        permits[3].settle(1)
        with permits[4]:
            pass
        (await waiter).complete()
        stats = limiter.stats()
        assert (stats.granted, stats.denied, stats.waiting) == (7, 2, 0)
        assert (stats.completed, stats.cancelled, stats.abandoned, stats.keys) == (4, 1, 1, 2)
        permits[5].complete()

    run(main(), clock=clock)


# -- events ------------------------------------------------------------------------------------------------------


def tell(event):
    return (event.kind, event.key, event.cost, event.seconds)


def test_events_of_trying_and_ending(clock):
    seen: list[LimiterEvent] = []
    limiter = Limiter("2 concurrent", name="test_status:events", on_event=seen.append, clock=clock)
    first, second = limiter.try_acquire("a"), limiter.try_acquire("a")
    limiter.try_acquire("a")
    first.complete()
    second.abandon()
    limiter.try_acquire("a", cost=2).cancel()
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
    assert {event.limiter for event in seen} == {"test_status:events"}


def test_events_of_waiting(clock):
    seen: list[LimiterEvent] = []
    limiter = Limiter("10/s burst 1", on_event=seen.append, clock=clock)

    async def main():
        limiter.try_acquire()
        await limiter.acquire_async(timeout=1)
        with pytest.raises(RateLimited):
            await limiter.acquire_async(timeout=0.05)

    run(main(), clock=clock)
    assert [(event.kind, event.seconds) for event in seen if event.kind != "granted"] == [
        ("waited", 0.1),
        ("denied", None),
    ]


def test_who_did_not_wait_is_told_as_granted(clock):
    seen: list[LimiterEvent] = []
    limiter = Limiter("10/s burst 1", on_event=seen.append, clock=clock)
    limiter.acquire()
    assert [event.kind for event in seen] == ["granted"]


def test_a_reservation_is_told(clock):
    seen: list[LimiterEvent] = []
    limiter = Limiter("10/s burst 1", on_event=seen.append, clock=clock)
    limiter.reserve()
    assert [event.kind for event in seen] == ["granted"]


def test_with_a_listener_everything_is_granted_as_without(clock):
    for limit in ("3/minute", "3 concurrent"):
        granted = []
        for listener in (None, lambda event: None):
            limiter = Limiter(limit, on_event=listener, clock=clock)
            granted.append([limiter.try_acquire() for _ in range(5)])
        assert [[bool(p) for p in row] for row in granted] == [[True] * 3 + [False] * 2] * 2
        for permit in (p for row in granted for p in row if p):
            permit.complete()


# -- errors ------------------------------------------------------------------------------------------------------


def test_errors_travel(clock):
    limiter = Limiter("1/minute; 5/s", clock=clock)
    limiter.acquire("a")
    with pytest.raises(RateLimited) as caught:
        limiter.acquire("a", timeout=1)
    error = pickle.loads(pickle.dumps(caught.value))
    for name in ("retry_after", "limit", "key", "status", "reason", "timeout"):
        assert getattr(error, name) == getattr(caught.value, name)
    assert (error.retry_after, error.key, error.reason, error.timeout) == (60, "a", "timeout", 1)
    assert str(error) == str(caught.value)
    assert [part.remaining for part in error.status.parts] == [0, 4]
