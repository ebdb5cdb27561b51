"""The limiters of a service: one for each rule, made when it is needed first, and one for the limits that requests
bring along.

A limiter's name says where its rule is and of what kind its limit is. So a rule whose number changes (a new
configuration, or a second server with a newer one) keeps what was used, and one whose kind changes begins anew.

**Overrides.** A descriptor may bring its own limit, any number per unit. A limiter for each number would be as many
limiters as a client likes to send numbers. So there is one for each domain and unit, the number is a part of the key,
and the key says the limit. A descriptor whose number changes has another ledger from then on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headway import Denied, EngineUnavailable, Limiter, Permit, Status
from headway.core.limits import AllOf, Limit
from headway.service.envoy.messages import LimitOverride, MalformedMessage, Unit
from headway.service.envoy.refunds import Refunds, period_ns
from headway.service.envoy.rules import Rule, escaped
from headway.service.envoy.units import limit_of
from headway.service.keys import KeyTable

MAX_KEYS = "max_keys"
"""The reason of a denial for want of room."""
SECOND = 1_000_000_000


class Kept:
    """A limiter, what its limit can grant at most, and the grants that can be given back."""

    __slots__ = ("capacity", "keys", "limit", "limiter", "refunds", "shared")

    def __init__(self, limiter: Limiter, limit: Limit, refunds: Refunds) -> None:
        self.limiter = limiter
        self.limit = limit
        self.capacity = limit.capacity
        self.refunds = refunds
        # On a shared engine; in memory the ledgers themselves are counted.
        self.keys = KeyTable(0)
        # Whether a decision has to be asked for.
        self.shared = limiter._shared is not None
        if limiter._shared is not None:
            # Grants say how things stand from the first one on, without a second question.
            limiter._shared.ledgers.report_grants()

    def full(self, key: str | None, most: int) -> Denied | None:
        """A denial where there is no room for a ledger of this key, among `most`."""
        store = self.limiter._store
        if key is None or store is None:
            return None
        ledgers = store.first.ledgers
        if len(ledgers) < most or key in ledgers:
            return None
        with store.lock:
            # Requests move a cursor that forgets idle keys, and this one will not come so far.
            for keyed in store.keyed_ledgers:
                keyed.sweep(store.clock.now(), store.clock.wall())
        return self.no_room(key) if len(store.first.ledgers) >= most else None

    async def take(self, key: str | None, hits: int, most: int) -> Permit | Denied:
        """`try_acquire` for so many hits, where there is room for a ledger of this key, among `most`."""
        if not self.shared:
            full = self.full(key, most)
            return self.limiter.try_acquire(key, cost=hits) if full is None else full
        if not self.has_room(key, most):
            return self.no_room(key)
        answer = await self.limiter.try_acquire_async(key, cost=hits)
        self.note(key)
        return answer

    def has_room(self, key: str | None, most: int) -> bool:
        """Whether there is room for a ledger of this key on a shared engine, among `most`."""
        self.keys.most = most
        return self.keys.admits(key, time.monotonic())

    def note(self, key: str | None) -> None:
        """A key was used: it has a ledger on the shared engine for a while. Said at most once a second of one that is
        used all the time."""
        self.keys.note(key, time.monotonic() + self.refunds.period_ns / SECOND + 1.0)

    def no_room(self, key: str | None) -> Denied:
        return Denied(key, [(self.limit, 0, SECOND, SECOND, 0, 0, False)], MAX_KEYS)

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
        return Kept(limiter, limit, refunds)

    def close(self) -> None:
        """Close every limiter."""
        for kept in (*self._rules.values(), *self._overrides.values()):
            kept.limiter.close()
        self._rules.clear()
        self._overrides.clear()
