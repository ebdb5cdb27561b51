"""What must be true of an engine wherever its servers are."""

import asyncio
import threading
import time
from typing import Any

from tests.redis.servers import eventually

from headway import Limiter
from waiting import NEVER

TIMEOUT = 2.0  # seconds: two cores are shared with others


def check_verbs(engine, name="verbs"):
    """A limit of two, used up by a thread and a task together, counts for both."""
    limiter = Limiter("2/minute", name=name, engine=engine, engine_timeout=TIMEOUT)
    limiter.acquire().complete()

    async def tasks():
        (await limiter.acquire_async()).complete()
        assert not await limiter.try_acquire_async()
        assert (await limiter.peek_async()).remaining == 0

    asyncio.run(tasks())
    assert not limiter.try_acquire()
    assert limiter.peek().remaining == 0
    asyncio.run(check_wake_async(engine))
    check_wake(engine)


def check_wake(engine, within=1.0):
    """A thread that stands in a queue is called at once; without a message it would wait for a third of the lease."""
    limiter = Limiter("1 concurrent", name="wake", engine=engine, engine_timeout=TIMEOUT)
    for _ in range(2):  # the first time the subscription may not be there yet
        permit = limiter.acquire()
        got: list[tuple[Any, float]] = []
        thread = threading.Thread(
            target=lambda got=got: got.append((limiter.acquire(timeout=NEVER), time.monotonic()))
        )
        thread.start()
        eventually(lambda: limiter.peek().waiting, "a waiter")
        time.sleep(0.4)
        assert not got
        permit.complete()
        ended = time.monotonic()
        thread.join(NEVER)
        got[0][0].complete()
    assert got[0][1] - ended < within


async def check_wake_async(engine, within=1.0):
    limiter = Limiter("1 concurrent", name="wake", engine=engine, engine_timeout=TIMEOUT)
    for _ in range(2):
        permit = await limiter.acquire_async()
        waiting = asyncio.create_task(limiter.acquire_async(timeout=NEVER))
        await asyncio.sleep(0.4)
        assert not waiting.done()
        permit.complete()
        ended = time.monotonic()
        (await waiting).complete()
    assert time.monotonic() - ended < within


def short_lease(url, seconds=3):
    return f"{url}{'&' if '?' in url else '?'}lease={seconds}"


def check_reset(limiter, reset):
    """As if nothing of its ten had been taken; and what was taken before, and is cancelled now, gives nothing back."""
    before = [limiter.acquire() for _ in range(10)]
    reset()
    after = [limiter.acquire(timeout=0) for _ in range(10)]
    for permit in before:
        permit.cancel()
    time.sleep(0.1)
    assert not limiter.try_acquire()
    for permit in after:
        permit.cancel()


def start_slowly(engine, seconds):
    """Let its private server take so long to start, once."""
    prepare = engine.prepare

    def slowly():
        time.sleep(seconds)
        prepare()
        del engine.prepare

    engine.prepare = slowly
