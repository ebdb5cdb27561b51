"""Three pools of time: hold a rate, know how far behind it the work is, catch up without a flood.

A load generator shall start 1000 operations a second, for hours. The naive way sleeps a millisecond after each: the
sleeps are late, the operations take time, and it does 850. The next one keeps a timetable and, when it is late, starts
everything that is due at once: after a pause of a minute that is a flood of 60,000. What is wanted lies between: what
was missed is not forgotten, it is made up at a bounded rate, and meanwhile its amount is known.

So time itself is the currency. One token is one nanosecond; an operation at rate r costs 1e9 / r of them. As time
passes tokens are minted, and they lie in one of three pools:

      time --> active   up to max(1 ms, 2 operations): what may start now
          \\-> waiting  unbounded: unclaimed time, so how far behind schedule the work is
                  |
                  v     only ratio - 1 of the time that passes
               burst    up to active * (ratio - 1): what may start now, on top

    fill by delta:  to_active = min(delta, room in active);   waiting += delta - to_active
                    allowed   = min(room up to active + burst, delta * (ratio - 1))
                    moved     = min(allowed, waiting);        waiting -= moved

(The original has min(delta / active_size, 1) * burst_size where this has delta * (ratio - 1). A delta of more than
active_size fills the active pool, so that there is no more room than burst_size, and both allow the same.)

Tokens are neither made nor lost, to the nanosecond:

    consumed + active + burst + waiting == elapsed

Worked example, 1e7 operations/s, ratio 1.1: active holds 1,000,000 and burst 100,000. A fill of 1,000,000 ns fills
active. 100 more overflow into waiting and let 10 of them on into burst: 90 wait. 10 more: 1 moves, 99 wait.

From the same law comes how late an operation starts: by an even schedule it was due when all that was consumed up to
and with it had been minted, so its delay is elapsed - consumed = active + burst + waiting, after taking it.

**Nothing is rounded away.** 1e9 / r is seldom whole (at 1e12/s it is a thousandth). An operation pays whole tokens, at
first one too many, and what it overpaid (`credit`, in units of 1/parts) is the next one's. So n operations have paid n
* cost, rounded up, whatever n. The burst allowance carries its fraction too (`carry`, in units of 1/per): the
successors of the original cut it off, and below some rate nothing ever reaches their burst pool. All products fit 63
bits, because the large factor is divided first.

**Waiting is paying ahead.** A caller that finds too little takes it nevertheless, and `pool` (active and burst are
one number: what is above `active_size` is burst) goes below 0. The caller's *turn* comes when time has filled it up
to 0 again. In debt all time goes into the pool and nothing into waiting, so with a debt d that moment is known to the
nanosecond:

    t + min(floor((carry + t * extra) / per), waiting) >= d        where ratio - 1 = extra / per

Newcomers owe more and come later: first come, first served, and one sleep for each. An amount that no pool could hold
is no special case: it is paid in parts, as time passes. What is promised counts as consumed when its time has come.

**Giving up.** A caller that gives up before its turn gives its tokens back, and the waiters behind it move up: all
turns that have not come are undone and taken again, in order. The same happens when the pace changes. Giving up again
and again, among thousands, must not be quadratic. So what is given back from the middle of the queue is only `held`,
and the next call does the moving, once. A turn that came and was not used is unclaimed time, so it goes to waiting.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

ACTIVE_NS = 1_000_000
MAX_PARTS = 10**9
# C values where this file is compiled: a literal beyond 31 bits would be a Python object there.
MAX_DEBT = 1 << 60
FOREVER = 1 << 62
SMALL = 1 << 32


def quotient(number: int, by: int) -> int:
    """number // by, of what is not negative: compiled, 32 bits are divided in a fraction of the time of 64."""
    if number < SMALL and by < SMALL:
        short, short_by = number, by
        return short // short_by
    return number // by


