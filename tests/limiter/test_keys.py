"""How keys are forgotten, and when not. Whose ledger a key is, tests/engines says."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import random
import threading

import pytest

from headway import Limiter
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms

SECOND = 10**9


@pytest.fixture
def clock():
    return ManualClock()


@pytest.mark.parametrize(
    "limit", ["10/minute", "10/m burst 10", "1 every 6s", "10/hour aligned", "10/s; 20/minute"]
)
@pytest.mark.parametrize("keys", [1, 63, 1000, 5000])
def test_idle_keys_are_forgotten_by_a_stated_number_of_calls(clock, limit, keys):
    threads = set(threading.enumerate())
    limiter = Limiter(limit, clock=clock)
    for number in range(keys):
        assert limiter.try_acquire(f"key {number}")
    parts = limiter.stats().keys // keys
    assert limiter.stats().keys == parts * keys
    clock.advance(3600)
    for _ in range(keys // 64 + 1024):
        limiter.try_acquire("another")
    assert limiter.stats().keys == parts
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end meanwhile


@pytest.mark.parametrize(
    "limit", ["1/minute", "1/m burst 1", "1 every 60s", "1/hour aligned", "1 concurrent"]
)
def test_a_key_is_never_forgotten_while_it_matters(clock, limit):
    """Every key is granted once and denied after that, however many others come in between."""
    limiter = Limiter(limit, clock=clock)
    permits = {}
    dice = random.Random(7)
    for number in range(3000):
        permits[number] = limiter.try_acquire(f"key {number}")
        assert permits[number]
        assert not limiter.try_acquire(f"key {number}")
        assert not limiter.try_acquire(f"key {dice.randint(0, number)}")
    assert limiter.stats().keys == 3000
    clock.advance(3600)
    if limit == "1 concurrent":
        assert not limiter.try_acquire("key 0")
        for permit in permits.values():
            permit.complete()
    for number in range(3000):
        permit = limiter.try_acquire(f"key {number}")
        assert permit
        permit.complete()


def test_keys_come_and_go_against_a_plain_model(clock):
    """Random calls on random keys: the same answers as a list of times for each key."""
    limiter = Limiter("3/s", clock=clock)
    dice = random.Random(11)
    log: dict[str, list[int]] = {}
    for _ in range(20_000):
        clock.advance_ns(dice.randrange(3_000_000))
        key = f"key {int(dice.expovariate(0.002))}"
        recent = [moment for moment in log.get(key, []) if moment > clock.now() - SECOND]
        granted = bool(limiter.try_acquire(key))
        assert granted == (len(recent) < 3)
        log[key] = [*recent, clock.now()] if granted else recent
    alive = sum(any(moment > clock.now() - SECOND for moment in log[key]) for key in log)
    assert limiter.stats().keys < 4 * alive + 128


def test_looking_at_a_key_does_not_keep_it(clock):
    limiter = Limiter("1/minute", clock=clock)
    for number in range(100):
        assert limiter.peek(f"key {number}").remaining == 1
        limiter.reset(f"key {number}")
    assert limiter.stats().keys == 0


def test_debt_is_remembered_even_when_the_key_was_forgotten(clock):
    limiter = Limiter("10/minute", clock=clock)
    permit = limiter.acquire("a")
    clock.advance(120)
    for number in range(2000):
        limiter.try_acquire(f"key {number % 50}")
    permit.settle(8)
    assert limiter.peek("a").remaining == 3


def test_a_waiter_keeps_its_key(clock):
    limiter = Limiter("10/s burst 1", clock=clock)

    async def main():
        limiter.pause(10, "a")
        waiters = [asyncio.create_task(limiter.acquire_async("a")) for _ in range(3)]
        await asyncio.sleep(0)
        for number in range(5000):
            limiter.try_acquire(f"key {number}")
        await asyncio.gather(*waiters)
        return clock.now() / SECOND

    assert run(main(), clock=clock) == 10.2


def test_an_exempt_key_is_never_limited(clock):
    limiter = Limiter("1/minute; 1 concurrent", overrides={"vip": None}, clock=clock)
    permits = [limiter.try_acquire("vip", cost=10**9) for _ in range(50)]
    assert all(permits)
    assert limiter.acquire("vip", timeout=0)
    status = limiter.peek("vip")
    assert (status.retry_after, str(status.limit), limiter.stats().granted) == (0, "unlimited", 51)
    assert limiter.peek("vip").headers()["RateLimit-Policy"].startswith('"unlimited-0";q=999999999999999')
    held = limiter.acquire("other")
    assert not limiter.try_acquire("other")
    held.complete()
    limiter.pause(30)
    assert not limiter.try_acquire("vip"), "a pause is for all"
    limiter.set_limit("2/minute; 2 concurrent")
    limiter.pause(0)
    assert limiter.try_acquire("vip", cost=5)


def test_exempt_keys_of_one_metric(clock):
    limiter = Limiter({"host": "1/minute", "all": "2/minute"}, overrides={"vip": None}, clock=clock)
    assert [bool(limiter.try_acquire({"host": "vip"})) for _ in range(3)] == [True, True, False]


def test_a_function_that_returns_none_means_the_limit_of_the_limiter(clock):
    limiter = Limiter("1/minute", overrides=lambda key: None, clock=clock)
    assert [bool(limiter.try_acquire("vip")) for _ in range(2)] == [True, False]


def test_reset_all(clock):
    limiter = Limiter("1/minute", clock=clock)
    for key in ("ann", "bob", None):
        limiter.acquire(key)
    limiter.pause(30)
    limiter.pause(30, "ann")
    limiter.reset_all()
    assert [limiter.peek(key).remaining for key in ("ann", "bob", None)] == [1, 1, 1]
    assert limiter.try_acquire("ann")
    run(limiter.reset_all_async(), clock=clock)
    assert limiter.try_acquire("ann")


def test_reset_all_lets_waiters_in(clock):
    limiter = Limiter("1/hour", clock=clock)

    async def main():
        limiter.acquire("ann")
        waiter = asyncio.create_task(limiter.acquire_async("ann"))
        await asyncio.sleep(1)
        limiter.reset_all()
        await asyncio.wait_for(waiter, 1)

    run(main(), clock=clock)
