"""What is said when a server is met: of wrong addresses, of passwords and settings; and never a secret."""

import asyncio
import logging
import pickle
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
import redis
from tests.redis.engine_checks import check_verbs
from tests.redis.servers import HOST, free_port

from headway import Limiter
from headway.engines.redis.net.acl import acl_line
from headway.engines.redis.net.server_checks import server_checks
from headway.engines.uri import open_engine
from headway.errors import EngineUnavailable, InvalidArgument
from waiting import NEVER, SOON

SECRET = "h0rse"


def use(engine, **options):
    """With a thread and with a task."""
    limiter = Limiter("5/minute", name="x", engine=engine, **options)
    limiter.acquire()
    asyncio.run(limiter.acquire_async())


def both_raise(engine, error, match):
    """The same for threads and for tasks, at once and without the secret."""
    limiter = Limiter("5/minute", name="x", engine=engine, engine_timeout=NEVER)
    began = time.monotonic()
    for call in (limiter.acquire, lambda: asyncio.run(limiter.acquire_async())):
        with pytest.raises(error, match=match) as caught:
            call()
        assert SECRET not in str(caught.value)
    assert time.monotonic() - began < SOON
    assert SECRET not in repr(limiter) + repr(engine)


# -- no server there -------------------------------------------------------------------------------------


def test_nothing_listens(connect, caplog):
    port = free_port()
    engine = connect(f"redis://:{SECRET}@{HOST}:{port}/0?client_name=me")
    both_raise(
        engine, EngineUnavailable, f"engine redis://{HOST}:{port}/0 is unavailable: .*(refused|connect)"
    )
    assert SECRET not in caplog.text
    assert f"redis://{HOST}:{port}/0" in caplog.text


