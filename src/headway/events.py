"""What `on_event` is told, and how.

A listener is the user's, and may fail. That is logged and changes nothing: the permit is granted or ended all the same.
Only what a signal handler raises while the listener runs is raised: it is not the listener's failure, but meant for the
program.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.interrupts import raised_by_signal
from headway.outcome import Outcome

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.wait_queue import Ticket
    from headway.limiter.permits import Permit

log = logging.getLogger("headway")


@dataclass(frozen=True, slots=True)
class LimiterEvent:
    """What `on_event` is told: small, and made only where there is a listener.

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
    """Turns what happens to a limiter's permits into events."""

    __slots__ = ("_clock", "_name", "_tell")

    def __init__(self, tell: Callable[[LimiterEvent], object], name: str | None, clock: Clock) -> None:
        self._tell = tell
        self._name = name
        self._clock = clock

    def emit(self, kind: str, key: Any, cost: Any, seconds: float | None = None) -> None:
        try:
            self._tell(LimiterEvent(kind, self._name, key, cost, seconds))
        except Exception as error:
            if raised_by_signal(error):
                raise
            log.exception("on_event failed for %r", kind)

    def emit_wait(self, permit: Permit, ticket: Ticket) -> None:
        if ticket.waker is None:
            self.emit("granted", permit.key, permit.cost)
        else:
            self.emit("waited", permit.key, permit.cost, (self._clock.now() - ticket.since) / 1e9)

    def emit_end(self, permit: Permit, how: int) -> None:
        self.emit(Outcome(how).event, permit.key, permit.cost)
