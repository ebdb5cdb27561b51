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
from headway.core.line import Ticket
from headway.engines.memory.queue import Queue
from headway.engines.memory.shelf import Shelf
from headway.engines.memory.vault import ATOMIC
from headway.errors import Closed

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger, Rule

__all__ = ["ABANDON", "ATOMIC", "CANCEL", "COMPLETE", "SETTLE", "Book"]

COMPLETE, CANCEL, ABANDON, SETTLE = 1, 2, 3, 4

books: weakref.WeakSet[Book] = weakref.WeakSet()
disabled = False


class Book(Queue):
    """One ledger per rule and key, their waiting lines, and what was counted."""

    __slots__ = ()

    def __init__(self, name: str | None, clock: Clock, start_full: bool) -> None:
        Queue.__init__(self, name, clock, start_full)
        self.off = disabled
        self.calm = not disabled
        books.add(self)

    def reserve(self, ticket: Ticket) -> int:
        """Promise `ticket` a time, after everybody who waits has been promised theirs; -1 if too many are promised."""
        self.enter()
        try:
            if self.forked:
                self._forked_notice()
            if self.closed:
                raise Closed(self.name)
            ticket.granted = True
            if self.off:
                return 0
            now = self.clock.now()
            for place in enumerate(ticket.keys):
                line = self.lines.get(place)
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
            claims = zip(self.shelves, ticket.keys, ticket.costs, strict=True)
            return max(
                [shelf.look(key).slot_after(now, cost) for shelf, key, cost in claims if cost], default=0
            )
        finally:
            self.leave()

    def _promise(self, ticket: Ticket, now: int) -> int:
        slot = self.resume_time(ticket.keys, now)
        claims = []
        for shelf, key, cost in zip(self.shelves, ticket.keys, ticket.costs, strict=True):
            if cost:
                ledger = shelf.find(key)
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
                    ledger = self.shelves[index].find(key)
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
                raise Closed(self.name)
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
        """End every wait with `Closed`."""
        self.enter()
        try:
            self.closed = True
            for ticket in self.promised:
                self._ring(ticket)
            for line in list(self.lines.values()):
                for ticket in list(line.tickets.values()):
                    self._ring(ticket)
        finally:
            self.leave()

    def reset(self, keys: tuple[str | None, ...]) -> None:
        self.enter()
        try:
            if self.closed:
                raise Closed(self.name)
            for shelf, key in zip(self.shelves, keys, strict=True):
                shelf.forget(key)
            self.pauses.pop(keys[0], None)
            self.call_heads()
        finally:
            self.leave()

    def choose(self, choosers: list[Callable[[str], Rule | None] | None]) -> None:
        """Let other functions say which keys have a rule of their own."""
        self.enter()
        try:
            for shelf, choose in zip(self.shelves, choosers, strict=True):
                shelf.choose = choose
            self.solo = False
            self.walled = True
        finally:
            self.leave()

    def adopt(self, rules: tuple[Rule, ...]) -> None:
        """Go on under other rules of the same kinds."""
        self.enter()
        try:
            now, wall = self.clock.now(), self.clock.wall()
            for shelf, rule in zip(self.shelves, rules, strict=True):
                shelf.adopt(rule, now, wall)
            self.held = any(rule.held for rule in rules)
            self.resumed = now
            self.call_heads()
            for line in self.lines.values():
                for ticket in line.tickets.values():
                    if ticket.costs[line.index] > rules[line.index].capacity:
                        self._ring(ticket)  # to hear that its turn never comes
        finally:
            self.leave()

    def survey(
        self, keys: tuple[str | None, ...], costs: tuple[int, ...]
    ) -> list[tuple[Any, int, int, int, int, int, bool]]:
        """What each rule says of a request, behind all who wait: limit, remaining, wait, reset, waiting, out, exact."""
        self.enter()
        try:
            if self.closed:
                raise Closed(self.name)
            now = self.clock.now()
            wall = self.clock.wall() if self.walled else 0
            resume = self.resume_time(keys, now) - now
            found = []
            for index, shelf in enumerate(self.shelves):
                ledger, cost, key = shelf.look(keys[index]), costs[index], keys[index]
                rule = ledger.get_rule()
                at = wall if rule.walled else now
                line = self.lines.get((index, key))
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

    def tell_blocking(self) -> None:
        """A thread in which an event loop runs is about to sleep."""
        if self.on_block is not None:
            self.on_block(self)


def after_fork() -> None:
    """In a forked child: locks and lines belong to threads that do not exist here."""
    for book in list(books):
        book.lock = threading.RLock()
        book.depth = 0
        book.lines = {}
        book.promised = set()
        book.waiting = 0
        book.forked = True
        book.calm = False


def set_disabled(flag: bool) -> bool:
    """Let every memory limiter grant everything at once; returns what was before."""
    global disabled
    before, disabled = disabled, flag
    for book in list(books):
        book.off = flag
        book.enter()
        book.leave()
    return before


def set_aside() -> list[tuple[Book, list[Shelf], dict[str | None, int]]]:
    """Put the ledgers of every book on the system clock away, and start fresh ones in their place."""
    token = []
    for book in list(books):
        if book.clock is not SYSTEM:
            continue
        book.enter()
        try:
            token.append((book, book.shelves, book.pauses))
            book.shelves = [Shelf(shelf.rule, shelf.choose, None) for shelf in book.shelves]
            book.first = book.shelves[0]
            book.pauses = {}
            book.resumed = 0
        finally:
            book.leave()
    return token


def bring_back(token: list[tuple[Book, list[Shelf], dict[str | None, int]]]) -> None:
    """Put what `set_aside` returned back in its place."""
    for book, shelves, pauses in token:
        book.enter()
        try:
            book.shelves, book.first, book.pauses, book.resumed = shelves, shelves[0], pauses, 0
        finally:
            book.leave()