def test_something_else_listens(connect):
    """A web server, say."""
    with socket.create_server((HOST, 0)) as server:

        def answer():
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(1000)
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"redis://{HOST}:{server.getsockname()[1]}/0"
        both_raise(connect(url), EngineUnavailable, "what answers there is no Redis")
        assert Limiter("5/s", name="x", engine=url, on_engine_error="open").try_acquire()
        ended = subprocess.run(
            [sys.executable, "-m", "headway.cli", "top", url],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 1
        assert "no Redis" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_no_socket(connect, tmp_path):
    both_raise(
        connect(f"unix://:{SECRET}@{tmp_path}/none.sock"), EngineUnavailable, "none.sock is unavailable: "
    )


def test_a_wrong_password(make_server, connect):
    server = make_server(requirepass="right")
    both_raise(connect(f"redis://:{SECRET}@{HOST}:{server.port}"), EngineUnavailable, "(?i)password")
    both_raise(
        connect(f"redis://{HOST}:{server.port}"), EngineUnavailable, "it asks for a password: redis://"
    )


def test_tls_on_a_plain_port_and_plain_text_on_a_tls_port(valkey, make_tls_server, connect):
    no_tls = "does not speak TLS on this port, its URI begins with redis://"
    only_tls = "only TLS on this port, its URI begins with rediss://"
    secure = make_tls_server()
    for uri, match in (
        (f"rediss://{HOST}:{valkey.port}", no_tls),
        (f"redis://{HOST}:{secure.port}", only_tls),
    ):
        limiter = Limiter("5/s", name="x", engine=connect(uri), engine_timeout=0.5)
        with pytest.raises(EngineUnavailable, match=match):
            limiter.acquire()
        with pytest.raises(EngineUnavailable, match=match):
            asyncio.run(limiter.acquire_async())


def test_a_database_that_is_not_there(valkey, connect):
    both_raise(connect(f"{valkey.url.removesuffix('/0')}/99"), EngineUnavailable, "(?i)db index")


def test_a_host_that_does_not_exist(connect):
    both_raise(connect("redis://no-such-host.invalid:6379"), EngineUnavailable, "no-such-host.invalid")


@pytest.mark.slow
def test_a_replica_is_refused(make_sentinels, connect):
    replica = make_sentinels().replicas()[0]
    both_raise(connect(replica.url), EngineUnavailable, "it is a replica")


def test_a_server_that_comes_later(make_server, connect):
    server = make_server()
    engine = connect(server.url)
    server.kill()
    both_raise(engine, EngineUnavailable, "refused|Connect call failed")
    server.restart()
    use(engine)


# -- wrong addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        (f"ftp://:{SECRET}@db", "one of memory://, redis://"),
        ("redis", "one of memory://"),
        (f"redis://:{SECRET}@db:port/0", "a port from 1"),
        (f"redis://:{SECRET}@db:99999/0", "a port from 1"),
        (f"redis://:{SECRET}/x@db:6379/0", "special characters as %xx"),
        (f"redis://me:x/{SECRET}@db", "special characters as %xx"),
        (f"redis://me:{SECRET}#{SECRET}@db", "# is %23"),
        (f"redis://me:1#{SECRET}@db", "# is %23"),
        (f"redis://me:{SECRET}?{SECRET}@db", "is %3F"),
        (f"redis://me:1?{SECRET}@db", "is %3F"),
        (f"redis://me:1?lease={SECRET}@db", "is %3F"),
        (f"redis://db?password=x@{SECRET}", "@ is %40"),
        (f"redis+cluster://me:{SECRET}#{SECRET}@db:1,db:2", "# is %23"),
        (f"unix://me:{SECRET}?{SECRET}@/run/redis.sock", "is %3F"),
        ("embedded:///tmp/a#b", "# is %23"),
        (f"redis://:{SECRET}", "redis://:password@host"),
        (f"redis://me:{SECRET}", "redis://:password@host"),
        (f"redis://:{SECRET}/0", "redis://:password@host"),
        (f"redis://db/{SECRET}", "a database that is a number"),
        (f"redis+cluster://:{SECRET}", "redis://:password@host"),
        (f"redis+sentinel://me:{SECRET}/main", "redis://:password@host"),
        (f"unix://:{SECRET}", "the path of a socket"),
        (f"redis:{SECRET}", "one of memory://"),
        (f"redis:/:{SECRET}", "one of memory://"),
        (f"redis://db?password=x&{SECRET}", "& is %26"),
        (f"redis://:{SECRET}@db/zero", "a database that is a number"),
        (f"redis://:{SECRET}@db/0/1", "no more than a database"),
        (f"redis://:{SECRET}@db?colour=red", "without the option 'colour'.* and those of redis-py$"),
        (f"redis://:{SECRET}@db?lease=0", "seconds from 0.1"),
        (f"redis://:{SECRET}@db?lease=", "a number of seconds from 0.1 to 3600"),
        (f"redis://:{SECRET}@db?lease=soon", "a number of seconds from 0.1 to 3600"),
        (f"redis://:{SECRET}@db?drift_ppm=x", "parts per million from 0 to 100000"),
        (f"redis://:{SECRET}@db?namespace=a:b", "a name without"),
        (f"redis://:{SECRET}@db?strict=perhaps", "true or false"),
        (f"redis://:{SECRET}@db?socket_keepalive_options=x&db=y", "the option 'db' a value"),
        (f"redis://:{SECRET}@db?socket_timeout=abc", "the option 'socket_timeout' a value"),
        (
            f"redis+cluster://:{SECRET}@db?health_check_interval=abc",
            "the option 'health_check_interval' a value",
        ),
        (f"redis+sentinel://:{SECRET}@db:1,db:2", "a service"),
        (f"redis+sentinel://:{SECRET}@db:1/main/zero", "a database that is a number"),
        (f"redis+sentinel://:{SECRET}@db:x/main", "a port from 1"),
        (f"redis+cluster://:{SECRET}@db:1/2", "a cluster has only number 0"),
        (f"unix://:{SECRET}@", "the path of a socket"),
        (
            "embedded:///tmp/x?ssl=1",
            "without the option 'ssl'; known are namespace, lease, drift_ppm, strict$",
        ),
        ("embedded://", "with a directory"),
    ],
)
def test_what_is_no_address(uri, match):
    with pytest.raises(InvalidArgument, match=match) as caught:
        open_engine(uri, 0.25)
    assert SECRET not in str(caught.value) + repr(caught.value) + repr(caught.value.value)


def test_without_redis_py():
    script = "import sys; sys.modules['redis'] = None; import headway; headway.Limiter('1/s', name='x', engine='redis://:SECRET@db')"
    script = script.replace("SECRET", SECRET)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    said = "give memory://, or install redis, which this one needs: pip install 'redis[hiredis]'"
    assert said in done.stderr.splitlines()[-1]
    assert SECRET not in done.stderr.splitlines()[-1]


def test_an_engine_travels_by_its_address(valkey, connect):
    engine = connect(f"{valkey.url}?namespace=shop")
    assert pickle.loads(pickle.dumps(engine)) is engine
    with redis.Redis(host=HOST) as client, pytest.raises(TypeError, match="name the engine by its URI"):
        pickle.dumps(open_engine(client, 0.25))


# -- rights ----------------------------------------------------------------------------------------------


