"""`Adaptive`: a rate found by trial, in every verb of a limiter; in virtual time."""

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from itertools import pairwise

import pytest

import headway
from headway import Adaptive, InvalidLimit, Limiter, NotPromised, parse_limit
from headway.core.adaptive_limit import CATCH_UP, FORGOTTEN_AFTER
from headway.testing import ManualClock
from waiting import NEVER

Answer = tuple[int, dict[str, str]]
SERVED: Answer = (200, {})
REFUSED: Answer = (429, {})


def limiter_of(limit="adaptive 1/s to 100/s from 10/s", **options):
    clock = ManualClock()
    return Limiter(limit, clock=clock, **options), clock


def run(limiter, clock, seconds, hidden, key=None):
    """Call as often as the limiter lets, against a remote that serves `hidden` in a second; (served, refused)."""
    level, served, refused, end, before = hidden, 0, 0, clock.now() + seconds * 10**9, clock.now()
    while clock.now() < end:
        denied = limiter.try_acquire(key)
        if not denied:
            clock.advance(max(1e-6, denied.retry_after))
            continue
        level = min(hidden, level + hidden * (clock.now() - before) / 1e9)
        before = clock.now()
        answer = SERVED if level >= 1 else REFUSED
        level -= answer is SERVED
        served += answer is SERVED
        refused += answer is REFUSED
        limiter.feedback(answer, key)
    return served, refused


def test_the_rate_finds_what_the_remote_serves():
    limiter, clock = limiter_of("adaptive 1/s to 1000/s")
    run(limiter, clock, 60, 50)
    served, refused = run(limiter, clock, 60, 50)
    assert served >= 0.9 * 60 * 50
    assert refused <= 0.02 * (served + refused)
    assert 40 < limiter.rate() < 60


def test_calls_are_paced_at_the_rate():
    limiter, clock = limiter_of()
    taken = []
    while clock.now() < 10**9:
        permit = limiter.try_acquire()
        if permit:
            taken.append(clock.now())
        else:
            clock.advance(permit.retry_after)
    assert len(taken) == 11
    assert max(b - a for a, b in pairwise(taken)) <= 10**8


