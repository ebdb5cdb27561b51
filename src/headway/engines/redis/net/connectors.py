"""Connectors: how a connection to a server is made, for threads and for tasks.

redis-py knows TLS, passwords, sockets and providers of credentials, so the connections are redis-py's. Its pools
count connections, lend them and retry, which is not wanted here. A connector is therefore just the two classes of
connections and their arguments. It comes from a URI, or from a client that the user has made. Then it connects to the
servers of that client, also in the other form (a `redis.Redis` serves tasks too, a `redis.asyncio.Redis` threads).

A connector for sentinels asks them, before each connection, which server is the primary. After a failover the sentinels
know it before a client does.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis.asyncio.connection
import redis.connection
from redis.asyncio.retry import Retry as TaskRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from headway.engines.redis.net.address import bad_port, hosts_of, service_of, unknown_option
from headway.errors import InvalidArgument
from headway.printable import printable

if TYPE_CHECKING:
    from headway.engines.redis.net.address import Address

KEPT = {
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name", "lib_name",
    "lib_version", "socket_keepalive", "socket_keepalive_options", "socket_type",
}  # fmt: skip
"""Arguments for the address and the login (as are those for TLS). Others say how redis-py should use its connection:
how
long it waits, how often it retries, how it decodes. That is decided here."""

OF_POOLS = ("max_connections", "timeout")
"""What redis-py reads from a URI for its pool."""


class Connector:
    """How to connect to one server."""

    def __init__(self, sync: type, tasks: type, options: dict[str, Any]) -> None:
        self.sync = sync
        self.tasks = tasks
        self.options = options

    @property
    def name(self) -> str:
        """For people.

        >>> Connector(object, object, {"host": "db", "port": 6379, "password": "secret"})
        <way to db:6379>
        """
        options = self.options
        path = options.get("path")
        return printable(str(path or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"))

    def __repr__(self) -> str:
        return f"<way to {self.name}>"

    @property
    def tls(self) -> bool:
        """Whether its connections are encrypted."""
        return issubclass(self.sync, redis.connection.SSLConnection)

    def to(self, host: str, port: int) -> Connector:
        """The same connector for another server."""
        return Connector(self.sync, self.tasks, {**self.options, "host": host, "port": port})

    def connect(self, timeout: float) -> Any:
        # Version 3 of the protocol has messages between the replies, which are not read here.
        connection = self.sync(
            **self._known(self.sync), protocol=2, socket_timeout=timeout, socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        connection.connect()
        return connection

    async def connect_async(self, timeout: float) -> Any:  # noqa: ASYNC109 - redis-py keeps it
        # `LoopConnection` bounds the reading, for all commands at once.
        connection = self.tasks(
            **self._known(self.tasks), protocol=2, socket_timeout=None, socket_connect_timeout=timeout,
            retry=TaskRetry(NoBackoff(), 0),
        )  # fmt: skip
        await connection.connect()
        return connection

    def _known(self, kind: type) -> dict[str, Any]:
        known = arguments_of(kind)
        return {name: value for name, value in self.options.items() if name in known}


class SentinelConnector(Connector):
    """How to connect to the primary that sentinels name."""

    def __init__(self, connector: Connector, sentinels: Iterable[Connector], service: str) -> None:
        Connector.__init__(self, connector.sync, connector.tasks, connector.options)
        self.service = service
        self.sentinels = list(sentinels)

    @property
    def name(self) -> str:
        return f"{printable(self.service)} (by {', '.join(connector.name for connector in self.sentinels)})"

    def connect(self, timeout: float) -> Any:
        end = time.monotonic() + timeout
        for sentinel, left in self._in_turn(timeout):
            try:
                connection = sentinel.connect(left)
            except Exception as error:  # noqa: BLE001 - whatever it is: another may know
                self._failed(sentinel, error)
                continue
            try:
                connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
                found = connection.read_response()
            except Exception as error:  # noqa: BLE001
                self._failed(sentinel, error)
                continue
            finally:
                connection.disconnect()
            if found:
                return self._primary(found).connect(max(0.001, end - time.monotonic()))
            self._failed(sentinel, None)
        raise self._unknown()

    async def connect_async(self, timeout: float) -> Any:  # noqa: ASYNC109 - redis-py keeps it
        for sentinel, left in self._in_turn(timeout):
            try:
                connection = await sentinel.connect_async(left)
            except Exception as error:  # noqa: BLE001
                self._failed(sentinel, error)
                continue
            try:
                async with asyncio.timeout(left):
                    await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
                    found = await connection.read_response()
            except Exception as error:  # noqa: BLE001
                self._failed(sentinel, error)
                continue
            finally:
                await connection.disconnect(nowait=True)
            if found:
                return await self._primary(found).connect_async(timeout)
            self._failed(sentinel, None)
        raise self._unknown()

    def _in_turn(self, timeout: float) -> Iterator[tuple[Connector, float]]:
        """The sentinels, the one that answered last time first, for as long as there is time."""
        self._trouble = "no time was left to ask"
        end = time.monotonic() + timeout
        for sentinel in list(self.sentinels):
            left = end - time.monotonic()
            if left > 0:
                yield sentinel, left

    def _failed(self, sentinel: Connector, error: Exception | None) -> None:
        if sentinel in self.sentinels:
            self.sentinels.remove(sentinel)
            self.sentinels.append(sentinel)
        said = "knows no such service" if error is None else (str(error) or type(error).__name__)
        self._trouble = f"{sentinel.name}: {said}"

    def _unknown(self) -> ConnectionError:
        return ConnectionError(f"no sentinel knows the primary of {self.service!r} ({self._trouble})")

    def _primary(self, found: list[Any]) -> Connector:
        host, port = (part.decode() if isinstance(part, bytes) else str(part) for part in found)
        return self.to(host, int(port))


def kept(options: dict[str, Any], more: Iterable[str] = ()) -> dict[str, Any]:
    """The options for the address and the login.

    >>> kept({"host": "db", "socket_timeout": 5, "ssl_ca_certs": "ca.pem"})
    {'host': 'db', 'ssl_ca_certs': 'ca.pem'}
    """
    return {
        name: value
        for name, value in options.items()
        if name in KEPT or name.startswith("ssl_") or name in more
    }


def arguments_of(kind: type) -> set[str]:
    """The names of all arguments that a connection's class takes."""
    found: set[str] = set()
    for base in kind.__mro__[:-1]:
        if "__init__" in vars(base):
            found |= set(inspect.signature(base.__init__).parameters)  # type: ignore[misc]
    return found - {"self", "kwargs"}


