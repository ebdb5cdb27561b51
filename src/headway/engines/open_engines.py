"""The engines that a process has open by their URIs: one for all limiters that name it, until none does any more."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from headway.forks import on_fork

E = TypeVar("E", bound=Any)


class OpenEngines(Generic[E]):
    """The open engines of one kind; `build` makes one from a URI and a time-out. Lives as long as the process."""

    def __init__(self, build: Callable[[str, float], E]) -> None:
        self._build = build
        self._engines: dict[str, E] = {}
        self.lock = threading.RLock()
        on_fork(self._after_fork)

    def _after_fork(self) -> None:
        # A thread of the parent may have been about to open an engine.
        self.lock = threading.RLock()

    def __iter__(self) -> Iterator[str]:
        return iter(self._engines)

    def open(self, uri: str, timeout: float) -> E:
        """The engine of a URI, whatever the time-outs of its limiters: the longest holds."""
        with self.lock:
            found = self._engines.get(uri)
            if found is None or found.closed:
                found = self._engines[uri] = self._build(uri, timeout)
                found.on_close = partial(self._forget, uri, weakref.ref(found))
                found.users.watch()
            found.timeout = max(found.timeout, timeout)
            return found

    def close(self, uri: str) -> None:
        """Close an engine, whether a limiter uses it or not."""
        with self.lock:
            engine = self._engines.pop(uri)
        engine.close()

    def _forget(self, uri: str, closed: weakref.ref[E]) -> None:
        with self.lock:
            if self._engines.get(uri) is closed():
                del self._engines[uri]
