"""The same storms on uvloop, whose transports are others: buffers, closing, the end of a loop."""

import asyncio

import pytest
from tests.redis.cancellation import HELD, STORMS, Storm, run, settled

from headway import Limiter

uvloop = pytest.importorskip("uvloop", reason="needs uvloop: pip install uvloop")

pytestmark = pytest.mark.realtime


@pytest.fixture
def proxy(valkey, make_proxy):
    return make_proxy(valkey)


@pytest.mark.parametrize("kind", ["window", "concurrency", "metrics", "bucket"])
def test_what_the_cancelled_were_granted_goes_back(valkey, proxy, name, kind):
    """Also while connections are cut and answers dropped after the server acted."""
    limiter = Limiter(STORMS[kind], name=name, engine=proxy.url, engine_timeout=5)
    storm = Storm(kind, limiter)

    async def vandal(turn):
        await asyncio.to_thread(
            proxy.cut if turn // 40 % 2 else lambda: proxy.drop_answers(3, only=b"EVALSHA")
        )

    run(storm.rage(250, vandal), uvloop.new_event_loop)
    assert len(storm.kept) == storm.ended > 0
    proxy.heal()
    settled(limiter, kind, storm)


def test_one_loop_after_another_with_commands_under_way(proxy, name):
    limiter = Limiter(HELD, name=name, engine=f"{proxy.url}?lease=300", engine_timeout=5)
    storm = Storm("window", limiter)

    proxy.delay(answers=0.004)
    for _ in range(6):
        run(storm.leave(), uvloop.new_event_loop)
    proxy.heal()
    settled(limiter, "held", storm)
