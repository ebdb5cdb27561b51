"""The ledgers of one limiter, its lines, and the one place where decisions are made.

**Quick and slow.** Most decisions find nobody waiting, nothing paused and a permit at hand. `quick` decides
those: a few lines without a Python call between reading and writing, so that in the compiled form nothing can
come between under the GIL. It may be used while the book is `calm`. Everything else (lines, pauses, several
ledgers at once, closing) goes the slow way, under the lock, and makes the book uncalm for as long as it
matters.

**Finalizers.** A permit that is dropped is abandoned by its finalizer, which may run anywhere, also inside the
lock in the same thread. So a finalizer only puts what it has into the `box`; whoever leaves the lock empties
it.

**Time made up.** The head of a line wakes a little late, and if it took its permit at that moment every
lateness would add up: 1000/s would become 930. A bucket promises slots, so the head takes the slot it was due,
not the moment it woke; but never one more than `CATCH_UP` ago, or a machine that was asleep for a minute would
let a minute's worth go at once.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM, compiled
from headway.core.bucket import BucketRule
from headway.core.ledger import FOREVER
from headway.core.line import Line, Ticket
from headway.engines.memory.shelf import Shelf
from headway.errors import Closed, RateLimited

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger, Rule

CATCH_UP = 50_000_000

COMPLETE, CANCEL, ABANDON, SETTLE = 1, 2, 3, 4

ATOMIC = compiled and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a method without Python calls cannot be interrupted by another thread."""

books: weakref.WeakSet[Book] = weakref.WeakSet()
disabled = False


