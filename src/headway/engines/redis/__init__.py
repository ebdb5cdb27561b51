"""Ledgers on a server of Redis or Valkey, shared by any number of processes: `redis://` and its kin.

From the bottom: `script/` is the Lua that decides on the server, and how it is spoken to; `net/` is how a server is
reached; `client/` is a process's side of a ledger: what it knows, what it asks, how commands are batched and releases
delivered; `cluster/` has what only a Redis Cluster needs, and `embedded/` a private server. `engine` puts it together.
"""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from functools import partial
from typing import Any

import hiredis  # noqa: F401 - without it nothing here works, and `engines/uri.py` says how to get it
import redis  # noqa: F401

from headway.core.durations import to_ns
from headway.engines.redis.engine import Engine
from headway.engines.redis.net import early_imports  # noqa: F401 - before there is a thread that connects
from headway.engines.redis.net.address import READERS, Address, read_address
from headway.engines.redis.net.clients import connectors_of, describe, is_client
from headway.errors import InvalidArgument
from headway.forks import on_fork

__all__ = ["Engine", "check_uri", "is_client", "open_client", "open_scanner", "open_uri"]

_engines: dict[str, Engine] = {}
# By the client itself: its id may be another's when it is gone.
_of_clients: weakref.WeakKeyDictionary[Any, dict[Any, Engine]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def after_fork() -> None:
    """In a forked child: a thread of its parent may have been about to open an engine."""
    global _lock
    _lock = threading.RLock()


on_fork(after_fork)


def check_uri(uri: str) -> None:
    """Raise for a URI that makes no sense."""
    read_address(uri)


def open_uri(uri: str, timeout: float) -> Engine:
    """The engine of a URI: one for all limiters that name it, whatever their time-outs."""
    with _lock:
        found = _engines.get(uri)
        if found is None or found.closed:
            found = _engines[uri] = build(read_address(uri), timeout)
            found.on_close = partial(_forget, uri, weakref.ref(found))
            found.users.watch()
        found.timeout = max(found.timeout, timeout)
        return found


def _forget(uri: str, closed: weakref.ref[Engine]) -> None:
    with _lock:
        if _engines.get(uri) is closed():
            del _engines[uri]


def open_client(client: Any, timeout: float | timedelta, **options: Any) -> Engine:
    """The engine around a client: one for the same client and options."""
    if not is_client(client):
        raise InvalidArgument("client", client, "a client of redis-py")
    timeout_ns = to_ns(timeout)
    if timeout_ns is None or timeout_ns <= 0:
        raise InvalidArgument("timeout", timeout, "seconds above 0, or a timedelta")
    read = {READERS[name][0]: READERS[name][1](name, value) for name, value in options.items()}
    key = tuple(sorted(read.items()))
    with _lock:
        mine = _of_clients.setdefault(client, {})
        found = mine.get(key)
        if found is None or found.closed:
            address = Address("", describe(client), connectors_of(client)[0], client=client, **read)
            found = mine[key] = build(address, timeout_ns / 1e9)
        found.timeout = max(found.timeout, timeout_ns / 1e9)
        return found


def open_scanner(uri: str, timeout: float) -> Any:
    """Reads all ledgers of an engine."""
    from headway.engines.redis.inspection.scanner import LedgerScanner

    return LedgerScanner(uri, timeout)


def build(address: Address, timeout: float) -> Engine:
    if address.kind == "cluster":
        from headway.engines.redis.cluster.engine import ClusterEngine

        return ClusterEngine(address, timeout=timeout)
    if address.kind == "embedded":
        from headway.engines.redis.embedded.engine import EmbeddedEngine

        return EmbeddedEngine(address, timeout=timeout)
    return Engine(address, timeout=timeout)
