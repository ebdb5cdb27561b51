"""Ledgers on a server of Redis or Valkey, shared by any number of processes: `redis://` and its kin.

From the bottom: `lua/` decides, on the server; `words` and `scripts` say how it is spoken to; `account` is a client's
side of a ledger, `requests` what can be wanted of it; `address`, `ways` and `clients` say where servers are, `wires`
and `place` are connections to them, `lanes` and `letters` what travels on them, `ears` and `shards` what is heard;
`worker` looks after those who wait; `engine` has it all for one server or a Sentinel's primary, `cluster` for many,
`lodging` for one of our own.
"""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from typing import Any

try:
    import hiredis  # noqa: F401
    import redis  # noqa: F401
except ModuleNotFoundError as missing:
    hint = "a shared engine needs redis-py: pip install 'headway[redis]'"
    raise ModuleNotFoundError(hint, name=missing.name) from missing

from headway.core.durations import to_ns
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.address import READERS, Address, read_address
from headway.engines.redis.net.clients import ACCEPTED, connectors_of, describe, is_client
from headway.errors import InvalidArgument
from headway.forks import on_fork

__all__ = ["Engine", "engine_of", "open_engine"]

_open: dict[Any, Engine] = {}
# By the client itself: its id may be another's when it is gone.
_of_clients: weakref.WeakKeyDictionary[Any, dict[Any, Engine]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def after_fork() -> None:
    """In a forked child: a thread of its parent may have been about to open an engine."""
    global _lock
    _lock = threading.Lock()


on_fork(after_fork)


def open_engine(engine: Any, timeout: float) -> Engine:
    """The engine of an address or a client, shared by all who name it with the same time-out; or the engine itself."""
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, str):
        with _lock:
            found = _open.get((engine, timeout))
            if found is None or found.worker.stopped:
                found = _open[engine, timeout] = build(read_address(engine), timeout)
            return found
    if is_client(engine):
        return engine_of(engine, timeout)
    raise InvalidArgument("engine", type(engine).__name__, ACCEPTED)


def engine_of(client: Any, timeout: float | timedelta, **options: Any) -> Engine:
    """The engine around a client: the same for the same client, time-out and options."""
    if not is_client(client):
        raise InvalidArgument("client", type(client).__name__, "a client of redis-py")
    timeout_ns = to_ns(timeout)
    if timeout_ns is None or timeout_ns <= 0:
        raise InvalidArgument("timeout", timeout, "seconds above 0, or a timedelta")
    read = {READERS[name][0]: READERS[name][1](name, value) for name, value in options.items()}
    key = (tuple(sorted(read.items())), timeout_ns)
    with _lock:
        mine = _of_clients.setdefault(client, {})
        found = mine.get(key)
        if found is None or found.worker.stopped:
            address = Address("", describe(client), connectors_of(client)[0], client=client, **read)
            found = mine[key] = build(address, timeout_ns / 1e9)
        return found


def build(address: Address, timeout: float) -> Engine:
    if address.kind == "cluster":
        from headway.engines.redis.cluster.engine import ClusterEngine

        return ClusterEngine(address, timeout=timeout)
    if address.kind == "embedded":
        from headway.engines.redis.embedded.engine import EmbeddedEngine

        return EmbeddedEngine(address, timeout=timeout)
    return Engine(address, timeout=timeout)
