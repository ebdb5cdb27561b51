"""Tokens: how a part of a limit leaves one ledger and enters another.

A permit is spent once and comes back. A *token* is what it comes back to: one n-th of a limit, for as long as its
holder keeps it. A client that holds k tokens runs an ordinary ledger of k, and asks no other about it. The naive
way to lend k of n is to tell the ledger to be n - k and the client to be k. It mints: the ledger gives away what is
cooling as if it were fresh, and k calls of just now are followed by k more. So tokens travel with their past:
(count, after) says that `count` tokens are usable after so long. As a span and not as a time it means the same on
every clock, and what is late only makes it longer.

What "usable" means depends on the kind. One class each says how tokens leave (`withdraw`) and enter (`deposit`), and
what they count for when their holder vanished (`forfeit`). A ledger that lends and a client that borrows use the same
class; the ledger inside is the ordinary one of its kind, and grants single permits all the while.

    Window        a token is a permit: free, or cooling until a time. All of them keep their own time.
    Bucket        a token is a unit: one of the burst and one n-th of the rate. All units of a bucket are full again
                  after the same time t, so units that meet share it: k1 at t1 and k2 at t2 are k1 + k2 units at
                  (k1 t1 + k2 t2) / (k1 + k2), rounded up.
    FixedWindow   a token is a count of the current window, and is gone when it is spent.
    Concurrency   a token is a slot. One in use stays with its holder.

Why a bucket may be split. Call k t the *debt* of k units that are full again after t: a permit adds the time in
which the whole bucket fills, B I, and every nanosecond takes k off. The debt of all units never exceeds B times B
I, each moment takes at most B off, and moving units leaves the sum as it was, or larger by rounding. So an interval
of length d admits at most (B * B I + B d) / B I = burst + rate * d permits, however often units were moved inside
it.

Worked example, "10/s burst 10": a full bucket of 10 units, I = 100 ms. A client gets 4 units: burst 4, and 4/s. It
spends 3 permits at once: 3 of 4 units are to be earned again, in 750 ms. Two of its units are recalled. One unit is
idle, and two are not: so both parts get the same past, 2 units after 750 ms each, which is a debt of 1.5 permits
each. Back in the ledger, with 6 units that are full, they make 8 units after ceil(2 * 750 / 8) = 188 ms.

`FixedWindow` and `Concurrency` are in `headway.core.lendable`, which also says which limits can be lent at all.
"""

from __future__ import annotations

from math import gcd

from headway.core.bucket import BucketLedger, BucketRule
from headway.core.ledger import EXACT, FOREVER, Ledger, Rule
from headway.core.limits import Bucket
from headway.core.rules import rule_from_record
from headway.core.window import WindowLedger, WindowRule

MILLION = 1_000_000

Batch = tuple[tuple[int, int], ...]
"""Tokens on their way: (count, usable after so many ns), in the order of time."""


