"""From a limit to the rules that keep it: the one place that knows every kind."""

from __future__ import annotations

from headway.core.bucket import BucketRule
from headway.core.concurrency import ConcurrencyRule
from headway.core.fixed_window import FixedWindowRule
from headway.core.ledger import Rule
from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.spacing import SpacingRule
from headway.core.window import WindowRule


def rules_of(limit: Limit, resolution_ns: int, drift_ppm: float) -> tuple[Rule, ...]:
    """The rules of a limit, as kept by a clock of this resolution and drift; several for an `AllOf`.

    >>> [rule.capacity for rule in rules_of(Window(5, per=1), 1, 250)]
    [5]
    """
    match limit:
        case Window():
            return (WindowRule(limit, resolution_ns, drift_ppm),)
        case Bucket():
            return (BucketRule(limit),)
        case Spacing():
            return (SpacingRule(limit),)
        case FixedWindow():
            return (FixedWindowRule(limit),)
        case Concurrency():
            return (ConcurrencyRule(limit),)
        case AllOf():
            return tuple(rule for part in limit.limits for rule in rules_of(part, resolution_ns, drift_ppm))
        case _:
            raise TypeError(f"no rule keeps {limit!r}")
