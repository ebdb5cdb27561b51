"""Where an address leads, without going there."""

import redis
import redis.asyncio
import redis.sentinel

from headway.engines.redis.net.address import read_address
from headway.engines.redis.net.clients import connectors_of
from headway.engines.redis.net.connectors import SentinelConnector, connectors_to


def connectors(uri):
    return connectors_to(read_address(uri))


def test_a_server():
    (connector,) = connectors("redis://me:s%40cret@db:7000/3?socket_timeout=9&client_name=shop&lease=2")
    assert connector.options == {
        "host": "db", "port": 7000, "db": 3, "username": "me", "password": "s@cret", "client_name": "shop",
    }  # fmt: skip
    assert (connector.sync, connector.tasks) == (redis.Connection, redis.asyncio.Connection)
    assert repr(connector) == "<way to db:7000>"


def test_tls_and_sockets():
    (connector,) = connectors("rediss://db?ssl_ca_certs=ca.pem&ssl_check_hostname=false")
    assert (connector.sync, connector.tasks) == (redis.SSLConnection, redis.asyncio.SSLConnection)
    assert connector.options == {"host": "db", "ssl_ca_certs": "ca.pem", "ssl_check_hostname": False}
    (connector,) = connectors("unix://:secret@/run/redis.sock?db=2")
    assert connector.options == {"path": "/run/redis.sock", "password": "secret", "db": 2}


def test_sentinels_have_a_login_of_their_own():
    (connector,) = connectors(
        "rediss+sentinel://me:secret@a:1,b/main/3?sentinel_username=w&sentinel_password=other&ssl_ca_certs=ca"
    )
    assert connector.service == "main"
    assert (connector.options["username"], connector.options["password"], connector.options["db"]) == (
        "me",
        "secret",
        3,
    )
    assert [watch.name for watch in connector.sentinels] == ["a:1", "b:26379"]
    for watch in connector.sentinels:
        assert (watch.options["username"], watch.options["password"], watch.options["db"]) == (
            "w",
            "other",
            0,
        )
        assert watch.options["ssl_ca_certs"] == "ca"
        assert watch.sync is redis.SSLConnection
    assert repr(connector) == "<way to main (by a:1, b:26379)>"


def test_a_cluster_is_entered_by_any_of_its_nodes():
    found = connectors("redis+cluster://me:secret@a:1,[::1]:2,c")
    assert [connector.name for connector in found] == ["a:1", "::1:2", "c:6379"]
    assert all(connector.options["password"] == "secret" for connector in found)


def test_clients():
    kind, (connector,) = connectors_of(
        redis.Redis(host="db", password="secret", ssl=True, ssl_ca_certs="ca", socket_timeout=3)
    )
    assert (kind, connector.tasks) == ("server", redis.asyncio.SSLConnection)
    assert connector.options["ssl_ca_certs"] == "ca"
    assert "socket_timeout" not in connector.options
    assert "retry" not in connector.options
    kind, (connector,) = connectors_of(redis.asyncio.Redis(unix_socket_path="/run/redis.sock", db=2))
    assert (kind, connector.sync, connector.options["path"]) == (
        "server",
        redis.UnixDomainSocketConnection,
        "/run/redis.sock",
    )
    watch = redis.sentinel.Sentinel(
        [("a", 1), ("b", 2)], sentinel_kwargs={"password": "other"}, password="secret"
    )
    kind, (connector,) = connectors_of(watch.master_for("main"))
    assert isinstance(connector, SentinelConnector)
    assert (kind, connector.service, connector.sync) == ("sentinel", "main", redis.Connection)
    assert connector.options["password"] == "secret"
    assert [one.options["password"] for one in connector.sentinels] == ["other", "other"]
    cluster = redis.asyncio.RedisCluster(host="c", port=5, ssl=True, password="secret")
    kind, (connector,) = connectors_of(cluster)
    assert (kind, connector.name, connector.sync, connector.options["password"]) == (
        "cluster",
        "c:5",
        redis.SSLConnection,
        "secret",
    )
