"""The engine on every kind of server that it can be told of: the same verbs, the same waiting.

What is decided is tested elsewhere; here it is whether the servers are found, and found again after they moved.
"""

import asyncio
import contextlib
import os
import threading
import time
import traceback

import pytest
from tests.redis.engine_checks import TIMEOUT, check_verbs, check_wake, check_wake_async, short_lease
from tests.redis.servers import HOST, eventually
from tests.redis.workers import Use, most_for_certain

from headway import Limiter
from headway.errors import EngineUnavailable
from waiting import NEVER

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


# -- Valkey by its own name ------------------------------------------------------------------------------


def check_valkey_name(connect, url):
    """The URI with Valkey's name is the same place."""
    other = url.replace("redis", "valkey", 1)
    assert other.startswith("valkey")
    limiter = Limiter("2/minute", name="called", engine=connect(other))
    assert limiter.try_acquire()
    assert asyncio.run(limiter.try_acquire_async())
    assert not Limiter("2/minute", name="called", engine=connect(url)).try_acquire()
    assert limiter._shared.address.startswith("valkey")  # type: ignore[union-attr]


def test_valkey(valkey, connect):
    check_valkey_name(connect, valkey.url)


def test_valkey_with_tls(make_tls_server, connect):
    check_valkey_name(connect, make_tls_server().url)


@pytest.mark.slow
def test_valkey_with_sentinels(make_sentinels, connect):
    check_valkey_name(connect, make_sentinels(replicas=0).url)


def test_valkey_as_a_cluster(cluster, connect):
    check_valkey_name(connect, cluster.url)


# -- databases and namespaces ----------------------------------------------------------------------------


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
def test_a_stopped_primary_is_left(make_sentinels, connect):
    """It does not end its connections: clients that send or listen to it have to notice that it is silent."""
    sentinels = make_sentinels()
    engine = connect(short_lease(sentinels.url, 1), 0.3)
    check_wake(engine)
    old = sentinels.primary()
    old.stop()
    new = eventually(
        lambda: next((one for one in [sentinels.primary()] if one is not old), None), "a promotion"
    )
    limiter = Limiter("5/s", name="x", engine=engine, engine_timeout=0.3)
    with contextlib.suppress(EngineUnavailable):
        limiter.acquire()  # the engine had not noticed yet
    limiter.acquire()
    asyncio.run(limiter.acquire_async())
    check_wake(engine)
    assert new.client().pubsub_numsub(engine.wake)[0][1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "task", "release"])
def test_a_primary_that_became_a_replica(make_sentinels, connect, kind):
    """The connections were not ended: the next command is refused, and goes to the new primary."""
    sentinels = make_sentinels()
    old, new = sentinels.primary(), sentinels.replicas()[0]
    sentinels.sentinel.stop()  # its CLIENT KILL would end them
    engine = connect(short_lease(old.url))
    limiter = Limiter("9/s", name="x", engine=engine, engine_timeout=TIMEOUT)
    held = Limiter("1 concurrent", name="held", engine=engine, engine_timeout=TIMEOUT)

    async def tasks():
        await limiter.acquire_async()
        change()
        await limiter.acquire_async(timeout=NEVER)

    def change():
        new.client().replicaof("NO", "ONE")
        old.client().replicaof(HOST, new.port)
        engine.pools()[0].way = engine.pools()[0].way.to(HOST, new.port)

    if kind == "task":
        asyncio.run(tasks())
    elif kind == "thread":
        limiter.acquire()
        change()
        limiter.acquire(timeout=NEVER)
    else:
        held.acquire().complete()
        eventually(lambda: not engine.pools()[0].release_sender.outstanding, "the answer to the release")
        permit = held.acquire()
        change()
        permit.complete()
        eventually(lambda: not engine.pools()[0].release_sender.outstanding, "the answer to the release")
        held.acquire(timeout=NEVER).complete()
    assert new.client().dbsize()


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False])
def test_a_failover_is_followed(make_sentinels, connect, kill):
    """Both colours and the subscription go to the new primary, and no window sees more than its limit.

    A primary that was only asked to go stays one for a while. It grants no more, as its replicas have left it.
    """
    sentinels = make_sentinels(replicas=2, min_replicas_to_write=1)
    engine = connect(short_lease(sentinels.url, 1))
    limiter = Limiter("5 per 300ms", name="moving", engine=engine, engine_timeout=TIMEOUT, remote=False)
    grants, stop = [], threading.Event()

    def use():
        while not stop.is_set():
            with contextlib.suppress(EngineUnavailable):
                grants.append(Use.of(limiter.acquire(timeout=NEVER)))
            time.sleep(0.005)

    async def use_async():
        while not stop.is_set():
            with contextlib.suppress(EngineUnavailable):
                grants.append(Use.of(await limiter.acquire_async(timeout=NEVER)))
            await asyncio.sleep(0.005)

    users = [threading.Thread(target=use), threading.Thread(target=lambda: asyncio.run(use_async()))]
    for user in users:
        user.start()
    try:
        eventually(lambda: len(grants) > 10, "some grants")
        new = sentinels.failover(kill=kill)
        stats = new.client()
        eventually(lambda: "cmdstat_evalsha" in stats.info("commandstats"), "questions to the new primary")
        before = len(grants)
        eventually(lambda: len(grants) > before + 10, "grants by the new primary")
    finally:
        stop.set()
        for user in users:
            user.join(NEVER)
    assert most_for_certain(0.3, grants) <= 5
    check_wake(engine)
    asyncio.run(check_wake_async(engine))
    assert stats.pubsub_numsub(engine.wake)[0][1] == 1


# -- processes -------------------------------------------------------------------------------------------


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize("topology", ["valkey", "cluster"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(request, topology, connect):
    """Its parent's subscription and releases go on, and the child hears its own messages."""
    engine = connect(short_lease(request.getfixturevalue(topology).url))
    check_wake(engine)
    child = os.fork()
    if not child:
        try:
            check_wake(engine)
            asyncio.run(check_wake_async(engine))
        except BaseException:  # noqa: BLE001 - a child must never run the rest of pytest
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    check_wake(engine)
