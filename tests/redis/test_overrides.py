# mypy: disable-error-code="arg-type, dict-item, func-returns-value, union-attr"
"""Keys with a limit of their own, on a server: of another kind too, and as closely kept as the limiter's own."""

import asyncio

import pytest

from headway import Limiter, Remote, Spacing, Window
from headway.errors import InvalidArgument
from waiting import NEVER

OTHERS = {
    "bucket": "1/hour burst 2",
    "window": "2/hour",
    "window with a remote": Window(2, per=3600, remote=Remote()),
    "fixed window": "2/day aligned",
    "concurrency": "2 concurrent",
    "spacing": "1 every 10m",
}


def test_a_waiter_for_an_override_stands_in_its_queue(server, name):
    """The limiter's own kind would promise a time, that of the key cannot."""
    limiter = Limiter("100/s burst 10", name=name, engine=server.url, overrides={"vip": "1 concurrent"})

    async def main():
        held = await limiter.acquire_async("vip")
        assert held.expires_in > 1
        waiting = asyncio.create_task(limiter.acquire_async("vip", timeout=NEVER))
        while limiter.stats().waiting == 0:  # noqa: ASYNC110 - it is asked for in vain first
            await asyncio.sleep(0.01)
        held.complete()
        (await waiting).complete()

    asyncio.run(main())


def test_a_spacing_of_a_key_has_an_allowance_of_its_own(server, name):
    """A holder that may be late by 1 % of a long interval may not be late by as much in a short one."""
    limiter = Limiter("1 every 10s", name=name, engine=server.url, overrides={"vip": "1 every 500ms"})
    limit = limiter.peek("vip").limit
    assert isinstance(limit, Spacing)
    assert limit.expire_after_ns is not None
    assert 5_000_000 <= limit.expire_after_ns < 100_000_000
    assert limiter.acquire("vip").expires_in <= limit.expire_after_ns / 1e9
    with pytest.raises(InvalidArgument, match="twice the round trip"):
        Limiter("1/s", name=name, engine=server.url, overrides={"vip": Spacing(1, expire_after="1ns")})


def test_metrics_keep_their_kinds(server, name):
    limits = {"calls": "10/minute", "tokens": "100/minute"}
    with pytest.raises(InvalidArgument, match="the same kinds"):
        Limiter(limits, name=name, engine=server.url, overrides={"vip": {"calls": "5 concurrent"}})
