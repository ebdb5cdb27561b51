"""The list of waiters: it goes when no waiter is left, and what an old list had belongs to no waiter."""

import threading
import time
from struct import pack

import pytest
from tests.redis.servers import eventually

from headway import Limiter
from waiting import NEVER


@pytest.fixture
def limiter(server, name, connect):
    limiter = Limiter("1 concurrent", name=name, engine=connect(f"{server.url}?lease=5"), engine_timeout=2)
    yield limiter
    limiter.close()


@pytest.mark.realtime
def test_it_expires_also_if_its_ledger_was_prolonged_before(limiter, server, name):
    held = limiter.acquire()
    thread = threading.Thread(target=lambda: limiter.acquire(timeout=30).complete())
    thread.start()
    client = server.client()
    eventually(lambda: client.exists(f"headway:{{{name}}}:q"), "a waiter")
    for part in "qwh":
        assert client.pttl(f"headway:{{{name}}}:{part}") >= client.pttl(f"headway:{{{name}}}") - 1000
    held.complete()
    thread.join(NEVER)
    eventually(
        lambda: not client.exists(*(f"headway:{{{name}}}:{part}" for part in "qwhb")), "an empty queue"
    )


@pytest.mark.realtime
def test_a_waiter_does_not_stand_behind_entries_of_an_expired_ledger(limiter, server, name):
    """The root has expired, and its queue was left."""
    client = server.client()
    for number in range(1, 4):
        waiter = b"0123456789ab" + pack("<d", number)
        client.zadd(f"headway:{{{name}}}:q", {b"\0" + pack(">d", number) + waiter: 0})
        client.hset(f"headway:{{{name}}}:w", waiter, pack("<dddd", number, 2**52, 1, 1))
    held = limiter.acquire()
    got: list[float] = []

    def wait():
        permit = limiter.acquire(timeout=30)
        got.append(time.monotonic())
        permit.complete()

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: limiter.peek().waiting == 1, "one waiter")
    assert client.zcard(f"headway:{{{name}}}:q") == 1
    assert client.hlen(f"headway:{{{name}}}:w") == 1
    held.complete()
    thread.join(NEVER)
    assert got
    thread.join(NEVER)
