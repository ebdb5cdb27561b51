# mypy: disable-error-code="attr-defined"
"""A cluster: ledgers are found by their slots, and found again when slots move and nodes die."""

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
from tests.redis.engine_checks import TIMEOUT, check_verbs, check_wake, short_lease
from tests.redis.servers import HOST, eventually, make_certificate

from headway import Limiter, Remote, Window
from headway.engines.redis.cluster import pubsub
from headway.engines.redis.cluster.engine import slot_of
from headway.errors import EngineUnavailable
from waiting import NEVER, SOON

pytestmark = pytest.mark.slow


@pytest.mark.realtime
def test_a_cluster(cluster, connect):
    check_verbs(connect(cluster.url))


@pytest.mark.realtime
@pytest.mark.usefixtures("make_tls_server")  # or the test is skipped
def test_a_cluster_with_tls(make_cluster, connect, tmp_path, monkeypatch):
    key, trusted = make_certificate(tmp_path)
    monkeypatch.setattr("tests.redis.servers.server.make_certificate", lambda folder: (key, trusted))
    cluster = make_cluster("redis-server", tls=True, tls_cluster="yes")
    engine = connect(f"{cluster.url.replace('redis+', 'rediss+')}?ssl_ca_certs={trusted}")
    check_verbs(engine)
    with contextlib.closing(cluster.client(ssl=True, ssl_ca_certs=str(trusted))) as client:
        limiter = Limiter("3/minute", name="many", engine=connect(client))
        assert all(limiter.try_acquire(f"k{i}") for i in range(9))


def test_a_cluster_spreads_ledgers(cluster, connect):
    engine = connect(cluster.url)
    limiter = Limiter("3/minute", name="many", engine=engine)
    keys = [f"k{i}" for i in range(30)]
    assert all(limiter.try_acquire(key) for key in keys)

    async def tasks():
        assert all([await limiter.try_acquire_async(key) for key in keys])

    asyncio.run(tasks())
    for key in keys:
        assert cluster.owner(f"{{many:{key}}}").client().exists(f"headway:{{many:{key}}}")
    assert len(engine.pools()) == 3


@pytest.mark.realtime
def test_waiters_on_many_nodes(cluster, connect):
    engine = connect(f"{cluster.url}?lease=300")
    limiter = Limiter("1 concurrent", name="many", engine=engine, engine_timeout=TIMEOUT)
    keys = [f"k{i}" for i in range(12)]

    async def tasks():
        for _ in range(2):
            permits = [await limiter.acquire_async(key) for key in keys]
            waiting = [asyncio.create_task(limiter.acquire_async(key, timeout=NEVER)) for key in keys]
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in waiting)
            began = time.monotonic()
            for permit in permits:
                permit.complete()
            for task in waiting:
                (await task).complete()
            assert time.monotonic() - began < SOON

    asyncio.run(tasks())


@pytest.mark.realtime
@pytest.mark.parametrize("topology", ["valkey", "cluster"])
def test_news_reach_every_process(request, topology, connect):
    """A pause that another process calls for moves the slot of a waiter that sleeps already."""
    servers = request.getfixturevalue(topology)
    url = servers.url
    first, second = connect(url), connect(url + "?drift_ppm=999")
    slow = Limiter("1 every 600ms", name="slow", engine=first, engine_timeout=TIMEOUT)
    other = Limiter("1 every 600ms", name="slow", engine=second, engine_timeout=TIMEOUT)
    slow.acquire()
    slow.acquire()  # now this process listens
    nodes = [server.client() for server in getattr(servers, "servers", [servers])]
    eventually(
        lambda: any(node.pubsub_numsub(first.news)[0][1] for node in nodes), "a subscription to the news"
    )
    began = time.monotonic()
    threading.Timer(0.2, other.pause, (1.0,)).start()
    slow.acquire()
    assert time.monotonic() - began > 1.1


