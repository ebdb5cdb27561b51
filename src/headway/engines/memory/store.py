"""`MemoryStore`: everything that one limiter, or all limiters of one name, remember and may be asked to do.

**Fast and locked.** Most decisions find an empty wait queue, no pause and a permit at hand. The front end makes those
itself, on the ledger that `find_fast` returns: a few lines without a Python call between reading and writing, so that
in the compiled form no other thread can come between under the GIL. It may do so while the store is `uncontended`.
Everything else (queues, pauses, several ledgers at once, closing) happens under the lock, and makes the store contended
for as long as it matters.

**Finalizers.** A permit that is dropped is abandoned by its finalizer, which may run anywhere, also inside the lock in
the same thread. So a finalizer only appends to `dropped`; the list is emptied before the lock is released (`settle`).

**Interrupts.** A signal handler may raise at nearly any moment (`headway.interrupts`), and near the recursion limit any
call may. Every section under the lock is therefore written like this:

    with self.lock:
        depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
        try:
            ...
        finally:
            self.depth = depth
            self.settle()

The lock cannot be left held, and `depth` is restored and not counted down. Compiled, a ledger changes in one piece.
Interpreted, an exception may come in the middle of a change, so each ledger is copied into a `journal` before it is
touched, and goes back to its copy if the section fails. What was to be granted is then not granted, and what was to be
ended is not ended; waiters are woken from `freed`, which the next section empties if this one could not. All of that
holds for one exception at a time: a second signal during the clean-up after the first is not provided for.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headway.clock import compiled
from headway.core.adaptive_limit import AdaptiveRule
from headway.core.bucket import BucketRule
from headway.core.ledger import FOREVER
from headway.core.wait_queue import Ticket
from headway.counts import LimiterCounts
from headway.diagnostics import check_health, warn_forked
from headway.engines.memory.keyed_ledgers import KeyedLedgers
from headway.engines.memory.pauses import Pauses
from headway.engines.memory.wait_queues import WaitQueues
from headway.errors import LimiterClosed, RateLimited
from headway.interrupts import take_lock, taking
from headway.outcome import Outcome

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.ledger import Ledger, Rule

ATOMIC = compiled and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a method without Python calls cannot be interrupted by another thread."""

# C integers where this file is compiled.
_INTERPRETED = not compiled
_COMPLETE, _CANCEL, _ABANDON = (int(how) for how in (Outcome.COMPLETE, Outcome.CANCEL, Outcome.ABANDON))

Claim = tuple[int, "Ledger", int, int, int, "str | None"]
"""What a permit has of one ledger: the index of the rule, the ledger, cost, mark, tally and key."""
Row = tuple[Any, int, int, int, int, int, bool]
"""What a rule says of a request: limit, remaining, wait, reset, waiting, out, and whether the wait is exact."""

T = TypeVar("T")

stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()
disabled = False


