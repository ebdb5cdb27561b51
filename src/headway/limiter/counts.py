"""What a limiter has done so far: counted where permits are granted, denied and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.diagnostics import check_health, warn_blocking
from headway.outcome import ABANDON, CANCEL, COMPLETE

if TYPE_CHECKING:
    from headway.core.ledger import Rule


class LimiterCounts:
    """The counts of a limiter on a shared engine; a memory store counts by itself, under its lock."""

    __slots__ = (
        "abandoned",
        "cancelled",
        "denied",
        "ended",
        "flight_ns",
        "granted",
        "name",
        "rules",
        "tick_ns",
        "warned",
    )

    def __init__(self, name: str, rules: tuple[Rule, ...], tick_ns: int) -> None:
        self.name: str | None = name
        self.rules = rules
        self.tick_ns = tick_ns
        self.granted = self.denied = self.ended = self.cancelled = self.abandoned = self.flight_ns = 0
        # The warnings that were given: each is given once.
        self.warned: set[str] = set()

    def count_end(self, how: int, flight_ns: int) -> None:
        """A permit ended; `flight_ns` is how long it was out, where that says something about the remote."""
        if how == CANCEL:
            self.cancelled += 1
            return
        self.ended += 1
        if how == ABANDON:
            self.abandoned += 1
        elif how == COMPLETE:
            self.flight_ns += flight_ns
        if self.ended & 255 == 0:
            check_health(self, self.tick_ns)

    def warn_blocking(self) -> None:
        """A thread is about to sleep in which an event loop runs."""
        warn_blocking(self)
