"""Addresses: what a URI says, and the pools of redis-py that lead there.

    redis://[user:password@]host[:port][/db]        rediss:// with TLS
    unix://[user:password@]/path/to/socket
    redis+sentinel://[user:password@]host:port,host:port/service[/db]
    redis+cluster://[user:password@]host:port,host:port

Options of ours are part of the query and are taken out before redis-py sees it: `namespace`, `lease` (seconds), `drift_ppm`
of the server's clock, `strict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from headway.core.durations import to_ns
from headway.errors import InvalidArgument

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "embedded")
DEFAULT_LEASE = 5.0
DRIFT_PPM = 1000.0
"""Wall clocks are slewed by up to 500 ppm, and crystals err."""


@dataclass(frozen=True)
class Address:
    """Where an engine is, and how it is to be used."""

    uri: str
    scheme: str
    namespace: str = "headway"
    lease_ns: int = int(DEFAULT_LEASE * 1e9)
    drift_ppm: float = DRIFT_PPM
    strict: bool = False
    client: Any = None

    @property
    def public(self) -> str:
        """Without what nobody should read.

        >>> read_address("redis://:secret@db:6379/0?namespace=x").public
        'redis://db:6379/0'
        """
        if self.client is not None:
            return f"redis client {type(self.client).__module__.split('.')[0]}"
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def read_address(uri: str) -> Address:
    """An address from a URI.

    >>> read_address("redis://db:6379/0?namespace=shop&lease=2").lease_ns
    2000000000
    """
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in ("memory", *SCHEMES))
        raise InvalidArgument("engine", uri.rpartition("@")[2], f"one of {known}")
    ours: dict[str, Any] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "namespace":
            if not value or set(value) & set(" :{}\r\n"):
                raise InvalidArgument("namespace", value, "a name without spaces, colons and braces")
            ours["namespace"] = value
        elif name == "lease":
            ns = to_ns(number(name, value))
            if ns is None or not 100_000_000 <= ns <= 3_600_000_000_000:
                raise InvalidArgument("lease", value, "seconds from 0.1 to 3600")
            ours["lease_ns"] = ns
        elif name == "drift_ppm":
            ours["drift_ppm"] = number(name, value)
        elif name == "strict":
            if value.lower() not in ("0", "1", "true", "false"):
                raise InvalidArgument("strict", value, "true or false")
            ours["strict"] = value.lower() in ("1", "true")
        else:
            theirs.append((name, value))
    query = f"?{urlencode(theirs)}" if theirs else ""
    rest = f"{parts.scheme}://{parts.netloc}{parts.path}{query}"
    return Address(rest, parts.scheme, **ours)


def number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidArgument(name, value, "a number") from None


def connect_pools(address: Address) -> tuple[Any, Any]:
    """The pool for threads and the pool for tasks; only their connections are used, not their clients."""
    try:
        import redis
        import redis.asyncio
    except ImportError:
        raise InvalidArgument(
            "engine", address.public, "it with redis-py installed: pip install 'headway[redis]'"
        ) from None
    if address.scheme in ("redis", "rediss", "unix"):
        try:
            return redis.ConnectionPool.from_url(address.uri), redis.asyncio.ConnectionPool.from_url(address.uri)
        except ValueError as error:
            raise InvalidArgument("engine", address.public, f"a URI that redis-py reads: {error}") from None
    raise InvalidArgument("engine", address.public, "an address of redis://, rediss:// or unix://")
