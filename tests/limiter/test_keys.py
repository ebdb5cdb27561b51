"""Keys: one ledger for each, names that share them, overrides, and how keys are forgotten."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import random
import threading

import pytest

from headway import Limiter, LimitMismatch
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms

SECOND = 10**9

LIMITS = ["1/minute", "1/m burst 1", "1 every 60s", "1/day aligned", "1 concurrent", "1/minute; 1 every 1s"]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.mark.parametrize("limit", LIMITS)
def test_keys_know_nothing_of_each_other(clock, limit):
    limiter = Limiter(limit, clock=clock)
    permits = [limiter.try_acquire(key) for key in (None, "a", "b", "")]
    assert all(permits)
    assert not any(limiter.try_acquire(key) for key in (None, "a", "b", ""))
    assert [permit.key for permit in permits] == [None, "a", "b", ""]
    assert limiter.try_acquire("a").key == "a"
    for permit in permits:
        permit.complete()


def test_a_str_of_another_type_is_the_same_key(clock):
    class Name(str):
        __slots__ = ()

    limiter = Limiter("2/minute", clock=clock)
    assert limiter.try_acquire(Name("a"))
    assert limiter.peek("a").remaining == 1


def test_who_waits_for_one_key_does_not_hold_up_another(clock):
    limiter = Limiter("1/minute", clock=clock)
    trace = []

    async def wait(key):
        await limiter.acquire_async(key)
        trace.append((key, clock.now() // SECOND))

    async def main():
        await limiter.acquire_async("a")
        waiter = asyncio.create_task(wait("a"))
        await asyncio.sleep(0)
        assert limiter.try_acquire("b")
        assert (limiter.peek("a").waiting, limiter.peek("b").waiting) == (1, 0)
        await clock.sleep_async(30)
        await asyncio.gather(waiter, wait("c"), wait("b"))

    run(main(), clock=clock)
    assert trace == [("c", 30), ("a", 60), ("b", 60)]


# -- names -------------------------------------------------------------------------------------------------------


def test_one_name_is_one_ledger(clock):
    first, second = (Limiter("3/minute", name="test_keys:shared", clock=clock) for _ in range(2))
    alone = Limiter("3/minute", clock=clock)
    assert first.try_acquire("a")
    assert second.try_acquire("a")
    assert (first.peek("a").remaining, second.peek("a").remaining, alone.peek("a").remaining) == (1, 1, 3)
    assert first.name == "test_keys:shared"


def test_who_waits_at_one_limiter_is_called_by_the_other(clock):
    first, second = (Limiter("1 concurrent", name="test_keys:bells", clock=clock) for _ in range(2))

    async def main():
        permit = first.acquire()
        waiter = asyncio.create_task(second.acquire_async())
        await clock.sleep_async(1)
        permit.complete()
        (await waiter).complete()
        return clock.now() // SECOND

    assert run(main(), clock=clock) == 1


def test_another_number_under_the_same_name_carries_the_state_over(clock):
    first = Limiter("5/minute", name="test_keys:number", clock=clock)
    first.acquire(cost=4)
    second = Limiter("3/minute", name="test_keys:number", clock=clock)
    assert (second.peek().remaining, first.peek().remaining) == (0, 0)
    clock.advance(60)
    assert second.peek().remaining == 3


@pytest.mark.parametrize("other", ["5 concurrent", "5/s burst 5", "5/minute; 5/s", {"tokens": "5/minute"}])
def test_another_kind_under_the_same_name_is_an_error(clock, other):
    name = f"test_keys:{other}"
    first = Limiter("5/minute", name=name, clock=clock)
    first.acquire()
    with pytest.raises(LimitMismatch, match=r"kept as '5/minute'.*: use another name") as caught:
        Limiter(other, name=name, clock=clock)
    assert ("tokens: 5/minute" in str(caught.value)) == isinstance(other, dict)
    assert caught.value.name == name
    assert first.peek().remaining == 4


def test_a_remote_under_the_same_name_holds_for_both(clock):
    first = Limiter("2/minute", name="test_keys:remote", clock=clock)
    Limiter("2/minute", name="test_keys:remote", remote=True, clock=clock)
    permit = first.acquire()
    assert first.peek().in_flight == 1
    permit.complete()
    assert first.peek().in_flight == 0


def test_a_name_can_be_used_again_after_closing(clock):
    Limiter("2/minute", name="test_keys:again", clock=clock).close()
    assert Limiter("2/minute", name="test_keys:again", clock=clock).try_acquire()


# -- overrides ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mapping", "callable"])
def test_single_keys_may_have_another_limit(clock, form):
    table = {"vip": "3/minute", "banned": "0/minute"}
    limiter = Limiter("1/minute", overrides=table if form == "mapping" else table.get, clock=clock)
    granted = {
        key: sum(bool(limiter.try_acquire(key)) for _ in range(5)) for key in ("vip", "banned", "joe", None)
    }
    assert granted == {"vip": 3, "banned": 0, "joe": 1, None: 1}
    assert limiter.peek("vip").limit.capacity == 3
    with pytest.raises(ValueError, match="at most 3"):
        limiter.acquire("vip", cost=4)
    with pytest.raises(ValueError, match="at most 1"):
        limiter.acquire("joe", cost=3)
    clock.advance(60)
    limiter.acquire("vip", cost=3)


def test_overrides_of_metrics(clock):
    limiter = Limiter(
        {"requests": "5/minute", "tokens": "100/minute"},
        overrides={"vip": {"tokens": "900/minute"}},
        clock=clock,
    )
    assert [part.remaining for part in limiter.peek("vip").parts] == [5, 900]
    assert [part.remaining for part in limiter.peek("joe").parts] == [5, 100]


@pytest.mark.parametrize("wrong", ["5 cows", "1/s; 2/m", {"tokens": "1/s"}])
def test_a_wrong_override_is_an_error_at_once(clock, wrong):
    with pytest.raises(ValueError, match=r"invalid limit|overrides"):
        Limiter("1/minute", overrides={"vip": wrong}, clock=clock)


def test_an_override_may_be_of_another_kind(clock):
    limiter = Limiter("1/minute", overrides={"vip": "2 concurrent"}, clock=clock)
    first, second = limiter.acquire("vip"), limiter.acquire("vip")
    assert not limiter.try_acquire("vip")
    first.complete()
    assert limiter.peek("vip").in_flight == 1
    second.complete()


# -- forgetting --------------------------------------------------------------------------------------------------


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
