"""Where an address leads, without going there."""

import redis
import redis.asyncio
import redis.sentinel

from headway.engines.redis.address import read_address
from headway.engines.redis.clients import ways_of
from headway.engines.redis.ways import SentinelWay, ways_to


def ways(uri):
    return ways_to(read_address(uri))


def test_a_server():
    (way,) = ways("redis://me:s%40cret@db:7000/3?socket_timeout=9&client_name=shop&lease=2")
    assert way.options == {
        "host": "db", "port": 7000, "db": 3, "username": "me", "password": "s@cret", "client_name": "shop",
    }  # fmt: skip
    assert (way.sync, way.tasks) == (redis.Connection, redis.asyncio.Connection)
    assert repr(way) == "<way to db:7000>"


def test_tls_and_sockets():
    (way,) = ways("rediss://db?ssl_ca_certs=ca.pem&ssl_check_hostname=false")
    assert (way.sync, way.tasks) == (redis.SSLConnection, redis.asyncio.SSLConnection)
    assert way.options == {"host": "db", "ssl_ca_certs": "ca.pem", "ssl_check_hostname": False}
    (way,) = ways("unix://:secret@/run/redis.sock?db=2")
    assert way.options == {"path": "/run/redis.sock", "password": "secret", "db": 2}


def test_sentinels_have_a_login_of_their_own():
    (way,) = ways(
        "rediss+sentinel://me:secret@a:1,b/main/3?sentinel_username=w&sentinel_password=other&ssl_ca_certs=ca"
    )
    assert way.service == "main"
    assert (way.options["username"], way.options["password"], way.options["db"]) == ("me", "secret", 3)
    assert [watch.name for watch in way.sentinels] == ["a:1", "b:26379"]
    for watch in way.sentinels:
        assert (watch.options["username"], watch.options["password"], watch.options["db"]) == (
            "w",
            "other",
            0,
        )
        assert watch.options["ssl_ca_certs"] == "ca"
        assert watch.sync is redis.SSLConnection
    assert repr(way) == "<way to main (by a:1, b:26379)>"


def test_a_cluster_is_entered_by_any_of_its_nodes():
    found = ways("redis+cluster://me:secret@a:1,[::1]:2,c")
    assert [way.name for way in found] == ["a:1", "::1:2", "c:6379"]
    assert all(way.options["password"] == "secret" for way in found)


def test_clients():
    kind, (way,) = ways_of(
        redis.Redis(host="db", password="secret", ssl=True, ssl_ca_certs="ca", socket_timeout=3)
    )
    assert (kind, way.tasks) == ("server", redis.asyncio.SSLConnection)
    assert way.options["ssl_ca_certs"] == "ca"
    assert "socket_timeout" not in way.options
    assert "retry" not in way.options
    kind, (way,) = ways_of(redis.asyncio.Redis(unix_socket_path="/run/redis.sock", db=2))
    assert (kind, way.sync, way.options["path"]) == (
        "server",
        redis.UnixDomainSocketConnection,
        "/run/redis.sock",
    )
    watch = redis.sentinel.Sentinel(
        [("a", 1), ("b", 2)], sentinel_kwargs={"password": "other"}, password="secret"
    )
    kind, (way,) = ways_of(watch.master_for("main"))
    assert isinstance(way, SentinelWay)
    assert (kind, way.service, way.sync) == ("sentinel", "main", redis.Connection)
    assert way.options["password"] == "secret"
    assert [one.options["password"] for one in way.sentinels] == ["other", "other"]
    cluster = redis.asyncio.RedisCluster(host="c", port=5, ssl=True, password="secret")
    kind, (way,) = ways_of(cluster)
    assert (kind, way.name, way.sync, way.options["password"]) == (
        "cluster",
        "c:5",
        redis.SSLConnection,
        "secret",
    )
