"""The limiters of a service: one for each rule, made when it is needed first, and one for the limits that requests
bring along.

A limiter's name says where its rule is and of what kind its limit is. So a rule whose number changes (a new
configuration, or a second server with a newer one) keeps what was used, and one whose kind changes begins anew.

**Overrides.** A descriptor may bring its own limit, any number per unit. A limiter for each number would be as many
limiters as a client likes to send numbers. So there is one for each domain and unit, the number is a part of the key,
and the key says the limit. A descriptor whose number changes has another ledger from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway import EngineUnavailable, Limiter, Status
from headway.core.limits import AllOf, Limit
from headway.service.envoy.messages import LimitOverride, MalformedMessage, Unit
from headway.service.envoy.refunds import Refunds, period_ns
from headway.service.envoy.rules import Rule, escaped
from headway.service.envoy.units import limit_of


class Kept:
    """A limiter, what its limit can grant at most, and the grants that can be given back."""

    __slots__ = ("capacity", "limiter", "refunds", "shared")

    def __init__(self, limiter: Limiter, capacity: int, refunds: Refunds) -> None:
        self.limiter = limiter
        self.capacity = capacity
        self.refunds = refunds
        # Whether a decision has to be asked for.
        self.shared = limiter._shared is not None
        if limiter._shared is not None:
            # Grants say how things stand from the first one on, without a second question.
            limiter._shared.ledgers.report_grants()

    async def look(self, key: str | None) -> Status:
        """`peek`; while the engine is away a stand-in answers, where `on_engine_error` names one."""
        try:
            return await self.limiter.peek_async(key)
        except EngineUnavailable as error:
            shared = self.limiter._shared
            assert shared is not None
            return shared._instead(error, key, 1).peek(key)


class Limiters:
    """What decides for each rule. `options` are those of `Limiter`."""

    def __init__(
        self,
        namespace: str,
        options: Mapping[str, Any],
        *,
        fixed: bool = False,
        before: Limiters | None = None,
    ) -> None:
        self._namespace = namespace
        self._options = dict(options)
        self._fixed = fixed
        self._rules: dict[Rule, Kept] = {}
        self._overrides: dict[tuple[str, Unit], Kept] = {}
        # By the names of limiters; with another configuration they go on.
        self._refunds: dict[str, Refunds] = {} if before is None else before._refunds
        if before is not None:
            for domain, unit in before._overrides:
                self._of_unit(domain, unit)

    def of_rule(self, rule: Rule) -> Kept:
        """The limiter of a rule that has a limit."""
        kept = self._rules.get(rule)
        if kept is None:
            assert rule.limit is not None
            kept = self._rules[rule] = self._open(rule.id, rule.limit)
        return kept

    def of_override(self, domain: str, override: LimitOverride) -> Kept:
        """The limiter of all limits per this unit that requests of this domain bring along."""
        try:
            unit = Unit(override.unit)
        except ValueError:
            unit = Unit.UNKNOWN
        if unit is Unit.UNKNOWN:
            raise MalformedMessage(f"a limit per unit {override.unit}, which is no unit")
        return self._overrides.get((domain, unit)) or self._of_unit(domain, unit)

    def _of_unit(self, domain: str, unit: Unit) -> Kept:
        def limit_for(key: str) -> Limit:
            return limit_of(int(key.partition("|")[0]), unit, fixed=self._fixed)

        # No rule of the configuration has an id like this one, as no key is empty.
        place = f"{escaped(domain)}//{unit.name.lower()}"
        kept = self._open(place, limit_of(1, unit, fixed=self._fixed), limit_for)
        self._overrides[domain, unit] = kept
        return kept

    def _open(self, place: str, limit: Limit, overrides: Any = None) -> Kept:
        kinds = [part.kind for part in (limit.limits if isinstance(limit, AllOf) else (limit,))]
        name = f"{self._namespace}/{place}/{'+'.join(kinds)}"
        limiter = Limiter(limit, name=name, remote=False, overrides=overrides, **self._options)
        refunds = self._refunds.get(name)
        if refunds is None or refunds.period_ns != period_ns(limit):
            refunds = self._refunds[name] = Refunds(period_ns(limit))
        return Kept(limiter, limit.capacity, refunds)

    def close(self) -> None:
        """Close every limiter."""
        for kept in (*self._rules.values(), *self._overrides.values()):
            kept.limiter.close()
        self._rules.clear()
        self._overrides.clear()
