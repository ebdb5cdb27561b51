"""From a limit to the rules that keep it: the one place that knows every kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headway.core.adaptive_limit import Adaptive, AdaptiveRule
from headway.core.bucket import BucketRule
from headway.core.concurrency import ConcurrencyRule
from headway.core.fixed_window import FixedWindowRule
from headway.core.ledger import Rule, ticks
from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.spacing import SpacingRule
from headway.core.unlimited import Unlimited, UnlimitedRule
from headway.core.window import WindowRule
from headway.errors import InvalidLimit


def rules_of(
    limit: Limit, resolution_ns: int, drift_ppm: float, tick_ns: int = 1, lease_ns: int = 0
) -> tuple[Rule, ...]:
    """The rules of a limit, as kept by a clock of this resolution and drift; several for an `AllOf`.

    All their numbers are in ticks of `tick_ns`, rounded so that nothing is ever early. `lease_ns` is how long
    after its grant a permit of a shared ledger may still be dispatched; 0 where a grant and its use are one.

    >>> [rule.capacity for rule in rules_of(Window(5, per=1), 1, 250)]
    [5]
    >>> [rule.gap for rule in rules_of(Window(5, per="1500ns", remote=False), 1000, 1000, tick_ns=1000)]
    [2]
    """
    match limit:
        case Window():
            return (WindowRule(limit, resolution_ns, drift_ppm, tick_ns, lease_ns),)
        case Bucket():
            return (BucketRule(limit, tick_ns),)
        case Spacing():
            return (SpacingRule(limit, tick_ns),)
        case FixedWindow():
            return (FixedWindowRule(limit, tick_ns),)
        case Concurrency():
            return (ConcurrencyRule(limit, tick_ns, lease_ns),)
        case Adaptive():
            if tick_ns != 1:
                accepted = "memory://: each process finds its own share"
                raise InvalidLimit(
                    str(limit), None, accepted, "an adaptive limit is not shared with other processes"
                )
            return (AdaptiveRule(limit),)
        case Unlimited():
            return (UnlimitedRule(),)
        case AllOf():
            parts = [rules_of(part, resolution_ns, drift_ppm, tick_ns, lease_ns) for part in limit.limits]
            return tuple(rule for rules in parts for rule in rules)
        case _:
            raise TypeError(f"no rule keeps {limit!r}")


class Recalled(NamedTuple):
    """In the place of a limit, where only the numbers are known that it was written down as."""

    kind: str
    capacity: int


_RULES: dict[str, type[Rule]] = {
    "window": WindowRule,
    "bucket": BucketRule,
    "spacing": SpacingRule,
    "fixed_window": FixedWindowRule,
    "concurrency": ConcurrencyRule,
}


def rule_from_record(kind: str, capacity: int, own: tuple[int, ...], tick_ns: int) -> Rule:
    """The rule that was written down as these numbers, by another process or long ago.

        window         gap, grid, transit, out_grid, which permits are out (`window.OUT_IF_ENTERED`), bare_gap
        bucket         whole, part, parts, room, room_part
        spacing        interval, step, max_reserved
        fixed_window   the first tick of a window, of the next, and of the one after that
        concurrency    lease

    >>> rule = rule_from_record("bucket", 5, (100_000, 0, 1, 500_000, 0), 1000)
    >>> rule.open().remaining(0), rule.limit
    (5, Recalled(kind='bucket', capacity=5))
    """
    rule = _RULES[kind].__new__(_RULES[kind])
    rule.recall(Recalled(kind, capacity), tick_ns, own)  # type: ignore[arg-type]  # as much of a limit as a rule needs
    return rule


def check_exact(rules: Iterable[Rule], bits: int = 53) -> None:
    """Refuse what a number of so many bits cannot keep exactly, as a double cannot beyond 53.

    Spans and counts may take half the range: the other half is for the time from which they are counted.

    >>> check_exact(rules_of(Window(5, per=1), 1000, 1000, tick_ns=1000))
    >>> check_exact(rules_of(Bucket((10**9 + 7, 1), burst=10**7), 1000, 1000, tick_ns=1000))
    Traceback (most recent call last):
    headway.errors.InvalidLimit: invalid limit Bucket('1000000007/s', burst=10000000): burst times count per second \
exceeds 2**52; accepted: a smaller burst, or a rounder count per second
    """
    for rule in rules:
        for what, number, accepted in _sizes(rule):
            if number > 1 << (bits - 1):
                raise InvalidLimit(repr(rule.limit), None, accepted, f"{what} exceeds 2**{bits - 1}")


def _sizes(rule: Rule) -> list[tuple[str, int, str]]:
    """What of a rule can be too large: what it is, how large it is, what would help."""
    unit = f"in ticks of {rule.tick_ns} ns"
    sizes = [("the count", rule.capacity, "a smaller count")]
    match rule:
        case WindowRule():
            span = max(rule.gap + rule.transit, rule.bare_gap)
            sizes.append((f"the window {unit}, transit included,", span, "a shorter one"))
        case BucketRule():
            parts = rule.capacity * rule.parts + rule.parts
            span = max(1, rule.capacity) * (rule.whole + 1)
            rounder = "a smaller burst, or a rounder count per second"
            sizes.append(("burst times count per second", parts, rounder))
            sizes.append((f"the time to earn a full burst {unit}", span, "a smaller burst or a higher rate"))
        case SpacingRule():
            span = rule.step * (rule.max_reserved + 1)
            sizes.append((f"the time to the last slot {unit}", span, "a smaller max_reserved"))
        case FixedWindowRule() if isinstance(rule.limit, FixedWindow):
            sizes.append((f"the window {unit}", ticks(rule.limit.per_ns, rule.tick_ns), "a shorter one"))
        case ConcurrencyRule():
            sizes.append((f"the lease {unit}", rule.lease, "a shorter one"))
    return sizes
