# mypy: disable-error-code="attr-defined, union-attr"
"""What a process keeps of the keys that it has used: little, and no call pays for all of them."""

import asyncio
import gc
import threading
import time
import tracemalloc
from collections import Counter

import pytest
from tests.redis.servers import eventually

from headway import Limiter
from headway.engines.redis.client import registry as registries
from headway.engines.redis.client.batching import thread_batcher
from headway.engines.redis.client.requests import NOTHING, Request

pytestmark = pytest.mark.realtime


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """A ledger client that was seen twice without use is idle."""
    monkeypatch.setattr(registries, "IDLE", 0)


def compact_all(limiter):
    """Sweep until all ledger clients are compacted."""
    registry = limiter._shared.ledgers.registry
    eventually(lambda: registry.sweep() or not registry.ledgers, "all ledger clients compacted")


def test_an_idle_key_takes_little(valkey, name):
    limiter = Limiter("1000000/day aligned", name=name, engine=valkey.url)
    for number in range(200):
        limiter.acquire(f"warm{number}")
    compact_all(limiter)
    tracemalloc.start()
    try:
        for number in range(5000):
            limiter.acquire(f"key{number}")
        assert len(limiter._shared.ledgers.registry.ledgers) < 500
        compact_all(limiter)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert limiter.stats().keys == 5200
    assert used / 5000 < 600


def test_ledger_clients_are_freed_without_the_collector(valkey, name):
    limiter = Limiter("1000000/day", name=name, engine=valkey.url)
    gc.collect()
    gc.disable()
    try:
        for number in range(100):
            limiter.acquire(f"key{number}")
        compact_all(limiter)
        assert limiter._shared.ledgers.registry.all_clients() == []
    finally:
        gc.enable()


def test_no_call_looks_at_many_and_all_are_found(valkey, name, monkeypatch):
    limiter = Limiter("1000000/day", name=name, engine=valkey.url)
    looks: Counter[int] = Counter()
    call = [0]
    reduce, expiry_of = registries.LimiterRegistry._compact_ledger, registries.expiry_of

    def counted(do):
        def peek(*args):
            looks[call[0]] += 1
            return do(*args)

        return peek

    monkeypatch.setattr(registries.LimiterRegistry, "_compact_ledger", counted(reduce))
    monkeypatch.setattr(registries, "expiry_of", counted(expiry_of))
    monkeypatch.setattr(registries, "IDLE", 1 << 62)
    for number in range(2000):
        call[0] += 1
        limiter.acquire(f"key{number}")
    assert len(limiter._shared.ledgers.registry.ledgers) == 2000
    monkeypatch.setattr(registries, "IDLE", 0)
    for _ in range(3 * 2000):
        call[0] += 1
        limiter.acquire("key0")
    assert max(looks.values()) <= 2 * registries.BATCH <= 64
    assert len(limiter._shared.ledgers.registry.ledgers) < 10


def test_a_ledger_client_in_use_is_not_compacted(valkey, name, monkeypatch):
    monkeypatch.setattr(registries, "IDLE", 300_000_000)
    limiter = Limiter("1000000/day", name=name, engine=valkey.url)
    limiter.acquire("key")
    registry = limiter._shared.ledgers.registry
    ledger = registry.ledgers["key",]
    until = time.monotonic() + 1
    while time.monotonic() < until:
        limiter.acquire("key")
        registry.sweep()
        assert registry.ledgers["key",] is ledger
        time.sleep(0.01)
    eventually(lambda: registry.sweep() or not registry.ledgers, "its compact form")


def test_a_ledger_client_that_was_just_looked_up_is_not_compacted(valkey, name):
    limiter = Limiter("1000000/day", name=name, engine=valkey.url)
    limiter.acquire("key")
    registry = limiter._shared.ledgers.registry
    for _ in range(3):
        ledger = registry.ledger(("key",))
        registry.sweep()
        assert registry.ledgers == {("key",): ledger}
    registry.sweep()
    assert not registry.ledgers


