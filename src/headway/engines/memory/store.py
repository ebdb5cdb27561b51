"""A book: everything that one limiter, or all limiters of one name, remember and may be asked to do.

`vault` keeps the ledgers and the lock, `queue` decides and lets wait; here is what happens less often: promising times,
ending grants, pausing, closing, changing the limit, and looking.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.core.wait_queue import Ticket
from headway.engines.memory.keyed_ledgers import KeyedLedgers
from headway.engines.memory.queue import Queue
from headway.engines.memory.vault import ATOMIC
from headway.errors import LimiterClosed

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger, Rule

__all__ = ["ABANDON", "ATOMIC", "CANCEL", "COMPLETE", "SETTLE", "MemoryStore"]

COMPLETE, CANCEL, ABANDON, SETTLE = 1, 2, 3, 4

books: weakref.WeakSet[MemoryStore] = weakref.WeakSet()
disabled = False


class MemoryStore(Queue):
    """One ledger per rule and key, their waiting lines, and what was counted."""

    __slots__ = ()

    def __init__(self, name: str | None, clock: Clock, start_full: bool) -> None:
        Queue.__init__(self, name, clock, start_full)
        self.off = disabled
        self.uncontended = not disabled
        books.add(self)

    def reserve(self, ticket: Ticket) -> int:
        """Promise `ticket` a time, after everybody who waits has been promised theirs; -1 if too many are promised."""
        self.enter()
        try:
            if self.forked:
                self._forked_notice()
            if self.closed:
                raise LimiterClosed(self.name)
            ticket.granted = True
            if self.off:
                return 0
            now = self.clock.now()
            for place in enumerate(ticket.keys):
                line = self.queues.get(place)
                for other in list(line.tickets.values()) if line is not None else ():
                    if self._promise(other, now) < 0:
                        return -1
                    self._step_out(other)
                    self.promised.add(other)
                    self.waiting += 1
                    self._ring(other)
            return self._promise(ticket, now)
        finally:
            self.leave()

    def slot_after(self, ticket: Ticket) -> int:
        """Nanoseconds until a reservation that was refused can be made."""
        self.enter()
        try:
            now = self.clock.now()
            claims = zip(self.keyed_ledgers, ticket.keys, ticket.costs, strict=True)
            return max(
                [keyed.peek(key).slot_after(now, cost) for keyed, key, cost in claims if cost], default=0
            )
        finally:
            self.leave()

    def _promise(self, ticket: Ticket, now: int) -> int:
        slot = self.resume_time(ticket.keys, now)
        claims = []
        for keyed, key, cost in zip(self.keyed_ledgers, ticket.keys, ticket.costs, strict=True):
            if cost:
                ledger = keyed.find(key)
                at = ledger.slot(now, cost)
                if at < 0:
                    return -1
                slot = max(slot, at)
                claims.append((ledger, cost))
        for ledger, cost in claims:
            mark = ledger.take(slot, cost)
            ticket.marks.append((ledger, mark, ledger.tally))
        ticket.slot = slot
        self.granted += 1
        return slot

    def end(
        self,
        how: int,
        ledger: Ledger,
        cost: int,
        mark: int,
        tally: int,
        index: int,
        key: str | None,
        actual: int,
    ) -> None:
        """Hand a grant back in one of four ways, and call who waits for it."""
        self.enter()
        try:
            now = self.time_for(ledger)
            if how == COMPLETE:
                ledger.complete(now, cost, mark)
            elif how == CANCEL:
                ledger.cancel(now, cost, mark, tally)
            elif how == ABANDON:
                ledger.abandon(now, cost, mark)
            else:
                if actual > cost and ledger.in_flight(now) == 0:
                    # Debt is the key's, also when its ledger was idle and has been forgotten since.
                    ledger = self.keyed_ledgers[index].find(key)
                ledger.settle(now, cost, mark, tally, actual)
            self.call_head(index, key)
        finally:
            self.leave()

    def paused(self, keys: tuple[str | None, ...]) -> bool:
        """Whether a pause holds any of these keys up."""
        self.enter()
        try:
            now = self.clock.now()
            return self.resume_time(keys, now) > now
        finally:
            self.leave()

    def pause(self, key: str | None, duration_ns: int) -> None:
        """Nobody is granted anything for so long; 0 lifts it."""
        self.enter()
        try:
            if self.closed:
                raise LimiterClosed(self.name)
            now = self.clock.now()
            if duration_ns > 0:
                self.pauses[key] = now + duration_ns
            else:
                self.pauses.pop(key, None)
            # What went by while paused is not made up for.
            self.resumed = max(now + duration_ns, self.resumed) if duration_ns > 0 else now
            self.call_heads()
        finally:
            self.leave()

    def close(self) -> None:
        """End every wait with `LimiterClosed`."""
        self.enter()
        try:
            self.closed = True
            for ticket in self.promised:
                self._ring(ticket)
            for line in list(self.queues.values()):
                for ticket in list(line.tickets.values()):
                    self._ring(ticket)
        finally:
            self.leave()

    def reset(self, keys: tuple[str | None, ...]) -> None:
        self.enter()
        try:
            if self.closed:
                raise LimiterClosed(self.name)
            for keyed, key in zip(self.keyed_ledgers, keys, strict=True):
                keyed.forget(key)
            self.pauses.pop(keys[0], None)
            self.call_heads()
        finally:
            self.leave()

    def reset_all(self) -> None:
        """Let every key start anew."""
        self.enter()
        try:
            if self.closed:
                raise LimiterClosed(self.name)
            for keyed in self.keyed_ledgers:
                keyed.clear()
            self.pauses.clear()
            self.call_heads()
        finally:
            self.leave()

    def choose(self, choosers: list[Callable[[str], Rule | None] | None]) -> None:
        """Let other functions say which keys have a rule of their own."""
        self.enter()
        try:
            for keyed, choose in zip(self.keyed_ledgers, choosers, strict=True):
                keyed.choose = choose
            self.single_rule = False
            self.uses_wall_clock = True
        finally:
            self.leave()

    def reconfigure(self, rules: tuple[Rule, ...]) -> None:
        """Go on under other rules of the same kinds."""
        self.enter()
        try:
            now, wall = self.clock.now(), self.clock.wall()
            for keyed, rule in zip(self.keyed_ledgers, rules, strict=True):
                keyed.reconfigure(rule, now, wall)
            self.held = any(rule.held for rule in rules)
            self.resumed = now
            self.call_heads()
            for line in self.queues.values():
                for ticket in line.tickets.values():
                    if ticket.costs[line.index] > rules[line.index].capacity:
                        self._ring(ticket)  # to hear that its turn never comes
        finally:
            self.leave()

    def snapshot(
        self, keys: tuple[str | None, ...], costs: tuple[int, ...]
    ) -> list[tuple[Any, int, int, int, int, int, bool]]:
        """What each rule says of a request, behind all who wait: limit, remaining, wait, reset, waiting, out, exact."""
        self.enter()
        try:
            if self.closed:
                raise LimiterClosed(self.name)
            now = self.clock.now()
            wall = self.clock.wall() if self.uses_wall_clock else 0
            resume = self.resume_time(keys, now) - now
            found = []
            for index, keyed in enumerate(self.keyed_ledgers):
                ledger, cost, key = keyed.peek(keys[index]), costs[index], keys[index]
                rule = ledger.get_rule()
                at = wall if rule.uses_wall_clock else now
                line = self.queues.get((index, key))
                wait = 0 if cost == 0 else ledger.wait(at, cost)
                exact = cost == 0 or ledger.exact(at, cost)
                remaining = ledger.remaining(at)
                if line is not None and cost:
                    wait = max(1, resume + self._forecast(line, ledger, at + resume, cost))
                    exact = exact and not rule.held
                    remaining = 0
                found.append(
                    (
                        rule.limit,
                        0 if resume else remaining,
                        0 if disabled else max(wait, resume),
                        ledger.reset_after(at),
                        0 if line is None else len(line),
                        ledger.in_flight(at),
                        exact,
                    )
                )
            return found
        finally:
            self.leave()

    def check_health(self) -> None:
        """Asked for now and then, as permits end: let the front end warn about what it sees."""
        if self.health is not None:
            self.health(self)

    def warn_blocking(self) -> None:
        """A thread in which an event loop runs is about to sleep."""
        if self.on_block is not None:
            self.on_block(self)


def after_fork() -> None:
    """In a forked child: locks and lines belong to threads that do not exist here."""
    for store in list(books):
        store.lock = threading.RLock()
        store.depth = 0
        store.queues = {}
        store.promised = set()
        store.waiting = 0
        store.forked = True
        store.uncontended = False


def set_disabled(flag: bool) -> bool:
    """Let every memory limiter grant everything at once; returns what was before."""
    global disabled
    before, disabled = disabled, flag
    for store in list(books):
        store.off = flag
        store.enter()
        store.leave()
    return before


def set_aside() -> list[tuple[MemoryStore, list[KeyedLedgers], dict[str | None, int]]]:
    """Put the ledgers of every book on the system clock away, and start fresh ones in their place."""
    token = []
    for store in list(books):
        if store.clock is not SYSTEM:
            continue
        store.enter()
        try:
            token.append((store, store.keyed_ledgers, store.pauses))
            store.keyed_ledgers = [
                KeyedLedgers(keyed.rule, keyed.choose, None) for keyed in store.keyed_ledgers
            ]
            store.first = store.keyed_ledgers[0]
            store.pauses = {}
            store.resumed = 0
        finally:
            store.leave()
    return token


def bring_back(token: list[tuple[MemoryStore, list[KeyedLedgers], dict[str | None, int]]]) -> None:
    """Put what `set_aside` returned back in its place."""
    for store, shelves, pauses in token:
        store.enter()
        try:
            store.keyed_ledgers, store.first, store.pauses, store.resumed = shelves, shelves[0], pauses, 0
        finally:
            store.leave()
