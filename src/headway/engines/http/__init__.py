"""Ledgers and gates behind `headway serve`, for processes that do not reach its engine: `http://` and `https://`.

The service carries the commands of the seam out on its own engine, under the names that a limiter has there: a process
that names the engine itself shares the same ledgers. From the bottom: `http11` speaks HTTP, `listener` and `channel`
are the two threads of a session, `requests` and `decision` what is said and answered, `ledgers` and `gate` the seam.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any

from headway.engines.http.address import read_address
from headway.engines.http.engine import Engine
from headway.engines.uri import public
from headway.errors import InvalidArgument
from headway.forks import on_fork

__all__ = ["Engine", "check_uri", "open_scanner", "open_uri"]

_engines: dict[str, Engine] = {}
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
            found = _engines[uri] = Engine(read_address(uri), timeout=timeout)
            found.on_close = partial(_forget, uri, weakref.ref(found))
            found.users.watch()
        found.timeout = max(found.timeout, timeout)
        return found


def _forget(uri: str, closed: weakref.ref[Engine]) -> None:
    with _lock:
        if _engines.get(uri) is closed():
            del _engines[uri]


def open_scanner(uri: str, timeout: float) -> Any:  # noqa: ARG001
    """A service does not show all ledgers of its engine."""
    raise InvalidArgument("engine", public(uri), "the engine of that service itself: it has all ledgers")