def exercise(engine):
    """Everything that scripts do: each kind of limit, queues, metrics, pauses, quarantines."""
    for number, limit in enumerate(("5/s burst 5", "5 per 1s", "1 every 1ms", "9/day", "2 concurrent")):
        limiter = Limiter(limit, name=f"kind{number}", engine=engine, remote=number == 1, engine_timeout=2)
        limiter.acquire(timeout=NEVER).complete()
        limiter.acquire(timeout=NEVER).cancel()
        limiter.peek()
        limiter.pause(0)
        limiter.reset()
    several = Limiter(
        {"calls": "9/s", "tokens": "90/minute"}, name="several", engine=engine, engine_timeout=2
    )
    several.acquire(cost={"tokens": 5}, key={"calls": "a"}, timeout=NEVER).settle({"tokens": 3})


@pytest.mark.realtime
@pytest.mark.parametrize("useful", [True, False], ids=["with INFO", "without INFO"])
def test_a_user_with_only_the_needed_rights(server, connect, useful):
    admin = server.client()
    admin.acl_log_reset()
    line = acl_line("limits", SECRET)
    if not useful:
        line = line.replace(" +info", "").replace(" +config|get", "")
    admin.execute_command(*line.split())
    try:
        engine = connect(f"redis://limits:{SECRET}@{HOST}:{server.port}/0")
        exercise(engine)
        check_verbs(engine)
        admin.flushall()
        Limiter("2/minute", name="verbs", engine=engine).try_acquire()  # finds that its ledger is gone
        denied = {entry["object"] for entry in admin.acl_log()}
        assert denied <= ({"client|setinfo"} if useful else {"client|setinfo", "info", "config|get"})
    finally:
        admin.acl_deluser("limits")


@pytest.mark.slow
@pytest.mark.realtime
def test_a_user_of_a_cluster(cluster, connect):
    admins = [node.client() for node in cluster.servers]
    for admin in admins:
        admin.acl_log_reset()
        admin.execute_command(*acl_line("limits", SECRET, cluster=True).split())
    try:
        engine = connect(cluster.url.replace("://", f"://limits:{SECRET}@"))
        exercise(engine)
        check_verbs(engine)
        assert {entry["object"] for admin in admins for entry in admin.acl_log()} <= {"client|setinfo"}
    finally:
        for admin in admins:
            admin.acl_deluser("limits")


def test_a_user_with_too_few_rights(valkey, connect):
    valkey.client().execute_command(*acl_line("limits", SECRET).replace(" +evalsha", "").split())
    both_raise(connect(f"redis://limits:{SECRET}@{HOST}:{valkey.port}"), EngineUnavailable, "NOPERM.*evalsha")
    valkey.client().acl_deluser("limits")


# -- settings that break a promise -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "warns"), [("allkeys-lru", True), ("volatile-ttl", True), ("noeviction", False)]
)
def test_a_server_that_may_evict(make_server, connect, caplog, policy, warns):
    server = make_server(maxmemory="100mb", maxmemory_policy=policy)
    engine = connect(server.url)
    use(engine)
    use(engine)
    told = [record for record in caplog.records if "maxmemory-policy noeviction" in record.getMessage()]
    assert len(told) == warns
    assert all(record.levelno == logging.WARNING and record.name == "headway" for record in told)


@pytest.mark.slow
def test_a_primary_that_may_be_isolated(make_sentinels, connect, caplog):
    primary = make_sentinels().primary()
    use(connect(primary.url))
    assert "CONFIG SET min-replicas-to-write 1" in caplog.text
    both_raise(connect(f"{primary.url}?strict=true"), InvalidArgument, "min-replicas-to-write of at least 1")
    primary.client().config_set("min-replicas-to-write", 1)
    caplog.clear()
    Limiter(
        "5/minute", name="y", engine=connect(f"{primary.url}?lease=6")
    ).peek()  # it stops after 10 s, and another may grant after 6
    assert "CONFIG SET min-replicas-max-lag 6" in caplog.text
    both_raise(
        connect(f"{primary.url}?lease=7&strict=true"), InvalidArgument, "max-lag from 1 to 7 s.*it is 10"
    )
    primary.client().config_set("min-replicas-max-lag", 5)
    caplog.clear()
    use(connect(f"{primary.url}?strict=1"))
    assert not caplog.records


class Old:
    """An engine that was met; its server is too old to be had here."""

    address = "redis://old"
    strict = False


def test_a_version_that_is_too_old():
    flow = server_checks(Old())  # type: ignore[arg-type]
    next(flow)
    with pytest.raises(InvalidArgument, match=r"Redis 7 or later, or Valkey; this is Redis 6\.2\.14"):
        flow.send(b"# Server\r\nredis_version:6.2.14\r\n")
