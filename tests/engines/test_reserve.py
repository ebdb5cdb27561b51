"""reserve: a permit for a promised time, where one can be promised."""

# mypy: disable-error-code="union-attr"

import asyncio
import time

import pytest

from engines.limits import HOUR, KINDS
from engines.waiting import NEVER, eventually
from headway import RateLimited, Spacing
from headway.errors import NotPromised, PermitExpired

PROMISING = [kind for kind in KINDS if kind.promises]


def slots(limiter, number, call):
    """The delays of the next reservations, in hours."""
    return [call(limiter.reserve).delay / HOUR for _ in range(number)]


@pytest.mark.parametrize("kind", PROMISING, ids=lambda kind: kind.id)
def test_promised_times(make, call, kind):
    limiter = make(kind.limit)
    step = 1 / kind.count
    promised = slots(limiter, kind.count + 2, call)
    assert promised[: kind.count] == [0] * kind.count
    assert promised[kind.count :] == pytest.approx([step, 2 * step], rel=0.02)
    assert limiter.stats().granted == kind.count + 2


@pytest.mark.parametrize("limit", ["10/s burst 1", "1 every 100ms"])
@pytest.mark.parametrize("form", ["wait", "with", "wait_async", "async with"])
def test_a_holder_waits_for_its_time(make, limit, form):
    limiter = make(limit)
    begin = time.monotonic()
    limiter.acquire()

    def use(permit):
        if form == "wait":
            assert permit.wait() is permit
        else:
            with permit:
                pass

    async def use_async(permit):
        if form == "wait_async":
            assert await permit.wait_async() is permit
        else:
            async with permit:
                pass

    while True:
        permit = limiter.reserve()
        assert permit.delay >= 0
        try:
            asyncio.run(use_async(permit)) if "async" in form else use(permit)
        except PermitExpired:
            continue  # a busy machine let its holder sleep for longer than a slot of a Spacing is kept
        break
    assert permit.delay == 0
    assert time.monotonic() - begin >= 0.1


@pytest.mark.parametrize("kind", PROMISING, ids=lambda kind: kind.id)
def test_no_caller_takes_what_was_promised(make, call, kind):
    limiter = make(kind.limit)
    for _ in range(kind.count + 1):
        call(limiter.reserve)
    denied = call(limiter.try_acquire)
    assert denied.retry_after == pytest.approx(2 * HOUR / kind.count, rel=0.03)
    with pytest.raises(RateLimited):
        call(limiter.acquire, timeout=HOUR / kind.count)


@pytest.mark.parametrize("kind", PROMISING, ids=lambda kind: kind.id)
def test_the_last_reservation_is_given_back_whole(make, call, kind):
    limiter = make(kind.limit)
    for _ in range(kind.count):
        limiter.acquire()
    before = limiter.peek().retry_after
    for _ in range(2):
        call(limiter.reserve).cancel()
        eventually(lambda: limiter.peek().retry_after <= before, "what was given back")
        assert limiter.peek().retry_after > before - NEVER


@pytest.mark.parametrize("limit", ["1/hour burst 1", "1 every 1h"])
def test_a_cancelled_reservation_gives_back_what_was_not_reserved_after_it(make, limit):
    limiter = make(limit)
    step = HOUR
    limiter.acquire()
    _, second, third = (limiter.reserve() for _ in range(3))
    told = third.delay
    second.cancel()
    time.sleep(0.05)
    assert told - NEVER < third.delay <= told
    assert limiter.peek().retry_after == pytest.approx(4 * step, rel=0.03)
    third.cancel()
    eventually(lambda: limiter.peek().retry_after < 3.5 * step, "the last one's slot")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.promises], ids=lambda kind: kind.id)
def test_where_no_time_can_be_promised(make, call, kind):
    limiter = make(kind.limit)
    before = limiter.peek().remaining, limiter.stats()
    with pytest.raises(NotPromised):
        call(limiter.reserve)
    assert (limiter.peek().remaining, limiter.stats()) == before


def test_of_several_limits_that_promise_times_the_latest(engine, make, call, known):
    if engine.shared:
        known("of several limits no time is promised, also where each of them could")
    limiter = make("10/hour burst 2; 1 every 1h")
    assert slots(limiter, 3, call) == pytest.approx([0, 1, 2], rel=0.03)


def test_zero_makes_no_promise(make, call):
    with pytest.raises(RateLimited) as caught:
        call(make("0/s burst 5").reserve)
    assert (caught.value.reason, caught.value.retry_after) == ("never", float("inf"))


def test_only_so_many_may_be_reserved(make, call):
    limiter = make(Spacing(HOUR, max_reserved=2))
    assert slots(limiter, 3, call) == pytest.approx([0, 1, 2], rel=0.03)
    before = limiter.peek().retry_after
    with pytest.raises(RateLimited) as caught:
        call(limiter.reserve)
    # When a slot can be reserved, and when it would come.
    assert caught.value.retry_after == pytest.approx(HOUR, rel=0.03)
    assert caught.value.status.retry_after == pytest.approx(3 * HOUR, rel=0.03)
    assert before - NEVER < limiter.peek().retry_after <= before


def test_what_is_reserved_waits_in_peek(engine, make, known):
    if not engine.shared:
        known("memory:// does not count reservations as waiting, the shared engines do")
    limiter = make(Spacing(HOUR))
    for _ in range(3):
        limiter.reserve()
    assert limiter.peek().waiting == 2


@pytest.mark.parametrize("kind", PROMISING, ids=lambda kind: kind.id)
@pytest.mark.parametrize("key", [None, "alice"])
def test_a_reservation_waits_for_the_end_of_a_pause(make, call, kind, key):
    limiter = make(kind.limit)
    limiter.pause(HOUR)
    promised = [call(limiter.reserve, key).delay for _ in range(kind.count + 1)]
    assert promised[0] == pytest.approx(HOUR, rel=0.02)
    assert promised[-1] == pytest.approx(HOUR + HOUR / kind.count, rel=0.02)


@pytest.mark.parametrize("limit", ["10/s burst 10", "1 every 6s"])
def test_bad_reservations(make, call, limit):
    limiter = make(limit)
    before = limiter.peek().remaining, limiter.stats()
    for arguments in ({"cost": 0}, {"cost": 11}, {"cost": 1.5}, {"cost": {"tokens": 1}}):
        with pytest.raises(ValueError, match="cost"):
            call(limiter.reserve, **arguments)
    with pytest.raises(TypeError, match="did you mean cost=3"):
        call(limiter.reserve, 3)
    assert (limiter.peek().remaining, limiter.stats()) == before
