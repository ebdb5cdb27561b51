"""The engine on every kind of server that it can be told of: the same verbs, the same waiting.

What is decided is tested elsewhere; here it is whether the servers are found, and found again after they moved.
"""

import asyncio
import contextlib
import threading
import time

import pytest
import redis.asyncio
import redis.sentinel
from tests.redis.servers import HOST, eventually

import redis
from headway import Limiter
from headway.engines.redis import open_engine, redis_engine
from headway.engines.redis.cluster import slot_of
from headway.errors import EngineUnavailable, InvalidArgument

TIMEOUT = 2.0  # seconds: two cores are shared with others


@pytest.fixture
def connect():
    """An engine, closed when the test is over."""
    with contextlib.ExitStack() as stack:

        def connect(where, timeout=TIMEOUT, **options):
            if options:
                engine = redis_engine(where, timeout=timeout, **options)
            else:
                engine = open_engine(where, timeout)
            stack.callback(engine.close)
            return engine

        yield connect


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
        got = []
        thread = threading.Thread(target=lambda got=got: got.append((limiter.acquire(timeout=20), time.monotonic())))
        thread.start()
        eventually(lambda: limiter.peek().waiting, "somebody who waits")
        time.sleep(0.4)
        assert not got
        permit.complete()
        ended = time.monotonic()
        thread.join(20)
        got[0][0].complete()
    assert got[0][1] - ended < within


async def check_wake_async(engine, within=1.0):
    limiter = Limiter("1 concurrent", name="wake", engine=engine, engine_timeout=TIMEOUT)
    for _ in range(2):
        permit = await limiter.acquire_async()
        waiting = asyncio.create_task(limiter.acquire_async(timeout=20))
        await asyncio.sleep(0.4)
        assert not waiting.done()
        permit.complete()
        ended = time.monotonic()
        (await waiting).complete()
    assert time.monotonic() - ended < within


def short_lease(url, seconds=3):
    return f"{url}{'&' if '?' in url else '?'}lease={seconds}"


# -- one server ------------------------------------------------------------------------------------------


@pytest.mark.realtime
def test_a_server(server, connect):
    check_verbs(connect(server.url))


@pytest.mark.realtime
def test_a_unix_socket(make_server, connect):
    server = make_server(unix=True, requirepass="s3cret")
    check_verbs(connect(server.url))


@pytest.mark.realtime
def test_tls(make_tls_server, connect):
    check_verbs(connect(make_tls_server(requirepass="s3cret").url))


def test_a_database_by_its_number(valkey, connect):
    engine = connect(f"redis://{HOST}:{valkey.port}/3")
    Limiter("1/minute", name="there", engine=engine).acquire()
    assert valkey.client(port=valkey.port, db=3).exists("headway:{there}")
    assert not valkey.client().dbsize()


def test_a_namespace(valkey, connect):
    engine = connect(f"{valkey.url}?namespace=shop")
    Limiter("1/minute", name="there", engine=engine).acquire()
    assert valkey.client().exists("shop:{there}")


# -- sentinels -------------------------------------------------------------------------------------------


@pytest.mark.realtime
@pytest.mark.slow
def test_sentinels(make_sentinels, connect):
    check_verbs(connect(make_sentinels().url))


def test_sentinels_that_do_not_answer_are_passed_over(make_sentinels, connect):
    sentinels = make_sentinels(replicas=0)
    dead = sentinels.url.replace("://", f"://{HOST}:1,{HOST}:2,")
    limiter = Limiter("2/minute", name="x", engine=connect(dead))
    assert limiter.try_acquire()
    assert asyncio.run(limiter.try_acquire_async())


def test_a_service_that_no_sentinel_knows(make_sentinels, connect):
    sentinels = make_sentinels(replicas=0)
    engine = connect(sentinels.url.replace("/headway", "/other"))
    with pytest.raises(EngineUnavailable, match="no sentinel knows the primary of 'other'"):
        Limiter("2/minute", name="x", engine=engine).acquire()
    with pytest.raises(EngineUnavailable, match="knows no such service"):
        asyncio.run(Limiter("2/minute", name="x", engine=engine).acquire_async())


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False])
def test_a_failover_is_followed(make_sentinels, connect, kill):
    """Both colours and the subscription go to the new primary, and no window sees more than its limit."""
    sentinels = make_sentinels()
    engine = connect(short_lease(sentinels.url, 1))
    limiter = Limiter("5 per 300ms", name="moving", engine=engine, engine_timeout=TIMEOUT)
    grants, stop = [], threading.Event()

    def use():
        while not stop.is_set():
            with contextlib.suppress(EngineUnavailable):
                limiter.acquire(timeout=5).complete()
                grants.append(time.monotonic())
            time.sleep(0.005)

    async def use_async():
        while not stop.is_set():
            with contextlib.suppress(EngineUnavailable):
                (await limiter.acquire_async(timeout=5)).complete()
                grants.append(time.monotonic())
            await asyncio.sleep(0.005)

    users = [threading.Thread(target=use), threading.Thread(target=lambda: asyncio.run(use_async()))]
    for user in users:
        user.start()
    try:
        eventually(lambda: len(grants) > 10, "some grants")
        new = sentinels.failover(kill=kill)
        moved = time.monotonic()
        eventually(lambda: grants[-1] > moved + 1.5, "grants by the new primary")
    finally:
        stop.set()
        for user in users:
            user.join(20)
    assert new.client().exists("headway:{moving}")
    grants.sort()
    # Heard of in time to be late by a little; never a sixth within the window.
    assert all(later - first > 0.28 for first, later in zip(grants, grants[5:], strict=False))
    check_wake(engine)


