"""The waiting requests of one store: a queue for each ledger that lacks permits, and when each head is due.

**Time made up.** The head of a queue wakes a little late, and if it took its permit at that moment every lateness would
add up: 1000/s would become 930. A bucket promises slots, so the head takes the slot it was due, not the moment it woke;
but never one more than `CATCH_UP` ago, or a machine that was asleep for a minute would let a minute's worth go at once.

**Interrupts.** A signal handler's exception may leave a ticket halfway in a queue or out of it. `remove` expects that:
it looks at every place where the ticket may be, and leaves nothing of it behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.bucket import BucketRule
from headway.core.wait_queue import Ticket, WaitQueue

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger, Rule
    from headway.engines.memory.keyed_ledgers import KeyedLedgers

CATCH_UP = 50_000_000

# A C integer where this file is compiled.
_CATCH_UP = CATCH_UP


class WaitQueues:
    """Tickets in the queues of the ledgers that they wait for; all of it is used under the store's lock."""

    __slots__ = ("by_place", "clock", "keyed_ledgers", "resumed", "waiters")

    def __init__(self, clock: Clock, keyed_ledgers: list[KeyedLedgers]) -> None:
        self.clock = clock
        self.keyed_ledgers = keyed_ledgers
        # By the index of the rule and the key.
        self.by_place: dict[tuple[int, str | None], WaitQueue] = {}
        # Every ticket that waits: in a queue, or, where a reservation came behind it, asleep until its slot.
        self.waiters: set[Ticket] = set()
        # Slots before this time are not made up for: there was a pause, or another limit.
        self.resumed = 0

    def join(self, ticket: Ticket, indexes: list[int]) -> None:
        """Wait for what holds the ticket up, and for nothing else."""
        self.waiters.add(ticket)
        if len(self.keyed_ledgers) == 1:
            if not ticket.queues:
                self._join(ticket, 0)
            return
        wanted = {(index, ticket.keys[index]) for index in indexes}
        for queue in list(ticket.queues):
            if (queue.index, ticket.keys[queue.index]) not in wanted:
                self._leave(queue, ticket)
        for index in sorted({index for index, _ in wanted}):
            self._join(ticket, index)

    def _join(self, ticket: Ticket, index: int) -> None:
        place = (index, ticket.keys[index])
        queue: WaitQueue | None = self.by_place.get(place)
        if queue is None:
            queue = self.by_place[place] = WaitQueue(index)
        queue.join(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Leave every queue; the heads behind the ticket are woken where their time may have come."""
        if ticket.queues:
            while ticket.queues:
                self._leave(ticket.queues[0], ticket)
        self.waiters.discard(ticket)

    def _leave(self, queue: WaitQueue, ticket: Ticket) -> None:
        was_head = queue.first is ticket
        queue.leave(ticket)
        if not queue.tickets:
            self.by_place.pop((queue.index, ticket.keys[queue.index]), None)
        elif was_head:
            head = queue.head()
            if head.ready is None or head.ready > self._due(queue, head):
                self.wake(head)

    def remove(self, ticket: Ticket) -> None:
        """Leave every queue, also where an exception came while the ticket joined or left; wakes those behind it."""
        self.leave(ticket)
        for place in enumerate(ticket.keys):
            queue = self.by_place.get(place)
            if queue is None:
                continue
            if queue.tickets.get(ticket.number) is ticket:
                self._leave(queue, ticket)
            elif not queue.tickets:
                del self.by_place[place]
            else:
                queue.mend()
                self.wake(queue.head())

    def _due(self, queue: WaitQueue, head: Ticket) -> int:
        """When the head of a queue can take what it needs there."""
        keyed: KeyedLedgers = self.keyed_ledgers[queue.index]
        ledger = keyed.peek(head.keys[queue.index])
        now = self.clock.now()
        at = self.clock.wall() if ledger.get_rule().uses_wall_clock else now
        return now + ledger.wait(at, head.costs[queue.index])

    # -- which is first, and when ------------------------------------------------------------------------

    def behind(self, queue: WaitQueue, ticket: Ticket) -> bool:
        """Whether another ticket that can still be woken is before this one."""
        while queue.tickets:
            head = queue.head()
            if head.number >= ticket.number:
                return False
            if head.waker is None or head.waker.alive():
                return True
            self.leave(head)
        return False

    def doubt(self, queue: WaitQueue, ticket: Ticket, rule: Rule, now: int) -> None:
        """Throw the plan of a bucket away if the head was told that its time has come, and nothing is there for it.

        Other kinds keep theirs: their times depend on how late each waiter wakes, and no plan would be true for long.
        """
        if ticket.queues and (ticket.ready is None or ticket.ready <= now) and type(rule) is BucketRule:
            queue.plan = None

    def hint(self, ticket: Ticket, queue: WaitQueue, ledger: Ledger, at: int, now: int) -> int | None:
        """When a ticket behind others will be due if none of them gives up, so that it can wake without being woken.

        Only for a ticket that comes to the queue, and only where the schedule is known; a ticket that wakes and is
        still not the head sleeps until it is woken.
        """
        if ticket.queues or len(self.keyed_ledgers) > 1 or self.open_ended(queue, ledger, at):
            return None
        return now + self.forecast(queue, ledger, at, ticket.costs[queue.index])

    def open_ended(self, queue: WaitQueue, ledger: Ledger, at: int) -> bool:
        """Whether the schedule of a queue depends on when permits are ended."""
        rule = ledger.get_rule()
        return rule.held or (rule.bracketed and (queue.held > 0 or ledger.in_flight(at) > 0))

    def forecast(self, queue: WaitQueue, ledger: Ledger, at: int, cost: int) -> int:
        """Nanoseconds until `cost` is granted behind the whole queue."""
        since = at
        if type(ledger.get_rule()) is BucketRule:
            since = min(at, self.owed_since(queue, queue.head(), at))
        return queue.forecast(ledger, since, at, cost)

    def owed_since(self, queue: WaitQueue, head: Ticket, now: int) -> int:
        """From when on the head of a queue may take the slots of a bucket, however late it wakes."""
        return max(head.since, queue.served, self.resumed, now - _CATCH_UP)

    # -- waking ------------------------------------------------------------------------------------------

    def wake(self, ticket: Ticket) -> None:
        """Let a waiter look again; one whose event loop was closed is dropped."""
        if ticket.waker is None:
            return
        if ticket.waker.alive():
            ticket.waker.wake()
        else:
            self.leave(ticket)

    def wake_head(self, index: int, key: str | None) -> None:
        """Something came back to this ledger: let the head of its queue look again."""
        queue = self.by_place.get((index, key))
        if queue is not None and queue.first is not None:
            queue.plan = None
            self.wake(queue.first)

    def wake_heads(self) -> None:
        for index, key in list(self.by_place):
            self.wake_head(index, key)

    def clear(self) -> None:
        """In a forked child: every waiter was a thread or a task of the parent."""
        self.by_place.clear()
        self.waiters.clear()
