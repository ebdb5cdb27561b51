"""Never more than n in any w, wherever the window starts, as the remote measures it.

The naive window counts per calendar second or minute and starts again at zero: 2n fit around its edge. The next
idea remembers when each of the last n calls was *sent* and allows another when the oldest is w old. That is
exact for a limit of our own. It is not when somebody else counts: a call sent at 0 may be noted there at 0.9,
one sent at 1.0 may be noted at 1.0, and the remote saw two within a tenth of a second.

So turn calls into currency. n permits exist from the start, and never more. A call checks one out; while it is
out, nobody else has it, so it cannot matter when the remote notes the call. When the answer is there the call
has certainly been noted, and the permit *cools*: it is usable again at completion + gap, where the gap
(`headway.core.remote`) is w as it looks through their clock and ours. A permit is thus in one of three places,
and the sum is always n:

    free      usable now                         a number
    cooling   usable at a known time             runs of (usable at, count), in order of time
    out       checked out, not ended yet         runs of (granted at, count), in order of time

    take      free -> out            (without a remote the call is its own record: free -> cooling, usable at + w;
                                     its mark is that time, negative to tell it from a time of grant)
    complete  out  -> cooling        usable at now + gap
    cancel    out  -> free           it was usable when it was taken, and nothing happened since
    abandon   out stays out          until granted + transit: by then the remote has noted it or never will. A
                                     permit that nobody ended counts as completed at that moment, abandoned or
                                     not: an answer that takes 30 s does not hold its permit for 30 s

What was abandoned will not come back early: `lost` counts it, among those that are out. So while only abandoned permits
are missing, the time is known. Of a permit that leaves `out` because its transit is over nothing says whether it was
abandoned, so it is taken for one that was: `lost` never says more than there are, and `wait` stays a lower bound.

Worked example: "2/s", remote, gap 1.02 s. Two calls go at 0, answers at 0.1 and 0.3. The permits are usable at
1.12 and 1.32; a third caller at 0.2 hears "1.12, exactly", since one of the two is cooling already. Had it
asked at 0.05, both were out: "at least 1.02 s from now", and nothing exact.

`free` may fall below zero: who settles for more than was taken has used permits that were not there. They cool
like all others, and the next grant has to wait until free is positive again. That is all there is to debt.

Under another rule (`reconfigure`) what cools is moved by the difference of the gaps; `tally` is the sum of all moves,
so that a permit finds its own place again and no other.

For n above 1024 times are rounded *up* to a grid of 1/1024 of the window when they are recorded, and never
revised: the ledger of 1,000,000 a day stays at some kilobytes, and a promise once given stays true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, Ledger, Rule, ticks
from headway.core.remote import gap_ns, transit_ns
from headway.core.runs import Runs

if TYPE_CHECKING:
    from headway.core.limits import Limit, Window

FINE = 1024


class WindowRule(Rule):
    """n permits, each usable `gap` after its completion, and completed `transit` after its grant at the latest."""

    __slots__ = ("gap", "grid", "out_grid", "transit")

    def __init__(
        self, limit: Window, resolution_ns: int, drift_ppm: float, tick_ns: int = 1, lease_ns: int = 0
    ) -> None:
        Rule.__init__(self, limit, tick_ns, held=limit.remote is not None)
        gap: int = limit.per_ns
        transit = 0
        if limit.remote is not None:
            # A negative gap is none: usable as soon as it completes. Both together stay within 146 years.
            gap = min(max(0, gap_ns(limit.per_ns, limit.remote, resolution_ns, drift_ppm)), FOREVER)
            transit = min(transit_ns(limit.remote, resolution_ns, drift_ppm, lease_ns), FOREVER - gap)
        self.gap = ticks(gap, tick_ns)
        self.transit = ticks(transit, tick_ns)
        coarse = limit.count > FINE
        self.grid: int = max(1, ticks(limit.per_ns, tick_ns) // FINE) if coarse else 1
        self.out_grid: int = max(1, self.transit // FINE) if coarse else 1

    def recall(self, limit: Limit, tick_ns: int, own: tuple[int, ...]) -> None:
        Rule.__init__(self, limit, tick_ns, held=own[4] == 1)
        self.gap, self.grid, self.transit, self.out_grid = own[:4]

    def open(self) -> Ledger:
        return WindowLedger(self)


class WindowLedger(Ledger):
    __slots__ = ("cooling", "free", "lost", "out", "rule")

    def __init__(self, rule: WindowRule) -> None:
        self.tally = 0
        self.rule = rule
        self.free: int = rule.capacity
        self.cooling = Runs()
        self.out = Runs() if rule.held else None
        # How many of those that are out were abandoned, at least.
        self.lost = 0

    def get_rule(self) -> Rule:
        return self.rule

    def advance(self, now: int) -> None:
        """Let time act: overdue permits complete, cooled ones become free. Nothing observable changes."""
        out = self.out
        if out is not None:
            while out.first <= now - self.rule.transit:
                due = out.first + self.rule.transit
                count = out.pop()
                self.lost = self.lost - count if self.lost > count else 0
                self.cool(due, count)
        cooling = self.cooling
        while cooling.first <= now:
            self.free += cooling.pop()

    def cool(self, completed: int, count: int) -> int:
        at = completed + self.rule.gap
        # A time that the last run covers is rounded up to it; only a new run needs a place on the grid.
        if self.cooling.size == 0 or self.cooling.last_time() < at:
            at = self.usable(completed)
        return self.cooling.add(at, count)

    def usable(self, completed: int) -> int:
        at = completed + self.rule.gap
        if self.rule.grid > 1:
            at = -(-at // self.rule.grid) * self.rule.grid
        return at

    def wait(self, now: int, cost: int) -> int:
        self.advance(now)
        need = cost - self.free
        if need <= 0:
            return 0
        if need <= self.cooling.total:
            return self.cooling.time_of(need) - now
        if cost > self.rule.capacity:
            return FOREVER
        # The missing ones are out. At best they complete this instant; what cools already is free before them.
        least = self.rule.gap if self.rule.gap > 1 else 1
        assert self.out is not None
        # As many as these must sit out their transit; at best it is those that were granted first.
        need -= self.cooling.total + self.out.total - self.lost
        return (
            least if need <= 0 else max(least, self.usable(self.out.time_of(need) + self.rule.transit) - now)
        )

    def latest_wait(self, now: int, cost: int) -> int:
        self.advance(now)
        need = cost - self.free
        if need <= 0:
            return 0
        if need <= self.cooling.total:
            return self.cooling.time_of(need) - now
        if cost > self.rule.capacity:
            return FOREVER
        assert self.out is not None
        return self.usable(self.out.time_of(need - self.cooling.total) + self.rule.transit) - now

    def slot(self, now: int, cost: int) -> int:
        rule = self.rule
        wait = self.wait(now, cost)
        # Neither its times nor what is owed may leave the horizon.
        if wait > rule.horizon - rule.gap - rule.transit or cost - self.free >= rule.horizon:
            return -1
        return now + wait if self.exact(now, cost) else -1

    def exact(self, now: int, cost: int) -> bool:
        self.advance(now)
        need = cost - self.free
        if need <= self.cooling.total:
            return True
        return self.out is not None and self.lost == self.out.total and cost <= self.rule.capacity

    def take(self, at: int, cost: int) -> int:
        self.free -= cost
        if self.out is None:
            return -self.cool(at, cost)
        if self.rule.out_grid > 1 and (self.out.size == 0 or self.out.last_time() < at):
            at = -(-at // self.rule.out_grid) * self.rule.out_grid
        return self.out.add(at, cost)

    def complete(self, now: int, cost: int, mark: int) -> None:
        self.advance(now)
        if self.out is not None and mark >= 0:
            found = self.out.remove(mark, cost)
            if found > 0:
                self.cool(now, found)

    def abandon(self, now: int, cost: int, mark: int) -> None:
        # It stays out until its transit is over.
        self.advance(now)
        if self.out is not None and mark >= self.out.first:
            self.lost = min(self.lost + cost, self.out.total)

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        self.advance(now)
        if mark < 0:
            self.free += self.cooling.remove(self.tally - tally - mark, cost)
        elif self.out is not None:
            self.free += self.out.remove(mark, cost)

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        self.advance(now)
        if actual < cost:
            self.cancel(now, cost - actual, mark, tally)
        elif actual > cost:
            # A debt beyond the horizon is kept as that many permits: numbers end there.
            extra = min(actual - cost, self.free - 1 + self.rule.horizon)
            if extra > 0:
                self.free -= extra
                self.cool(now, extra)
        self.complete(now, min(cost, actual), mark)

    def remaining(self, now: int) -> int:
        self.advance(now)
        return self.free if self.free > 0 else 0

    def reset_after(self, now: int) -> int:
        self.advance(now)
        last = now
        if self.cooling.size > 0:
            last = self.cooling.last_time()
        if self.out is not None and self.out.size > 0:
            last = max(last, self.usable(self.out.last_time() + self.rule.transit))
        return last - now

    def in_flight(self, now: int) -> int:
        self.advance(now)
        return 0 if self.out is None else self.out.total

    def idle(self, now: int) -> bool:
        self.advance(now)
        return self.free == self.rule.capacity

    def exhaust(self, now: int) -> None:
        self.advance(now)
        if self.free <= 0:
            return
        count, self.free = self.free, 0
        if self.out is None:
            self.cool(now, count)
        else:
            self.out.add(now, count)

    def reconfigure(self, rule: Rule, now: int) -> None:
        self.advance(now)
        before = self.rule
        self.rule = rule  # type: ignore[assignment]
        self.free += self.rule.capacity - before.capacity
        self.cooling.shift(self.rule.gap - before.gap)
        self.tally += self.rule.gap - before.gap
        if self.out is None and self.rule.held:
            self.out = Runs()
        elif self.out is not None and not self.rule.held:
            count = self.out.total
            self.out = None
            self.lost = 0
            if count > 0:
                self.cool(now, count)

    def copy(self) -> Ledger:
        twin = WindowLedger(self.rule)
        twin.free = self.free
        twin.cooling = self.cooling.copy()
        twin.out = None if self.out is None else self.out.copy()
        twin.tally = self.tally
        twin.lost = self.lost
        return twin

    def state(self) -> tuple[int, ...]:
        out = () if self.out is None else self.out.pairs()
        return (self.free, self.lost, *self.cooling.pairs(), -1, *out)

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        end = state.index(-1, 2)
        self.free, self.lost = state[:2]
        self.tally = tally
        for i in range(2, end, 2):
            self.cooling.add(state[i], state[i + 1])
        if self.out is not None:
            for i in range(end + 1, len(state), 2):
                self.out.add(state[i], state[i + 1])