def connections_of(kind: str) -> tuple[type, type]:
    """The classes of redis-py for "tcp", "tls" and "unix"."""
    name = {"tcp": "Connection", "tls": "SSLConnection", "unix": "UnixDomainSocketConnection"}[kind]
    return getattr(redis.connection, name), getattr(redis.asyncio.connection, name)


# -- from URIs -------------------------------------------------------------------------------------------


def connectors_to(address: Address) -> list[Connector]:
    """The connectors that an address names: one, or of a cluster one for each host."""
    if address.client is not None:
        from headway.engines.redis.net.clients import connectors_of

        return connectors_of(address.client)[1]
    scheme, _, rest = address.uri.partition("://")
    if address.kind == "server":
        return [read_connector(address.public, address.uri)]
    before, at, after = rest.rpartition("@")
    query = after.partition("?")[2]
    secure = scheme.partition("+")[0]
    if address.kind == "cluster":
        first = read_connector(address.public, f"{secure}://{before}{at}localhost/?{query}")
        return [first.to(*host) for host in hosts_of(address, 6379)]
    service, db = service_of(address)
    first = read_connector(address.public, f"{secure}://{before}{at}localhost/{db}?{query}")
    username, password = address.sentinel_login
    own = {"username": username, "password": password, "db": 0}
    watcher = Connector(first.sync, first.tasks, {**first.options, **own})
    return [SentinelConnector(first, [watcher.to(*host) for host in hosts_of(address, 26379)], service)]


def read_connector(shown: str, uri: str) -> Connector:
    """The connector that a URI of redis-py describes."""
    kind = {"rediss": "tls", "unix": "unix"}.get(uri.partition("://")[0], "tcp")
    sync, tasks = connections_of(kind)
    try:
        options = options_of(uri)
    except ValueError:
        # Its text may repeat a part of the URI, and that may be a part of the password.
        if (name := unread_option(uri)) is not None:
            accepted = f"the option {name!r} a value that redis-py reads"
            raise InvalidArgument("engine", shown, accepted) from None
        raise bad_port(shown) from None
    options.pop("connection_class", None)
    known = arguments_of(sync) | set(OF_POOLS)
    for name in options:
        if name not in known:
            raise unknown_option(shown, name)
    return Connector(sync, tasks, kept(options))


def options_of(uri: str) -> dict[str, Any]:
    """What redis-py reads in a URI."""
    parse_limit: Any = redis.connection.parse_url  # without types
    return dict(parse_limit(uri))


def unread_option(uri: str) -> str | None:
    """The first option whose value redis-py does not read.

    >>> unread_option("redis://db?db=1&socket_timeout=soon")
    'socket_timeout'
    """
    for name, value in parse_qsl(urlsplit(uri).query):
        try:
            options_of(f"redis://?{urlencode({name: value})}")
        except ValueError:
            return name
    return None
