# mypy: disable-error-code="union-attr"
"""A slot that is moved to another node, and left half way for a while: calls wait for it, as long as they may."""

import asyncio
import itertools
import threading
import time
from typing import Any

import pytest
from tests.redis.engine_checks import short_lease
from tests.redis.lease_clients import SECOND, LeaseClient
from tests.redis.servers import HOST, Cluster, eventually

from headway import Limiter, Remote, Window
from headway.engines.redis.cluster.engine import slot_of
from headway.errors import EngineUnavailable
from waiting import NEVER

pytestmark = [pytest.mark.slow, pytest.mark.realtime]

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(_wheel):
    """A cluster for all tests here: each has a slot of its own, which is not where it was after that."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def name():
    return f"moving{next(_names)}"


class Move:
    """A slot on its way, a key at a time."""

    def __init__(self, cluster, root):
        self.slot, old = slot_of(root.encode()), cluster.owner(root)
        self.new = next(server for server in cluster.servers if server is not old)
        self.source, self.target = old.client(), self.new.client()
        names = [client.execute_command("CLUSTER MYID").decode() for client in (self.source, self.target)]
        self.name = names[1]
        self.target.execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", names[0])
        self.source.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", names[1])

    def names(self):
        found = self.source.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 100)
        # redis-py decodes them, whatever its settings are.
        return sorted(key.encode() if isinstance(key, str) else key for key in found)

    def send(self, *keys):
        """As a reshard does it: without REPLACE, so that it fails if a command has made the key there."""
        self.source.execute_command("MIGRATE", HOST, self.new.port, "", 0, 5000, "KEYS", *keys)

    def finish(self):
        if keys := self.names():
            self.send(*keys)
        for client in (self.target, self.source):
            client.execute_command("CLUSTER SETSLOT", self.slot, "NODE", self.name)

    def call_off(self):
        """Back to where it was, as far as nothing was sent."""
        for client in (self.target, self.source):
            client.execute_command("CLUSTER SETSLOT", self.slot, "STABLE")


LIMITS: dict[str, Any] = {
    "metrics": {"limit": {"calls": "50/s", "bytes": "50/s burst 50"}},
    "window": {"limit": "50/s"},
    "remote": {"limit": "50 per 300ms", "remote": Remote(max_transit=1)},
    "several": {"limit": "50/s; 9 concurrent"},
    "bucket": {"limit": "50/s burst 50"},
}


def use(limiter):
    """Take one, or hear that there is none; ended either way."""
    answer = limiter.try_acquire()
    if answer:
        answer.complete()


class Crowd:
    """A thread and a task that go on using a limiter."""

    def __init__(self, limiter):
        self.limiter = limiter
        self.uses = {"thread": 0, "task": 0}
        self.troubles: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(self._in_thread,)),
            threading.Thread(target=self._run, args=(lambda: asyncio.run(self._in_task()),)),
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.troubles.append(error)

    def _in_thread(self):
        while not self._stop.is_set():
            use(self.limiter)
            self.uses["thread"] += 1
            time.sleep(0.01)

    async def _in_task(self):
        while not self._stop.is_set():
            answer = await self.limiter.try_acquire_async()
            if answer:
                answer.complete()
            self.uses["task"] += 1
            await asyncio.sleep(0.01)

    def goes_on(self):
        before = dict(self.uses)
        eventually(
            lambda: self.troubles or all(self.uses[caller] > before[caller] + 3 for caller in before),
            "calls that go on",
        )

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(NEVER)


@pytest.mark.parametrize("first", ["root", "lists"])
@pytest.mark.parametrize("kind", LIMITS)
def test_calls_wait_until_a_slot_has_arrived(cluster, connect, name, kind, first):
    engine = connect(short_lease(cluster.url, 1))
    limiter = Limiter(**LIMITS[kind], name=name, engine=engine, engine_timeout=10, max_quarantine=1)
    for _ in range(5):
        use(limiter)
    root = f"headway:{{{name}}}".encode()
    move = Move(cluster, root.decode())
    half = [key for key in move.names() if (key == root) == (first == "root")]
    if half:
        move.send(*half)
    crowd = Crowd(limiter)
    time.sleep(0.4)
    assert not crowd.troubles
    move.finish()
    crowd.goes_on()
    crowd.end()
    assert not crowd.troubles
    limiter.acquire(timeout=NEVER).complete()
    asyncio.run(limiter.acquire_async(timeout=NEVER)).complete()


@pytest.mark.parametrize("kind", ["metrics", "remote", "several"])
def test_a_slot_that_does_not_arrive_is_told_in_time(cluster, connect, name, kind):
    engine = connect(short_lease(cluster.url, 1))
    limiter = Limiter(**LIMITS[kind], name=name, engine=engine, engine_timeout=0.3, max_quarantine=1)
    for _ in range(5):
        use(limiter)
    root = f"headway:{{{name}}}"
    move = Move(cluster, root)
    move.send(root)
    begin = time.monotonic()
    with pytest.raises(EngineUnavailable):
        limiter.try_acquire()
    assert time.monotonic() - begin >= 0.25
    begin = time.monotonic()
    with pytest.raises(EngineUnavailable):
        asyncio.run(limiter.try_acquire_async())
    assert time.monotonic() - begin >= 0.25
    move.finish()
    eventually(lambda: tried(limiter), "the slot at its new node", every=0.05)
    limiter.acquire(timeout=NEVER).complete()


def tried(limiter):
    try:
        use(limiter)
    except EngineUnavailable:
        return False
    return True


def test_a_ledger_that_a_script_left_in_pieces_is_not_believed(cluster, connect, name, caplog):
    """It took what had cooled off one list, and could not write the other: one more try would take what has not."""
    engine = connect(short_lease(cluster.url, 1))
    limiter: Any = Limiter(
        "41 per 3s", name=name, engine=engine, engine_timeout=0.2, remote=Remote(max_transit=1)
    )
    begin = time.monotonic()
    limiter.acquire().complete()
    time.sleep(2)
    for _ in range(20):
        limiter.acquire(cost=2).complete()
        time.sleep(0.01)
    eventually(lambda: limiter.peek().in_flight == 0, "hand-backs")
    time.sleep(begin + limiter._shared.ledgers.registry.rules[0].gap / 1e6 + 0.3 - time.monotonic())
    # One has cooled, forty have not; and nothing is out, so that there is no such list.
    move = Move(cluster, f"headway:{{{name}}}")
    with pytest.raises(EngineUnavailable):
        limiter.try_acquire()
    move.call_off()
    answer = limiter.try_acquire(cost=2)
    assert not answer
    assert answer.reason == "quarantine"
    assert "was lost" in caplog.text


@pytest.mark.parametrize("first", ["root", "leases"])
def test_clients_that_hold_tokens_begin_anew_on_the_other_node(first, cluster, connect, name):
    limit = Window(20, per=1, remote=False)
    client = LeaseClient(connect(cluster.url), limit, name, "A", ttl=SECOND, timeout=SECOND // 3)
    client.sync(want=60)
    assert client.held == [20]
    root = f"headway:{{{name}}}"
    move = Move(cluster, root)
    keys = move.names()
    move.send(*[key for key in keys if (key == root.encode()) == (first == "root")])
    with pytest.raises(EngineUnavailable):
        client.sync(want=60)
    move.finish()
    (answer,) = client.sync(want=60)
    assert answer.void
    assert client.synced.quarantined_ns > SECOND
    client.sync(want=60)
    eventually(lambda: client.sync(want=60) and client.held == [20], "tokens, after the quarantine")
