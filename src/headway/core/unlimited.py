"""No limit at all, for single keys that are exempt (`overrides={"vip": None}`).

The naive way is a very high limit. It has to be high in every kind, and a ledger would still count up to it, for keys
that never need counting. So exemption is a kind of its own, which has one state and grants everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headway.core.durations import MAX
from headway.core.ledger import Ledger, Rule
from headway.core.limits import Limit


@dataclass(frozen=True, slots=True)
class Unlimited(Limit):
    """Everything passes.

    >>> str(Unlimited()), Unlimited().capacity == 2**62
    ('unlimited', True)
    """

    kind: ClassVar[str] = "unlimited"

    @property
    def capacity(self) -> int:
        return MAX

    def share(self, part: float) -> Limit:
        return self

    def __str__(self) -> str:
        return "unlimited"


class UnlimitedRule(Rule):
    """Grants everything."""

    __slots__ = ()

    def __init__(self) -> None:
        Rule.__init__(self, Unlimited(), promises=True)

    def open(self) -> Ledger:
        return UnlimitedLedger(self)


class UnlimitedLedger(Ledger):
    """Remembers nothing.

    >>> ledger = UnlimitedRule().open()
    >>> [ledger.wait(0, 10**9), ledger.take(0, 10**9), ledger.wait(0, 1), ledger.idle(0)]
    [0, 0, 0, True]
    """

    __slots__ = ("rule",)

    def __init__(self, rule: UnlimitedRule) -> None:
        Ledger.__init__(self)
        self.rule = rule

    def get_rule(self) -> Rule:
        return self.rule

    def wait(self, now: int, cost: int) -> int:
        return 0

    def take(self, at: int, cost: int) -> int:
        return at

    def remaining(self, now: int) -> int:
        return self.rule.capacity

    def reset_after(self, now: int) -> int:
        return 0

    def reconfigure(self, rule: Rule, now: int) -> None:
        raise TypeError("an exempt key keeps its rule")

    def copy(self) -> Ledger:
        return UnlimitedLedger(self.rule)

    def state(self) -> tuple[int, ...]:
        return ()

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        """There is nothing to restore."""
