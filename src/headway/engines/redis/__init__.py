"""Ledgers on a server of Redis or Valkey, shared by any number of processes: `redis://` and its kin.

From the bottom: `script/` is the Lua that decides on the server, and how it is spoken to; `net/` is how a server is
reached; `client/` is a process's side of a ledger: what it knows, what it asks, how commands are batched and releases
delivered; `cluster/` has what only a Redis Cluster needs, and `embedded/` a private server. `engine` puts it together.
"""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import hiredis  # noqa: F401 - without it nothing here works, and `engines/uri.py` says how to get it
import redis  # noqa: F401

from headway.core.durations import to_ns
from headway.engines.open_engines import OpenEngines
from headway.engines.redis.engine import Engine
from headway.engines.redis.net import early_imports  # noqa: F401 - before there is a thread that connects
from headway.engines.redis.net.address import READERS, Address, read_address
from headway.engines.redis.net.clients import connectors_of, describe, is_client
from headway.errors import InvalidArgument

__all__ = ["Engine", "check_uri", "is_client", "open_client", "open_scanner", "open_uri"]

# By the client itself: its id may be another's when it is gone.
_of_clients: weakref.WeakKeyDictionary[Any, dict[Any, Engine]] = weakref.WeakKeyDictionary()


def check_uri(uri: str) -> None:
    """Raise for a URI that makes no sense."""
    read_address(uri)


def open_client(client: Any, timeout: float | timedelta, **options: Any) -> Engine:
    """The engine around a client: one for the same client and options."""
    if not is_client(client):
        raise InvalidArgument("client", client, "a client of redis-py")
    timeout_ns = to_ns(timeout)
    if timeout_ns is None or timeout_ns <= 0:
        raise InvalidArgument("timeout", timeout, "seconds above 0, or a timedelta")
    read = {READERS[name][0]: READERS[name][1](name, value) for name, value in options.items()}
    key = tuple(sorted(read.items()))
    with opened.lock:
        mine = _of_clients.setdefault(client, {})
        found = mine.get(key)
        if found is None or found.closed:
            address = Address("", describe(client), connectors_of(client)[0], client=client, **read)
            found = mine[key] = _engine_at(address, timeout_ns / 1e9)
        found.timeout = max(found.timeout, timeout_ns / 1e9)
        return found


def open_scanner(uri: str, timeout: float) -> Any:
    """Reads all ledgers of an engine."""
    from headway.engines.redis.inspection.scanner import LedgerScanner

    return LedgerScanner(uri, timeout)


def _engine_at(address: Address, timeout: float) -> Engine:
    if address.kind == "cluster":
        from headway.engines.redis.cluster.engine import ClusterEngine

        return ClusterEngine(address, timeout=timeout)
    if address.kind == "embedded":
        from headway.engines.redis.embedded.engine import EmbeddedEngine

        return EmbeddedEngine(address, timeout=timeout)
    return Engine(address, timeout=timeout)


def _build(uri: str, timeout: float) -> Engine:
    return _engine_at(read_address(uri), timeout)


opened = OpenEngines(_build)
open_uri = opened.open
