"""A user's own client of redis-py, of any sort, is an engine for threads and for tasks."""

import asyncio
import contextlib
import gc
import weakref

import pytest
import redis
import redis.asyncio
import redis.sentinel
from tests.redis.checks import TIMEOUT, check_verbs
from tests.redis.servers import HOST

from headway import Limiter, redis_engine
from headway.engines.uri import open_engine
from headway.errors import InvalidArgument


def check_both(engine, name="both"):
    limiter = Limiter("2/minute", name=name, engine=engine, engine_timeout=TIMEOUT)
    assert limiter.try_acquire()
    assert asyncio.run(limiter.try_acquire_async())
    assert not limiter.try_acquire()


@pytest.mark.realtime
def test_a_client(valkey, connect):
    with redis.Redis(
        host=HOST, port=valkey.port, decode_responses=True, protocol=3, max_connections=2
    ) as client:
        check_verbs(connect(client))
        assert client.exists("headway:{verbs}")


def test_a_limiter_takes_the_client_itself(valkey):
    with redis.Redis.from_url(valkey.url) as client:
        first, second = (Limiter("1/minute", name="x", engine=client) for _ in range(2))
        assert first.try_acquire()
        assert not second.try_acquire()
        engine = open_engine(client, 0.25)
        assert repr(engine) in repr(first).replace("engine='", "<headway engine ").replace("')", ">")
        engine.close()


def test_an_async_client(valkey, connect):
    check_both(connect(redis.asyncio.Redis(host=HOST, port=valkey.port)))


def test_a_blocking_pool(valkey, connect):
    pool = redis.BlockingConnectionPool(host=HOST, port=valkey.port, max_connections=1)
    with redis.Redis(connection_pool=pool) as client:
        check_both(connect(client))


def test_a_class_of_connections_of_the_users_own(valkey, connect):
    made = []

    class Mine(redis.Connection):
        def __init__(self, *, label, **options):
            made.append(label)
            super().__init__(**options)

    pool = redis.ConnectionPool(connection_class=Mine, host=HOST, port=valkey.port, label="x")
    with redis.Redis(connection_pool=pool) as client:
        engine = connect(client)
        check_both(engine)
    assert set(made) == {"x"}


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_unix_sockets_and_passwords(make_server, connect, kind):
    server = make_server(unix=True, requirepass="s3cret")
    check_both(connect(kind(unix_socket_path=server.socket_path, password="s3cret")))


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_tls(make_tls_server, connect, kind):
    server = make_tls_server()
    check_both(connect(kind.from_url(server.url)))
    with pytest.raises(Exception, match="CERT"):
        Limiter("1/s", name="x", engine=connect(kind(host=HOST, port=server.port, ssl=True))).acquire()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [redis.sentinel.Sentinel, redis.asyncio.Sentinel])
def test_a_client_of_sentinels(make_sentinels, connect, kind):
    sentinels = make_sentinels()
    watch = kind([(HOST, sentinels.sentinel.port)], socket_timeout=1)
    engine = connect(watch.master_for(sentinels.name))
    check_both(engine)
    sentinels.failover(kill=False)
    Limiter("2/s", name="after", engine=engine, engine_timeout=TIMEOUT).acquire()
    with pytest.raises(InvalidArgument, match="replicas take no writes"):
        connect(watch.slave_for(sentinels.name))


@pytest.mark.slow
def test_a_client_of_a_cluster(cluster, connect):
    with contextlib.closing(cluster.client()) as client:
        engine = connect(client)
        for name in ("a", "b", "c", "d"):
            check_both(engine, name)


@pytest.mark.slow
def test_an_async_client_of_a_cluster(cluster, connect):
    async def make():
        client = redis.asyncio.RedisCluster(host=HOST, port=cluster.servers[0].port)
        engine = connect(client)
        await client.aclose()
        return engine

    engine = asyncio.run(make())
    for name in ("a", "b", "c", "d"):
        check_both(engine, name)


def test_options(valkey, connect):
    with redis.Redis(host=HOST, port=valkey.port) as client:
        engine = connect(client, namespace="shop", lease=2, strict=True)
        assert engine.lease_ns == 2_000_000_000
        assert engine.strict
        Limiter("1/minute", name="x", engine=engine).acquire()
        assert client.exists("shop:{x}")
        assert redis_engine(client, namespace="shop", lease=2, strict=True, timeout=2.0) is engine
        assert redis_engine(client, namespace="other") is not engine
        for wrong in (
            {"namespace": "a:b"},
            {"lease": 0},
            {"timeout": -1},
            {"drift_ppm": "x"},
            {"strict": "perhaps"},
        ):
            with pytest.raises(InvalidArgument, match=next(iter(wrong))):
                redis_engine(client, **wrong)


def test_a_client_is_not_kept_alive():
    client = redis.Redis(host="nowhere")
    engine, gone = redis_engine(client), weakref.ref(client)
    assert repr(engine) == "<headway engine redis-py client to nowhere:6379>"
    del client
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("thing", [5, None, object(), redis.Redis, b"redis://x", redis.ConnectionPool()])
def test_what_is_no_engine(thing):
    with pytest.raises(InvalidArgument, match="a client of redis-py"):
        open_engine(thing, 0.25)