def test_a_caller_that_is_late_loses_no_slot():
    limiter, clock = limiter_of("adaptive 100/s to 100/s")
    taken = 0
    for _ in range(1000):
        clock.advance_ns(10_000_000 + CATCH_UP // 2)  # late each time by half of what can be caught up
        taken += bool(limiter.try_acquire())
        taken += bool(limiter.try_acquire())
    assert taken / (clock.now() / 1e9) >= 95


def test_nothing_is_saved_up_over_a_rest():
    limiter, clock = limiter_of("adaptive 1/s to 10/s from 10/s")
    limiter.try_acquire()
    clock.advance(60)
    assert [bool(limiter.try_acquire()) for _ in range(3)] == [True, False, False]


def test_a_refusal_steps_down_and_does_not_pause():
    limiter, _ = limiter_of()
    limiter.try_acquire()
    assert limiter.feedback(REFUSED).refused
    assert 1 <= limiter.rate() < 10
    assert limiter.try_acquire().reason == "limit"


def test_a_time_that_the_remote_says_is_a_pause():
    limiter, clock = limiter_of()
    limiter.feedback((429, {"Retry-After": "30"}))
    assert limiter.try_acquire().reason == "paused"
    assert limiter.rate() < 10
    clock.advance(34)
    assert limiter.try_acquire()


def test_a_stated_limit_bounds_the_rate():
    limiter, _ = limiter_of()
    limiter.feedback((200, {"RateLimit-Policy": '"api";q=120;w=60', "RateLimit": '"api";r=100;t=30'}))
    assert limiter.limit == Adaptive("120/minute", least="1/s", most="120/minute")
    assert limiter.rate() == 2.0
    limiter.feedback(
        (200, {"RateLimit-Policy": '"api";q=120;w=60', "RateLimit": '"api";r=100;t=30'}), follow=False
    )
    assert limiter.rate() == 2.0


def test_other_limiters_still_back_off():
    limiter, _ = limiter_of("100/s")
    assert limiter.rate() is None
    limiter.feedback(REFUSED)
    assert limiter.try_acquire().reason == "paused"


def test_each_key_has_a_rate_of_its_own():
    limiter, clock = limiter_of()
    limiter.try_acquire("alice")
    limiter.feedback(REFUSED, "alice")
    assert limiter.rate("alice") < 10 == limiter.rate("bob") == limiter.rate()
    clock.advance_ns(FORGOTTEN_AFTER)
    assert limiter.try_acquire("alice")
    assert limiter.rate("alice") == 10


def test_brackets_measure_how_long_a_call_takes():
    limiter, clock = limiter_of()
    with limiter:
        clock.advance(0.25)
    ledger = limiter._store.first.default
    assert ledger.rate.latency == pytest.approx(0.25)
    with limiter.try_acquire():
        clock.advance(0.25)
    with limiter.hold():
        clock.advance(0.25)
    assert ledger.rate.latency == pytest.approx(0.25)


def test_a_cancelled_call_gives_its_slot_back():
    limiter, _ = limiter_of()
    permit = limiter.try_acquire()
    assert not limiter.try_acquire()
    permit.cancel()
    assert limiter.try_acquire()


def test_waiters_are_served_in_order_by_threads_and_by_tasks():
    limiter = Limiter("adaptive 50/s to 50/s")
    order: list[int] = []

    async def main():
        async def call(number):
            async with limiter.hold(timeout=60):
                order.append(number)
                await limiter.feedback_async(SERVED)

        await asyncio.gather(*map(call, range(10)))

    asyncio.run(main())
    assert order == list(range(10))
    threads = [threading.Thread(target=lambda: limiter.acquire(timeout=60)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert limiter.stats().granted == 15


def test_threads_may_tell_it_what_they_hear_at_once():
    limiter = Limiter("adaptive 1000/s to 100000/s")

    def work(number):
        for call in range(200):
            if limiter.try_acquire():
                limiter.feedback(REFUSED if (call + number) % 50 == 0 else SERVED)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 1000 <= (limiter.rate() or 0) <= 100_000


FORKED = """
import os
from headway import Limiter
limiter = Limiter("adaptive 1/s to 100/s from 10/s")
child = os.fork()
if child == 0:
    limiter.try_acquire()
    limiter.feedback((429, {}))
    os._exit(0 if limiter.rate() < 10 else 1)
assert os.waitpid(child, 0)[1] == 0
assert limiter.rate() == 10
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_a_rate_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=NEVER)


def test_it_goes_with_other_limits():
    limiter, _ = limiter_of("adaptive 1/s to 100/s from 10/s; 5 concurrent")
    with limiter:
        assert limiter.rate() == 10
        limiter.feedback(REFUSED)
    assert limiter.rate() < 10


def test_its_bounds_can_be_changed():
    limiter, _ = limiter_of()
    limiter.set_limit("adaptive 1/s to 5/s")
    assert limiter.rate() == 5
    with pytest.raises(headway.LimitMismatch):
        limiter.set_limit("10/s")


def test_no_time_can_be_reserved():
    limiter, _ = limiter_of()
    with pytest.raises(NotPromised):
        limiter.reserve()


def test_a_shared_engine_is_refused_with_the_reason(tmp_path):
    with pytest.raises(InvalidLimit, match="not shared with other processes"):
        Limiter("adaptive 1/s to 100/s", engine="redis://127.0.0.1:1", name="x")
    with pytest.raises(InvalidLimit, match="not shared with other processes"):
        Limiter("adaptive 1/s to 100/s", engine=f"embedded://{tmp_path}", name="x", prefetch=True)


@pytest.mark.parametrize(
    ("start", "least", "most"),
    [(1, 2, 3), (4, 2, 3), (0, 0, 1), (-1, 1, 2), ("x", 1, 2), (1, 1, float("inf")), (1, 1, float("nan")),
     (True, 1, 2), ("1/s burst 2", 1, 3), ("0/s", "0/s", "1/s"), ((1,), 1, 2), (None, 1, 2)],
)  # fmt: skip
def test_what_makes_no_sense_cannot_be_built(start, least, most):
    with pytest.raises(InvalidLimit):
        Adaptive(start, least, most)


def test_it_is_a_value():
    limit = parse_limit("adaptive 1/s to 100/s from 10/s")
    assert limit == Adaptive((10, 1), "1 per s", most=100) == pickle.loads(pickle.dumps(limit))
    assert hash(limit) == hash(Adaptive("10/s", "1/s", "100/s"))
    assert (limit.start, limit.least, limit.most, limit.capacity) == (10.0, 1.0, 100.0, 100)
    assert Adaptive(0.5, 0.5, 0.5) == Adaptive("1/2s", "1/2s", "1/2s")
    assert limit.share(0.5) == Adaptive("10/2s", "1/2s", "100/2s")