class PoolRule:
    """A pace as integers: an operation costs `whole + part / parts` ns, and ratio - 1 is `extra / per`.

    A cost whose fraction has more than nine digits becomes the nearest one that has not.

    >>> rule = PoolRule(Fraction(10**7), Fraction(11, 10))
    >>> rule.whole, rule.active_size, rule.burst_size
    (100, 1000000, 100000)
    """

    __slots__ = (
        "active_size",
        "at_once",
        "burst_size",
        "extra",
        "full",
        "most",
        "part",
        "parts",
        "per",
        "rate",
        "ratio",
        "whole",
    )

    def __init__(self, rate: Fraction, ratio: Fraction) -> None:
        self.rate = rate
        self.ratio = ratio
        cost = (10**9 / rate).limit_denominator(MAX_PARTS)
        self.parts: int = cost.denominator
        self.whole: int = cost.numerator // cost.denominator
        self.part: int = cost.numerator % cost.denominator
        self.extra: int = (ratio - 1).numerator
        self.per: int = (ratio - 1).denominator
        self.active_size: int = max(ACTIVE_NS, -(-2 * cost.numerator // cost.denominator))
        self.burst_size: int = self.active_size * self.extra // self.per
        self.full: int = self.active_size + self.burst_size
        self.at_once: int = self.full * cost.denominator // cost.numerator
        # What can be asked for in one go, so that no product leaves 63 bits.
        self.most: int = min(MAX_DEBT // (self.whole + 1), MAX_DEBT // max(self.part, 1))


class Turn:
    """One caller's place: what it asked for, when it may start, and when it should have."""

    __slots__ = ("due", "epoch", "mark", "moved", "ops", "reserved", "waker")

    def __init__(self, ops: int) -> None:
        self.ops = ops
        self.due = FOREVER
        self.mark = 0
        self.epoch = 0
        self.reserved = False
        self.moved = False
        self.waker: Any = None


class Pools:
    """The three pools, and the queue of callers that have paid ahead.

    >>> pools = Pools(PoolRule(Fraction(10**7), Fraction(11, 10)), 0)
    >>> for now in (1_000_000, 1_000_100, 1_000_110):
    ...     pools.fill(now)
    ...     pools.active() + pools.burst() + pools.waiting, pools.waiting
    (1000000, 0)
    (1000100, 90)
    (1000110, 99)
    """

    __slots__ = (
        "at",
        "carry",
        "charged",
        "credit",
        "epoch",
        "held",
        "ops",
        "pool",
        "rule",
        "running",
        "started",
        "turns",
        "waiting",
    )

    def __init__(self, rule: PoolRule, now: int) -> None:
        self.rule = rule
        self.turns: dict[Turn, None] = {}
        self.epoch = 0
        self.running = True
        self.held = 0
        self.ops = 0
        self.clear(now)

    def clear(self, now: int) -> None:
        self.started = now
        self.at = now
        self.pool = 0
        self.waiting = 0
        self.charged = 0
        self.credit = 0
        self.carry = 0

    # -- filling and taking

    def fill(self, now: int) -> None:
        """Mint what time has passed. A clock that runs backward mints nothing until it is back."""
        delta = now - self.at
        if delta > 0 and self.running:
            self.at = now
            self.mint(self.rule, delta)

    def mint(self, rule: PoolRule, delta: int) -> None:
        """Put new tokens where there is room for them."""
        room = rule.active_size - self.pool
        if room >= delta:
            self.pool += delta
        elif room > 0:
            self.pool += room
            self.waiting += delta - room
        else:
            self.waiting += delta
        if self.waiting > 0 and self.pool < rule.full:
            self.move(rule, delta)

    def move(self, rule: PoolRule, delta: int) -> None:
        """Let as much of the waiting time through as `delta` allows."""
        room = rule.full - self.pool
        allowed = 0
        if delta >= SMALL:
            allowed = delta // rule.per
            allowed = allowed * rule.extra if allowed < FOREVER // (rule.extra + 1) else FOREVER
            delta = delta % rule.per
        part = delta * rule.extra + self.carry
        if room < SMALL and part >= room * rule.per:
            # There is room for no more than is allowed in any case: nothing to divide, and the rest is void.
            allowed = room
            self.carry = 0
        else:
            whole = quotient(part, rule.per)
            allowed += whole
            self.carry = part - whole * rule.per
        if allowed > room:
            allowed = room
        if allowed > self.waiting:
            allowed = self.waiting
        self.pool += allowed
        self.waiting -= allowed

    def take(self, now: int, ops: int) -> int:
        """Start `ops` now: the scheduling delay in ns, or -1 if it is too early."""
        if not self.running:
            return -1
        rule = self.rule
        if now > self.at:
            delta = now - self.at
            self.at = now
            self.mint(rule, delta)
        cost = ops * rule.whole
        left = self.credit - ops * rule.part
        if left < 0:
            # One more pays for it, mostly; to divide takes longer than all the rest.
            cost += 1
            left += rule.parts
            if left < 0:
                lacking = quotient(rule.parts - 1 - left, rule.parts)
                cost += lacking
                left += lacking * rule.parts
        if self.pool < cost:
            return -1
        self.credit = left
        self.pool -= cost
        self.charged += cost
        self.ops += ops
        return self.pool + self.waiting

    def reserve(self, turn: Turn) -> None:
        """Let `turn` pay, ahead of time if need be, and tell it when it may start."""
        rule = self.rule
        cost = turn.ops * rule.whole
        left = self.credit - turn.ops * rule.part
        if left < 0:
            lacking = quotient(rule.parts - 1 - left, rule.parts)
            cost += lacking
            left += lacking * rule.parts
        self.credit = left
        self.pool -= cost
        self.charged += cost
        self.ops += turn.ops
        turn.epoch = self.epoch
        turn.reserved = True
        turn.mark = self.started + self.charged
        turn.due = self.at + self.lag()

    def refund(self, ops: int) -> int:
        """Undo the payment for `ops`, exactly: the tokens that are free again, for the caller to put somewhere."""
        rule = self.rule
        part = self.credit + ops * rule.part
        self.credit = part % rule.parts
        self.ops -= ops
        return ops * rule.whole + part // rule.parts

    def lag(self) -> int:
        """Nanoseconds until the debt is paid; 0 if there is none."""
        debt = -self.pool
        if debt <= 0:
            return 0
        rule = self.rule
        both = rule.per + rule.extra
        rest = debt % both * rule.per - self.carry
        time = debt // both * rule.per
        if rest > 0:
            time += (rest + both - 1) // both
        return time if time > debt - self.waiting else debt - self.waiting

    # -- the queue of waiters

    def join(self, turn: Turn, now: int) -> bool:
        """Queue `turn`; False, and nothing has changed, if the queue reaches further than 36 years."""
        self.fill(now)
        if self.held:
            self.settle()
        if -self.pool > MAX_DEBT:
            return False
        self.turns[turn] = None
        if self.running:
            self.reserve(turn)
        return True

    def leave(self, turn: Turn) -> None:
        """It has started."""
        self.turns.pop(turn, None)

    def cancel(self, turn: Turn, now: int) -> Turn | None:
        """It will not start. Returns the turn whose waiter must look again, as something is held for those behind."""
        self.fill(now)
        last = next(reversed(self.turns)) is turn
        del self.turns[turn]
        if turn.reserved and turn.epoch == self.epoch:
            freed = self.refund(turn.ops)
            if turn.due <= self.at:
                self.charged -= freed
                self.waiting += freed
            elif last:
                self.charged -= freed
                self.pool += freed
                self.clip()
            else:
                self.held += freed
        if not self.held:
            return None
        if not self.turns:
            self.settle()
            return None
        return next(reversed(self.turns))

    def settle(self) -> None:
        """Give out what is held: every turn that has not come moves up."""
        self.unwind()
        self.clip()
        self.rewind()

    def unwind(self) -> None:
        """Undo every turn that has not come."""
        freed = self.held
        self.held = 0
        for turn in self.turns:
            if turn.reserved and turn.due > self.at:
                turn.reserved = False
                freed += self.refund(turn.ops)
        self.charged -= freed
        self.pool += freed

    def rewind(self) -> None:
        """Take them again, in order."""
        for turn in self.turns:
            if not turn.reserved:
                before = turn.due
                turn.due = FOREVER
                if self.running:
                    self.reserve(turn)
                turn.moved = turn.due < before

    def clip(self) -> None:
        """What the pools cannot hold is unclaimed time."""
        if self.pool > self.rule.full:
            self.waiting += self.pool - self.rule.full
            self.pool = self.rule.full

    # -- changing

    def set_rate(self, rule: PoolRule, now: int) -> None:
        """Go on at another pace. Time is kept: a backlog of 5 s is 5 s at any rate."""
        self.fill(now)
        self.unwind()
        self.credit = self.credit * rule.parts // self.rule.parts
        self.carry = 0
        self.rule = rule
        self.epoch += 1
        self.clip()
        self.rewind()

    def run(self, now: int, running: bool) -> None:
        """Start or stop. While stopped, time does not count and no turn comes."""
        if running == self.running:
            return
        self.fill(now)
        self.unwind()
        self.clip()
        if running and now > self.at:
            self.started += now - self.at
            self.at = now
        self.running = running
        self.rewind()

    def restart(self, now: int) -> None:
        """Begin anew: nothing minted, nothing owed but to waiters."""
        self.fill(now)
        self.unwind()
        self.clear(now if now > self.at else self.at)
        self.ops = 0
        self.epoch += 1
        self.running = True
        self.rewind()

    # -- looking

    def active(self) -> int:
        return max(0, min(self.pool, self.rule.active_size))

    def burst(self) -> int:
        return max(0, self.pool - self.rule.active_size)

    def consumed(self) -> int:
        """What was paid by now; a debt is consumed as it is paid."""
        return self.charged + min(self.pool, 0)

    def elapsed(self) -> int:
        return self.at - self.started
