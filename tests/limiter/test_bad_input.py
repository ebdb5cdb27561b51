"""Mistakes get a clear error and change nothing."""

import math
from datetime import timedelta
from decimal import Decimal

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


@pytest.mark.parametrize(
    "cost",
    [0, -1, -(1 << 70), 10**30, 1.0, 1.5, math.nan, math.inf, True, False, "1", None, Decimal(1), [1], 1j],
)
def test_a_cost_that_is_none(unchanged, cost):
    refuses(unchanged, ValueError, r"cost=.* is not accepted; give an integer from 1 to 2\*\*62$", cost=cost)


@pytest.mark.parametrize("cost", [11, 1000, (1 << 62) - 1, 1 << 62])
def test_a_cost_above_the_limit(unchanged, cost):
    refuses(unchanged, ValueError, "at most 10, all that '10.*' can ever grant", cost=cost)


@pytest.mark.parametrize("cost", [(1 << 62) + 1, 1 << 63, 1 << 64, 10**30])
def test_a_cost_beyond_all_numbers(unchanged, cost):
    refuses(unchanged, ValueError, "cost", cost=cost)


@pytest.mark.parametrize("key", [5, 0, 1.5])
def test_a_number_where_the_key_belongs(unchanged, key):
    refuses(unchanged, TypeError, rf"did you mean cost={key!r}\?", key)


@pytest.mark.parametrize("key", [b"a", True, object(), ["a"], ("a", "b")])
def test_a_key_that_is_none(unchanged, key):
    refuses(unchanged, TypeError, "key must be a str or None, not", key)


@pytest.mark.parametrize("arguments", [{"key": {"host": "a"}}, {"cost": {"tokens": 2}}])
def test_metrics_where_there_are_none(unchanged, arguments):
    refuses(unchanged, ValueError, "it has no metrics", **arguments)


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, "5", timedelta(seconds=-1), True, [1]])
def test_a_time_out_that_is_none(clock, timeout):
    """It is looked at only where it matters: what is granted at once does not pay for checking it."""
    limiter = Limiter("1/minute", clock=clock)
    limiter.acquire()
    before = look(limiter)
    for verb in (limiter.acquire, lambda timeout: limiter.hold(timeout=timeout).__enter__()):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            verb(timeout=timeout)
    with pytest.raises((ValueError, TypeError), match="timeout"):
        run(limiter.acquire_async(timeout=timeout), clock=clock)
    assert look(limiter) == before
    with pytest.raises((ValueError, TypeError), match="timeout"):
        Limiter("1/minute", timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": "10/parsec"}, ValueError),
        ({"limit": "-1/s"}, ValueError),
        ({"limit": f"{(1 << 62) + 1}/s"}, ValueError),
        ({"limit": "nan/s"}, ValueError),
        ({"limit": ""}, ValueError),
        ({"limit": None}, (ValueError, TypeError)),
        ({"limit": 10}, (ValueError, TypeError)),
        ({"engine": "redis://db"}, ValueError),
        ({"start": "half"}, ValueError),
        ({"max_waiting": -1}, ValueError),
        ({"max_waiting": 1.5}, ValueError),
        ({"max_waiting": True}, ValueError),
        ({"on_event": "print"}, ValueError),
        ({"name": 5}, (ValueError, TypeError)),
        ({"remote": "yes"}, ValueError),
        ({"clock": "wall"}, ValueError),
        ({"overrides": {"a": "1/parsec"}}, ValueError),
        ({"overrides": 5}, (ValueError, TypeError)),
        ({"overrides": {5: "1/s"}}, ValueError),
        ({"overrides": {None: "1/s"}}, ValueError),
        ({"engine": None}, ValueError),
        ({"colour": "red"}, TypeError),
    ],
    ids=str,
)
def test_a_limiter_that_cannot_be(arguments, error):
    with pytest.raises(error):
        Limiter(**{"limit": "1/s", **arguments})


def test_a_failed_construction_leaves_no_name_behind(clock):
    with pytest.raises(ValueError, match=r"overrides|invalid"):
        Limiter("5/s", name="test_bad_input:none", overrides={"a": "1/s; 2/s"}, clock=clock)
    assert Limiter("5 concurrent", name="test_bad_input:none", clock=clock).peek().remaining == 5


@pytest.mark.parametrize("key", [5, b"a"])
def test_bad_keys_for_the_rarer_verbs(unchanged, key):
    with pytest.raises(TypeError, match=r"key must be a str or None, not (int|bytes)$"):
        unchanged.pause(5, key)
    with pytest.raises(TypeError, match=r"key must be a str or None, not (int|bytes)$"):
        unchanged.reset(key)
    with pytest.raises(TypeError, match=r"key must be a str or None, not (int|bytes)$"):
        run(unchanged.reset_async(key), clock=ManualClock())


@pytest.mark.parametrize("limit", ["10/s burst 10", "1 every 6s"])
def test_bad_reservations(clock, limit):
    limiter = Limiter(limit, clock=clock)
    before = look(limiter)
    for arguments in ({"cost": 0}, {"cost": 11}, {"cost": 1.5}, {"cost": {"tokens": 1}}):
        with pytest.raises(ValueError, match="cost"):
            limiter.reserve(**arguments)
    with pytest.raises(TypeError, match="did you mean cost=3"):
        limiter.reserve(3)  # type: ignore[arg-type]
    assert look(limiter) == before


def test_an_override_that_turns_out_wrong_changes_nothing(clock):
    limiter = Limiter("10/s", overrides=lambda key: "1/parsec" if key == "bad" else None, clock=clock)
    limiter.acquire("a")
    before = look(limiter)
    for verb in (limiter.try_acquire, limiter.acquire, limiter.peek):
        with pytest.raises(ValueError, match="parsec"):
            verb("bad")
    assert look(limiter) == before


def test_a_listener_that_fails_is_logged_and_changes_nothing(clock, caplog):
    def fail(event):
        raise RuntimeError(event.kind)

    limiter = Limiter("5 concurrent", on_event=fail, clock=clock)
    for end in ("complete", "cancel", "abandon"):
        permit = limiter.try_acquire()
        assert limiter.peek().in_flight == 1
        getattr(permit, end)()
        assert permit.ended == end
    with limiter.hold():
        pass
    limiter.acquire().settle(1)
    limiter.pause(0)
    assert (limiter.stats().waiting, limiter.peek().in_flight) == (0, 0)
    assert limiter.stats().granted == 5
    assert {record.name for record in caplog.records} == {"headway"}
    assert len(caplog.records) == 11  # five grants, five ends, one pause


def test_options_of_shared_engines_are_refused_in_memory():
    with pytest.raises(
        InvalidArgument, match=r"a shared engine.*; memory:// cannot fail, nor lose a ledger$"
    ):
        Limiter("5/s", on_engine_error="open")


def test_a_pace_of_nothing_is_told_what_it_must_be():
    for rate in ("0", "0/s", "-5"):
        with pytest.raises(ValueError, match="a rate must be above 0"):
            Pacer(rate)
