# mypy: disable-error-code="attr-defined, union-attr"
"""Whatever brackets a call counts as the remote does, on a shared ledger; a bare permit counts at its decision."""

import asyncio
import gc
import time
import warnings

import pytest

from headway import Limiter, Remote, Window
from headway.core.window import OUT_IF_ENTERED
from headway.engines.redis.script.codec import Stored, rule_in
from headway.errors import EngineUnavailable, PermitExpired
from waiting import SOON, wait_until

WAYS = ("with", "hold", "throttle", "permit")


def most_in(times, per):
    """The most that lie in any window, wherever it starts."""
    return max(sum(start <= at < start + per for at in times) for start in times)


@pytest.mark.parametrize("way", WAYS)
def test_waiters_come_after_the_calls_that_they_wait_for(valkey, name, way):
    """The first calls arrive late, the next ones at once: the ledger has to know when the first ones ended."""
    limiter, late = Limiter("4 per 500ms", name=name, engine=valkey.url), iter([0.1] * 4 + [0.0] * 8)
    arrived = []

    async def call():
        await asyncio.sleep(next(late))
        arrived.append(time.monotonic())

    async def bracketed():
        if way == "with":
            async with limiter:
                await call()
        elif way == "hold":
            async with limiter.hold():
                await call()
        elif way == "throttle":
            await limiter(call)()
        else:
            async with await limiter.acquire_async():
                await call()

    async def main():
        await asyncio.gather(*[bracketed() for _ in range(12)])

    asyncio.run(main())
    assert len(arrived) == 12
    assert most_in(arrived, 0.5) <= 4
    wait_until(lambda: limiter.peek().in_flight == 0, "the last end")


@pytest.mark.parametrize("several", [False, True])
def test_the_ledger_hears_that_a_bare_permit_was_entered_and_of_its_end(valkey, name, several):
    limit = "2/minute; 5 concurrent" if several else "2/minute"
    limiter = Limiter(limit, name=name, engine=valkey.url)

    def out():
        status = limiter.peek()
        return (status.parts or [status])[0].in_flight

    permit = limiter.acquire()
    assert out() == 0
    with permit:
        wait_until(lambda: out() == 1, "word that it was entered")
    wait_until(lambda: out() == 0, "word of its end")
    part = (limiter.peek().parts or [limiter.peek()])[0]
    assert part.remaining == 1
    assert 60.0 < part.reset_after < 60.2  # of the end, and longer than a window


def test_ends_overtake_nothing(valkey, name):
    """A bracket around nothing: both words are under way at once."""
    limiter = Limiter("1000/minute", name=name, engine=valkey.url)

    async def call():
        async with await limiter.acquire_async():
            pass

    async def main():
        for _ in range(5):
            await asyncio.gather(*[call() for _ in range(20)])

    asyncio.run(main())
    for _ in range(20):
        with limiter.acquire():
            pass
    wait_until(lambda: limiter.peek().in_flight == 0, "every end")
    assert limiter.peek().remaining == 880
    assert valkey.client().hget(f"headway:{{{name}}}", "a1") is None  # none came back without its end


@pytest.mark.parametrize("remote", [None, False, True, Remote(max_transit=3)])
def test_each_mode_counts_as_it_says(valkey, name, remote):
    limiter = Limiter("5/minute", name=name, engine=valkey.url, remote=remote)
    bare = limiter.try_acquire()
    assert limiter.peek().in_flight == (1 if remote else 0)
    with limiter.hold():
        assert limiter.peek().in_flight == (0 if remote is False else 2 if remote else 1)
    with bare:
        wait_until(
            lambda: limiter.peek().in_flight == (0 if remote is False else 1), "word that it was entered"
        )
    wait_until(lambda: limiter.peek().in_flight == 0, "word of its end")
    assert limiter.peek().remaining == 3


def test_a_bare_permit_that_is_entered_late_is_owed_or_expired(valkey, name):
    limiter = Limiter("1 per 200ms", name=name, engine=f"{valkey.url}?lease=2")
    late, other = limiter.acquire(), limiter.acquire()
    with late:
        wait_until(lambda: limiter.peek().in_flight == 1, "word that it was entered")
        time.sleep(0.3)
        denied = limiter.try_acquire()
        assert not denied
        assert denied.status.exact is False
    assert limiter.acquire(timeout=5)
    time.sleep(2.1)
    with pytest.raises(PermitExpired), other:
        pytest.fail("it is another's by now")


def test_a_bare_permit_has_nothing_to_end_and_a_bracket_that_is_dropped_is_abandoned(valkey, name):
    limiter = Limiter("5/minute", name=name, engine=valkey.url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limiter.acquire()
        limiter.try_acquire()
        gc.collect()
    permit = limiter.hold().__enter__()
    with pytest.warns(ResourceWarning, match="dropped without an end"):
        del permit
    assert (limiter.stats().abandoned, limiter.peek().in_flight) == (1, 1)


def test_the_mode_is_written_down_and_may_be_changed(valkey, name):
    limiter = Limiter("5/minute", name=name, engine=valkey.url)
    with limiter.hold():
        limiter.try_acquire()
        stored = Stored(valkey.client().hget(f"headway:{{{name}}}", "s1"))
        assert rule_in(stored).numbers()[4] == OUT_IF_ENTERED
        limiter.set_limit(Window(5, per=60, remote=True))
        assert limiter.peek().in_flight == 1
        assert limiter.peek().remaining == 3
    wait_until(lambda: limiter.peek().in_flight == 0, "word of its end")
    limiter.set_limit(Window(5, per=60, remote=False))
    assert limiter.peek().remaining == 3


def test_a_waiter_in_the_queue_says_that_it_brackets_a_call(valkey, name):
    limiter = Limiter("1/s", name=name, engine=valkey.url)

    async def main():
        async with limiter:
            waiter = asyncio.create_task(limiter.hold().__aenter__())
            await asyncio.sleep(0.1)
            assert (await limiter.peek_async()).waiting == 1
        permit = await waiter
        assert (await limiter.peek_async()).in_flight == 1
        permit.complete()

    asyncio.run(main())


def test_the_end_of_a_bracket_waits_while_its_beginning_is_in_doubt(valkey, name):
    """The word that a permit was entered travels with a question that is not answered in time."""
    limiter = Limiter("5/minute", name=name, engine=valkey.url, engine_timeout=1)

    async def main():
        permit = await limiter.acquire_async()
        valkey.stop()
        async with permit:
            pass
        with pytest.raises(EngineUnavailable):
            await limiter.peek_async()

    try:
        asyncio.run(main())
    finally:
        valkey.cont()
    begin = time.monotonic()
    calm = Limiter("5/minute", name=name, engine=valkey.url, engine_timeout=10)
    wait_until(lambda: calm.peek().in_flight == 1 or time.monotonic() - begin > 2, "the word")
    wait_until(lambda: calm.peek().in_flight == 0, "word of its end", within=SOON)
    assert calm.peek().remaining == 4
    assert valkey.client().hget(f"headway:{{{name}}}", "a1") is None  # it did not come back without its end