@pytest.mark.parametrize("limit", ["5 concurrent", "2/300ms"])
def test_a_ledger_client_with_holders_or_waiters_is_not_compacted(valkey, name, limit):
    limiter = Limiter(limit, name=name, engine=valkey.url)
    registry = limiter._shared.ledgers.registry
    held = [limiter.acquire("key") for _ in range(2)]
    ledger = registry.ledgers["key",]
    if not ledger.busy:
        waiter = threading.Thread(target=limiter.acquire, args=["key"])
        waiter.start()
        eventually(lambda: ledger.busy, "a waiter")
    for _ in range(10):
        registry.sweep()
    assert registry.ledgers["key",] is ledger
    if "concurrent" not in limit:
        waiter.join()
    for permit in held:
        permit.complete()


def test_an_expired_ledger_is_forgotten(valkey, name):
    limiter = Limiter("1000000/day", name=name, engine=valkey.url)
    limiter.acquire("short")
    limiter.acquire("long")
    limiter._shared.ledgers.registry.ledgers["short",].expires = limiter._shared._clock.now()
    compact_all(limiter)
    limiter._shared.ledgers.registry.sweep()
    assert (
        list(limiter._shared.ledgers.registry.compact)
        == limiter._shared.ledgers.registry.compacted_keys
        == [("long",)]
    )
    assert limiter._shared.ledgers.registry.live_keys == []
    assert limiter.stats().keys == 1


def test_a_key_is_compacted_once(valkey, name):
    limiter = Limiter("1000000/day", name=name, engine=valkey.url)
    for expires in (None, 1, None, None):
        limiter.acquire("key")
        if expires is not None:
            limiter._shared.ledgers.registry.ledgers["key",].expires = expires
        compact_all(limiter)
        assert limiter._shared.ledgers.registry.compacted_keys == ([("key",)] if expires is None else [])
        assert limiter._shared.ledgers.registry.live_keys == []


def test_a_ledger_that_was_lost_while_its_client_was_compacted_is_missed(valkey, name):
    limiter = Limiter("2/min", name=name, engine=valkey.url)
    assert limiter.try_acquire("key")
    compact_all(limiter)
    valkey.client().flushall()
    assert limiter.try_acquire("key").reason == "quarantine"


def test_a_ledger_that_is_older_than_it_was_is_missed(valkey, name):
    limiter = Limiter("5/min", name=name, engine=valkey.url)
    client, root = valkey.client(), f"headway:{{{name}:key}}"
    assert limiter.try_acquire("key")
    before = client.dump(root)
    assert limiter.try_acquire("key")
    compact_all(limiter)
    client.restore(root, 60_000, before, replace=True)
    assert limiter.try_acquire("key").reason == "quarantine"


def test_what_a_detached_client_has_heard_is_known(valkey, name):
    """A thread may have got the ledger client right before it was compacted, and still send with it."""
    limiter = Limiter("5/min", name=name, engine=valkey.url)
    client, root = valkey.client(), f"headway:{{{name}:key}}"
    assert limiter.try_acquire("key")
    detached = limiter._shared.ledgers.registry.ledgers["key",]
    before = client.dump(root)
    compact_all(limiter)
    thread_batcher(detached).send(Request(detached, NOTHING))
    assert limiter._shared.ledgers.registry.ledgers["key",] is not detached
    assert limiter._shared.ledgers.registry.ledgers["key",].seq == detached.seq
    client.restore(root, 60_000, before, replace=True)
    assert limiter.try_acquire("key").reason == "quarantine"


def test_a_batcher_of_a_detached_client_uses_another_stream(valkey, name):
    """Its stream now belongs to its successor. Two batchers that use one stream get each other's answers."""
    limiter = Limiter("5/min", name=name, engine=valkey.url)
    assert limiter.try_acquire("key")
    detached = limiter._shared.ledgers.registry.ledgers["key",]
    batcher = thread_batcher(detached)
    had = batcher.stream
    compact_all(limiter)
    assert limiter.try_acquire("key")
    batcher.send(Request(detached, NOTHING))
    assert thread_batcher(limiter._shared.ledgers.registry.ledgers["key",]).stream == had != batcher.stream
    assert limiter.try_acquire("key")


