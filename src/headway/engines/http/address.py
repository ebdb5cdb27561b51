"""Addresses: what an `http://` or `https://` URI says, without going there.

    http://[token@]host[:port][,host[:port]...][/]      https:// with TLS

Several hosts are servers on one engine: the first one that answers is used, and the next one when it is gone. The token
is what `[tokens.NAME]` of the service's file says; its special characters are written as %xx. Options are in the query:
`lease` (seconds after which a server takes a client that it does not hear of for dead), `drift_ppm` of the server's
clocks, `ssl_ca_certs` (a file with the certificates that are trusted).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from headway.engines.uri import public
from headway.engines.uri_options import as_lease, as_ppm
from headway.errors import InvalidArgument

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """Where a service is, and how it is to be used."""

    original: str = field(repr=False)
    """As it was given; with the token."""
    public: str
    """For logs and errors."""
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    token: str | None = field(repr=False)
    lease_ns: int = 5_000_000_000
    drift_ppm: float = 1000.0
    ca_certs: str | None = None


def read_address(uri: str) -> Address:
    """An address from a URI.

    >>> address = read_address("https://se%40cret@a.example,[::1]:8443/?lease=2")
    >>> address.public, address.hosts, address.token, address.lease_ns
    ('https://a.example,[::1]:8443/', (('a.example', 443), ('::1', 8443)), 'se@cret', 2000000000)
    """
    shown = public(uri)
    scheme = uri.partition("://")[0]
    try:
        # urlsplit knows one host, and so does not see the brackets of the others.
        netloc = uri.partition("://")[2].partition("/")[0].partition("?")[0]
        rest = urlsplit(f"//x{uri.partition('://')[2][len(netloc) :]}")
    except ValueError:
        raise _unescaped(shown) from None
    if "#" in uri or "@" in rest.path + rest.query:
        raise _unescaped(shown)
    if rest.path not in ("", "/"):
        raise InvalidArgument("engine", shown, f"{scheme}://host:port without a path")
    login, _, names = netloc.rpartition("@")
    user, _, password = login.partition(":")
    token = unquote(password or user) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidArgument("engine", shown, "a token of printable ASCII characters before the @")
    hosts = tuple(_host(name, PORTS[scheme], shown) for name in names.split(","))
    options: dict[str, Any] = {}
    for name, value in parse_qsl(rest.query, keep_blank_values=True):
        if name not in READERS:
            known = ", ".join(READERS)
            raise InvalidArgument("engine", shown, f"it without the option {name!r}; known are {known}")
        field_name, read = READERS[name]
        options[field_name] = read(name, value)
    return Address(uri, shown, hosts, scheme == "https", token, **options)


def _host(name: str, port: int, shown: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{name}")
        own = parts.port
    except ValueError:
        own = 0
    if own == 0 or not parts.hostname:
        accepted = "host:port with a port from 1 to 65535, IPv6 in brackets; a token comes before an @"
        raise InvalidArgument("engine", shown, accepted)
    return parts.hostname, own or port


def _unescaped(shown: str) -> InvalidArgument:
    accepted = (
        "a URI with special characters as %xx, as those of a token: # is %23, / is %2F, ? is %3F, @ is %40"
    )
    return InvalidArgument("engine", shown, accepted)


def _file(name: str, value: str) -> str:
    if not value:
        raise InvalidArgument(name, value, "the path of a file with certificates in PEM")
    return value


READERS: dict[str, tuple[str, Any]] = {
    "lease": ("lease_ns", as_lease),
    "drift_ppm": ("drift_ppm", as_ppm),
    "ssl_ca_certs": ("ca_certs", _file),
}