def move_slot(cluster, key, *, between=lambda: None):
    """Give a key's slot to another node, key by key, as `valkey-cli --cluster reshard` does."""
    slot, old = slot_of(key.encode()), cluster.owner(key)
    new = next(server for server in cluster.servers if server is not old)
    source, target = old.client(), new.client()
    names = [client.execute_command("CLUSTER MYID").decode() for client in (source, target)]
    target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
    source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
    between()
    while keys := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 10):
        source.execute_command("MIGRATE", HOST, new.port, "", 0, 5000, "KEYS", *keys)
    between()
    for client in (target, source):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[1])
    return old, new


@pytest.mark.realtime
def test_a_slot_that_is_moved(make_cluster, connect):
    cluster = make_cluster()
    engine = connect(short_lease(cluster.url, 1))
    limiter = Limiter("5 per 300ms", name="moving", engine=engine, engine_timeout=TIMEOUT, remote=False)
    limiter.acquire()
    fresh = Limiter("5/s", name="fresh", engine=engine, engine_timeout=TIMEOUT)

    def between():
        assert fresh.try_acquire()
        assert asyncio.run(fresh.try_acquire_async())

    _, new = move_slot(cluster, "headway:{moving}")
    asked, granted = [], []
    for _ in range(8):
        asked.append(time.monotonic())
        limiter.acquire(timeout=NEVER).complete()
        granted.append(time.monotonic())
    asyncio.run(limiter.acquire_async(timeout=NEVER))
    assert new.client().exists("headway:{moving}")
    # A caller that wakes late has its permit from earlier: what was decided is between the two times.
    assert all(later - first > 0.28 for first, later in zip(asked, granted[5:], strict=False))
    # A ledger that is made while its slot is on its way is made at the new node: ASK.
    move_slot(cluster, "headway:{fresh}", between=between)
    assert fresh.acquire(timeout=NEVER)


@pytest.mark.realtime
def test_a_waiter_whose_slot_is_moved(make_cluster, connect):
    cluster = make_cluster()
    engine = connect(short_lease(cluster.url, 2))
    limiter = Limiter("1 concurrent", name="wake", engine=engine, engine_timeout=TIMEOUT)
    check_wake(engine)
    permit = limiter.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(limiter.acquire(timeout=30)))
    thread.start()
    eventually(lambda: limiter.peek().waiting, "a waiter")
    move_slot(cluster, "headway:{wake}")
    permit.complete()
    thread.join(NEVER)
    got[0].complete()
    check_wake(engine)


@pytest.mark.realtime
def test_an_end_that_waits_for_a_node_is_not_overtaken_at_another(make_cluster, connect):
    """Its slot moves before it is written, and its node is gone by then. Others are posted where the slot is now."""
    cluster = make_cluster(cluster_require_full_coverage="no")
    engine = connect(short_lease(cluster.url, 2))
    limit = Window(10, per=60, remote=Remote(max_transit=60))
    limiter = Limiter(limit, name="late", engine=engine, engine_timeout=TIMEOUT, on_ledger_loss="trust")
    permits = [limiter.acquire() for _ in range(5)]
    permits.pop().complete()
    eventually(lambda: limiter.peek().in_flight == 4, "the first end")
    posts = engine.pool_of(permits[0]._decision.ledger).release_sender
    with posts.lock:
        permits.pop().complete()
        eventually(lambda: posts.outstanding, "an end that waits")
        old, _ = move_slot(cluster, "headway:{late}")
        assert limiter.peek().in_flight == 4
        for permit in permits:
            permit.complete()
        eventually(lambda: limiter.peek().in_flight == 1, "the others")
        old.kill()
        posts._hang_up()
    eventually(lambda: limiter.peek().in_flight == 0, "all ends")