def at_most(ns: int, drift_ppm: int) -> int:
    """The longest true time that a clock of this drift can mean by a span; what a sender tells.

    >>> at_most(1_000_000, 250)
    1000251
    """
    return -(-ns * MILLION // (MILLION - drift_ppm))


def at_least(ns: int, drift_ppm: int) -> int:
    """A span on a clock of this drift that takes at least so long; what a receiver measures.

    >>> at_least(1_000_000, 250)
    1000250
    """
    return -(-ns * (MILLION + drift_ppm) // MILLION)


def total(batch: Batch) -> int:
    return sum(count for count, _ in batch)


def outgoing(batch: Batch, drift_ppm: int) -> Batch:
    """What is told of tokens by the clock of their sender."""
    return tuple((count, at_most(after, drift_ppm)) for count, after in batch)


def incoming(batch: Batch, drift_ppm: int, resolution: int) -> Batch:
    """What is made of it by the clock of their receiver: two readings may be a tick further apart than the truth.

    >>> incoming(outgoing(((3, 0), (1, 1_000_000)), 1000), 250, 1)
    ((3, 0), (1, 1001254))
    """
    return tuple((count, at_least(after, drift_ppm) + resolution if after else 0) for count, after in batch)


class Tokens:
    """Some tokens of a limit, kept in an ordinary ledger; `span` is how long one is gone when it is spent."""

    __slots__ = ("ledger", "span")
    ledger: Ledger
    span: int
    used_up = False  # whether a token that is spent is gone for good
    occupied = False  # whether a token is in use until it is given back, and not for a span

    def balance(self, now: int) -> int:
        """How many could be withdrawn now; below zero, how many must come back before that: the limit was lowered."""
        raise NotImplementedError

    def count(self, now: int) -> int:
        """How many could be withdrawn now."""
        balance = self.balance(now)
        return balance if balance > 0 else 0

    def withdraw(self, now: int, count: int) -> Batch:
        """Take up to so many out: idle ones first."""
        raise NotImplementedError

    def deposit(self, now: int, batch: Batch) -> None:
        """Put tokens in that were withdrawn elsewhere."""
        raise NotImplementedError

    def forfeit(self, now: int, count: int, until: int) -> None:
        """Put tokens in whose holder vanished, and may have spent all of them until then."""
        raise NotImplementedError

    def longest_lease(self, now: int) -> int:
        """How long tokens may be lent from now on."""
        return FOREVER

    def reconfigure(self, rule: Rule, now: int) -> None:
        """Go on under another rule; what is lent stays lent, and comes off what lies here."""
        self.ledger.reconfigure(rule, now)


def _batch(now: int, flat: tuple[int, ...]) -> Batch:
    return tuple((flat[i + 1], flat[i] - now) for i in range(0, len(flat), 2))


class WindowTokens(Tokens):
    __slots__ = ("rule",)

    def __init__(self, rule: WindowRule, *, empty: bool = False) -> None:
        self.rule = rule
        self.ledger: WindowLedger = WindowLedger(rule)
        self.span = rule.bare_gap if rule.bare_gap > 1 else 1
        if empty:
            self.ledger.withdraw(0, rule.capacity)

    def balance(self, now: int) -> int:
        self.ledger.remaining(now)  # lets time act
        return self.ledger.free + self.ledger.cooling.total

    def withdraw(self, now: int, count: int) -> Batch:
        return _batch(now, self.ledger.withdraw(now, count))

    def deposit(self, now: int, batch: Batch) -> None:
        for count, after in batch:
            self.ledger.deposit(now, now + after, count)

    def forfeit(self, now: int, count: int, until: int) -> None:
        # Each may be out: the remote has it on record a transit later at the latest, and no call of a plain window
        # is.
        gap = max(self.rule.gap, self.rule.bare_gap)
        self.ledger.deposit(now, until + self.rule.transit + gap, count)

    def reconfigure(self, rule: Rule, now: int) -> None:
        assert isinstance(rule, WindowRule)
        self.rule = rule
        self.span = rule.bare_gap if rule.bare_gap > 1 else 1
        self.ledger.reconfigure(rule, now)


def units_of(capacity: int, per: int, permits: int, units: int, tick_ns: int) -> BucketRule:
    """The rule of so many of a bucket's units: `permits * units` permits in `per * capacity` ticks.

    Where numbers end before that (`Rule.horizon`), an interval is a whole number of ticks, rounded up. All units are
    the bucket itself, which always fits.

    >>> units_of(10, 100_000, 1, 4, 1000).whole
    250000
    """
    units = max(0, units)
    numbers = (0, 0, 1, 0, 0)
    if units > 0:
        horizon = EXACT if tick_ns > 1 else FOREVER
        shared = gcd(per, permits)
        span, parts = per // shared * capacity, permits // shared * units
        common = gcd(span, parts)
        if units == capacity or (span < 2 * horizon and (units + 1) * (parts // common) <= horizon):
            parts //= common
            whole, part = divmod(span // common, parts)
        else:
            whole, part, parts = -(-span // parts), 0, 1
        numbers = (whole, part, parts, units * whole + units * part // parts, units * part % parts)
    rule = rule_from_record("bucket", units, numbers, tick_ns)
    assert isinstance(rule, BucketRule)
    return rule


class BucketTokens(Tokens):
    """Units of a bucket: `units` of them lie here; below zero, as many must come back that a lower limit has not."""

    __slots__ = ("capacity", "per", "permits", "tick_ns", "units")

    def __init__(self, limit: Bucket, stretched: int = 0, tick_ns: int = 1, *, empty: bool = False) -> None:
        # So many permits in so many ticks.
        self.permits = limit.count * tick_ns
        self.per = stretched or limit.per_ns
        self.tick_ns = tick_ns
        self.capacity = limit.capacity
        self.units = 0 if empty else limit.capacity
        # The time in which an empty bucket fills; the same for any number of units.
        self.span: int = -(-self.per * self.capacity // max(1, self.permits))
        self.ledger: BucketLedger = BucketLedger(self._rule(self.units))

    def _rule(self, units: int) -> BucketRule:
        return units_of(self.capacity, self.per, self.permits, units, self.tick_ns)

    def _full_in(self, now: int) -> int:
        return self.ledger.reset_after(now) if self.units > 0 else 0

    def _resize(self, now: int, units: int, full_in: int) -> None:
        self.units = units
        self.ledger.resize(self._rule(units), now, full_in)

    def reconfigure(self, rule: Rule, now: int) -> None:
        assert isinstance(rule, BucketRule)
        self.permits, self.per = rule.parts, rule.whole * rule.parts + rule.part
        self.units += rule.capacity - self.capacity
        self.capacity = rule.capacity
        self.span = rule.room + (1 if rule.room_part else 0)
        self.ledger.reconfigure(self._rule(self.units), now)

    def balance(self, now: int) -> int:
        return self.units

    def withdraw(self, now: int, count: int) -> Batch:
        count = min(count, self.units)
        if count <= 0:
            return ()
        after, left = self._full_in(now), self.units - count
        debt = self.units * after
        if left > 0 and debt <= left * self.span:
            # As many are idle: what was spent is put down to those that stay.
            self._resize(now, left, -(-debt // left))
            return ((count, 0),)
        self._resize(now, left, after)
        return ((count, after),)

    def deposit(self, now: int, batch: Batch) -> None:
        for count, after in batch:
            units = self.units + count
            here = max(0, self.units)
            stay = max(0, units)  # the others are what a lower limit has no place for
            debt = here * self._full_in(now) + (stay - here) * after
            self._resize(now, units, -(-debt // max(1, stay)))

    def forfeit(self, now: int, count: int, until: int) -> None:
        self.deposit(now, ((count, max(0, until + self.span - now)),))
