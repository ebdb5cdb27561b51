# mypy: disable-error-code="arg-type, attr-defined, union-attr, var-annotated"
"""close() ends every wait, also one that is about to begin; and no wake-up before a wait is lost."""

import asyncio
import time
import types

import pytest
from tests.redis.callers import NOWHERE, Callers

from headway import Limiter, Spacing
from headway.clock import SYSTEM
from headway.errors import LimiterClosed
from headway.flows import drive_shared
from headway.flows.shared import Park
from waiting import SOON, wait_until

pytestmark = pytest.mark.realtime


def test_close_ends_the_wait_for_a_slot_to_reserve(valkey, name):
    """A caller that was told to come back later sleeps, too."""
    limiter = Limiter(Spacing(5, max_reserved=0), name=name, engine=valkey.url)
    limiter.acquire()

    async def main():
        task = asyncio.create_task(limiter.acquire_async())
        callers = Callers(limiter.acquire)
        while limiter.stats().waiting < 2:  # noqa: ASYNC110 - others wait in threads
            await asyncio.sleep(0.01)
        limiter.close()
        with pytest.raises(LimiterClosed, match=name):
            await asyncio.wait_for(task, 2)
        assert [type(outcome) for outcome in callers.join()] == [LimiterClosed]

    asyncio.run(main())


def test_close_reaches_a_caller_that_is_about_to_wait(valkey, name, monkeypatch):
    """The limiter is closed while the question is on its way."""
    limiter = Limiter("1 concurrent", name=name, engine=valkey.url)
    held = limiter.acquire()

    def pool_of(ledger):
        monkeypatch.undo()
        limiter.close()
        return limiter._shared._engine.pool_of(ledger)

    monkeypatch.setattr(limiter._shared._engine, "pool_of", pool_of)
    callers = Callers(limiter.acquire)
    assert [type(outcome) for outcome in callers.join()] == [LimiterClosed]
    watch = Limiter("1 concurrent", name=name, engine=valkey.url)
    wait_until(lambda: watch.peek().waiting == 0, "an empty queue")
    held.complete()


@pytest.mark.parametrize("task", [False, True], ids=["thread", "task"])
def test_a_wakeup_before_the_waker_is_installed_is_not_lost(task):
    """It looks whether it was called, is called, and only then lies down."""
    request = types.SimpleNamespace(waker=None, called=False)

    def flow():
        while not request.called:
            request.called = True  # by another thread
            if request.waker is not None:
                request.waker.wake()
            yield Park(request, SYSTEM.now() + 120_000_000_000)
        return "called"

    begin = time.monotonic()
    if task:
        assert asyncio.run(drive_shared.run_async(flow(), None, SYSTEM)) == "called"
    else:
        assert drive_shared.run(flow(), None, SYSTEM, lambda: None) == "called"
    assert time.monotonic() - begin < SOON


def test_close_ends_the_wait_in_the_fallback(name):
    limiter = Limiter("10/hour", name=name, engine=NOWHERE, on_engine_error="local")
    assert limiter.try_acquire()
    callers = Callers(limiter.acquire)
    time.sleep(0.2)
    assert callers.outcomes == []
    limiter.close()
    assert [str(outcome) for outcome in callers.join()] == [str(LimiterClosed(name))]