@pytest.mark.realtime
def test_a_node_that_dies(make_cluster, connect):
    """The others go on. A limiter that was using the dead one finds the others by the slot map."""
    cluster = make_cluster(cluster_require_full_coverage="no")
    engine = connect(cluster.url, 0.5)
    limiter = Limiter("100/s", name="many", engine=engine, engine_timeout=0.5)
    keys = [f"k{i}" for i in range(30)]
    assert all(limiter.try_acquire(key) for key in keys)
    dead = cluster.servers[0]
    lost = [key for key in keys if cluster.owner(f"{{many:{key}}}") is dead]
    dead.kill()
    for key in keys:
        if key in lost:
            with pytest.raises(EngineUnavailable):
                limiter.try_acquire(key)
        else:
            assert limiter.try_acquire(key)
    dead.restart()
    for key in lost:
        eventually(lambda key=key: allowed(limiter, key), "a node that is back")


def allowed(limiter, key):
    """None while the engine is away; a denial (quarantine) is an answer too."""
    with contextlib.suppress(EngineUnavailable):
        return limiter.try_acquire(key) is not None


@pytest.mark.realtime
def test_a_node_whose_replica_takes_over(make_cluster, make_server, connect):
    """A release that was posted to the dead node arrives too: a caller waits for its permit."""
    cluster = make_cluster()
    dead = cluster.owner("headway:{held}")
    replica = make_server(cluster_enabled="yes", cluster_node_timeout=2000, cluster_announce_ip=HOST)
    client = replica.client()
    client.execute_command("CLUSTER MEET", HOST, dead.port, dead.bus_port)
    name = dead.client().execute_command("CLUSTER MYID").decode()
    eventually(lambda: client.execute_command("CLUSTER REPLICATE", name), "a replica that knows its primary")
    eventually(lambda: client.info("replication").get("master_link_status") == "up", "a replica in step")

    engine = connect(short_lease(cluster.url, 1), 0.5)
    limiter = Limiter("1 concurrent", name="held", engine=engine, engine_timeout=0.5)
    permit = limiter.acquire()
    eventually(client.dbsize, "a copy of the ledger")
    eventually(lambda: len(engine.pools()) >= 3, "the map")
    dead.kill()
    permit.complete()

    def served():
        with contextlib.suppress(EngineUnavailable):
            return limiter.try_acquire()

    eventually(served, "the promoted replica", every=0.1).complete()
    assert client.info("replication")["role"] == "master"
    asyncio.run(limiter.acquire_async(timeout=NEVER)).complete()
    eventually(
        lambda: not any(pool.release_sender.outstanding for pool in engine.pools()), "releases that arrive"
    )
    check_wake(engine)


@pytest.mark.realtime
def test_channels_are_kept_only_while_a_waiter_is_there(cluster, connect, monkeypatch):
    """Two limiters of one name share a channel: it ends when no caller waits at either."""
    monkeypatch.setattr(pubsub, "LINGER", 0.2)
    engine = connect(f"{cluster.url}?lease=300")
    limiters = [Limiter("1 concurrent", name="wake", engine=engine, engine_timeout=TIMEOUT) for _ in range(2)]
    node = cluster.owner("headway:{wake}").client()
    permit = limiters[0].acquire()
    got: list[Any] = []
    threads = [
        threading.Thread(target=lambda one=one: got.append(one.acquire(timeout=NEVER))) for one in limiters
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(node.execute_command("PUBSUB SHARDCHANNELS")) == 1, "one channel")
    time.sleep(2.2)  # a round or two of forgetting
    assert len(node.execute_command("PUBSUB SHARDCHANNELS")) == 1
    for count in (1, 2):
        permit.complete()
        ended = time.monotonic()
        eventually(lambda count=count: len(got) == count, "the next one")
        assert time.monotonic() - ended < SOON
        permit = got[-1]
    permit.complete()
    eventually(lambda: not node.execute_command("PUBSUB SHARDCHANNELS"), "the end of the channel")
    check_wake(engine)
