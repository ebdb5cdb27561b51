"""A steady rate with a burst, as one number.

The naive token bucket keeps a count of tokens and the time of the last refill. It must be refilled before every look,
it needs a fraction of a token, and floats drift: at 3/s a token is a third, and a million grants later the schedule is off.

Turn it around. Keep the *theoretical arrival time* (tat): the moment at which the bucket would be full again if nobody
came. Every permit moves it one interval into the future; time passing needs no bookkeeping at all. With an interval I
and room for `burst` permits,

    full again at         tat           (in the past: the bucket is full)
    a permit of cost c    tat' = max(tat, now) + c * I
    is granted when       tat' - now <= burst * I
    otherwise wait        tat' - now - burst * I

Worked example, "10/s burst 3", I = 100 ms, at time 0 with tat = 0: three permits go at once and leave tat = 300. A fourth
would make it 400 > 300: wait 100 ms. At 100 it is 400 - 100 = 300: granted.

An interval need not be whole: 3/s is 333,333,333 and one third nanoseconds. So tat is kept as nanoseconds and a remainder in
units of 1/n, with P/n in lowest terms, and nothing is ever rounded but the answer, up to the next nanosecond.

**Giving back.** `tat -= c * I` mints: a bucket that was full when the permit was taken lost nothing by the time it is full
again, and what others took meanwhile was granted on the strength of a later tat. A refund may therefore not exceed what the
permit still weighs. Removing it from the past lowers every later tat by d, and d is clipped at each later grant k by
tat(k-1) - time(k). Each tat(k-1) is at least the one this permit left behind (`mark`) less what was refunded since, and no
grant lies later than now or than the last reservation, which is at most tat - burst * I. So

    refund <= mark - refunded_since - max(now, tat + refunded_since - burst * I)

is always safe; and when nothing came after, it is the permit's whole cost (or all that is left of it). `tally` counts what
was refunded, modulo 2**62, so that a permit can tell what was refunded since its grant.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, LONG_AGO, Ledger, Rule
from headway.errors import InvalidArgument

if TYPE_CHECKING:
    from headway.core.limits import Bucket

WRAP = (1 << 62) - 1


class BucketRule(Rule):
    """One permit per `whole + part / parts` nanoseconds, `burst` of them at most saved up."""

    __slots__ = ("part", "parts", "room_ns", "room_part", "whole")

    def __init__(self, limit: Bucket) -> None:
        Rule.__init__(self, limit, promises=True)
        count = limit.count or 1  # 0 admits nothing: capacity is 0, and the interval is never used
        shared = gcd(count, limit.per_ns)
        self.parts: int = count // shared
        self.whole: int = limit.per_ns // shared // self.parts
        self.part: int = limit.per_ns // shared % self.parts
        self.room_ns: int = limit.burst * self.whole + limit.burst * self.part // self.parts
        self.room_part: int = limit.burst * self.part % self.parts

    def open(self) -> Ledger:
        return BucketLedger(self)


class BucketLedger(Ledger):
    __slots__ = ("part", "rule", "tat")

    def __init__(self, rule: BucketRule) -> None:
        self.tally = 0
        self.rule = rule
        self.tat = LONG_AGO
        self.part = 0

    def get_rule(self) -> Rule:
        return self.rule

    def wait(self, now: int, cost: int) -> int:
        rule = self.rule
        if cost > rule.capacity:
            return FOREVER
        if self.tat >= now:
            tat = self.tat
            part = self.part + cost * rule.part
        else:
            tat = now
            part = cost * rule.part
        over = tat + cost * rule.whole - now - rule.room_ns
        if rule.parts > 1:
            over += part // rule.parts
            if part % rule.parts > rule.room_part:
                over += 1
        return over if over > 0 else 0

    def take(self, at: int, cost: int) -> int:
        rule = self.rule
        if self.tat < at:
            self.tat = at
            self.part = 0
        self.tat += cost * rule.whole
        if rule.parts > 1:
            part = self.part + cost * rule.part
            self.tat += part // rule.parts
            self.part = part % rule.parts
        return self.tat

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        self.refund(now, cost, mark, tally)

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        if actual < cost:
            self.refund(now, cost - actual, mark, tally)
        elif actual > cost:
            # Whatever debt can be kept exactly is kept; 146 years of it is a mistake in the call.
            if actual - cost > FOREVER // (self.rule.whole + 1) or actual - cost > FOREVER // self.rule.parts:
                raise InvalidArgument("cost", actual, "a cost whose debt can be paid in less than 146 years")
            self.take(now, actual - cost)

    def refund(self, now: int, cost: int, mark: int, tally: int) -> None:
        rule = self.rule
        since = (self.tally - tally) & WRAP
        whole = cost * rule.whole + cost * rule.part // rule.parts
        part = cost * rule.part % rule.parts
        # Permits of less than a nanosecond may share a tat: then nobody knows whether something came after.
        if since or mark != self.tat or rule.whole == 0:
            busy = self.tat + since - rule.room_ns + 1
            if busy < now:
                busy = now
            most = mark - since - busy
            if most <= 0:
                return
            if whole >= most:
                whole = most
                part = 0
            self.tally = (self.tally + whole + (1 if part else 0)) & WRAP
        self.tat -= whole
        self.part -= part
        if self.part < 0:
            self.part += rule.parts
            self.tat -= 1

    def remaining(self, now: int) -> int:
        rule = self.rule
        if rule.capacity == 0:
            return 0
        low = 0
        high = rule.capacity
        while low < high:
            middle = low + (high - low + 1) // 2
            if self.wait(now, middle) == 0:
                low = middle
            else:
                high = middle - 1
        return low

    def reset_after(self, now: int) -> int:
        if self.tat > now:
            return self.tat - now + (1 if self.part else 0)
        return 1 if self.tat == now and self.part else 0

    def idle(self, now: int) -> bool:
        return self.tat < now or (self.tat == now and self.part == 0)

    def exhaust(self, now: int) -> None:
        self.tat = now + self.rule.room_ns
        self.part = self.rule.room_part

    def adopt(self, rule: Rule, now: int) -> None:
        # What is still owed is counted in permits, rounded up, and the last promised time is kept clear of.
        old = self.rule
        self.rule = rule  # type: ignore[assignment]
        backlog = self.tat - now
        if backlog < 0 or old.capacity == 0:
            return
        owed = (backlog * old.parts + self.part + old.whole * old.parts + old.part - 1) // (
            old.whole * old.parts + old.part
        )
        promised = self.tat - old.room_ns
        self.tat = now
        self.part = 0
        if self.rule.capacity == 0:
            return
        self.tat += min(owed * self.rule.whole + owed * self.rule.part // self.rule.parts + 1, FOREVER)
        if promised > now and self.tat < promised + self.rule.room_ns + 1:
            self.tat = promised + self.rule.room_ns + 1

    def copy(self) -> Ledger:
        twin = BucketLedger(self.rule)
        twin.tat = self.tat
        twin.part = self.part
        twin.tally = self.tally
        return twin

    def state(self) -> tuple[int, ...]:
        return (self.tat, self.part, self.tally)
