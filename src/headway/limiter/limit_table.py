"""The limits of one limiter: a rule for every part of every metric, and other rules for single keys.

A limit such as "10/s; 5 concurrent" has two parts, and a limiter with metrics has a limit for each. The table lists
their rules in one row, in which costs and keys are counted too. An override gives a key other rules of the same
number; its metrics that the override does not name keep the limiter's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headway.core.ledger import Rule
from headway.core.limits import Limit
from headway.core.unlimited import UnlimitedRule
from headway.errors import InvalidArgument, LimitMismatch
from headway.limiter.limit_input import Limits

Overrides = Mapping[str, Limits | None] | Callable[[str], Limits | None]
"""Limits of single keys. None in a mapping: the key is exempt. None from a function: the key has the limiter's own."""

EXEMPT = UnlimitedRule()

MOST_CACHED = 10_000
"""Limits whose rules are remembered: a function that makes a new limit for each key must not fill the memory."""


class LimitTable:
    """What a limiter keeps. `read` makes limits of what a user gave, `to_rules` makes rules of a limit."""

    __slots__ = ("_cache", "_overrides", "_read", "_same_kinds", "_to_rules", "limits", "metrics", "rules")

    def __init__(
        self,
        limits: dict[str, Limit],
        overrides: Overrides | None,
        read: Callable[[Limits], dict[str, Limit]],
        to_rules: Callable[[Limit], tuple[Rule, ...]],
        *,
        same_kinds: bool = False,
    ) -> None:
        self._overrides = overrides
        self._read = read
        self._to_rules = to_rules
        self._same_kinds = same_kinds
        self._cache: dict[Limit, tuple[Rule, ...]] = {}
        self._set(limits)
        self._check_overrides()

    def _set(self, limits: dict[str, Limit]) -> None:
        self.limits = limits
        self.rules = self._flat(limits)
        names = [metric for metric, limit in limits.items() for _ in self._rules_of(limit)]
        self.metrics: tuple[str | None, ...] = tuple(metric or None for metric in names)

    def replace(self, limits: dict[str, Limit]) -> LimitTable:
        """A table of other limits of the same kinds, with the same overrides; raises `LimitMismatch`."""
        return LimitTable(limits, self._overrides, self._read, self._to_rules, same_kinds=self._same_kinds)

    def check_same_shape(self, name: str | None, metrics: Any, rules: Any) -> None:
        """Raise `LimitMismatch` unless these are metrics and rules of the same kinds as ours."""
        before = [(metric, type(rule)) for metric, rule in zip(metrics, rules, strict=True)]
        if before != [(metric, type(rule)) for metric, rule in zip(self.metrics, self.rules, strict=True)]:
            raise LimitMismatch(name, text_of(metrics, rules), text_of(self.metrics, self.rules))

    @property
    def text(self) -> str:
        """The limits as a person reads them."""
        return "; ".join(f"{metric}: {part}" if metric else str(part) for metric, part in self.limits.items())

    @property
    def has_overrides(self) -> bool:
        return self._overrides is not None

    def rule_for(self, index: int, key: str | None) -> Rule:
        """The rule of a key: its override, or the limiter's own."""
        return self._override(index, key) or self.rules[index]

    def chooser(self, index: int) -> Callable[[str], Rule | None] | None:
        """A function from keys to the rules that overrides give them, or None if there are no overrides."""
        return None if self._overrides is None else lambda key: self._override(index, key)

    def choosers(self) -> list[Callable[[str], Rule | None] | None]:
        """The chooser of every rule."""
        return [self.chooser(index) for index in range(len(self.rules))]

    def is_exempt(self, key: object) -> bool:
        """Whether the overrides name this key with None."""
        overrides = self._overrides
        if not isinstance(overrides, Mapping) or not isinstance(key, str):
            return False
        return key in overrides and overrides[key] is None

    @property
    def exempts(self) -> bool:
        """Whether any key is exempt."""
        return isinstance(self._overrides, Mapping) and None in self._overrides.values()

    def _override(self, index: int, key: str | None) -> Rule | None:
        overrides = self._overrides
        if overrides is None or key is None:
            return None
        if self.is_exempt(key):
            return EXEMPT
        limit = overrides(key) if callable(overrides) else overrides.get(key)
        metric = self.metrics[index]
        if limit is None or (isinstance(limit, Mapping) and metric not in limit):
            return None
        return self._checked(key, limit)[index]

    def _checked(self, key: str, limit: Limits) -> tuple[Rule, ...]:
        own = self._read(limit)
        rules = self._flat({**self.limits, **own})
        if set(own) - set(self.limits) or len(rules) != len(self.rules):
            raise InvalidArgument(
                "overrides",
                {key: limit},
                "limits of the same metrics and number of parts as the limiter's own",
            )
        # Any client may serve the queue that all keys of a metric share, so its script must know every kind.
        shares_queue = self._same_kinds and "" not in self.limits
        if shares_queue and any(type(a) is not type(b) for a, b in zip(rules, self.rules, strict=True)):
            raise InvalidArgument("overrides", {key: limit}, "limits of the same kinds as the metrics' own")
        return rules

    def _check_overrides(self) -> None:
        overrides = self._overrides
        if isinstance(overrides, Mapping):
            for key, own in overrides.items():
                if type(key) is not str:
                    raise InvalidArgument("overrides", {key: own}, "limits for keys that are a str")
                if own is not None:
                    self._checked(key, own)
        elif overrides is not None and not callable(overrides):
            raise InvalidArgument(
                "overrides", overrides, "a mapping from keys to limits, or a function of the key"
            )

    def _flat(self, limits: dict[str, Limit]) -> tuple[Rule, ...]:
        return tuple(rule for limit in limits.values() for rule in self._rules_of(limit))

    def _rules_of(self, limit: Limit) -> tuple[Rule, ...]:
        if limit not in self._cache:
            if len(self._cache) > MOST_CACHED:
                self._cache.clear()
            self._cache[limit] = self._to_rules(limit)
        return self._cache[limit]


def text_of(metrics: Any, rules: Any) -> str:
    """Rules for people to compare, each with its metric."""
    parts = zip(metrics, rules, strict=True)
    return "; ".join(f"{metric}: {rule.limit}" if metric else str(rule.limit) for metric, rule in parts)
