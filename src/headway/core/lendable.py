"""Which limits can be lent, and the two kinds whose tokens are plain numbers.

The tokens of a `Window` or a `Bucket` have a past that travels with them (`headway.core.tokens`). A count of the
current window of a `FixedWindow` and a slot of a `Concurrency` have none: they are there or they are not. The naive
way to lend them is a number on each side, and it fails at two edges.

**The end of a window.** A client that was given 10 of today's 100 could spend them tomorrow, when the ledger has
100 new ones to give. So a lease of counts ends with their window at the latest (`longest_lease`). A client stops
before the end of its lease, and asks again in the new window; what it did not spend by then is gone, as it is for
all others.

**What is in use.** A slot is not spent but occupied, and comes back when its call ends. It stays with its holder
meanwhile: a client of 5 slots, 3 of them in use, can hand back 2. The slots of a client that vanished come back
with the end of its lease, whether its calls go on or not, as single permits of a shared ledger do.

Worked example, 100 a day, 90 used so far, two minutes to midnight, a TTL of three minutes. A client gets 4, for two
minutes and not for three. It spends 3. At midnight its lease is over: the ledger starts at 0 of 100, and the fourth
is gone.

A `Spacing` has one slot at a time and nothing to divide. An `AllOf` is several limits, each of which can be lent:
that is up to what puts them together.
"""

from __future__ import annotations

from headway.core.concurrency import ConcurrencyLedger, ConcurrencyRule
from headway.core.fixed_window import FixedWindowLedger, FixedWindowRule
from headway.core.ledger import FOREVER, Ledger, Rule
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Window
from headway.core.rules import rule_from_record
from headway.core.tokens import Batch, BucketTokens, Tokens, WindowTokens, at_least, at_most, total
from headway.core.window import WindowRule
from headway.errors import InvalidLimit


class CountTokens(Tokens):
    """Counts of the current window of a `FixedWindow`; a lease of them ends with the window at the latest."""

    __slots__ = ()

    def __init__(self, rule: FixedWindowRule, span: int) -> None:
        self.ledger: FixedWindowLedger = FixedWindowLedger(rule)
        self.span = span

    def balance(self, now: int) -> int:
        self.ledger.remaining(now)  # lets time act
        return self.ledger.rule.capacity - self.ledger.used

    def withdraw(self, now: int, count: int) -> Batch:
        count = min(count, self.count(now))
        if count == 0:
            return ()
        self.ledger.take(now, count)
        return ((count, 0),)

    def deposit(self, now: int, batch: Batch) -> None:
        # The lease they are of is alive: so they are of the window that is.
        self.ledger.remaining(now)  # lets time act
        self.ledger.cancel(now, total(batch), self.ledger.ends, self.ledger.tally)

    def forfeit(self, now: int, count: int, until: int) -> None:
        """They count as used since they were lent."""

    def longest_lease(self, now: int) -> int:
        return self.ledger.reset_after(now)


class Allotment(Ledger):
    """What a client holds of a `FixedWindow`: a number that is spent. No time is known at which there is more."""

    __slots__ = ("free", "rule")

    def __init__(self, rule: Rule) -> None:
        Ledger.__init__(self)
        self.rule = rule
        self.free = 0

    def get_rule(self) -> Rule:
        return self.rule

    def wait(self, now: int, cost: int) -> int:
        return 0 if cost <= self.free else 1

    def exact(self, now: int, cost: int) -> bool:
        return cost <= self.free

    def latest_wait(self, now: int, cost: int) -> int:
        return 0 if cost <= self.free else FOREVER

    def take(self, at: int, cost: int) -> int:
        self.free -= cost
        return at

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        self.free += cost

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        self.free += cost - actual

    def remaining(self, now: int) -> int:
        return max(0, self.free)

    def reset_after(self, now: int) -> int:
        return FOREVER

    def copy(self) -> Ledger:
        twin = Allotment(self.rule)
        twin.free = self.free
        return twin

    def state(self) -> tuple[int, ...]:
        return (self.free,)


class AllottedTokens(Tokens):
    __slots__ = ()
    used_up = True

    def __init__(self, rule: Rule, span: int) -> None:
        self.ledger: Allotment = Allotment(rule)
        self.span = span

    def balance(self, now: int) -> int:
        return self.ledger.free

    def withdraw(self, now: int, count: int) -> Batch:
        count = min(count, self.count(now))
        self.ledger.free -= count
        return ((count, 0),) if count else ()

    def deposit(self, now: int, batch: Batch) -> None:
        self.ledger.free += total(batch)


