"""A wait that ends by its `timeout` raises `AcquireTimeout`; every other refusal is a plain `RateLimited`."""

import asyncio
import pickle

import pytest

from headway import AcquireTimeout, HeadwayError, Limiter, RateLimited, throttle
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms


@pytest.fixture
def clock():
    return ManualClock()


def test_a_wait_that_cannot_end_in_time_is_refused_at_once(clock):
    limiter = Limiter("1/minute", clock=clock)
    limiter.acquire("a")
    with pytest.raises(AcquireTimeout) as caught:
        limiter.acquire("a", timeout=5)
    error = caught.value
    assert isinstance(error, RateLimited)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, HeadwayError)
    assert (error.retry_after, error.key, error.reason, error.timeout) == (60, "a", "timeout", 5)
    assert error.status is not None
    assert (
        str(error) == "rate limited: 1/minute for key 'a'; would have to wait 60 s, longer than timeout=5 s"
    )


def test_a_wait_that_ends_by_its_timeout(clock):
    limiter = Limiter("1 concurrent", clock=clock)

    async def main():
        permit = limiter.acquire()
        with pytest.raises(AcquireTimeout, match=r"not granted within timeout=5 s"):
            await limiter.acquire_async(timeout=5)
        permit.complete()

    run(main(), clock=clock)
    assert clock.now() >= 5 * 10**9


def test_a_throttled_function_that_never_waits(clock):
    call = throttle("1/minute", clock=clock, timeout=0)(lambda: 1)
    assert call() == 1
    with pytest.raises(TimeoutError):
        call()


def test_other_refusals_are_no_time_outs(clock):
    crowded = Limiter("1/minute", max_waiting=0, clock=clock)
    crowded.acquire()
    with pytest.raises(RateLimited) as caught:
        crowded.acquire()
    assert (caught.value.reason, isinstance(caught.value, TimeoutError)) == ("max_waiting", False)
    for timeout in (None, 5):
        with pytest.raises(RateLimited) as caught:
            Limiter("0/s", clock=clock).acquire(timeout=timeout)
        assert (caught.value.reason, isinstance(caught.value, TimeoutError)) == ("never", False)


def test_it_travels():
    before = AcquireTimeout(3.5, limit="5/s", key="ann", timeout=1)
    after = pickle.loads(pickle.dumps(before))
    assert (type(after), str(after), after.retry_after, after.timeout) == (
        AcquireTimeout,
        str(before),
        3.5,
        1,
    )


def test_asyncio_takes_it_for_a_time_out(clock):
    """What catches asyncio's own time-outs catches it too."""
    limiter = Limiter("1/minute", clock=clock)

    async def main():
        limiter.acquire()
        try:
            await limiter.acquire_async(timeout=1)
        except asyncio.TimeoutError:  # noqa: UP041 - the name that older code has
            return "caught"

    assert run(main(), clock=clock) == "caught"


def test_an_abandoned_permit_is_known_to_take_its_transit(clock):
    """Nothing brings it back before: the time is said, and a wait that cannot end in time is not begun."""
    limiter = Limiter("1/s", remote=True, clock=clock)
    limiter.acquire().abandon()
    status = limiter.peek()
    assert status.exact
    assert status.retry_after == status.reset_after
    assert 11 < status.retry_after < 11.1
    before = clock.now()
    with pytest.raises(AcquireTimeout, match=r"would have to wait 11 s, longer than timeout=3 s"):
        limiter.acquire(timeout=3)
    assert clock.now() == before
    clock.advance(status.retry_after)
    assert limiter.try_acquire().cancel() is None  # type: ignore[union-attr]