def test_a_detached_client_goes_by_the_newest_limit(valkey, name):
    limiter = Limiter("5/min", name=name, engine=valkey.url)
    assert limiter.try_acquire("key")
    detached = limiter._shared.ledgers.registry.ledgers["key",]
    compact_all(limiter)
    limiter.set_limit("9/min")
    assert detached.rules == limiter._shared.ledgers.registry.rules
    thread_batcher(detached).send(Request(detached, NOTHING))
    assert limiter.peek("key").remaining == 8


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_a_permit_ends_although_its_ledger_client_was_compacted(valkey, name, end):
    limiter = Limiter("1/200ms" if end == "complete" else "1/min", name=name, engine=valkey.url, remote=True)
    limiter.acquire("other").cancel()  # the first end of a process is posted at once
    eventually(lambda: limiter._shared._engine.pools()[0].release_sender.wire, "it is posted")
    permit = limiter.acquire("key")
    compact_all(limiter)
    assert not limiter.try_acquire("key")
    compact_all(limiter)
    getattr(permit, end)()
    if end == "cancel":
        limiter.try_acquire("key").complete()  # with the very next question
    else:
        eventually(lambda: limiter.try_acquire("key"), "a permit").complete()


def test_a_release_for_a_ledger_that_began_anew_is_dropped(valkey, name):
    limiter = Limiter("1/min", name=name, engine=valkey.url, remote=True, max_quarantine=0.1)
    permit = limiter.acquire("key")
    compact_all(limiter)
    valkey.client().flushall()
    assert limiter.try_acquire("key").reason == "quarantine"
    other = eventually(lambda: limiter.try_acquire("key"), "a permit")
    permit.cancel()
    time.sleep(0.1)
    assert not limiter.try_acquire("key")
    other.complete()


@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_a_ledger_meets_no_further_streams(valkey, name, how):
    """Each costs the server some, for minutes; a calendar quota's go only now and then."""
    limiter = Limiter("1000000/day aligned", name=name, engine=valkey.url)

    def rounds():
        for _ in range(20):
            yield
            compact_all(limiter)
            assert not limiter._shared.ledgers.registry.ledgers

    async def in_tasks():
        for _ in rounds():
            (await limiter.acquire_async("key")).cancel()
            await asyncio.sleep(0.005)

    if how == "tasks":
        asyncio.run(in_tasks())
    else:
        for _ in rounds():
            limiter.acquire("key").cancel()
            time.sleep(0.005)
    fields = valkey.client().hkeys(f"headway:{{{name}:key}}")
    # One for questions, one for releases, and one more for each release that came too late on a busy machine.
    assert len([field for field in fields if field.startswith(b"c")]) < 10


def test_the_streams_of_a_parent_are_not_its_childs(valkey, name):
    limiter = Limiter("1000000/day", name=name, engine=valkey.url)
    limiter.acquire("key").cancel()
    eventually(lambda: not limiter._shared._engine.deferred, "the end is posted")
    compact_all(limiter)
    registry, memory = limiter._shared.ledgers.registry, limiter._shared.ledgers.registry.compact["key",]
    assert memory[0][-16:-4] == limiter._shared._engine.process
    child = limiter._shared._engine.process[::-1]
    parent, limiter._shared._engine.process = limiter._shared._engine.process, child
    try:
        ledger = registry.open_ledger(("key",))
        assert ledger.epoch == memory[0][:24]
        assert ledger.spare is None
        assert ledger.release_stream is None
    finally:
        limiter._shared._engine.process = parent


def in_turns(first):
    """200 keys, five times, each asker from another one on."""
    return [f"key{(first + number) % 200}" for number in range(200)] * 5


def test_the_limit_holds_while_ledger_clients_are_compacted(valkey, name):
    """Hundreds of keys, used in turns by threads and tasks."""
    limiter = Limiter("12/day", name=name, engine=valkey.url)
    granted, stop = [], threading.Event()

    def sweep():
        while not stop.wait(0.001):
            limiter._shared.ledgers.registry.sweep()

    def acquire(first):
        granted.extend([key for key in in_turns(first) if limiter.try_acquire(key)])

    async def ask_too(first):
        granted.extend([key for key in in_turns(first) if await limiter.try_acquire_async(key)])

    async def both():
        await asyncio.gather(ask_too(20), ask_too(120))

    threads = [threading.Thread(target=acquire, args=[first]) for first in (0, 70, 140)]
    threads.append(threading.Thread(target=lambda: asyncio.run(both())))
    sweeper = threading.Thread(target=sweep)
    for thread in [*threads, sweeper]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    sweeper.join()
    assert Counter(granted) == dict.fromkeys(in_turns(0), 12)
