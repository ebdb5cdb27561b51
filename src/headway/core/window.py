"""Never more than n in any w, wherever the window starts, as the remote measures it.

The naive window counts per calendar second or minute and starts again at zero: 2n fit around its edge. The next
idea remembers when each of the last n calls was *sent* and allows another when the oldest is w old. That is
exact for a limit of our own. It is not when a remote counts: a call sent at 0 may be noted there at 0.9,
one sent at 1.0 may be noted at 1.0, and the remote saw two within a tenth of a second.

So turn calls into currency. n permits exist from the start, and never more. A call checks one out; while it is
out, no other call has it, so it cannot matter when the remote notes the call. When the answer is there the call
has certainly been noted, and the permit *cools*: it is usable again at completion + gap, where the gap
(`headway.core.remote`) is w as it looks through their clock and ours. A permit is thus in one of three places,
and the sum is always n:

    free      usable now                         a number
    cooling   usable at a known time             runs of (usable at, count), in order of time
    out       checked out, not ended yet         runs of (granted at, count), in order of time

    take_held free -> out
    take      free -> cooling        the decision is its own record, usable at + w; its mark is that time, negative to
                                     tell it from a time of grant
    enter     cooling -> out         what was taken by its decision turns out to bracket a call
    complete  out  -> cooling        usable at now + gap
    cancel    out  -> free           it was usable when it was taken, and nothing happened since
    abandon   out stays out          until granted + transit: by then the remote has noted it or never will. A
                                     permit without an end counts as completed at that moment, abandoned or
                                     not: an answer that takes 30 s does not hold its permit for 30 s

Which of the two a permit is depends on the limit. With a `Remote` every permit is out until it ends. With
`remote=False` none is: the limit is our own, and the decision is what counts. With `remote=None`, the default, it
depends on the use. A permit that is *entered* (`with`, `hold`, `throttle`) brackets a call to a remote that counts,
and its end is known: it is out, and cools for the gap of `Remote()`. A bare `acquire` has no end, and is recorded at
the decision. One that is entered later is moved (`enter`). If it has cooled by then, its permit may be in use again:
then it is owed, which costs the next one a wait and mints nothing.

Two gaps in one ledger: a bare permit may cool before one that completed earlier. So where both kinds are there, runs
are put in their place in the order of time, and not at the end. And in a shared ledger a bare permit may be promised
for later, and cools far ahead; while others are out that may come back before it, no time is exact. Nor is any time
promised there while a bare permit cools that may still be entered (`enterable`): it would be out then, and the promise
too early.

An abandoned permit does not come back before its transit is over: `lost` counts those among the permits that are out.
So while only abandoned permits are missing, the time is known. Nothing says whether a permit that leaves `out` because
its transit is over was abandoned. It is taken for one that was: so `lost` is never too high, and `wait` stays a lower
bound.

Worked example: "2/s", remote, gap 1.02 s. Two calls go at 0, answers at 0.1 and 0.3. The permits are usable at
1.12 and 1.32; a third caller at 0.2 hears "1.12, exactly", since one of the two is cooling already. Had it
asked at 0.05, both were out: "at least 1.02 s from now", and nothing exact.

`free` may fall below zero: a caller that settles for more than it took has used permits that were not there. They cool
like all others, and the next grant has to wait until free is positive again. That is all there is to debt.

Under another rule (`reconfigure`) what cools is moved by the difference of the gaps; `tally` is the sum of all moves,
so that a permit finds its own place again and no other.

A lease (`headway.core.lease`) moves permits from one ledger to another: `withdraw` takes them out, with the times at
which they are usable, and `deposit` puts them in. `lent` counts what is elsewhere, so that the sum stays n here too.

For n above 1024 times are rounded *up* to a grid of 1/1024 of the window when they are recorded, and never
revised: the ledger of 1,000,000 a day stays at some kilobytes, and a promise once given stays true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, Ledger, Rule, ticks
from headway.core.remote import Remote, gap_ns, transit_ns
from headway.core.runs import Runs
from headway.core.shares import sample

if TYPE_CHECKING:
    from headway.core.limits import Limit, Window

FINE = 1024


NEVER_OUT, ALWAYS_OUT, OUT_IF_ENTERED = 0, 1, 2
"""Which permits are out until they end, as it is written down: `remote=False`, a `Remote`, `remote=None`."""


class WindowRule(Rule):
    """n permits, each usable `gap` after its completion, and completed `transit` after its grant at the latest.

    One that is recorded at its decision is usable `bare_gap` after that.
    """

    __slots__ = ("bare_gap", "gap", "grid", "out_grid", "transit")

    def __init__(
        self, limit: Window, resolution_ns: int, drift_ppm: float, tick_ns: int = 1, lease_ns: int = 0
    ) -> None:
        asked = limit.remote
        Rule.__init__(self, limit, tick_ns, held=isinstance(asked, Remote), bracketed=asked is None)
        gap: int = limit.per_ns
        transit = 0
        if asked is not False:
            # A negative gap is none: usable as soon as it completes. Both together stay within 146 years.
            remote = Remote() if asked is None else asked
            gap = min(max(0, gap_ns(limit.per_ns, remote, resolution_ns, drift_ppm)), FOREVER)
            transit = min(transit_ns(remote, resolution_ns, drift_ppm, lease_ns), FOREVER - gap)
        self.gap = ticks(gap, tick_ns)
        self.bare_gap = ticks(limit.per_ns, tick_ns) if self.bracketed else self.gap
        self.transit = ticks(transit, tick_ns)
        coarse = limit.count > FINE
        self.grid: int = max(1, ticks(limit.per_ns, tick_ns) // FINE) if coarse else 1
        self.out_grid: int = max(1, self.transit // FINE) if coarse else 1

    def recall(self, limit: Limit, tick_ns: int, own: tuple[int, ...]) -> None:
        which = own[4]
        Rule.__init__(self, limit, tick_ns, held=which == ALWAYS_OUT, bracketed=which == OUT_IF_ENTERED)
        self.gap, self.grid, self.transit, self.out_grid = own[:4]
        self.bare_gap = own[5] if self.bracketed else self.gap

    def numbers(self) -> tuple[int, ...]:
        """What `recall` reads."""
        which = OUT_IF_ENTERED if self.bracketed else ALWAYS_OUT if self.held else NEVER_OUT
        return (self.gap, self.grid, self.transit, self.out_grid, which, self.bare_gap)

    def open(self) -> Ledger:
        return WindowLedger(self)


class WindowLedger(Ledger):
    __slots__ = ("cooling", "enterable", "free", "lent", "lost", "out", "rule", "unordered")

    def __init__(self, rule: WindowRule) -> None:
        self.tally = 0
        # Until when a bare permit cools that may be entered before.
        self.enterable = 0
        self.rule = rule
        self.free: int = rule.capacity
        self.cooling = Runs()
        # Where it depends on the use it is made with the first permit that is out: most ledgers never have one.
        self.out: Runs | None = Runs() if rule.held else None
        # How many of those that are out were abandoned, at least.
        self.lost = 0
        self.lent = 0
        # Whether permits came from another ledger: then one may cool before those that were recorded earlier.
        self.unordered = False

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
                self.cool(due + self.rule.gap, count)
        cooling = self.cooling
        while cooling.first <= now:
            self.free += cooling.pop()

    def cool(self, at: int, count: int) -> int:
        cooling = self.cooling
        if cooling.size == 0 or cooling.last_time() < at:
            return cooling.add(self.on_grid(at), count)
        if (self.rule.bracketed or self.unordered) and cooling.last_time() - self.rule.grid >= at:
            return cooling.insert(self.on_grid(at), count)
        # A time that the last run covers is rounded up to it, and needs no place on the grid.
        return cooling.add(at, count)

    def on_grid(self, at: int) -> int:
        return -(-at // self.rule.grid) * self.rule.grid if self.rule.grid > 1 else at

    def some_out(self) -> bool:
        return self.out is not None and self.out.total > 0

    def wait(self, now: int, cost: int) -> int:
        self.advance(now)
        need = cost - self.free
        if need <= 0:
            return 0
        least = self.rule.gap if self.rule.gap > 1 else 1
        if need <= self.cooling.total:
            wait = self.cooling.time_of(need) - now
            if wait <= least or not self.some_out():
                return wait
            # It cools behind what was promised for later, and what is out may come back before.
            need -= self.out.total  # type: ignore[union-attr] # some are out
            return max(least, self.cooling.time_of(need) - now) if need > 0 else least
        if cost > self.rule.capacity:
            return FOREVER
        # The missing ones are out. At best they complete this instant; what cools already is free before them.
        if self.lost == 0:
            return least
        # As many as these must sit out their transit; at best it is those that were granted first.
        need -= self.cooling.total + self.out.total - self.lost  # type: ignore[union-attr] # some are out
        if need <= 0:
            return least
        due = self.out.time_of(need) + self.rule.transit  # type: ignore[union-attr]
        return max(least, self.on_grid(due + self.rule.gap) - now)

    def latest_wait(self, now: int, cost: int) -> int:
        self.advance(now)
        need = cost - self.free
        if need <= 0:
            return 0
        if need <= self.cooling.total:
            return self.cooling.time_of(need) - now
        if cost > self.rule.capacity:
            return FOREVER
        if self.out is None or need - self.cooling.total > self.out.total:
            return FOREVER  # with clients that hold tokens (`headway.core.lease`)
        due = self.out.time_of(need - self.cooling.total) + self.rule.transit
        last = self.cooling.last_time() if self.cooling.size > 0 else now
        return max(self.on_grid(due + self.rule.gap), last) - now

    def slot(self, now: int, cost: int) -> int:
        rule = self.rule
        wait = self.wait(now, cost)
        # Neither its times nor what is owed may leave the horizon.
        if wait > rule.horizon - rule.gap - rule.transit or cost - self.free >= rule.horizon:
            return -1
        if wait > 0 and self.enterable > now:
            return -1
        return now + wait if self.exact(now, cost) else -1

    def exact(self, now: int, cost: int) -> bool:
        self.advance(now)
        need = cost - self.free
        if need > self.cooling.total:
            # Of permits that were abandoned the time is known, unless others cool that were promised for later.
            known = self.rule.held and self.lost > 0 and self.lost == self.out.total  # type: ignore[union-attr]
            return known and cost <= self.rule.capacity
        return need <= 0 or not self.some_out() or self.cooling.time_of(need) - now <= self.rule.gap

    def take(self, at: int, cost: int) -> int:
        if self.rule.held:
            return self.take_held(at, cost)
        self.free -= cost
        usable = self.cool(at + self.rule.bare_gap, cost)
        if self.rule.bracketed:
            # No holder enters it after its transit: there is a deadline before that.
            until = min(usable, at + self.rule.transit)
            if self.enterable < until:
                self.enterable = until
        return -usable

    def take_held(self, at: int, cost: int) -> int:
        if not (self.rule.held or self.rule.bracketed):
            return self.take(at, cost)
        # First: what makes room for the run may let others in, and they must not find it free.
        self.free -= cost
        out = self.out
        if out is None:
            out = self.some_room()
        if self.rule.out_grid > 1 and (out.size == 0 or out.last_time() < at):
            at = self.on_out_grid(at)
        return out.add(at, cost)

    def some_room(self) -> Runs:
        if self.out is None:
            fresh = Runs()
            if self.out is None:
                self.out = fresh
        return self.out

    def on_out_grid(self, at: int) -> int:
        return -(-at // self.rule.out_grid) * self.rule.out_grid if self.rule.out_grid > 1 else at

    def enter(self, now: int, cost: int, mark: int, tally: int, at: int) -> int:
        if mark >= 0 or not self.rule.bracketed:
            return mark
        self.advance(now)
        # What has cooled meanwhile may be another's by now, and is owed.
        self.free -= cost - self.cooling.remove(self.tally - tally - mark, cost)
        return self.some_room().insert(self.on_out_grid(at), cost)

    def complete(self, now: int, cost: int, mark: int) -> None:
        self.advance(now)
        if self.out is not None and mark >= 0:
            found = self.out.remove(mark, cost)
            if found > 0:
                self.cool(now + self.rule.gap, found)

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
                self.cool(now + (self.rule.gap if mark >= 0 else self.rule.bare_gap), extra)
        self.complete(now, min(cost, actual), mark)

    def withdraw(self, now: int, count: int) -> tuple[int, ...]:
        """Take up to `count` permits out of this ledger: free ones first, then an even sample of those that cool.

        Returns (usable at, count, ...), flat, in the order of time; see `headway.core.tokens`.
        """
        self.advance(now)
        moved: list[int] = []
        idle = min(count, max(0, self.free))
        if idle > 0:
            self.free -= idle
            moved += (now, idle)
        # What is owed is paid by those that cool, so as many of them stay.
        wanted = min(count - idle, self.cooling.total + min(0, self.free))
        if wanted > 0:
            pairs = self.cooling.pairs()
            for i, taken in enumerate(sample(pairs[1::2], wanted)):
                if taken > 0:
                    moved += (pairs[2 * i], self.cooling.remove(pairs[2 * i], taken))
        self.lent += idle + max(0, wanted)
        return tuple(moved)

    def deposit(self, now: int, usable: int, count: int) -> None:
        """Put permits into this ledger that were withdrawn from another one: usable at that time."""
        self.advance(now)
        self.lent -= count
        if usable <= now:
            self.free += count
        else:
            self.unordered = True
            self.cooling.insert(self.on_grid(usable), count)

    def remaining(self, now: int) -> int:
        self.advance(now)
        return self.free if self.free > 0 else 0

    def reset_after(self, now: int) -> int:
        self.advance(now)
        last = now
        if self.cooling.size > 0:
            last = self.cooling.last_time()
        if self.out is not None and self.out.size > 0:
            last = max(last, self.on_grid(self.out.last_time() + self.rule.transit + self.rule.gap))
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
        if self.rule.held:
            self.some_room().add(now, count)
        else:
            self.cool(now + self.rule.gap, count)

    def reconfigure(self, rule: Rule, now: int) -> None:
        self.advance(now)
        before = self.rule
        self.rule = rule  # type: ignore[assignment]
        self.free += self.rule.capacity - before.capacity
        self.unordered = self.lent != 0
        # Nothing says of which kind a run is: by what is enough for both.
        by = max(self.rule.gap - before.gap, self.rule.bare_gap - before.bare_gap)
        self.cooling.shift(by)
        self.tally += by
        if self.rule.held:
            self.some_room()
        elif self.out is not None and not self.rule.bracketed:
            count = self.out.total
            self.out = None
            self.lost = 0
            if count > 0:
                self.cool(now + self.rule.gap, count)

    def copy(self) -> Ledger:
        twin = WindowLedger(self.rule)
        twin.free = self.free
        twin.cooling = self.cooling.copy()
        twin.out = None if self.out is None else self.out.copy()
        twin.tally = self.tally
        twin.enterable = self.enterable
        twin.lost = self.lost
        twin.lent = self.lent
        twin.unordered = self.unordered
        return twin

    def mend(self, now: int) -> None:
        # The sum is always n: what was on its way from one place to another cools as if it had completed now.
        self.cooling.mend()
        missing = self.rule.capacity - self.lent - self.free - self.cooling.total
        if self.out is not None:
            self.out.mend()
            missing -= self.out.total
            self.lost = min(self.lost, self.out.total)
        if missing > 0:
            self.cool(now + self.rule.gap, missing)
        else:
            self.free += missing

    def state(self) -> tuple[int, ...]:
        out = () if self.out is None else self.out.pairs()
        return (self.free, self.enterable, self.lost, *self.cooling.pairs(), -1, *out)

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        end = state.index(-1, 3)
        self.free, self.enterable, self.lost = state[:3]
        self.tally = tally
        for i in range(3, end, 2):
            self.cooling.add(state[i], state[i + 1])
        for i in range(end + 1, len(state), 2):
            self.some_room().add(state[i], state[i + 1])
        here = self.free + self.cooling.total + (0 if self.out is None else self.out.total)
        self.lent = self.rule.capacity - here
        self.unordered = self.lent != 0
