"""What `on_event` is told, and who tells it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.wait_queue import Ticket
    from headway.limiter.permits import Permit


@dataclass(frozen=True, slots=True)
class LimiterEvent:
    """What `on_event` is told: small, and made only when somebody listens.

    >>> from headway import Limiter
    >>> seen = []
    >>> limiter = Limiter("1/minute", on_event=lambda event: seen.append(event.kind))
    >>> _ = limiter.try_acquire(), limiter.try_acquire()
    >>> seen
    ['granted', 'denied']
    """

    kind: str
    limiter: str | None
    key: Any = None
    cost: Any = None
    seconds: float | None = None


class EventEmitter:
    """Turns what happens at the desk into events."""

    __slots__ = ("_clock", "_name", "_tell")

    def __init__(self, tell: Callable[[LimiterEvent], object], name: str | None, clock: Clock) -> None:
        self._tell = tell
        self._name = name
        self._clock = clock

    def emit(self, kind: str, key: Any, cost: Any, seconds: float | None = None) -> None:
        self._tell(LimiterEvent(kind, self._name, key, cost, seconds))

    def emit_wait(self, permit: Permit, ticket: Ticket) -> None:
        if ticket.waker is None:
            self.emit("granted", permit.key, permit.cost)
        else:
            self.emit("waited", permit.key, permit.cost, (self._clock.now() - ticket.since) / 1e9)

    def emit_drop(self, permit: Permit) -> None:
        """From a finalizer, where nobody could catch what the listener raises."""
        try:
            self.emit_end(permit, "abandon")
        except Exception:
            logging.getLogger("headway").exception("on_event failed for a permit that was dropped")

    def emit_end(self, permit: Permit, kind: str) -> None:
        names = {"complete": "completed", "cancel": "cancelled", "abandon": "abandoned"}
        self.emit(names.get(kind, kind), permit.key, permit.cost)
