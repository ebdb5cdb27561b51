"""The address that a request came from, as far as it can be known.

A proxy writes into a header where a request came from; so can any client. What may be believed is what a proxy of
one's own has written, and proxies append on the right. So the walk begins with the peer of the connection, which is
certain, and goes through the header from right to left: as long as a hop is in a trusted network, what it has written
is believed. The first hop that is not trusted is the client; what stands to the left of it was written by the client
itself. With nothing trusted, which is the default, the header is not looked at.

An entry that is no address (`unknown`, an obfuscated name) ends the walk: the client is then the proxy that wrote it.
A unix socket has no address, so it is trusted only where "unix" is among the trusted. A client of IPv6 usually has a
whole network of 64 bits: for a limit, that is its address.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from headway.errors import InvalidArgument

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_HOPS: Final = 100
MAX_CACHED: Final = 4096
HEADERS: Final = ("x-forwarded-for", "forwarded")

_FOR: Final = re.compile(r"(?:^|;)\s*for=(?:\"([^\"]*)\"|([^;,\s]*))", re.IGNORECASE)


class ClientAddress:
    """Finds the address of a client.

    >>> address = ClientAddress(trusted=["10.0.0.0/8"])
    >>> address.of("10.0.0.1", ["203.0.113.7, 10.0.0.2"])
    '203.0.113.7'
    >>> address.of("198.51.100.9", ["203.0.113.7"])  # it is no proxy of ours: what it says is not believed
    '198.51.100.9'
    >>> ClientAddress().of("2001:db8:1:2:3::4", [])
    '2001:db8:1:2::/64'

    `trusted` are networks of one's own proxies (and "unix" for unix sockets), `header` is the one that they write:
    "x-forwarded-for" or "forwarded"; only one of them, for the other would be the client's. `ipv6_prefix` is how many
    bits of an IPv6 address are one client.
    """

    def __init__(
        self, trusted: Iterable[str] = (), *, header: str = "x-forwarded-for", ipv6_prefix: int = 64
    ) -> None:
        names = [trusted] if isinstance(trusted, str) else list(trusted)
        self._unix = "unix" in names
        self._trusted = tuple(_network(name) for name in names if name != "unix")
        self.header = str(header).lower()
        if self.header not in HEADERS:
            raise InvalidArgument("header", header, "'x-forwarded-for' or 'forwarded'")
        if type(ipv6_prefix) is not int or not 1 <= ipv6_prefix <= 128:
            raise InvalidArgument("ipv6_prefix", ipv6_prefix, "bits from 1 to 128")
        self._prefix = ipv6_prefix
        self._header_name = self.header.encode()
        self.trusts = bool(self._trusted) or self._unix
        """Whether the header is looked at."""
        # A client comes again.
        self._of = functools.lru_cache(MAX_CACHED)(self._find)
        self._peers: dict[str | None, str | None] = {}

    def of(self, peer: str | None, values: Sequence[str]) -> str | None:
        """The client, by the connection's peer (None: a unix socket) and the header's values; None: not known."""
        return self._of(peer, tuple(values))

    def _find(self, peer: str | None, values: tuple[str, ...]) -> str | None:
        hop = parse(peer)
        if hop is None and not (peer is None and self._unix):
            return None
        if hop is not None and not self._is_trusted(hop):
            return self._text(hop)
        for entry in reversed(self._entries(values)):
            found = parse(entry)
            if found is None:
                break
            hop = found
            if not self._is_trusted(hop):
                break
        return None if hop is None else self._text(hop)

    def of_scope(self, scope: Any) -> str | None:
        """The client of an ASGI scope.

        >>> ClientAddress().of_scope({"client": ("203.0.113.7", 50000), "headers": []})
        '203.0.113.7'
        """
        client = scope.get("client")
        peer = client[0] if client else None
        if not self.trusts:
            return self._of_peer(peer)
        return self._of_headers(peer, scope["headers"])

    def _of_headers(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The client behind a peer, by the headers of an ASGI scope."""
        name = self._header_name
        return self._of(peer, tuple(value.decode("latin-1") for key, value in headers if key == name))

    def _of_peer(self, peer: str | None) -> str | None:
        """The client of a connection, where no header is looked at."""
        peers = self._peers
        if peer in peers:
            return peers[peer]
        if len(peers) >= MAX_CACHED:
            peers = self._peers = {}  # another thread may be looking at the old one
        found = peers[peer] = self._find(peer, ())
        return found

    def of_environ(self, environ: Any) -> str | None:
        """The client of a WSGI environment."""
        name = "HTTP_" + self.header.upper().replace("-", "_")
        return self.of(environ.get("REMOTE_ADDR") or None, [environ.get(name, "")])

    def _entries(self, values: Sequence[str]) -> list[str]:
        entries = [entry.strip() for value in values for entry in value.split(",")]
        if self.header == "forwarded":
            found = (_FOR.search(entry) for entry in entries)
            entries = ["" if match is None else match[1] or match[2] or "" for match in found]
        elif entries == [""]:
            entries = []
        return entries[-MAX_HOPS:]

    def _is_trusted(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._trusted)

    def _text(self, address: Address) -> str:
        if address.version == 4 or self._prefix == 128:
            return str(address)
        return str(ipaddress.ip_network((int(address), self._prefix), strict=False))


def parse(text: str | None) -> Address | None:
    """An address, also with a port, in brackets, with a zone, or IPv4 within IPv6; None: it is none.

    >>> [str(parse(text)) for text in ("203.0.113.7:4711", "[2001:db8::1]:80", "fe80::1%eth0", "::ffff:10.0.0.1", "me")]
    ['203.0.113.7', '2001:db8::1', 'fe80::1', '10.0.0.1', 'None']
    """
    if not text or len(text) > 100:
        return None
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _network(name: object) -> Network:
    try:
        if isinstance(name, str):
            return ipaddress.ip_network(name)
    except ValueError:
        pass
    raise InvalidArgument("trusted", name, 'networks such as "10.0.0.0/8" or "fd00::/8", or "unix"')