# -- clusters --------------------------------------------------------------------------------------------


@pytest.mark.realtime
@pytest.mark.slow
def test_a_cluster(cluster, connect):
    check_verbs(connect(cluster.url))


@pytest.mark.slow
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
    assert len(engine.places()) == 3


@pytest.mark.realtime
@pytest.mark.slow
def test_waiters_on_many_nodes(cluster, connect):
    engine = connect(cluster.url)
    limiter = Limiter("1 concurrent", name="many", engine=engine, engine_timeout=TIMEOUT)
    keys = [f"k{i}" for i in range(12)]

    async def tasks():
        for _ in range(2):
            permits = [await limiter.acquire_async(key) for key in keys]
            waiting = [asyncio.create_task(limiter.acquire_async(key, timeout=20)) for key in keys]
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in waiting)
            began = time.monotonic()
            for permit in permits:
                permit.complete()
            for task in waiting:
                (await task).complete()
            assert time.monotonic() - began < 1.2

    asyncio.run(tasks())


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize("topology", ["valkey", "cluster"])
def test_news_reach_everybody(request, topology, connect):
    """A pause that another process calls for moves the slot of one who sleeps already."""
    servers = request.getfixturevalue(topology)
    url = servers.url
    first, second = connect(url), connect(url + "?drift_ppm=999")
    slow = Limiter("1 every 600ms", name="slow", engine=first, engine_timeout=TIMEOUT)
    other = Limiter("1 every 600ms", name="slow", engine=second, engine_timeout=TIMEOUT)
    slow.acquire()
    slow.acquire()  # now this process listens
    nodes = [server.client() for server in getattr(servers, "servers", [servers])]
    eventually(lambda: any(node.pubsub_numsub(first.news)[0][1] for node in nodes), "a subscription to the news")
    began = time.monotonic()
    threading.Timer(0.2, other.pause, (1.0,)).start()
    slow.acquire()
    assert 1.1 < time.monotonic() - began < 4


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
@pytest.mark.slow
def test_a_slot_that_is_moved(make_cluster, connect):
    cluster = make_cluster()
    engine = connect(short_lease(cluster.url, 1))
    limiter = Limiter("5 per 300ms", name="moving", engine=engine, engine_timeout=TIMEOUT)
    held = Limiter("1 concurrent", name="moving:held", engine=engine, engine_timeout=TIMEOUT)
    limiter.acquire()
    fresh = Limiter("5/s", name="fresh", engine=engine, engine_timeout=TIMEOUT)

    def between():
        for verb in (fresh.try_acquire, lambda: asyncio.run(fresh.try_acquire_async())):
            with contextlib.suppress(EngineUnavailable):
                verb()

    old, new = move_slot(cluster, "headway:{moving}")
    grants = []
    for _ in range(8):
        limiter.acquire(timeout=10).complete()
        grants.append(time.monotonic())
    asyncio.run(limiter.acquire_async(timeout=10))
    assert new.client().exists("headway:{moving}")
    assert all(later - first > 0.28 for first, later in zip(grants, grants[5:], strict=False))
    # A ledger that is made while its slot is on its way is made at the new node: ASK.
    move_slot(cluster, "headway:{fresh}", between=between)
    assert fresh.acquire(timeout=10)
    assert held


@pytest.mark.realtime
@pytest.mark.slow
def test_a_waiter_whose_slot_is_moved(make_cluster, connect):
    cluster = make_cluster()
    engine = connect(short_lease(cluster.url, 2))
    limiter = Limiter("1 concurrent", name="wake", engine=engine, engine_timeout=TIMEOUT)
    check_wake(engine)
    permit = limiter.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(limiter.acquire(timeout=30)))
    thread.start()
    eventually(lambda: limiter.peek().waiting, "somebody who waits")
    move_slot(cluster, "headway:{wake}")
    permit.complete()
    thread.join(30)
    got[0].complete()
    check_wake(engine)


@pytest.mark.realtime
@pytest.mark.slow
def test_a_node_that_dies(make_cluster, connect):
    """The others go on; who knows only the dead one finds them by the map."""
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


@pytest.fixture
def make_cluster(_wheel):
    from tests.redis.servers import Cluster

    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Cluster(**options))
