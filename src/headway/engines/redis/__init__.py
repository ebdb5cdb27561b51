"""Ledgers on a server of Redis or Valkey, shared by any number of processes: `redis://` and its kin.

From the bottom: `lua/` decides, on the server; `words` and `scripts` say how it is spoken to; `account` is a client's side
of a ledger, `requests` what can be wanted of it; `wires` and `place` are connections, `lanes` and `letters` what travels on
them; `keeper` looks after those who wait; `engine` has it all for one address.
"""

from __future__ import annotations

import threading
from typing import Any

from headway.engines.redis.address import read_address
from headway.engines.redis.engine import Engine
from headway.errors import InvalidArgument

__all__ = ["Engine", "open_engine"]

_open: dict[tuple[str, float], Engine] = {}
_lock = threading.Lock()


def open_engine(engine: Any, timeout: float) -> Engine:
    """The engine of an address, shared by all who name it with the same time-out; or the engine itself."""
    if isinstance(engine, Engine):
        return engine
    if not isinstance(engine, str):
        raise InvalidArgument("engine", engine, "a URI such as redis://localhost:6379/0, or a headway engine")
    with _lock:
        found = _open.get((engine, timeout))
        if found is None:
            found = _open[engine, timeout] = Engine(read_address(engine), timeout=timeout)
        return found