class MemoryStore:
    """The ledgers of one limiter or name, with their wait queues, pauses and counts, and the lock around them."""

    __slots__ = (
        "__weakref__",
        "bracketed",
        "clock",
        "closed",
        "counts",
        "depth",
        "dropped",
        "first",
        "forked",
        "freed",
        "held",
        "keyed_ledgers",
        "leased",
        "limits",
        "lock",
        "metrics",
        "name",
        "numbers",
        "off",
        "pauses",
        "queues",
        "single_rule",
        "spare",
        "start_full",
        "taking",
        "uncontended",
        "users",
        "uses_wall_clock",
    )  # so that interpreted code reads them fast

    def __init__(self, name: str | None, clock: Clock, start_full: bool) -> None:
        self.name = name
        self.clock = clock
        self.start_full = start_full
        self.keyed_ledgers: list[KeyedLedgers] = []
        self.first: KeyedLedgers = None  # type: ignore[assignment] # configured before the first request
        self.queues = WaitQueues(clock, self.keyed_ledgers)
        self.pauses = Pauses()
        self.counts = LimiterCounts()
        self.depth = 0
        self.new_lock()
        # What finalizers left, and where something came back that a waiter has not been told of.
        self.dropped: list[Claim] = []
        self.freed: list[tuple[int, str | None]] = []
        self.numbers = 0
        # How many limiters use it that have not been closed.
        self.users = 0
        self.closed = False
        self.forked = False
        # While a test has switched limiting off.
        self.off = disabled
        self.uncontended = not disabled
        self.single_rule = False
        self.uses_wall_clock = False
        self.held = False
        # Whether it matters that a permit brackets a call; of keys with a rule of their own it may.
        self.bracketed = False
        # Whether its ledgers are borrowed, and count what is asked of them.
        self.leased = False
        self.metrics: list[str | None] = []
        self.limits: dict[str, Any] = {}
        # A completed permit, to be used again for the next grant.
        self.spare: Any = None
        stores.add(self)

    def configure(self, rules: tuple[Rule, ...], choosers: list[Callable[[str], Rule | None] | None]) -> None:
        """Set up the ledgers of each rule."""
        full_now: int | None = self.clock.now() if self.start_full else None
        full_wall: int | None = self.clock.wall() if self.start_full else None
        self.keyed_ledgers[:] = [
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
        self.bracketed = any(rule.bracketed for rule in rules) or any(choosers)

    @property
    def rules(self) -> list[Rule]:
        """The common rule of each metric and part."""
        return [keyed.rule for keyed in self.keyed_ledgers]

    def rule_for(self, index: int, key: str | None) -> Rule:
        """The rule of a key: its override, or the limiter's own."""
        return self.keyed_ledgers[index].rule_for(key)

    def find_fast(self, key: str | None, now: int) -> Ledger:
        """The only ledger that a request for `key` needs, where there is a single rule."""
        keyed = self.first
        if key is None:
            return keyed.default
        # Swept before it is found: a fresh ledger is idle, and would be forgotten while it is being taken from.
        if keyed.countdown <= 0:
            keyed.sweep(now, 0)
        return keyed.find(key)

    def time_for(self, ledger: Ledger) -> int:
        return self.clock.wall() if ledger.get_rule().uses_wall_clock else self.clock.now()

    def new_lock(self) -> None:
        """Make the lock, also in a forked child, where a thread of the parent may have had it."""
        self.lock = threading.RLock()
        self.taking = taking(self.lock)

    # -- leaving the lock --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Before the lock is released: deal with what finalizers left, wake waiters, and allow the fast path again."""
        if self.depth:
            return
        try:
            self._settle()
        except BaseException:
            # A signal's handler raised. There may be no section after this one, and a waiter that is to be woken.
            self._settle()
            raise

    def _settle(self) -> None:
        """From the front, and taken out when it is done: a finalizer may append meanwhile, an interrupt begin anew."""
        while self.dropped:
            claim = self.dropped[0]
            self.freed.append((claim[0], claim[5]))
            self._abandon(claim)
        while self.freed:
            index, key = self.freed[0]
            self.queues.wake_head(index, key)
            del self.freed[0]
        self.uncontended = not (
            self.queues.by_place
            or self.pauses.until
            or self.closed
            or self.forked
            or self.off
            or self.dropped
        )

    def _abandon(self, claim: Claim) -> None:
        """A claim of a permit that was dropped: abandoned once, also if this is interrupted."""
        _, ledger, cost, mark, _, _ = claim
        journal: list[tuple[Ledger, Ledger]] = []
        try:
            note(journal, ledger)
            ledger.abandon(self.time_for(ledger), cost, mark)
            del self.dropped[0]
        except BaseException:
            if self.dropped and self.dropped[0] is claim:
                undo(journal, None)
            raise

    def drop(self, claim: Claim) -> None:
        """Called by a finalizer, so it does nothing that can fail."""
        self.dropped.append(claim)
        self.uncontended = False

    def tidy(self) -> None:
        """Settle now, unless a section is under way: it does so at its end."""
        mine: list[bool] = []
        try:
            if take_lock(self.lock, mine):
                self.settle()
        finally:
            if mine and mine[0]:
                self.lock.release()

    # -- decisions ---------------------------------------------------------------------------------------

    def decide(self, ticket: Ticket, stand: bool) -> bool:
        """Grant `ticket` if it is its turn and everything it needs is there; otherwise let it `stand` in a queue.

        `ticket.ready` then says when to ask again: at a time, or (None) when the ticket is woken.
        """
        journal: list[tuple[Ledger, Ledger]] = []
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                return self._decide(ticket, stand, self.clock.now(), journal)
            except BaseException:
                undo(journal, ticket)
                raise
            finally:
                self.depth = depth
                self.settle()

    def attempt(self, ticket: Ticket) -> tuple[str, list[Row]] | None:
        """`decide` for a request that does not wait: None if it was granted, else why not and what each rule says."""
        journal: list[tuple[Ledger, Ledger]] = []
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                now = self.clock.now()
                if self._decide(ticket, False, now, journal):
                    return None
                paused = self.pauses.resume_time(ticket.keys, now) > now
                return "paused" if paused else "limit", self._rows(ticket.keys, ticket.costs, now)
            except BaseException:
                undo(journal, ticket)
                raise
            finally:
                self.depth = depth
                self.settle()

    def _decide(self, ticket: Ticket, stand: bool, now: int, journal: list[tuple[Ledger, Ledger]]) -> bool:
        self._check(ticket)
        if self.off:
            self.queues.leave(ticket)
            ticket.granted = True
            return True
        if ticket.slot:
            return self._redeem(ticket, now)
        if not ticket.number:
            self.numbers += 1
            ticket.number = self.numbers
            ticket.since = now
            if self.leased:
                self._ask(ticket, now)
        claims: list[tuple[int, Ledger, int]] = []
        holding = self._weigh(ticket, stand, now, claims, journal)
        if not holding:
            self._take(ticket, claims, now)
            return True
        if stand:
            self.queues.join(ticket, holding)
        return False

    def _ask(self, ticket: Ticket, now: int) -> None:
        """Let borrowed ledgers know what is asked of them, once for each request."""
        for keyed, key, cost in zip(self.keyed_ledgers, ticket.keys, ticket.costs, strict=True):
            if cost:
                keyed.find(key).asked(now, cost)

    def _check(self, ticket: Ticket) -> None:
        if self.forked:
            self.forked = False
            warn_forked(self)
        if self.closed or (ticket.owner is not None and ticket.owner._closed):
            raise LimiterClosed(self.name)

    def _weigh(
        self,
        ticket: Ticket,
        stand: bool,
        now: int,
        claims: list[tuple[int, Ledger, int]],
        journal: list[tuple[Ledger, Ledger]],
    ) -> list[int]:
        """Ask every ledger the ticket needs: into `claims` goes what is there, returned is what holds it up.

        Sets `ticket.ready`, when to ask again; None for when the ticket is woken.
        """
        wall = self.clock.wall() if self.uses_wall_clock else 0
        resume = self.pauses.resume_time(ticket.keys, now)
        queues = self.queues
        ready: int | None = resume
        holding: list[int] = [0] if resume > now else []
        for index, keyed in enumerate(self.keyed_ledgers):
            cost = ticket.costs[index]
            if cost == 0:
                continue
            key = ticket.keys[index]
            ledger = self._find(keyed, key, now, wall, journal)
            rule = ledger.get_rule()
            if stand and cost > rule.capacity:
                raise self.refusal(ticket.keys)
            at = wall if rule.uses_wall_clock else now
            queue = queues.by_place.get((index, key))
            if queue is not None and queues.behind(queue, ticket):
                holding.append(index)
                ready = queues.hint(ticket, queue, ledger, at + resume - now, resume) if stand else None
                continue
            if ledger.wait(at, cost) == 0:
                claims.append((index, ledger, at))
                continue
            holding.append(index)
            if self.leased:
                ledger.check(now)
            if queue is not None:
                queues.doubt(queue, ticket, rule, now)
            sure = ledger.latest_wait(at, cost)
            if sure >= FOREVER:
                ready = None
            elif ready is not None:
                ready = max(ready, now + sure)
        ticket.ready = ready
        return holding

    def _find(
        self,
        keyed: KeyedLedgers,
        key: str | None,
        now: int,
        wall: int,
        journal: list[tuple[Ledger, Ledger]],
    ) -> Ledger:
        if keyed.countdown <= 0:
            keyed.sweep(now, wall)
        ledger = keyed.find(key)
        note(journal, ledger)
        return ledger

    def _take(self, ticket: Ticket, claims: list[tuple[int, Ledger, int]], now: int) -> None:
        waited = bool(ticket.queues)
        for index, ledger, at in claims:
            moment = at
            cost = ticket.costs[index]
            if waited and len(claims) == 1 and type(ledger.get_rule()) is BucketRule:
                queue = ticket.queues[0]
                since = self.queues.owed_since(queue, ticket, now)
                moment = min(at, since + ledger.wait(since, cost))
                queue.served = moment
            mark = ledger.take_held(moment, cost) if ticket.held else ledger.take(moment, cost)
            ticket.marks.append((ledger, mark, ledger.tally))
            ledger.use(moment, mark)
        ticket.granted = True
        self.queues.leave(ticket)
        self.counts.granted += 1

    def _redeem(self, ticket: Ticket, now: int) -> bool:
        """Whether the slot that a waiter was promised has come; a pause or a late use of another may move it."""
        slot = max(ticket.slot, self.pauses.resume_time(ticket.keys, now))
        if now >= slot:
            slot = now + max(ledger.use(now, mark) for ledger, mark, _ in ticket.marks)
        ticket.ready = slot
        if slot <= now:
            ticket.granted = True
            self.queues.waiters.discard(ticket)
        return ticket.granted

    def rate_of(self, key: str | None) -> float | None:
        """The lowest rate of a key's ledgers whose rate is found by trial; None: there is none."""
        with self.lock:
            ledgers: list[Any] = [keyed.peek(key) for keyed in self.keyed_ledgers]
            rates = [ledger.rate.value for ledger in ledgers if isinstance(ledger.get_rule(), AdaptiveRule)]
        return min(rates, default=None)

    def heard(self, key: str | None, refused: bool) -> bool:
        """Tell the ledgers of a key whose rate is found by trial what the remote answered; whether there is one."""
        found = False
        journal: list[tuple[Ledger, Ledger]] = []
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                now = self.clock.now()
                for keyed in self.keyed_ledgers:
                    if not isinstance(keyed.rule_for(key), AdaptiveRule):
                        continue
                    found = True
                    ledger: Any = keyed.find(key)
                    note(journal, ledger)
                    if refused:
                        ledger.refused(now)
                    else:
                        ledger.accepted(now)
                return found
            except BaseException:
                undo(journal, None)
                raise
            finally:
                self.depth = depth
                self.settle()

    def withdraw(self, ticket: Ticket) -> None:
        """Take a ticket back: cancelled, timed out or interrupted. What it was granted goes back, as far as no other
        request relied on it, and the waiters behind it move up."""
        journal: list[tuple[Ledger, Ledger]] = []
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                # A permit that waits for its slot has a ticket without keys.
                for keyed, key in zip(self.keyed_ledgers, ticket.keys, strict=False):
                    note(journal, keyed.peek(key))
                self.queues.remove(ticket)
                claims = [(index, cost) for index, cost in enumerate(ticket.costs) if cost]
                for (index, cost), (ledger, mark, tally) in zip(claims, ticket.marks, strict=False):
                    note(journal, ledger)
                    self.freed.append((index, ticket.keys[index]))
                    ledger.cancel(self.time_for(ledger), cost, mark, tally)
                if ticket.marks:
                    ticket.marks = []
                    self.counts.granted -= 1
            except BaseException:
                undo(journal, None)
                raise
            finally:
                self.depth = depth
                self.settle()

    def refusal(self, keys: tuple[str | None, ...]) -> RateLimited:
        """The error for what no waiting brings: a limit of 0, or one that was lowered below what is wanted."""
        rules = [keyed.rule_for(key) for keyed, key in zip(self.keyed_ledgers, keys, strict=True)]
        least = min(rules, key=lambda rule: rule.capacity)
        return RateLimited(float("inf"), limit=least.limit, key=keys[0], reason="never")

    # -- reservations ------------------------------------------------------------------------------------

    def reserve(self, ticket: Ticket) -> int:
        """Promise `ticket` a time, after every waiter has been promised its own; -1 if too many are promised."""
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                self._check(ticket)
                ticket.granted = True
                if self.off:
                    return 0
                now = self.clock.now()
                for place in enumerate(ticket.keys):
                    queue = self.queues.by_place.get(place)
                    for other in list(queue.tickets.values()) if queue is not None else ():
                        if self._promise(other, now) < 0:
                            return -1
                        self.queues.leave(other)
                        self.queues.waiters.add(other)
                        self.queues.wake(other)
                return self._promise(ticket, now)
            finally:
                self.depth = depth
                self.settle()

    def slot_after(self, ticket: Ticket) -> int:
        """Nanoseconds until a reservation that was refused can be made."""
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                now = self.clock.now()
                claims = zip(self.keyed_ledgers, ticket.keys, ticket.costs, strict=True)
                return max(
                    [keyed.peek(key).slot_after(now, cost) for keyed, key, cost in claims if cost], default=0
                )
            finally:
                self.depth = depth
                self.settle()

    def _promise(self, ticket: Ticket, now: int) -> int:
        slot = self.pauses.resume_time(ticket.keys, now)
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
        self.counts.granted += 1
        return slot

    # -- ends --------------------------------------------------------------------------------------------

    def end(self, permit: Any, how: int, claims: list[Claim], actual: dict[int, int] | None = None) -> bool:
        """End a permit in one of four ways, mark it as ended, and wake the waiters; False if it has ended already.

        All of its claims end, or none: if this fails, the permit can be ended again.
        """
        journal: list[tuple[Ledger, Ledger]] = []
        counts = self.counts
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                if permit._end:
                    return False
                for index, ledger, cost, mark, tally, key in claims:
                    self.freed.append((index, key))
                    spent = cost if actual is None else actual.get(index, cost)
                    self._end_claim(how, index, ledger, cost, mark, tally, key, spent, journal)
                flight_ns = self.clock.now() - permit._granted_at
                # The last line that can fail is behind us: the permit has ended.
                permit._end = how
            except BaseException:
                undo(journal, None)
                raise
            finally:
                self.depth = depth
                self.settle()
        counts.count_end(how, flight_ns)
        if counts.ended & 255 == 0:
            check_health(self)
        return True

    def _end_claim(
        self,
        how: int,
        index: int,
        ledger: Ledger,
        cost: int,
        mark: int,
        tally: int,
        key: str | None,
        actual: int,
        journal: list[tuple[Ledger, Ledger]],
    ) -> None:
        now = self.time_for(ledger)
        note(journal, ledger)
        if how == _COMPLETE:
            ledger.complete(now, cost, mark)
        elif how == _CANCEL:
            ledger.cancel(now, cost, mark, tally)
        elif how == _ABANDON:
            ledger.abandon(now, cost, mark)
        else:
            if actual > cost and ledger.in_flight(now) == 0:
                # Debt is the key's, also when its ledger was idle and has been forgotten since.
                ledger = self.keyed_ledgers[index].find(key)
                note(journal, ledger)
            ledger.settle(now, cost, mark, tally, actual)

    def start_call(
        self, ledger: Ledger, cost: int, mark: int, tally: int, index: int, key: str | None
    ) -> tuple[Ledger, int]:
        """A bare permit is entered: from now on it is out. Returns where it is kept, and under which mark."""
        journal: list[tuple[Ledger, Ledger]] = []
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                now = self.time_for(ledger)
                note(journal, ledger)
                if ledger.idle(now):
                    # What it owes is the key's, also when its ledger has been forgotten since.
                    ledger = self.keyed_ledgers[index].find(key)
                    note(journal, ledger)
                mark = ledger.enter(now, cost, mark, tally, now)
                # Those in the queue were told a time at which it would have been there.
                self.freed.append((index, key))
                return ledger, mark
            except BaseException:
                undo(journal, None)
                raise
            finally:
                self.depth = depth
                self.settle()

    # -- rarer verbs -------------------------------------------------------------------------------------

    def paused(self, keys: tuple[str | None, ...]) -> bool:
        """Whether a pause holds any of these keys up."""
        with self.lock:
            now = self.clock.now()
            return self.pauses.resume_time(keys, now) > now

    def pause(self, key: str | None, duration_ns: int) -> None:
        """Grant nothing for so long, or for as long as an earlier pause asks; 0 lifts the pause."""
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                now = self.clock.now()
                # What went by while paused is not made up for.
                if duration_ns > 0:
                    self.queues.resumed = max(self.pauses.pause(key, now, duration_ns), self.queues.resumed)
                else:
                    self.pauses.lift(key)
                    self.queues.resumed = now
                self.queues.wake_heads()
            finally:
                self.depth = depth
                self.settle()

    def change(self, action: Callable[[int], T]) -> T:
        """Do something to the ledgers, given the time; what it puts into `freed` wakes waiters."""
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                return action(self.clock.now())
            finally:
                self.depth = depth
                self.settle()

    def close(self, owner: Any) -> None:
        """A limiter was closed: its own waiters are woken to hear of it. With the last limiter, the store closes."""
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                self.users -= 1
                self.closed = self.users <= 0
                for ticket in list(self.queues.waiters):
                    if ticket.owner is owner:
                        self.queues.wake(ticket)
            finally:
                self.depth = depth
                self.settle()

    def reset(self, keys: tuple[str | None, ...]) -> None:
        """Let these keys start anew."""
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                for keyed, key in zip(self.keyed_ledgers, keys, strict=True):
                    keyed.forget(key)
                self.pauses.lift(keys[0])
                self.queues.wake_heads()
            finally:
                self.depth = depth
                self.settle()

    def reset_all(self) -> None:
        """Let every key start anew."""
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                for keyed in self.keyed_ledgers:
                    keyed.clear()
                self.pauses.lift_all()
                self.queues.wake_heads()
            finally:
                self.depth = depth
                self.settle()

    def reconfigure(
        self,
        rules: tuple[Rule, ...],
        limits: dict[str, Any],
        choosers: list[Callable[[str], Rule | None] | None] | None = None,
    ) -> None:
        """Go on under other rules of the same kinds, and with other overrides if they are given.

        Overrides may be a function of the user's, which may raise: it is asked before anything is changed.
        """
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                chosen = choosers or [keyed.choose for keyed in self.keyed_ledgers]
                following = [
                    keyed.without_override(choose)
                    for keyed, choose in zip(self.keyed_ledgers, chosen, strict=True)
                ]
                now, wall = self.clock.now(), self.clock.wall()
                self.limits = limits
                for keyed, rule, ledgers in zip(self.keyed_ledgers, rules, following, strict=True):
                    keyed.reconfigure(rule, ledgers, now, wall)
                if choosers is not None:
                    for keyed, choose in zip(self.keyed_ledgers, choosers, strict=True):
                        keyed.choose = choose
                    self.single_rule = False
                    self.uses_wall_clock = True
                self.held = any(rule.held for rule in rules)
                self.bracketed = any(rule.bracketed for rule in rules) or any(chosen)
                self.queues.resumed = now
                self.queues.wake_heads()
                for ticket in list(self.queues.waiters):
                    if any(cost > rule.capacity for cost, rule in zip(ticket.costs, rules, strict=True)):
                        self.queues.wake(ticket)  # to hear that its turn never comes
                        self.queues.leave(ticket)  # until it has heard, others would wait behind it for ever
            finally:
                self.depth = depth
                self.settle()

    def snapshot(self, keys: tuple[str | None, ...], costs: tuple[int, ...]) -> list[Row]:
        """What each rule says of a request, behind all that wait."""
        journal: list[tuple[Ledger, Ledger]] = []
        with self.lock:
            depth, self.depth, self.uncontended = self.depth, self.depth + 1, False
            try:
                for keyed, key in zip(self.keyed_ledgers, keys, strict=True):
                    note(journal, keyed.peek(key))
                return self._rows(keys, costs, self.clock.now())
            except BaseException:
                undo(journal, None)
                raise
            finally:
                self.depth = depth
                self.settle()

    def _rows(self, keys: tuple[str | None, ...], costs: tuple[int, ...], now: int) -> list[Row]:
        wall = self.clock.wall() if self.uses_wall_clock else 0
        resume = self.pauses.resume_time(keys, now) - now
        found: list[Row] = []
        for index, keyed in enumerate(self.keyed_ledgers):
            ledger, cost, key = keyed.peek(keys[index]), costs[index], keys[index]
            rule = ledger.get_rule()
            at = wall if rule.uses_wall_clock else now
            queue = self.queues.by_place.get((index, key))
            wait = 0 if cost == 0 else ledger.wait(at, cost)
            exact = cost == 0 or ledger.exact(at, cost)
            remaining = ledger.remaining(at)
            if queue is not None and cost:
                wait = max(1, resume + self.queues.forecast(queue, ledger, at + resume, cost))
                exact = exact and not self.queues.open_ended(queue, ledger, at)
                remaining = 0
            found.append(
                (
                    rule.limit,
                    0 if resume else remaining,
                    0 if disabled else max(wait, resume),
                    ledger.reset_after(at),
                    0 if queue is None else len(queue),
                    ledger.in_flight(at),
                    exact,
                )
            )
        return found


def note(journal: list[tuple[Ledger, Ledger]], ledger: Ledger) -> None:
    """Keep a copy of a ledger that is about to be touched; compiled, none is needed."""
    if _INTERPRETED:
        journal.append((ledger, ledger.copy()))


def undo(journal: list[tuple[Ledger, Ledger]], ticket: Ticket | None) -> None:
    """An exception ended a section early: every ledger goes back to the copy that was made before it was touched.

    Compiled, nothing was copied: a change happens in one piece, and a grant is in the ticket, to be withdrawn.
    """
    for ledger, before in reversed(journal):
        for name in ("tally", *type(ledger).__slots__):
            setattr(ledger, name, getattr(before, name))
    if journal and ticket is not None:
        ticket.granted = False
        ticket.marks = []
