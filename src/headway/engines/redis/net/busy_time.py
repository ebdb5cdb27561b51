"""How long an event loop was busy: what is not answered then is not the server's fault."""

from __future__ import annotations

import asyncio
from typing import Final

TICK: Final = 0.02
"""Seconds between two looks at the clock. A look that is later than this tells of a loop that was busy."""


class BusyTime:
    """Looks at the clock again and again, until it is ended; what it is late by is what the loop was busy for."""

    __slots__ = ("_due", "_loop", "_lost", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lost = 0.0
        self._set()

    def _set(self) -> None:
        self._due = self._loop.time() + TICK
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._lost = self.seconds()
        self._set()

    def seconds(self) -> float:
        """Seconds for which the loop was busy so far."""
        late = self._loop.time() - self._due
        return self._lost + (late if late > TICK else 0.0)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
