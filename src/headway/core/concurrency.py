"""At most n at the same time.

No clock at all: a permit is out from its check-out until its hand-back, however long that takes, and it does
not matter how the call ended. So nobody can say when one comes back: `wait` is the least there is, one
nanosecond, and `sure` is never. What a holder drops without ending it is handed back when the permit is
reclaimed by Python; in a shared ledger it expires with its holder.

Worked example, 2 concurrent: A and B go. C waits in line; when A completes, C is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, Ledger, Rule, ticks

if TYPE_CHECKING:
    from headway.core.limits import Concurrency


class ConcurrencyRule(Rule):
    """n at the same time; `lease` is how long one is held without a word from its holder, 0 for as long as it takes."""

    __slots__ = ("lease",)

    def __init__(self, limit: Concurrency, tick_ns: int = 1, lease_ns: int = 0) -> None:
        Rule.__init__(self, limit, tick_ns, held=True)
        self.lease = ticks(lease_ns, tick_ns)

    def open(self) -> Ledger:
        return ConcurrencyLedger(self)


class ConcurrencyLedger(Ledger):
    __slots__ = ("out", "rule")

    def __init__(self, rule: ConcurrencyRule) -> None:
        self.tally = 0
        self.rule = rule
        self.out = 0

    def get_rule(self) -> Rule:
        return self.rule

    def wait(self, now: int, cost: int) -> int:
        if cost > self.rule.capacity:
            return FOREVER
        return 0 if cost <= self.rule.capacity - self.out else 1

    def sure(self, now: int, cost: int) -> int:
        return 0 if cost <= self.rule.capacity - self.out else FOREVER

    def exact(self, now: int, cost: int) -> bool:
        return cost <= self.rule.capacity - self.out

    def take(self, at: int, cost: int) -> int:
        self.out += cost
        return at

    def complete(self, now: int, cost: int, mark: int) -> None:
        self.out -= cost

    def abandon(self, now: int, cost: int, mark: int) -> None:
        self.out -= cost

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        self.out -= cost

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        self.out -= cost

    def remaining(self, now: int) -> int:
        return max(0, self.rule.capacity - self.out)

    def reset_after(self, now: int) -> int:
        return FOREVER if self.out > 0 else 0

    def in_flight(self, now: int) -> int:
        return self.out

    def adopt(self, rule: Rule, now: int) -> None:
        self.rule = rule  # type: ignore[assignment]

    def copy(self) -> Ledger:
        twin = ConcurrencyLedger(self.rule)
        twin.out = self.out
        return twin

    def state(self) -> tuple[int, ...]:
        return (self.out,)
