"""A user's own client of redis-py, and the connectors to its servers.

    Limiter("100/minute", name="api", engine=redis.Redis(host="db", password=...))

Of a client only the connectors are taken: the classes of its connections and their arguments. The connections
themselves stay the client's, since a limiter uses its own in another manner. Plain clients, those of a `Sentinel`,
and cluster clients are understood, for threads and for tasks alike.
"""

from __future__ import annotations

from typing import Any

from headway.engines.redis.net.connectors import (
    Connector,
    SentinelConnector,
    arguments_of,
    connections_of,
    kept,
)
from headway.errors import InvalidArgument

ACCEPTED = "a URI such as redis://localhost:6379/0, a client of redis-py, or a headway engine"


def is_client(thing: object) -> bool:
    """Whether it is a client of redis-py."""
    return type(thing).__module__.partition(".")[0] == "redis" or any(
        base.__module__.partition(".")[0] == "redis" for base in type(thing).__mro__
    )


def connectors_of(client: Any) -> tuple[str, list[Connector]]:
    """Which kind of address a client stands for, and its connectors."""
    if hasattr(client, "nodes_manager"):
        return "cluster", _cluster(client)
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_class"):
        raise InvalidArgument("engine", type(client).__name__, ACCEPTED)
    connector = _way(pool.connection_class, pool.connection_kwargs)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return "server", [connector]
    if not pool.is_master:
        raise InvalidArgument(
            "engine", type(client).__name__, "a client from master_for(): replicas take no writes"
        )
    pools = [sentinel.connection_pool for sentinel in manager.sentinels]
    watchers = [_way(watch.connection_class, watch.connection_kwargs) for watch in pools]
    return "sentinel", [SentinelConnector(connector, watchers, pool.service_name)]


def describe(client: Any) -> str:
    """For people, without secrets."""
    _, connectors = connectors_of(client)
    return f"redis-py client to {', '.join(connector.name for connector in connectors)}"


def _cluster(client: Any) -> list[Connector]:
    manager = client.nodes_manager
    options = dict(manager.connection_kwargs)
    kind = options.pop("connection_class", None)
    if kind is None:
        kind = connections_of("tls" if options.get("ssl") else "tcp")[0]
    connector = _way(kind, options)
    nodes = [(node.host, node.port) for node in list(manager.startup_nodes.values())]
    return [connector.to(host, int(port)) for host, port in dict.fromkeys(nodes)]


def _way(kind: type, options: dict[str, Any]) -> Connector:
    """A connector from one class of connections; redis-py has the class for the other form (threads or tasks)."""
    arguments = arguments_of(kind)
    name = "tls" if "ssl_ca_certs" in arguments else "unix" if "path" in arguments else "tcp"
    sync, tasks = connections_of(name)
    # A connection class of the user's own is kept, with the arguments that only it has; one that asks sentinels is not,
    # as the connector does that by itself.
    own = arguments_of(kind) - arguments_of(sync) - arguments_of(tasks)
    if issubclass(kind, sync) and "Sentinel" not in kind.__name__:
        sync = kind
    elif issubclass(kind, tasks) and "Sentinel" not in kind.__name__:
        tasks = kind
    return Connector(sync, tasks, kept(options, own))
