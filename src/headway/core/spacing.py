"""One at a time, never closer than an interval, and slots that can be reserved ahead.

The naive spacer remembers the last call and refuses every call within the interval. Refused callers ask again
and again, and the one that asks at the lucky moment wins. Remember instead the last slot that was *given away*, which
may lie in the future: the next caller gets the slot after it, and knows at once how long to sleep. One
register, `last`, is nearly all the state there is:

    now >= last + step      last = now, go
    otherwise               ceil((last - now) / step) slots are reserved already; fewer than `max_reserved`:
                            last += step, go at the new last; else come back when the oldest of them is used up

(The floor instead of the ceiling lets one too many in: at last - now = 0.5 step one slot is taken, not none.)

Sleepers wake late. Two holders with slots 6 s apart are only 5.9 s apart if the first is 0.1 s late and the second is
not. So what counts is the *use*: `used` is the time of the last one, and a holder that comes within an interval of it
waits the little that is missing. A holder later than `expire_after` past its slot may meet the one behind it, so
`step = interval + expire_after` keeps that much between slots. In memory `expire_after` is 0: a waiter takes its slot
when it wakes. `strict=False` steps by the interval, lets late holders go at once and so promises the average only.

The clients of a shared ledger measure each its own round trip, so each has its own allowance for being late. The
holder of the *last* slot may be late, not the caller that asks. So the ledger notes in `slack` the
allowance under which the last slot was given, and the next free one is `last + slack + interval`: with equal
allowances that is `last + step`.

Worked example, 1 every 6 s: a call at 3 goes (last = 3), one at 10 goes (last = 10), one at 15 is told to wait
1 s and reserves 16; one at 15.5 reserves 22.

A cancelled slot is given back when it is the last one; `tally` holds what `last` was before it, and `before` what
`slack` was. If the slot was used, that use is forgotten too (`used_by` is the slot of the last use): the use before
it was an interval earlier, and holds nothing up any more. Of the slots before that one only the largest allowance is
known, `older`: cancelling several from the end, given under several allowances, may leave the next slot later than
need be, and never earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, LONG_AGO, Ledger, Rule, ticks

if TYPE_CHECKING:
    from headway.core.limits import Limit, Spacing


class SpacingRule(Rule):
    """One per `interval`; a holder may be late by `allowance`, so slots are a `step` apart, the sum of both."""

    __slots__ = ("allowance", "interval", "max_reserved", "step", "strict")

    def __init__(self, limit: Spacing, tick_ns: int = 1) -> None:
        Rule.__init__(self, limit, tick_ns, promises=True, spaced=True)
        self.interval: int = ticks(limit.interval_ns, tick_ns)
        self.strict: bool = limit.strict
        self.allowance: int = ticks(limit.expire_after_ns or 0, tick_ns) if limit.strict else 0
        self.step: int = self.interval + self.allowance
        self.max_reserved: int = limit.max_reserved

    def recall(self, limit: Limit, tick_ns: int, own: tuple[int, ...]) -> None:
        Rule.__init__(self, limit, tick_ns, promises=True, spaced=True)
        self.interval, self.step, self.max_reserved = own
        self.allowance = self.step - self.interval
        # Without an allowance the numbers do not say; it matters only where uses are reported.
        self.strict = True

    def open(self) -> Ledger:
        return SpacingLedger(self)


class SpacingLedger(Ledger):
    __slots__ = ("before", "last", "older", "rule", "slack", "used", "used_by")

    def __init__(self, rule: SpacingRule) -> None:
        self.rule = rule
        self.last = LONG_AGO
        self.slack = 0
        self.before = 0
        self.older = 0
        self.used = LONG_AGO
        self.used_by = LONG_AGO
        self.tally = LONG_AGO

    def get_rule(self) -> Rule:
        return self.rule

    def next(self) -> int:
        """The first time that is still free."""
        after = self.last + self.slack + self.rule.interval
        return after if after > self.used + self.rule.interval else self.used + self.rule.interval

    def wait(self, now: int, cost: int) -> int:
        if cost > 1:
            return FOREVER
        return self.next() - now if self.next() > now else 0

    def take(self, at: int, cost: int) -> int:
        if self.before > self.older:
            self.older = self.before
        self.before = self.slack
        self.slack = self.rule.allowance
        self.tally = self.last
        self.last = at
        return at

    def slot(self, now: int, cost: int) -> int:
        if now >= self.next():
            return now
        ahead = self.last - now
        reserved = -(-ahead // self.rule.step) if ahead > 0 else 0
        return self.next() if reserved < self.rule.max_reserved else -1

    def slot_after(self, now: int, cost: int) -> int:
        if self.slot(now, cost) >= 0:
            return 0
        if self.rule.max_reserved == 0:
            return self.next() - now
        return self.last - (self.rule.max_reserved - 1) * self.rule.step - now

    def use(self, now: int, mark: int) -> int:
        if self.rule.strict:
            if now < self.used + self.rule.interval:
                return self.used + self.rule.interval - now
            self.used = now
            self.used_by = mark
        return 0

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        if self.last == mark:
            if self.used_by == mark:
                self.used = self.used_by = LONG_AGO
            self.last = tally
            self.slack = self.before
            self.before = self.older
            self.tally = LONG_AGO

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        if actual < cost:
            self.cancel(now, cost, mark, tally)
        elif actual > cost:
            self.tally = self.last
            start = max(self.last, now)
            # A debt beyond the horizon (146 years in nanoseconds) is kept as that.
            most = max(0, (now + self.rule.horizon - start) // self.rule.step - 1)
            self.last = start + min(actual - cost, most) * self.rule.step
            self.widen()

    def remaining(self, now: int) -> int:
        return 1 if now >= self.next() else 0

    def reset_after(self, now: int) -> int:
        return self.next() - now if self.next() > now else 0

    def exhaust(self, now: int) -> None:
        if self.last < now:
            self.last = now
            self.widen()

    def widen(self) -> None:
        """The last slot moved without being granted: its former holder may be as late as it was told."""
        if self.slack < self.rule.allowance:
            self.slack = self.rule.allowance

    def reconfigure(self, rule: Rule, now: int) -> None:
        self.rule = rule  # type: ignore[assignment]
        if self.next() <= now:
            self.older = self.before  # no holder is late any more: what was allowed to the older ones is over

    def copy(self) -> Ledger:
        twin = SpacingLedger(self.rule)
        twin.last = self.last
        twin.slack = self.slack
        twin.before = self.before
        twin.older = self.older
        twin.used = self.used
        twin.used_by = self.used_by
        twin.tally = self.tally
        return twin

    def state(self) -> tuple[int, ...]:
        return (self.last, self.slack, self.used, self.before, self.older)

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        self.last, self.slack, self.used, self.before, self.older = state
        self.used_by = LONG_AGO
        self.tally = tally
