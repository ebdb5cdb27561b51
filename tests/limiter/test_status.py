"""What a limiter says of itself: Status, Denied, headers, stats, events, errors."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import math

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
    """While permits are out the least wait is a nanosecond, which tells no caller when to come back."""
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


# -- events ------------------------------------------------------------------------------------------------------


def tell(event):
    return (event.kind, event.key, event.cost, event.seconds)


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


def test_a_caller_that_did_not_wait_makes_the_event_granted(clock):
    seen: list[LimiterEvent] = []
    limiter = Limiter("10/s burst 1", on_event=seen.append, clock=clock)
    limiter.acquire()
    assert [event.kind for event in seen] == ["granted"]


# -- errors ------------------------------------------------------------------------------------------------------
