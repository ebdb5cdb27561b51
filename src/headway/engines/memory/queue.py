"""Who is granted what, and who waits: decisions under the lock, and the lines of those who could not be granted.

**Time made up.** The head of a line wakes a little late, and if it took its permit at that moment every lateness would
add up: 1000/s would become 930. A bucket promises slots, so the head takes the slot it was due, not the moment it woke;
but never one more than `CATCH_UP` ago, or a machine that was asleep for a minute would let a minute's worth go at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.bucket import BucketRule
from headway.core.ledger import FOREVER
from headway.core.wait_queue import Ticket, WaitQueue
from headway.engines.memory.vault import Vault
from headway.errors import LimiterClosed, RateLimited

if TYPE_CHECKING:
    from headway.core.ledger import Ledger, Rule
    from headway.engines.memory.keyed_ledgers import KeyedLedgers

CATCH_UP = 50_000_000

# A C integer where this file is compiled.
_CATCH_UP = CATCH_UP


class Queue(Vault):
    """Grants what is there, and keeps the others in the order in which they came."""

    __slots__ = ()

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
            raise LimiterClosed(self.name)
        if self.off:
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
        wall = self.clock.wall() if self.uses_wall_clock else 0
        resume = self.resume_time(ticket.keys, now)
        ready: int | None = resume
        holding: list[int] = [0] if resume > now else []
        for index, keyed in enumerate(self.keyed_ledgers):
            cost = ticket.costs[index]
            if cost == 0:
                continue
            key = ticket.keys[index]
            if keyed.countdown <= 0:
                keyed.sweep(now, wall)
            ledger = keyed.find(key)
            rule = ledger.get_rule()
            if stand and cost > rule.capacity:
                raise self.refusal(ticket.keys)
            at = wall if rule.uses_wall_clock else now
            line = self.queues.get((index, key))
            if line is not None and self._behind(line, ticket):
                holding.append(index)
                ready = self._hint(ticket, line, ledger, at + resume - now, resume) if stand else None
                continue
            if ledger.wait(at, cost) == 0:
                claims.append((index, ledger, at))
                continue
            holding.append(index)
            if line is not None:
                self._doubt(line, ticket, rule, now)
            sure = ledger.latest_wait(at, cost)
            if sure >= FOREVER:
                ready = None
            elif ready is not None:
                ready = max(ready, now + sure)
        ticket.ready = ready
        return holding

    def _behind(self, line: WaitQueue, ticket: Ticket) -> bool:
        """Whether somebody who can still be woken is before the ticket."""
        while line.tickets:
            head = line.head()
            if head.number >= ticket.number:
                return False
            if head.waker is None or head.waker.alive():
                return True
            self._step_out(head)
        return False

    def _doubt(self, line: WaitQueue, ticket: Ticket, rule: Rule, now: int) -> None:
        """Throw the plan of a bucket away if the head, for whom nothing is there, was told that its time has come.

        Others keep theirs: their times depend on how late each wakes, and no plan would be true for long.
        """
        if ticket.queues and (ticket.ready is None or ticket.ready <= now) and type(rule) is BucketRule:
            line.plan = None

    def _hint(self, ticket: Ticket, line: WaitQueue, ledger: Ledger, at: int, now: int) -> int | None:
        """When a ticket behind others will be due if nobody gives up, so that it can wake without being called.

        Only for who comes to the line, and only where the schedule is known; who wakes and is still not the
        head waits for the bell.
        """
        if ticket.queues or len(self.keyed_ledgers) > 1 or self._open_ended(line, ledger, at):
            return None
        return now + self._forecast(line, ledger, at, ticket.costs[line.index])

    def _open_ended(self, line: WaitQueue, ledger: Ledger, at: int) -> bool:
        """Whether the schedule of a line depends on when permits are ended."""
        rule = ledger.get_rule()
        return rule.held or (rule.bracketed and (line.held > 0 or ledger.in_flight(at) > 0))

    def _forecast(self, line: WaitQueue, ledger: Ledger, at: int, cost: int) -> int:
        """Nanoseconds until `cost` is granted behind everybody in line."""
        since = at
        if type(ledger.get_rule()) is BucketRule:
            since = min(at, self._owed_since(line, line.head(), at))
        return line.forecast(ledger, since, at, cost)

    def _owed_since(self, line: WaitQueue, head: Ticket, now: int) -> int:
        """From when on the head of a line may take the slots of a bucket, however late it wakes."""
        return max(head.since, line.served, self.resumed, now - _CATCH_UP)

    def _take(self, ticket: Ticket, claims: list[tuple[int, Ledger, int]], now: int) -> None:
        waited = bool(ticket.queues)
        for index, ledger, at in claims:
            moment = at
            cost = ticket.costs[index]
            if waited and len(claims) == 1 and type(ledger.get_rule()) is BucketRule:
                line = ticket.queues[0]
                since = self._owed_since(line, ticket, now)
                moment = min(at, since + ledger.wait(since, cost))
                line.served = moment
            mark = ledger.take_held(moment, cost) if ticket.held else ledger.take(moment, cost)
            ledger.use(moment, mark)
            ticket.marks.append((ledger, mark, ledger.tally))
        ticket.granted = True
        self.granted += 1
        self._step_out(ticket)

    def _stand(self, ticket: Ticket, indexes: list[int]) -> None:
        """Stand in the lines of what holds the ticket up, and in no other."""
        if len(self.keyed_ledgers) == 1:
            if not ticket.queues:
                self.waiting += 1
                self._join(ticket, 0)
            return
        wanted = {(index, ticket.keys[index]) for index in indexes}
        if not ticket.queues:
            self.waiting += 1
        for line in list(ticket.queues):
            if (line.index, ticket.keys[line.index]) not in wanted:
                self._leave_line(line, ticket)
        for index in sorted({index for index, _ in wanted}):
            self._join(ticket, index)

    def _join(self, ticket: Ticket, index: int) -> None:
        place = (index, ticket.keys[index])
        line: WaitQueue | None = self.queues.get(place)
        if line is None:
            line = self.queues[place] = WaitQueue(index)
        line.join(ticket)

    def _step_out(self, ticket: Ticket) -> None:
        if ticket.queues:
            self.waiting -= 1
            while ticket.queues:
                self._leave_line(ticket.queues[0], ticket)

    def _leave_line(self, line: WaitQueue, ticket: Ticket) -> None:
        was_head = line.head() is ticket
        line.leave(ticket)
        ticket.queues.remove(line)
        if not line.tickets:
            del self.queues[(line.index, ticket.keys[line.index])]
        elif was_head:
            head = line.head()
            if head.ready is None or head.ready > self._due(line, head):
                self._ring(head)

    def _due(self, line: WaitQueue, head: Ticket) -> int:
        """When the head of a line can take what it needs there."""
        keyed: KeyedLedgers = self.keyed_ledgers[line.index]
        ledger = keyed.peek(head.keys[line.index])
        now = self.clock.now()
        at = self.clock.wall() if ledger.get_rule().uses_wall_clock else now
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
        if ticket.waker is None:
            return
        if ticket.waker.alive():
            ticket.waker.wake()
        else:
            self._step_out(ticket)

    def call_head(self, index: int, key: str | None) -> None:
        """Something came back to this ledger: let the head of its line look again."""
        line = self.queues.get((index, key))
        if line is not None:
            line.plan = None
            self._ring(line.head())

    def call_heads(self) -> None:
        for line in list(self.queues.values()):
            line.plan = None
            self._ring(line.head())

    def refusal(self, keys: tuple[str | None, ...]) -> RateLimited:
        """The error for what no waiting brings: a limit of 0, or one that was lowered below what is wanted."""
        rules = [keyed.rule_for(key) for keyed, key in zip(self.keyed_ledgers, keys, strict=True)]
        least = min(rules, key=lambda rule: rule.capacity)
        return RateLimited(float("inf"), limit=least.limit, key=keys[0], reason="never")

    def _forked_notice(self) -> None:
        self.forked = False
        if self.on_fork is not None:
            self.on_fork(self)
