"""Addresses: what a URI says, without going there.

    redis://[user:password@]host[:port][/db]                            rediss:// with TLS
    unix://[user:password@]/path/to/socket[?db=1]
    redis+sentinel://[user:password@]host:port,host:port/service[/db]   rediss+sentinel:// with TLS
    redis+cluster://[user:password@]host:port,host:port                 rediss+cluster:// with TLS
    embedded:///absolute/directory                                      embedded://relative/directory
    valkey in place of redis, in each of them

Options of headway are part of the query and are removed before redis-py sees it: `namespace`, `lease` (seconds),
`drift_ppm` of the server's clock, `strict`; with sentinels also `sentinel_username` and `sentinel_password`, the
login of the sentinels and not of the server. Every other option must be one that a connection of redis-py knows, such
as `ssl_ca_certs`.

A URI may contain a password, and a wrong URI may have it in any part (a password with an unescaped slash ends up in the
path). So what is shown of an address is what follows its last @, up to the query; and no error repeats the rest.
Where a # or ? comes before that @, the parts cannot be told apart: nothing is shown, and the URI is refused. Without
any @, what follows a colon is shown only where it can be a port: in `redis://:secret` the @ was forgotten.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_plus, urlencode, urlsplit

from headway.engines.uri import KNOWN, public, scheme_of
from headway.engines.uri_options import as_lease, as_ppm, as_switch
from headway.errors import InvalidArgument

DEFAULT_LEASE = 5.0
DRIFT_PPM = 1000.0
"""Wall clocks are slewed by up to 500 ppm, and crystals err."""


@dataclass(frozen=True)
class Address:
    """Where an engine is, and how it is to be used."""

    uri: str = field(repr=False)
    """As redis-py reads it; with secrets."""
    public: str
    """For logs and errors: without secrets."""
    kind: str
    """One of "server", "sentinel", "cluster" and "embedded"."""
    namespace: str = "headway"
    lease_ns: int = int(DEFAULT_LEASE * 1e9)
    drift_ppm: float = DRIFT_PPM
    strict: bool = False
    sentinel_login: tuple[str | None, str | None] = field(default=(None, None), repr=False)
    client: Any = field(default=None, repr=False)
    original: str | None = field(default=None, repr=False)
    """As it was given."""

    @property
    def directory(self) -> str:
        """Of an embedded server.

        >>> read_address("embedded:///var/lib/app?lease=2").directory
        '/var/lib/app'
        """
        return unquote(self.uri.partition("://")[2].partition("?")[0])


def read_address(uri: str) -> Address:
    """An address from a URI.

    >>> address = read_address("redis://:secret@db:6379/0?namespace=shop&lease=2")
    >>> address.public, address.namespace, address.lease_ns
    ('redis://db:6379/0', 'shop', 2000000000)
    """
    shown = public(uri)
    scheme = uri.partition("://")[0]
    if scheme_of(uri) is None:
        raise InvalidArgument("engine", shown, f"one of {KNOWN}")
    # Valkey speaks the protocol of Redis, and redis-py knows only the names of Redis.
    scheme = re.sub("^valkey(s?)", r"redis\1", scheme)
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise unescaped(shown) from None
    kind = scheme.partition("+")[2] or ("embedded" if scheme == "embedded" else "server")
    if "#" in uri or (kind != "embedded" and "@" in parts.path + parts.query):
        raise unescaped(shown)
    ours: dict[str, Any] = {}
    theirs: list[tuple[str, str]] = []
    login: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in READERS:
            field_name, read = READERS[name]
            ours[field_name] = read(name, value)
        elif kind == "sentinel" and name in ("sentinel_username", "sentinel_password"):
            login[name] = value
        else:
            theirs.append((name, value))
    blank = next((name for name, value in theirs if not value), None)
    if blank is not None and f"{blank}=" not in unquote_plus(parts.query):
        # Its name may be the rest of a password with an unescaped &.
        raise unescaped(shown)
    if kind == "embedded" and theirs:
        raise unknown_option(shown, theirs[0][0], more="")
    if kind != "embedded":
        check_path(parts, kind, shown)
    rest = f"{scheme}://{parts.netloc}{parts.path}" + (f"?{urlencode(theirs)}" if theirs else "")
    both = (login.get("sentinel_username"), login.get("sentinel_password"))
    return Address(rest, shown, kind, sentinel_login=both, original=uri, **ours)


def check_path(parts: SplitResult, kind: str, shown: str) -> None:
    """redis-py takes a database that is no number for 0."""
    service, _, db = parts.path.strip("/").rpartition("/")
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise InvalidArgument(
                "engine", shown, "unix:// with the path of a socket: unix:///run/redis.sock"
            )
        return
    if kind == "sentinel":
        if not service and db:
            service, db = db, ""
        if not service or "/" in service:
            raise InvalidArgument("engine", shown, "a service: redis+sentinel://host:26379/service[/db]")
    elif service:
        raise InvalidArgument("engine", shown, "no more than a database after the host: redis://host:6379/0")
    if db and not (db.isascii() and db.isdigit()):
        raise InvalidArgument("engine", shown, "a database that is a number, such as /0")
    if kind == "cluster" and db.strip("0"):
        raise InvalidArgument("engine", shown, "no database: a cluster has only number 0")


def service_of(address: Address) -> tuple[str, str]:
    """The service that sentinels watch, and the database.

    >>> service_of(read_address("redis+sentinel://a:1,b:2/main/3"))
    ('main', '3')
    """
    service, _, db = urlsplit(address.uri).path.strip("/").partition("/")
    return unquote(service), db


def hosts_of(address: Address, port: int) -> list[tuple[str, int]]:
    """The hosts that are named, each with its port.

    >>> hosts_of(read_address("redis+cluster://:secret@a:7000,[::1]:7001,c"), 6379)
    [('a', 7000), ('::1', 7001), ('c', 6379)]
    """
    found = []
    for host in urlsplit(address.uri).netloc.rpartition("@")[2].split(","):
        try:
            parts = urlsplit(f"//{host}")
            found.append((parts.hostname or "localhost", port if parts.port is None else parts.port))
        except ValueError:
            raise bad_port(address.public) from None
    return found


def bad_port(shown: str) -> InvalidArgument:
    accepted = (
        "host:port with a port from 1 to 65535, IPv6 in brackets; a password comes before an @: "
        "redis://:password@host"
    )
    return InvalidArgument("engine", shown, accepted)


def unescaped(shown: str) -> InvalidArgument:
    accepted = (
        "a URI with special characters as %xx, as those of a password: "
        "# is %23, & is %26, / is %2F, ? is %3F, @ is %40"
    )
    return InvalidArgument("engine", shown, accepted)


def unknown_option(shown: str, name: str, more: str = " and those of redis-py") -> InvalidArgument:
    known = ", ".join(READERS) + more
    return InvalidArgument("engine", shown, f"it without the option {name!r}; known are {known}")


# -- options ---------------------------------------------------------------------------------------------


def as_namespace(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or set(value) & set(" :{}\r\n"):
        raise InvalidArgument(name, value, "a name without spaces, colons and braces")
    return value


READERS: dict[str, tuple[str, Any]] = {
    "namespace": ("namespace", as_namespace),
    "lease": ("lease_ns", as_lease),
    "drift_ppm": ("drift_ppm", as_ppm),
    "strict": ("strict", as_switch),
}
