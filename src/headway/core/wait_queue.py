"""Waiting: first come, first served.

The naive way to wait is to sleep and try again. The waiter that happens to try at the right moment wins; heavy
requests, which need a moment in which much is free, never do. The other naive way, a heap by cost, starves them
by design.

A wait queue holds tickets, numbered as they come. Only the *head* may take, whatever it costs. While there is a queue,
new requests go to its end; a request that does not wait is denied. The head sleeps until its permit is due, takes it
*itself*, and wakes the next. So a ticket that is cancelled between being woken and taking has taken nothing: it leaves
the queue, and the next one is woken instead. Nothing is handed over that could get lost on the way.

A ticket may need several ledgers (a limit per host under a limit for all). It joins only the queues of the ledgers that
hold it up, at the place of its number and not at the end. So a ticket that waits for its host does not block the
others, and is still the first when its host is ready. Nothing is taken while waiting, so there is no deadlock.

`plan` is the ledger as it will be when the whole queue has been served, and `plan_at` when that is. With it a new
ticket learns its time without asking every ticket ahead. The plan is thrown away when a ticket leaves out of turn, and
when the ledger turns out to be behind it: a waiter with a wrong time wakes twice.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headway.core.ledger import Ledger


class Waker(Protocol):
    """What wakes the owner of a ticket."""

    def wake(self) -> None: ...

    def alive(self) -> bool:
        """Whether the waiter can still be woken: an event loop may be closed with waiters in it."""


class Owner(Protocol):
    """What a ticket asks of the limiter that made it."""

    @property
    def _closed(self) -> bool: ...


class Ticket:
    """A place in a wait queue: what is wanted, and how to wake the waiter."""

    __slots__ = (
        "costs",
        "granted",
        "held",
        "keys",
        "marks",
        "number",
        "owner",
        "queues",
        "ready",
        "since",
        "slot",
        "waker",
    )

    def __init__(
        self,
        keys: tuple[str | None, ...],
        costs: tuple[int, ...],
        held: bool = False,
        owner: Owner | None = None,
    ) -> None:
        self.keys = keys
        self.costs = costs
        # Whether it is for a call that is bracketed.
        self.held = held
        # The limiter that wants it, of several that share the ledgers; it may be closed meanwhile.
        self.owner = owner
        self.number = 0
        self.since = 0
        self.waker: Waker | None = None
        self.queues: list[WaitQueue] = []
        self.granted = False
        self.marks: list[tuple[Ledger, int, int]] = []
        # When to ask again: a time, or None for when the waker is called.
        self.ready: int | None = None
        # The time it was promised, where a later request has reserved; 0: none.
        self.slot = 0


class WaitQueue:
    """Tickets in the order of their numbers.

    >>> line = WaitQueue(0)
    >>> first, second = Ticket((None,), (1,)), Ticket((None,), (1,))
    >>> first.number, second.number = 1, 2
    >>> line.join(second), line.join(first)
    (None, None)
    >>> line.head() is first
    True
    >>> line.leave(first), len(line), line.head() is second
    (None, 1, True)
    """

    __slots__ = ("first", "held", "index", "last", "plan", "plan_at", "served", "tickets")

    def __init__(self, index: int) -> None:
        self.index = index
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        # The head, which is asked for more often than it changes, and the highest number that ever stood here.
        self.first: Ticket | None = None
        self.last = 0
        # How many of them bracket a call.
        self.held = 0
        self.plan: Ledger | None = None
        self.plan_at = 0
        # The slot that was taken last, where slots are promised.
        self.served = 0

    def __len__(self) -> int:
        return len(self.tickets)

    def head(self) -> Ticket:
        assert self.first is not None
        return self.first

    def join(self, ticket: Ticket) -> None:
        """Stand at the place of one's number; standing there already changes nothing."""
        number = ticket.number
        if number in self.tickets:
            return
        # First, so that a ticket whose joining is interrupted is found in whatever it may have reached.
        ticket.queues.append(self)
        self.tickets[number] = ticket
        self.held += ticket.held
        if self.first is None or self.first.number > number:
            self.first = ticket
        if number > self.last:
            self.last = number
            self.extend_plan(ticket)
        else:
            self.tickets = OrderedDict(sorted(self.tickets.items()))
            self.plan = None

    def leave(self, ticket: Ticket) -> None:
        """Give up a place. The plan holds only if the head left, with what it wanted."""
        if not ticket.granted or self.first is not ticket:
            self.plan = None
        if self.tickets.pop(ticket.number, None) is not None:
            self.held -= ticket.held
        if self.first is ticket:
            self.first = next(iter(self.tickets.values()), None)
        if self in ticket.queues:
            ticket.queues.remove(self)

    def mend(self) -> None:
        """Be consistent again, after an exception came between two lines of `join` or `leave`."""
        self.first = next(iter(self.tickets.values()), None)
        self.held = sum([ticket.held for ticket in self.tickets.values()])
        self.plan = None

    def forecast(self, ledger: Ledger, since: int, now: int, cost: int) -> int:
        """Nanoseconds until `cost` is granted behind the whole queue; a lower bound while permits are out.

        The head may take what is due from `since` on, which is before `now` if it is late.
        """
        rule = ledger.get_rule()
        if rule.held or (rule.bracketed and ledger.in_flight(now) > 0):
            for ticket in self.tickets.values():
                cost += ticket.costs[self.index]
            return ledger.copy().wait(now, min(rule.capacity, cost))
        if self.plan is None:
            self.plan, self.plan_at = ledger.copy(), since
            for ticket in self.tickets.values():
                self.extend_plan(ticket)
        start = max(now, self.plan_at)
        return start - now + self.plan.wait(start, cost)

    def extend_plan(self, ticket: Ticket) -> None:
        """Add one more to the plan, if there is one."""
        if self.plan is not None:
            # No ticket is served before it came. (Tickets and ledgers on the wall clock tell the time by other clocks.)
            if ticket.since > self.plan_at and not self.plan.get_rule().uses_wall_clock:
                self.plan_at = ticket.since
            cost = ticket.costs[self.index]
            self.plan_at += self.plan.wait(self.plan_at, cost)
            self.plan.take(self.plan_at, cost)