class SlotTokens(Tokens):
    """Slots of a `Concurrency`; those in use stay where they are."""

    occupied = True
    __slots__ = ("capacity", "lease", "slots")

    def __init__(self, limit: Concurrency, lease_ns: int = 0, *, empty: bool = False) -> None:
        self.capacity = limit.capacity
        self.slots = 0 if empty else limit.capacity
        self.lease = lease_ns
        self.span = 1
        self.ledger: ConcurrencyLedger = ConcurrencyLedger(self._rule())

    def _rule(self) -> ConcurrencyRule:
        rule = rule_from_record("concurrency", max(0, self.slots), (self.lease,), 1)
        assert isinstance(rule, ConcurrencyRule)
        return rule

    def _move(self, now: int, slots: int) -> None:
        self.slots += slots
        self.ledger.reconfigure(self._rule(), now)

    def balance(self, now: int) -> int:
        return self.slots - self.ledger.in_flight(now)

    def withdraw(self, now: int, count: int) -> Batch:
        count = min(count, self.count(now))
        if count == 0:
            return ()
        self._move(now, -count)
        return ((count, 0),)

    def deposit(self, now: int, batch: Batch) -> None:
        self._move(now, total(batch))

    def forfeit(self, now: int, count: int, until: int) -> None:
        # In a shared ledger a slot expires with its holder.
        self._move(now, count)

    def reconfigure(self, rule: Rule, now: int) -> None:
        slots, self.capacity = rule.capacity - self.capacity, rule.capacity
        self._move(now, slots)


def tokens_to_lend(limit: Limit, resolution_ns: int, drift_ppm: int, ttl: int, tick_ns: int = 1) -> Tokens:
    """All tokens of a limit, in the ledger that lends them; its times and `ttl` are in ticks of `tick_ns`.

    >>> tokens_to_lend(Window(5, per=1, remote=False), 1, 250, 10**9).withdraw(0, 3)
    ((3, 0),)
    """
    match limit:
        case Window():
            return WindowTokens(WindowRule(limit, resolution_ns, drift_ppm, tick_ns))
        case Bucket():
            return BucketTokens(limit, tick_ns=tick_ns)
        case FixedWindow():
            return CountTokens(FixedWindowRule(limit, tick_ns), 2 * ttl)
        case Concurrency():
            return SlotTokens(limit)
        case _:
            raise InvalidLimit(repr(limit), None, *refusal(limit))


def tokens_to_borrow(
    limit: Limit, resolution_ns: int, drift_ppm: int, ledger_drift_ppm: int, ttl_ns: int
) -> Tokens:
    """No token yet, in the ledger of a client whose clock is not the lender's: its spans are stretched by both drifts.

    >>> tokens_to_borrow(Window(5, per=1, remote=False), 1, 250, 1000, 10**9).span
    1001251254
    """

    def stretched(ns: int) -> int:
        return at_least(at_most(ns, ledger_drift_ppm), drift_ppm) + resolution_ns

    match limit:
        case Window():
            rule = WindowRule(limit, resolution_ns, drift_ppm)
            _, grid, transit, out_grid, which, _ = rule.numbers()
            # A gap that counts for a remote is stretched by this clock's drift already, and the ledger has no part
            # in it.
            bare = stretched(limit.per_ns)
            gap = bare if limit.remote is False else rule.gap
            rule.recall(limit, 1, (gap, grid, transit, out_grid, which, bare))
            return WindowTokens(rule, empty=True)
        case Bucket():
            return BucketTokens(limit, stretched(limit.per_ns), empty=True)
        case FixedWindow():
            return AllottedTokens(FixedWindowRule(limit), 2 * ttl_ns)
        case Concurrency():
            return SlotTokens(limit, empty=True)
        case _:
            raise InvalidLimit(repr(limit), None, *refusal(limit))


def refusal(limit: Limit) -> tuple[str, str]:
    """What is accepted instead, and why this limit is not."""
    accepted = "a Window, Bucket, FixedWindow or Concurrency"
    if limit.kind == "spacing":
        return accepted, "it has one slot at a time, and nothing that could be lent ahead"
    return accepted, f"a limit of the kind {limit.kind!r} is not lent"
