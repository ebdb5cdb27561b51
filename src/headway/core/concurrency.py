"""At most n at the same time.

There is no clock at all. A permit is out from its check-out until its hand-back, however long that takes, and it does
not matter how the call ended. The time of a hand-back is unknown: so `wait` is the least there is, one tick, and
`latest_wait` is never. A permit that its holder drops without an end is handed back when Python reclaims it.

Worked example, 2 concurrent: A and B go. C waits in the queue; when A completes, C is woken.

A holder in another process can vanish without a release, and a count alone would miss its permit for ever. So in a
shared ledger a permit has a *lease*. Its holder renews it (`renew`), and a permit that was neither ended nor renewed
for a whole lease is given back. Now it matters which permit ends: an expired one has been granted to another caller,
and a late end of it must not mint a second one. So the ledger keeps runs of (granted or renewed at, count), as a
window does, and an end takes what is still there under its mark: nothing, if it has expired. No two permits share a
mark, because renewing one that has ended would renew the other. Of several at the same tick, each later one is noted
a tick later.

Worked example, 2 concurrent, lease 10 s: A goes at 0, B at 1; A renews at 6 and vanishes, B vanishes at once. C
asks at 7 and hears "nothing exact; 11 at the latest", for B's lease is over then, and A's at 16.

Under another rule a lease only becomes longer while permits are out: a holder relies on what it was told. What
was granted without any lease gets one that begins with the new rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, Ledger, Rule, ticks
from headway.core.runs import Runs

if TYPE_CHECKING:
    from headway.core.limits import Concurrency, Limit


class ConcurrencyRule(Rule):
    """n at the same time; `lease` is how long one is held without a word from its holder, 0 for as long as it takes."""

    __slots__ = ("lease",)

    def __init__(self, limit: Concurrency, tick_ns: int = 1, lease_ns: int = 0) -> None:
        Rule.__init__(self, limit, tick_ns, held=True)
        self.lease = ticks(lease_ns, tick_ns)

    def recall(self, limit: Limit, tick_ns: int, own: tuple[int, ...]) -> None:
        Rule.__init__(self, limit, tick_ns, held=True)
        self.lease = own[0]

    def open(self) -> Ledger:
        return ConcurrencyLedger(self)


class ConcurrencyLedger(Ledger):
    """`out` is what is out. With a lease `leases` has when each was last heard of; `lease` is what they were told."""

    __slots__ = ("lease", "leases", "out", "rule")

    def __init__(self, rule: ConcurrencyRule) -> None:
        self.tally = 0
        self.rule = rule
        self.out = 0
        self.lease: int = rule.lease
        self.leases = Runs() if rule.lease > 0 else None

    def get_rule(self) -> Rule:
        return self.rule

    def advance(self, now: int) -> None:
        """Let time act: what was not renewed comes back. Nothing observable changes."""
        leases = self.leases
        if leases is not None and self.lease > 0:
            while leases.first <= now - self.lease:
                self.out -= leases.pop()

    def wait(self, now: int, cost: int) -> int:
        if cost > self.rule.capacity:
            return FOREVER
        self.advance(now)
        return 0 if cost <= self.rule.capacity - self.out else 1

    def latest_wait(self, now: int, cost: int) -> int:
        self.advance(now)
        if cost <= self.rule.capacity - self.out:
            return 0
        if cost > self.rule.capacity or self.leases is None or self.lease == 0:
            return FOREVER
        return self.leases.time_of(self.out + cost - self.rule.capacity) + self.lease - now

    def exact(self, now: int, cost: int) -> bool:
        self.advance(now)
        return cost <= self.rule.capacity - self.out

    def take(self, at: int, cost: int) -> int:
        if self.leases is None:
            self.out += cost
            return at
        if self.out == 0:
            self.lease = self.rule.lease
        self.out += cost
        return self.note(at, cost)

    def note(self, at: int, cost: int) -> int:
        """Under a mark of its own."""
        if self.leases.size > 0 and self.leases.last_time() >= at:  # type: ignore[union-attr] # it has leases
            at = self.leases.last_time() + 1  # type: ignore[union-attr]
        return self.leases.add(at, cost)  # type: ignore[union-attr]

    def renew(self, now: int, cost: int, mark: int) -> int:
        if self.leases is None:
            return mark
        self.advance(now)
        found = self.leases.remove(mark, cost)
        return self.note(now, found) if found > 0 else -1

    def give_back(self, now: int, cost: int, mark: int) -> None:
        if self.leases is None:
            self.out -= cost
        else:
            self.advance(now)
            self.out -= self.leases.remove(mark, cost)

    def complete(self, now: int, cost: int, mark: int) -> None:
        self.give_back(now, cost, mark)

    def abandon(self, now: int, cost: int, mark: int) -> None:
        self.give_back(now, cost, mark)

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        self.give_back(now, cost, mark)

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        self.give_back(now, cost, mark)

    def remaining(self, now: int) -> int:
        self.advance(now)
        return max(0, self.rule.capacity - self.out)

    def reset_after(self, now: int) -> int:
        self.advance(now)
        if self.out == 0:
            return 0
        if self.leases is None or self.lease == 0:
            return FOREVER
        return self.leases.last_time() + self.lease - now

    def in_flight(self, now: int) -> int:
        self.advance(now)
        return self.out

    def reconfigure(self, rule: Rule, now: int) -> None:
        self.advance(now)
        self.rule = rule  # type: ignore[assignment]
        if self.rule.lease == 0:
            self.lease = 0
        elif self.lease == 0:
            self.lease = self.rule.lease
            self.leases = Runs()
            if self.out > 0:
                self.leases.add(now, self.out)
        elif self.out == 0 or self.lease < self.rule.lease:
            self.lease = self.rule.lease

    def copy(self) -> Ledger:
        twin = ConcurrencyLedger(self.rule)
        twin.out = self.out
        twin.lease = self.lease
        twin.leases = None if self.leases is None else self.leases.copy()
        return twin

    def state(self) -> tuple[int, ...]:
        return (self.out,) if self.leases is None else (self.out, self.lease, *self.leases.pairs())

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        self.out = state[0]
        if self.leases is not None:
            self.lease = state[1]
            for i in range(2, len(state), 2):
                self.leases.add(state[i], state[i + 1])