class Book:
    """One ledger per rule and key, their waiting lines, and what was counted."""

    __slots__ = (
        "__weakref__",
        "abandoned",
        "box",
        "calm",
        "cancelled",
        "clock",
        "closed",
        "denied",
        "depth",
        "ended",
        "first",
        "flight_ns",
        "forked",
        "granted",
        "health",
        "held",
        "limits",
        "lines",
        "lock",
        "metrics",
        "name",
        "numbers",
        "on_block",
        "on_fork",
        "pauses",
        "promised",
        "resumed",
        "shelves",
        "solo",
        "spare",
        "start_full",
        "waiting",
        "walled",
        "warned",
    )  # so that interpreted code reads them fast

    def __init__(self, name: str | None, clock: Clock, start_full: bool) -> None:
        self.name = name
        self.clock = clock
        self.start_full = start_full
        self.shelves: list[Shelf] = []
        self.first: Shelf = None  # type: ignore[assignment] # furnished before anybody asks
        self.lines: dict[tuple[int, str | None], Line] = {}
        self.lock = threading.RLock()
        self.box: deque[tuple[Ledger, int, int, int, str | None]] = deque()
        self.pauses: dict[str | None, int] = {}
        # Who waited when somebody reserved behind it: no longer in line, but asleep until its slot.
        self.promised: set[Ticket] = set()
        self.numbers = 0
        self.resumed = 0
        self.waiting = 0
        self.depth = 0
        self.forked = False
        self.closed = False
        self.calm = True
        self.solo = False
        self.walled = False
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
        self.on_fork: Callable[[Book], None] | None = None
        self.on_block: Callable[[Book], None] | None = None
        self.health: Callable[[Book], None] | None = None
        self.spare: Any = None
        self.warned: set[str] = set()
        books.add(self)

    def furnish(self, rules: tuple[Rule, ...], choosers: list[Callable[[str], Rule | None] | None]) -> None:
        """Set up one shelf per rule."""
        full_now: int | None = self.clock.now() if self.start_full else None
        full_wall: int | None = self.clock.wall() if self.start_full else None
        self.shelves = [
            Shelf(rule, choose, full_wall if rule.walled else full_now)
            for rule, choose in zip(rules, choosers, strict=True)
        ]
        self.first = self.shelves[0]
        # A Spacing must hear of every use, also of one that did not wait.
        self.solo = len(rules) == 1 and not rules[0].walled and choosers[0] is None and not rules[0].spaced
        self.walled = any(rule.walled for rule in rules) or any(choosers)
        self.held = any(rule.held for rule in rules)

    # -- the quick way -----------------------------------------------------------------------------------

    def quick(self, key: str | None, now: int) -> Ledger:
        """The only ledger of a calm book with one shelf."""
        shelf = self.first
        if key is None:
            return shelf.lone
        # Swept before it is found: a fresh ledger is idle, and would be forgotten while it is being taken from.
        if shelf.countdown <= 0:
            shelf.sweep(now, 0)
        return shelf.find(key)

    # -- the slow way ------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Take the lock; nobody decides the quick way until it is given back."""
        self.lock.acquire()
        self.depth += 1
        self.calm = False

    def leave(self) -> None:
        """Give the lock back, after what finalizers left has been dealt with."""
        try:
            if self.depth == 1:
                self.empty_box()
                self.calm = not (
                    self.lines or self.pauses or self.closed or self.forked or disabled or self.box
                )
        finally:
            self.depth -= 1
            self.lock.release()
        if self.box:
            self.tidy()

    def empty_box(self) -> None:
        while self.box:
            ledger, cost, mark, index, key = self.box.popleft()
            ledger.abandon(self.time_for(ledger), cost, mark)
            self.call_head(index, key)

    def drop(self, ledger: Ledger, cost: int, mark: int, index: int, key: str | None) -> None:
        """Called by a finalizer: abandon, now or when whoever is at it is done."""
        self.box.append((ledger, cost, mark, index, key))
        self.calm = False
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
        return self.clock.wall() if ledger.get_rule().walled else self.clock.now()

    def decide(self, ticket: Ticket, stand: bool) -> bool:
        """Grant `ticket` if it is its turn and everything it needs is there; otherwise let it `stand` in line.

        `ticket.ready` then says when to ask again: at a time, or (None) when the bell rings.
        """
        self.enter()
        try:
            return self._decide(ticket, stand)
        finally:
            self.leave()

    def _decide(self, ticket: Ticket, stand: bool) -> bool:
        now = self.clock.now()
        if self.forked:
            self._forked_notice()
        if self.closed:
            raise Closed(self.name)
        if disabled:
            self._step_out(ticket)
            ticket.granted = True
            return True
        if ticket.slot:
            return self._redeem(ticket, now)
        if not ticket.number:
            self.numbers += 1
            ticket.number = self.numbers
            ticket.since = now
        claims: list[tuple[int, Ledger, int]] = []
        holding = self._weigh(ticket, stand, now, claims)
        if not holding:
            self._take(ticket, claims, now)
            return True
        if stand:
            self._stand(ticket, holding)
        return False

    def _weigh(
        self, ticket: Ticket, stand: bool, now: int, claims: list[tuple[int, Ledger, int]]
    ) -> list[int]:
        """Ask every ledger the ticket needs: into `claims` goes what is there, returned is what holds it up.

        Sets `ticket.ready`, when to ask again; None for when the bell rings.
        """
        wall = self.clock.wall() if self.walled else 0
        resume = self.resume_time(ticket.keys, now)
        ready: int | None = resume
        holding: list[int] = [0] if resume > now else []
        for index, shelf in enumerate(self.shelves):
            cost = ticket.costs[index]
            if cost == 0:
                continue
            key = ticket.keys[index]
            if shelf.countdown <= 0:
                shelf.sweep(now, wall)
            ledger = shelf.find(key)
            rule = ledger.get_rule()
            if stand and cost > rule.capacity:
                raise self.refusal(ticket.keys)
            at = wall if rule.walled else now
            line = self.lines.get((index, key))
            if line is not None and self._behind(line, ticket):
                holding.append(index)
                ready = self._hint(ticket, line, ledger, at + resume - now, resume) if stand else None
                continue
            if ledger.wait(at, cost) == 0:
                claims.append((index, ledger, at))
                continue
            holding.append(index)
            sure = ledger.sure(at, cost)
            if sure >= FOREVER:
                ready = None
            elif ready is not None:
                ready = max(ready, now + sure)
        ticket.ready = ready
        return holding

    def _behind(self, line: Line, ticket: Ticket) -> bool:
        """Whether somebody who can still be woken is before the ticket."""
        while line.tickets:
            head = line.head()
            if head.number >= ticket.number:
                return False
            if head.bell is None or head.bell.alive():
                return True
            self._step_out(head)
        return False

    def _hint(self, ticket: Ticket, line: Line, ledger: Ledger, at: int, now: int) -> int | None:
        """When a ticket behind others will be due if nobody gives up, so that it can wake without being called.

        Only for who comes to the line, and only where the schedule is known; who wakes and is still not the
        head waits for the bell.
        """
        if len(self.shelves) > 1 or ledger.get_rule().held or ticket.number in line.tickets:
            return None
        return now + line.forecast(ledger, at, ticket.costs[line.index])

    def _take(self, ticket: Ticket, claims: list[tuple[int, Ledger, int]], now: int) -> None:
        waited = bool(ticket.lines)
        for index, ledger, at in claims:
            moment = at
            cost = ticket.costs[index]
            if waited and len(claims) == 1 and type(ledger.get_rule()) is BucketRule:
                line = ticket.lines[0]
                since = max(ticket.since, line.served, self.resumed, now - CATCH_UP)
                moment = min(at, since + ledger.wait(since, cost))
                line.served = moment
            mark = ledger.take(moment, cost)
            ledger.use(moment, mark)
            ticket.marks.append((ledger, mark, ledger.tally))
        ticket.granted = True
        self.granted += 1
        self._step_out(ticket)

    def _stand(self, ticket: Ticket, indexes: list[int]) -> None:
        """Stand in the lines of what holds the ticket up, and in no other."""
        if len(self.shelves) == 1:
            if not ticket.lines:
                self.waiting += 1
                self._join(ticket, 0)
            return
        wanted = {(index, ticket.keys[index]) for index in indexes}
        if not ticket.lines:
            self.waiting += 1
        for line in list(ticket.lines):
            if (line.index, ticket.keys[line.index]) not in wanted:
                self._leave_line(line, ticket)
        for index in sorted({index for index, _ in wanted}):
            self._join(ticket, index)

    def _join(self, ticket: Ticket, index: int) -> None:
        place = (index, ticket.keys[index])
        line = self.lines.get(place)
        if line is None:
            line = self.lines[place] = Line(index)
        if ticket.number not in line.tickets:
            line.join(ticket)
            line.extend_plan(ticket.costs[index])

    def _step_out(self, ticket: Ticket) -> None:
        if ticket.lines:
            self.waiting -= 1
            for line in list(ticket.lines):
                self._leave_line(line, ticket)

    def _leave_line(self, line: Line, ticket: Ticket) -> None:
        was_head = line.head() is ticket
        line.leave(ticket)
        ticket.lines.remove(line)
        if not line.tickets:
            del self.lines[(line.index, ticket.keys[line.index])]
        elif was_head:
            head = line.head()
            if head.ready is None or head.ready > self._due(line, head):
                self._ring(head)

    def _due(self, line: Line, head: Ticket) -> int:
        """When the head of a line can take what it needs there."""
        shelf: Shelf = self.shelves[line.index]
        ledger = shelf.look(head.keys[line.index])
        now = self.clock.now()
        at = self.clock.wall() if ledger.get_rule().walled else now
        return now + ledger.wait(at, head.costs[line.index])

    def withdraw(self, ticket: Ticket) -> None:
        """Leave every line: cancelled, timed out or interrupted. Those behind move up.

        Who was promised a slot gives back what nobody has been promised after it.
        """
        self.enter()
        try:
            self._step_out(ticket)
            self._forget_promise(ticket)
            claims = [(index, cost) for index, cost in enumerate(ticket.costs) if cost]
            for (index, cost), (ledger, mark, tally) in zip(claims, ticket.marks, strict=False):
                ledger.cancel(self.time_for(ledger), cost, mark, tally)
                self.call_head(index, ticket.keys[index])
            self.granted -= bool(ticket.marks)
            ticket.marks.clear()
        finally:
            self.leave()

    def reserve(self, ticket: Ticket) -> int:
        """Promise `ticket` a time, after everybody who waits has been promised theirs; -1 if too many are promised."""
        self.enter()
        try:
            if self.forked:
                self._forked_notice()
            if self.closed:
                raise Closed(self.name)
            ticket.granted = True
            if disabled:
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

    def _redeem(self, ticket: Ticket, now: int) -> bool:
        """Whether the slot that a waiter was promised has come; a pause, or who used its own late, may move it."""
        slot = max(ticket.slot, self.resume_time(ticket.keys, now))
        if now >= slot:
            slot = now + max(ledger.use(now, mark) for ledger, mark, _ in ticket.marks)
        ticket.ready = slot
        if slot <= now:
            ticket.granted = True
            self._forget_promise(ticket)
        return ticket.granted

    def _forget_promise(self, ticket: Ticket) -> None:
        if ticket in self.promised:
            self.promised.discard(ticket)
            self.waiting -= 1

    def _ring(self, ticket: Ticket) -> None:
        if ticket.bell is None:
            return
        if ticket.bell.alive():
            ticket.bell.ring()
        else:
            self._step_out(ticket)

    def call_head(self, index: int, key: str | None) -> None:
        """Something came back to this ledger: let the head of its line look again."""
        line = self.lines.get((index, key))
        if line is not None:
            line.plan = None
            self._ring(line.head())

    def call_heads(self) -> None:
        for line in list(self.lines.values()):
            line.plan = None
            self._ring(line.head())

    # -- ends --------------------------------------------------------------------------------------------

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

    # -- pausing, closing, changing ----------------------------------------------------------------------

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

    # -- looking -----------------------------------------------------------------------------------------

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
                    wait = max(1, resume + line.forecast(ledger, at + resume, cost))
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

    def refusal(self, keys: tuple[str | None, ...]) -> RateLimited:
        """The error for what no waiting brings: a limit of 0, or one that was lowered below what is wanted."""
        rules = [shelf.rule_for(key) for shelf, key in zip(self.shelves, keys, strict=True)]
        least = min(rules, key=lambda rule: rule.capacity)
        return RateLimited(float("inf"), limit=least.limit, key=keys[0], reason="never")

    def check_health(self) -> None:
        """Asked for now and then, as permits end: let the front end warn about what it sees."""
        if self.health is not None:
            self.health(self)

    def tell_blocking(self) -> None:
        """A thread in which an event loop runs is about to sleep."""
        if self.on_block is not None:
            self.on_block(self)

    def _forked_notice(self) -> None:
        self.forked = False
        if self.on_fork is not None:
            self.on_fork(self)


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
