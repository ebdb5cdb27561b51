"""Mistakes get a clear error and change nothing."""

import pytest

from headway import InvalidArgument, Limiter, Pacer
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms

LIMITS = ["10/minute", "10/s burst 10", "10/day aligned", "10 concurrent", "10/s; 20/minute"]


@pytest.fixture
def clock():
    return ManualClock()


def look(limiter):
    return [limiter.peek(key) for key in (None, "a")], limiter.stats()


@pytest.fixture(params=LIMITS)
def unchanged(request, clock):
    """A limiter in use, of which nothing may have changed when the test is over."""
    limiter = Limiter(request.param, clock=clock)
    permits = [limiter.acquire(cost=3), limiter.acquire("a")]
    before = look(limiter)
    yield limiter
    assert look(limiter) == before
    for permit in permits:
        permit.complete()


def refuses(limiter, error, complaint, *args, **kwargs):
    """All verbs that take permits say the same."""
    verbs = [
        limiter.try_acquire,
        limiter.acquire,
        limiter.peek,
        lambda *a, **k: limiter.hold(*a, **k).__enter__(),
    ]
    verbs.append(lambda *a, **k: run(limiter.acquire_async(*a, **k), clock=ManualClock()))
    verbs.append(lambda *a, **k: run(limiter.try_acquire_async(*a, **k), clock=ManualClock()))
    for verb in verbs:
        with pytest.raises(error, match=complaint):
            verb(*args, **kwargs)


def test_options_of_shared_engines_are_refused_in_memory():
    with pytest.raises(
        InvalidArgument, match=r"a shared engine.*; memory:// cannot fail, nor lose a ledger$"
    ):
        Limiter("5/s", on_engine_error="open")


def test_a_pace_of_nothing_is_told_what_it_must_be():
    for rate in ("0", "0/s", "-5"):
        with pytest.raises(ValueError, match="a rate must be above 0"):
            Pacer(rate)
