"""An engine that no limiter uses any more is closed, some seconds later.

Every limiter's ledgers are a user of their engine until they are freed; a permit that is out keeps the ledgers, and so
the engine. When the last user has gone, a finalizer says so. A finalizer may run at any moment and in any thread, also
while that thread has a lock: so all it does is to note the time and to start one thread for the whole process, by
`_thread` (which takes no locks), if that does not run already. The thread closes engines that have stayed unused for
`LINGER_NS`, so that a program which makes a limiter for each call does not connect for each; what is still to be
delivered is delivered first. The thread ends when no unused engine is left.

A limiter that comes after its engine was closed in this way opens it again (`EngineUsers.add`).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from _thread import allocate_lock, start_new_thread
from typing import Any, Protocol

from headway.clock import SYSTEM
from headway.forks import on_fork


class Closable(Protocol):
    """What is asked of an engine that is closed when it is unused."""

    lease_ns: int

    @property
    def closed(self) -> bool: ...

    def hurry(self) -> bool:
        """Deliver what is still to be delivered; whether there is something."""

    def stop(self) -> None:
        """Begin nothing any more."""

    def open_again(self) -> None:
        """A limiter is to use it that was made before it was closed for want of users."""

    def close(self) -> None: ...


log = logging.getLogger("headway")

LINGER_NS = 5_000_000_000
"""Nanoseconds for which an engine is kept that no limiter uses."""
LOOK = 0.1
"""Seconds between two looks at the engines that are unused."""

_watched: dict[int, EngineUsers] = {}
_running = allocate_lock()


class EngineUsers:
    """The limiters that use one engine."""

    def __init__(self, engine: Closable) -> None:
        self._engine = weakref.ref(engine)
        self._tokens: dict[object, None] = {}
        # Whether it is closed when it is unused; an engine that the user has made and may hold is not.
        self.automatic = False
        self._since = 0
        self._let_go = False
        self.reset()

    def reset(self) -> None:
        """In a forked child, a thread of the parent may have had the lock."""
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Close the engine when it is unused."""
        engine = self._engine()
        if engine is not None and not self.automatic:
            self.automatic = True
            self._since = SYSTEM.now()
            _watched[id(self)] = self

    def add(self, ledgers: Any) -> None:
        """A user, until it is freed. Opens the engine again if it was closed because it was unused."""
        token = object()
        self._tokens[token] = None
        weakref.finalize(ledgers, self._gone, token).atexit = False
        with self._lock:
            engine = self._engine()
            if self._let_go and engine is not None:
                self._let_go = False
                _watched[id(self)] = self
                engine.open_again()

    def _gone(self, token: object) -> None:
        """In a finalizer: no locks, and nothing that takes time."""
        self._tokens.pop(token, None)
        if not self._tokens and self.automatic:
            self._since = SYSTEM.now()
            start()

    @property
    def unused(self) -> bool:
        return self.automatic and not self._tokens and not self._let_go

    def look(self) -> None:
        """Close the engine if it has been unused for long enough, and has nothing left to deliver."""
        engine = self._engine()
        if engine is None or engine.closed:
            _watched.pop(id(self), None)
            return
        if not self.unused:
            return
        idle = SYSTEM.now() - self._since
        if idle < LINGER_NS:
            return
        if idle < LINGER_NS + 2 * engine.lease_ns and engine.hurry():
            return
        with self._lock:
            if self._tokens or engine.closed:
                return
            self._let_go = True
            engine.stop()
            _watched.pop(id(self), None)
        engine.close()


def start() -> None:
    """Have the thread run, if it does not. Called by finalizers."""
    if _running.acquire(blocking=False):
        try:
            start_new_thread(_run, ())
        except RuntimeError:  # no more threads, or the process ends; the next finalizer tries again
            _running.release()


def _run() -> None:
    while True:
        try:
            while _look():
                time.sleep(LOOK)
        finally:
            _running.release()
        # A finalizer that came after the last look found the lock taken.
        if not _any_unused() or not _running.acquire(blocking=False):
            return


def _look() -> bool:
    """Look at every engine once; whether one is left that is unused."""
    for users in list(_watched.values()):
        try:
            users.look()
        except Exception:
            log.exception("an engine that is not used any more could not be closed")
    return _any_unused()


def _any_unused() -> bool:
    return any(users.unused for users in list(_watched.values()))


def after_fork() -> None:
    """In a forked child: the thread is the parent's."""
    global _running
    _running = allocate_lock()


on_fork(after_fork)
