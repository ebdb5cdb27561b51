"""A bell that one thread waits for and any other may ring, also from a finalizer or a signal's handler."""

from __future__ import annotations

from _thread import allocate_lock
from contextlib import suppress


class Bell:
    """A lock that is released to ring. What rang before the wait is heard by it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the thread that waits, or the next one that does."""
        with suppress(RuntimeError):  # another thread has rung just now
            self._lock.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it rings, for so long at most; whether it rang."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
