"""Callers that wait for abandoned permits say so in the log, with what helps."""

import asyncio
import logging

import pytest

from headway import Limiter, throttle
from headway.testing import ManualClock, run

pytestmark = pytest.mark.both_forms


@pytest.fixture
def clock():
    return ManualClock()


def said(caplog):
    return [record.message for record in caplog.records if "abandoned" in record.message]


def test_retries_that_wait_for_abandoned_permits_say_so_once_a_minute(clock, caplog):
    """A flaky network: each attempt leaves a permit behind, and the next one waits for it."""
    starts = []

    @throttle("2/s", clock=clock)
    async def call():
        starts.append(clock.now() / 1e9)
        raise TimeoutError

    async def main():
        for _ in range(16):
            with pytest.raises(TimeoutError):
                await call()

    with caplog.at_level(logging.WARNING, "headway"):
        run(main(), clock=clock)
    assert [round(start) for start in starts[:5]] == [0, 0, 11, 11, 22]
    first, *more = said(caplog)
    assert len(more) == round(starts[-1]) // 60 == 1
    assert "limiter '2/s': calls wait for 2 of 2 permits that were abandoned" in first
    assert "10 s after its grant" in first
    for helps in ("answered=", "not_sent=", "max_transit"):
        assert helps in first


def test_a_waiter_that_was_there_before_the_permit_was_abandoned(clock, caplog):
    limiter = Limiter("1/s", remote=True, name="test_abandoned", clock=clock)

    async def main():
        permit = limiter.acquire()
        waiter = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(1)
        assert said(caplog) == []
        permit.abandon()
        await waiter
        waiter.result().complete()

    with caplog.at_level(logging.WARNING, "headway"):
        run(main(), clock=clock)
    assert len(said(caplog)) == 1
    assert "'test_abandoned'" in said(caplog)[0]


def test_nothing_is_said_where_no_caller_waits(clock, caplog):
    limiter = Limiter("2/s", remote=True, clock=clock)
    seats = Limiter("1 concurrent", clock=clock)

    async def main():
        limiter.acquire().abandon()
        limiter.acquire().complete()
        seats.acquire().abandon()
        seat = seats.acquire()
        waiter = asyncio.create_task(seats.acquire_async())
        await asyncio.sleep(1)
        seat.abandon()
        (await waiter).complete()

    with caplog.at_level(logging.WARNING, "headway"):
        run(main(), clock=clock)
    assert said(caplog) == []
