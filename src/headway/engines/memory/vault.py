"""What a book keeps, and the lock around it.

**Quick and slow.** Most decisions find nobody waiting, nothing paused and a permit at hand. `quick` finds the ledger of
those: a few lines without a Python call between reading and writing, so that in the compiled form nothing can come
between under the GIL. It may be used while the book is `calm`. Everything else (lines, pauses, several ledgers at once,
closing) goes the slow way, under the lock, and makes the book uncalm for as long as it matters.

**Finalizers.** A permit that is dropped is abandoned by its finalizer, which may run anywhere, also inside the lock in
the same thread. So a finalizer only puts what it has into the `box`; whoever leaves the lock empties it.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.clock import compiled
from headway.core.wait_queue import Ticket, WaitQueue
from headway.engines.memory.keyed_ledgers import KeyedLedgers

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger, Rule

ATOMIC = compiled and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a method without Python calls cannot be interrupted by another thread."""


class Vault:
    """The ledgers, the lines and the counts of one limiter, and their lock."""

    __slots__ = (
        "__weakref__",
        "abandoned",
        "cancelled",
        "clock",
        "closed",
        "denied",
        "depth",
        "dropped",
        "ended",
        "first",
        "flight_ns",
        "forked",
        "granted",
        "health",
        "held",
        "keyed_ledgers",
        "limits",
        "lock",
        "metrics",
        "name",
        "numbers",
        "off",
        "on_block",
        "on_fork",
        "pauses",
        "promised",
        "queues",
        "resumed",
        "single_rule",
        "spare",
        "start_full",
        "uncontended",
        "uses_wall_clock",
        "waiting",
        "warned",
    )  # so that interpreted code reads them fast

    def __init__(self, name: str | None, clock: Clock, start_full: bool) -> None:
        self.name = name
        self.clock = clock
        self.start_full = start_full
        self.keyed_ledgers: list[KeyedLedgers] = []
        self.first: KeyedLedgers = None  # type: ignore[assignment] # furnished before anybody asks
        self.queues: dict[tuple[int, str | None], WaitQueue] = {}
        self.lock = threading.RLock()
        self.dropped: deque[tuple[Ledger, int, int, int, str | None]] = deque()
        self.pauses: dict[str | None, int] = {}
        # Who waited when somebody reserved behind it: no longer in line, but asleep until its slot.
        self.promised: set[Ticket] = set()
        self.numbers = 0
        self.resumed = 0
        self.waiting = 0
        self.depth = 0
        self.forked = False
        self.closed = False
        self.uncontended = True
        # While a test has switched limiting off.
        self.off = False
        self.single_rule = False
        self.uses_wall_clock = False
        self.held = False
        self.granted = 0
        self.denied = 0
        self.ended = 0
        self.cancelled = 0
        self.abandoned = 0
        self.flight_ns = 0
        self.metrics: list[str | None] = []
        self.limits: dict[str, Any] = {}
        # Told about a fork, a blocked loop and health, with the book: functions without a limiter make no cycle.
        self.on_fork: Callable[[Any], None] | None = None
        self.on_block: Callable[[Any], None] | None = None
        self.health: Callable[[Any], None] | None = None
        self.spare: Any = None
        self.warned: set[str] = set()

    def configure(self, rules: tuple[Rule, ...], choosers: list[Callable[[str], Rule | None] | None]) -> None:
        """Set up one shelf per rule."""
        full_now: int | None = self.clock.now() if self.start_full else None
        full_wall: int | None = self.clock.wall() if self.start_full else None
        self.keyed_ledgers = [
            KeyedLedgers(rule, choose, full_wall if rule.uses_wall_clock else full_now)
            for rule, choose in zip(rules, choosers, strict=True)
        ]
        self.first = self.keyed_ledgers[0]
        # A Spacing must hear of every use, also of one that did not wait.
        self.single_rule = (
            len(rules) == 1 and not rules[0].uses_wall_clock and choosers[0] is None and not rules[0].spaced
        )
        self.uses_wall_clock = any(rule.uses_wall_clock for rule in rules) or any(choosers)
        self.held = any(rule.held for rule in rules)

    @property
    def rules(self) -> list[Rule]:
        """The rule of each part of the limit."""
        return [keyed.rule for keyed in self.keyed_ledgers]

    def rule_for(self, index: int, key: str | None) -> Rule:
        """The rule of a key: its override, or the limiter's own."""
        return self.keyed_ledgers[index].rule_for(key)

    def find_fast(self, key: str | None, now: int) -> Ledger:
        """The only ledger of a calm book with one shelf."""
        keyed = self.first
        if key is None:
            return keyed.default
        # Swept before it is found: a fresh ledger is idle, and would be forgotten while it is being taken from.
        if keyed.countdown <= 0:
            keyed.sweep(now, 0)
        return keyed.find(key)

    def enter(self) -> None:
        """Take the lock; nobody decides the quick way until it is given back."""
        self.lock.acquire()
        self.depth += 1
        self.uncontended = False

    def leave(self) -> None:
        """Give the lock back, after what finalizers left has been dealt with."""
        try:
            if self.depth == 1:
                self.release_dropped()
                self.uncontended = not (
                    self.queues or self.pauses or self.closed or self.forked or self.off or self.dropped
                )
        finally:
            self.depth -= 1
            self.lock.release()
        if self.dropped:
            self.tidy()

    def release_dropped(self) -> None:
        while self.dropped:
            ledger, cost, mark, index, key = self.dropped.popleft()
            ledger.abandon(self.time_for(ledger), cost, mark)
            self.call_head(index, key)

    def drop(self, ledger: Ledger, cost: int, mark: int, index: int, key: str | None) -> None:
        """Called by a finalizer: abandon, now or when whoever is at it is done."""
        self.dropped.append((ledger, cost, mark, index, key))
        self.uncontended = False
        self.tidy()

    def tidy(self) -> None:
        """Empty the box, unless somebody is inside the lock: who leaves it will."""
        if self.lock.acquire(blocking=False):
            if self.depth:
                self.lock.release()
            else:
                self.depth += 1
                self.leave()

    def time_for(self, ledger: Ledger) -> int:
        return self.clock.wall() if ledger.get_rule().uses_wall_clock else self.clock.now()

    def resume_time(self, keys: tuple[str | None, ...], now: int) -> int:
        """When what these keys are paused for is over; pauses that are over are forgotten."""
        if not self.pauses:
            return now
        for key, until in list(self.pauses.items()):
            if until <= now:
                del self.pauses[key]
        until = now
        for key in {None, *keys}:
            until = max(until, self.pauses.get(key, now))
        return until

    def call_head(self, index: int, key: str | None) -> None:
        """Something came back to this ledger: let the head of its line look again."""
        raise NotImplementedError
