"""A steady rate with a burst, as one number.

The naive token bucket keeps a count of tokens and the time of the last refill. It must be refilled before every
look, it needs a fraction of a token, and floats drift: at 3/s a token is a third, and a million grants later
the schedule is off.

Turn it around. Keep the *theoretical arrival time* (tat): the moment at which the bucket would be full again if
no request came. Every permit moves it one interval into the future; time passing needs no bookkeeping at all. With
an interval I and room for `burst` permits,

    full again at         tat           (in the past: the bucket is full)
    a permit of cost c    tat' = max(tat, now) + c * I
    is granted when       tat' - now <= burst * I
    otherwise wait        tat' - now - burst * I

Worked example, "10/s burst 3", I = 100 ms, at time 0 with tat = 0: three permits go at once and leave tat =
300. A fourth would make it 400 > 300: wait 100 ms. At 100 it is 400 - 100 = 300: granted.

An interval need not be whole: 3/s is 333,333,333 and one third nanoseconds. So tat is kept as whole ticks and a
remainder in units of 1/n, with P/n in lowest terms, and nothing is ever rounded but the answer, up to the next
tick. What is granted at that tick still counts from tat: so the schedule of 3/s never drifts, and any time d
admits at most `burst + rate * d`, where d is as exact as the clock can tell: two grants 333,333,333 ns apart
lie in the first and the last of 333,333,334 nanoseconds.

**Giving back.** `tat -= c * I` mints: a bucket that was full when the permit was taken lost nothing by the time
it is full again, and what others took meanwhile was granted on the strength of a later tat. A refund may
therefore not exceed what the permit still weighs. Removing it from the past lowers every later tat by d, and d
is clipped at each later grant k by tat(k-1) - time(k). Each tat(k-1) is at least the one this permit left
behind (`mark`) less what was refunded since. No grant lies later than now or than the last reservation, which
got the earliest slot there was, tat - burst * I rounded up; or a later one, if another limit had a say, and
that is noted in `latest`. So

    refund <= mark - refunded_since - max(now, latest, tat + refunded_since - burst * I + 1)

is always safe. `tally` counts what was refunded, modulo the rule's horizon, so that a permit can tell what was
refunded since its grant. When nothing came after (tat is its mark still), all of it is taken back, and if it
was cancelled it leaves no trace.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, LONG_AGO, Ledger, Rule
from headway.errors import InvalidLimit

if TYPE_CHECKING:
    from headway.core.limits import Bucket, Limit


class BucketRule(Rule):
    """One permit per `whole + part / parts` ticks, `burst` of them at most saved up.

    `room + room_part / parts` ticks is how far ahead of now tat may be: what it takes to earn a full burst.
    """

    __slots__ = ("part", "parts", "room", "room_part", "whole")

    def __init__(self, limit: Bucket, tick_ns: int = 1) -> None:
        Rule.__init__(self, limit, tick_ns, promises=True)
        count = limit.count or 1  # 0 admits nothing: capacity is 0, and the interval is never used
        shared = gcd(count * tick_ns, limit.per_ns)
        parts = count * tick_ns // shared
        if tick_ns > 1 and (limit.capacity + 1) * parts > FOREVER:
            problem = f"in ticks of {tick_ns} ns the rate cannot be kept exactly in 63 bits"
            raise InvalidLimit(repr(limit), None, "a smaller burst, or a rounder count per second", problem)
        self.parts: int = parts
        self.whole: int = limit.per_ns // shared // parts
        self.part: int = limit.per_ns // shared % parts
        self.room: int = limit.capacity * self.whole + limit.capacity * self.part // parts
        self.room_part: int = limit.capacity * self.part % parts

    def recall(self, limit: Limit, tick_ns: int, own: tuple[int, ...]) -> None:
        Rule.__init__(self, limit, tick_ns, promises=True)
        self.whole, self.part, self.parts, self.room, self.room_part = own

    def open(self) -> Ledger:
        return BucketLedger(self)


class BucketLedger(Ledger):
    __slots__ = ("latest", "part", "rule", "tat")

    def __init__(self, rule: BucketRule) -> None:
        self.tally = 0
        self.rule = rule
        self.tat = LONG_AGO
        self.part = 0
        self.latest = LONG_AGO

    def get_rule(self) -> Rule:
        return self.rule

    def wait(self, now: int, cost: int) -> int:
        rule = self.rule
        if cost > rule.capacity:
            return FOREVER
        ahead = self.tat - now
        part = self.part
        if ahead < 0:
            ahead = part = 0
        over = ahead + cost * rule.whole - rule.room
        if rule.parts > 1:
            part += cost * rule.part
            over += part // rule.parts
            if part % rule.parts > rule.room_part:
                over += 1
        return over if over > 0 else 0

    def take(self, at: int, cost: int) -> int:
        rule = self.rule
        tat = self.tat
        # The first whole tick after tat is on time: the fraction is kept, or 3/s would lose 2/3 ns with
        # each grant.
        if tat < at and (self.part == 0 or tat + 1 < at):
            tat = at
            self.part = 0
        tat += cost * rule.whole
        if rule.parts != 1:
            part = self.part + cost * rule.part
            tat += part // rule.parts
            self.part = part % rule.parts
        self.tat = tat
        if at > self.latest and at > tat - rule.room + 1:
            self.latest = at
        return tat

    def slot(self, now: int, cost: int) -> int:
        wait = self.wait(now, cost)
        return now + wait if wait < FOREVER and wait <= self.rule.horizon - self.rule.room else -1

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        self.refund(now, cost, mark, tally, False)

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        if actual < cost:
            self.refund(now, cost - actual, mark, tally, actual > 0)
        elif actual > cost:
            # A debt beyond the horizon (146 years in nanoseconds) is kept as that.
            rule = self.rule
            left = rule.horizon - max(0, self.tat - now)
            self.take(now, min(actual - cost, left // (rule.whole + 1), rule.horizon // rule.parts))

    def refund(self, now: int, cost: int, mark: int, tally: int, happened: bool) -> None:
        rule = self.rule
        since = (self.tally - tally) & (rule.horizon - 1)
        if cost > rule.capacity:
            cost = rule.capacity  # it was granted under another rule; more would not fit 63 bits
        whole = cost * rule.whole + cost * rule.part // rule.parts
        part = cost * rule.part % rule.parts
        # Permits of less than a tick may share a tat: then the ledger cannot tell whether something came after.
        last = since == 0 and mark == self.tat and rule.whole > 0
        if not last:
            left = mark - since
            most = left - (self.latest if self.latest > now else now)
            busy = self.tat - rule.room + 1  # plus `since`, which would not always fit 63 bits
            if most <= 0 or left - since <= busy:
                return
            if most > left - since - busy:
                most = left - since - busy
            if whole >= most:
                whole = most
                part = 0
        if happened or not last:
            self.tally = (self.tally + whole + (1 if part else 0)) & (rule.horizon - 1)
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
        if (self.tat, self.part) < (now + self.rule.room, self.rule.room_part):
            self.tat = now + self.rule.room
            self.part = self.rule.room_part

    def reconfigure(self, rule: Rule, now: int) -> None:
        old = self.rule
        new: BucketRule = rule  # type: ignore[assignment]
        self.rule = new
        old_per = old.whole * old.parts + old.part
        new_per = new.whole * new.parts + new.part
        if (old_per, old.parts, old.room) == (new_per, new.parts, new.room):
            return
        before = self.tat
        promised = before - old.room + (1 if self.part > old.room_part else 0)
        backlog = before - now  # of arbitrary size in both forms, as are the products below
        # What is owed is the same number of permits, rounded up; while nothing is admitted it stays as it was.
        if backlog >= 0 and old.capacity > 0 and new.capacity > 0:
            owed = (backlog * old.parts + self.part) * new_per
            self.tat = now + min(-(-owed // (old_per * new.parts)), new.horizon)
            # And the last slot that was promised is kept clear of.
            if promised > now:
                self.tat = max(self.tat, min(promised + new.room + 1, now + new.horizon))
        elif self.part > 0:
            self.tat += 1
        self.part = 0
        # Marks are times of the old schedule: by as much as it moved, earlier permits weigh less.
        moved = max(0, before - self.tat) + max(0, new.room - old.room) + 1
        self.tally = (self.tally + moved) & (new.horizon - 1)

    def resize(self, rule: Rule, now: int, full_in: int) -> None:
        """Be a bucket of this rule that is full again after so long; see `headway.core.tokens`.

        Permits that were taken before weigh nothing from now on: what is cancelled of them is not given back.
        """
        old = self.rule
        self.rule = rule  # type: ignore[assignment]
        self.tally = (self.tally + old.room + 2) & (rule.horizon - 1)
        self.tat = now + full_in if full_in > 0 else LONG_AGO
        self.part = 0

    def copy(self) -> Ledger:
        twin = BucketLedger(self.rule)
        twin.tat = self.tat
        twin.part = self.part
        twin.latest = self.latest
        twin.tally = self.tally
        return twin

    def state(self) -> tuple[int, ...]:
        return (self.tat, self.part, self.latest, self.tally)

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        self.tat, self.part, self.latest, self.tally = state
