"""A limiter whose ledgers are elsewhere: the same verbs, for any number of processes and machines.

`Limiter(..., engine="redis://...")` is one. The decision is made on the server, in one step and by its clock; here is
what happens once or rarely: construction, looking, reserving, pausing, changing. The verbs of every call are in
`headway.limiter.shared_calls`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headway.clock import as_clock
from headway.core.durations import span_of
from headway.core.ledger import Rule
from headway.core.limits import Limit
from headway.engines.memory.store import MemoryStore
from headway.engines.redis import open_engine
from headway.engines.redis.client.registry import LimiterRegistry
from headway.engines.redis.client.requests import Peek, Request
from headway.engines.redis.cluster.pause import Pause
from headway.engines.redis.script.protocol import GRANTED, PAUSE, RESERVE, RESET, TICK, numbers
from headway.errors import EngineUnavailable, InvalidArgument, InvalidKey, NotPromised, RateLimited
from headway.events import EventEmitter
from headway.flows.shared import Flow, Send
from headway.limiter import shared_options
from headway.limiter.fallback import Fallback
from headway.limiter.limit_input import Limits, as_remote, metrics_of
from headway.limiter.limiter import Limiter, Overrides
from headway.limiter.local import Cost, Key, LocalLimiter, timeout_to_ns
from headway.limiter.permits import Permit
from headway.limiter.results import reason, status
from headway.limiter.shared_calls import SharedCalls
from headway.status import LimiterStats, Status

if TYPE_CHECKING:
    from headway.core.remote import Remote
    from headway.engines.redis.client.ledger_client import LedgerClient


class SharedLimiter(SharedCalls):
    """A `Limiter` on a shared engine."""

    __slots__ = ("_options",)

    def __init__(
        self,
        limit: Limits,
        *,
        name: str | None = None,
        engine: Any = "memory://",
        remote: Remote | bool | None = None,
        overrides: Overrides | None = None,
        timeout: float | timedelta | None = None,
        max_waiting: int | None = None,
        start: str = "idle",
        on_engine_error: str = "closed",
        engine_timeout: float | timedelta = 0.25,
        local_share: float = 0.1,
        on_ledger_loss: str = "quarantine",
        max_quarantine: float | timedelta | None = 60,
        on_event: Callable[[Any], object] | None = None,
        clock: Any = None,
    ) -> None:
        self._options = {
            "limit": limit, "name": name, "engine": engine, "remote": remote, "overrides": overrides, "timeout":
            timeout, "max_waiting": max_waiting, "on_engine_error": on_engine_error, "engine_timeout": engine_timeout,
            "local_share": local_share, "on_ledger_loss": on_ledger_loss, "max_quarantine": max_quarantine,
            "on_event": on_event, "clock": clock,
        }  # fmt: skip
        shared_options.check_engine(engine)
        own_name = shared_options.checked_name(name)
        shared_options.check_options(start, on_engine_error, on_ledger_loss, local_share)
        engine_timeout_ns = shared_options.engine_timeout_ns(engine_timeout)
        max_quarantine_ns = shared_options.quarantine_ns(max_quarantine)
        self._check_common(max_waiting, on_event)
        timeout_ns = timeout_to_ns(timeout)
        self._clock = as_clock(clock)
        self._remote = as_remote(remote)
        self._engine = open_engine(engine, engine_timeout_ns / 1e9)
        self._limits = self._from_afar(limit)
        self._overrides = overrides
        self._rules: dict[Limit, tuple[Rule, ...]] = {}
        self._fallback = Fallback(
            own_name,
            on_engine_error,
            local_share,
            self._limits,
            overrides,
            self._remote,
            self._clock,
            on_event,
        )
        rules = self._flat_rules(self._limits, self._clock)
        for own in overrides.values() if isinstance(overrides, Mapping) else ():
            self._from_afar(own)  # what has to be measured is measured now
        self._check_overrides(overrides, self._clock)
        # A book of our own: it checks requests and counts, and decides nothing.
        store = MemoryStore(None, self._clock, False)
        store.name = own_name
        store.metrics = [metric or None for metric in self._metric_of_each_rule(self._limits)]
        self._configure(store, self._limits, rules)
        self._registry = LimiterRegistry(
            self._engine,
            own_name,
            self._clock,
            shared_options.text_of(self._limits),
            store.metrics,
            rules,
            None if overrides is None else self._rules_for,
            timeout_ns=engine_timeout_ns,
            on_loss=on_ledger_loss,
            max_quarantine_ns=max_quarantine_ns,
            tell=self._tell_trouble,
        )
        listener = None if on_event is None else EventEmitter(on_event, name, self._clock)
        LocalLimiter.__init__(self, store, timeout_ns, max_waiting, listener)

    # -- construction ------------------------------------------------------------------------------------

    def _from_afar(self, limit: Limits) -> dict[str, Limit]:
        limits = metrics_of(limit, self._remote)
        return {metric: shared_options.at_distance(part, self._engine) for metric, part in limits.items()}

    def _metric_of_each_rule(self, limits: dict[str, Limit]) -> list[str]:
        return [metric for metric, part in limits.items() for _ in self._rules_of(part, self._clock)]

    def _configure(self, store: MemoryStore, limits: dict[str, Limit], rules: tuple[Rule, ...]) -> None:
        """By these rules requests are checked and permits made from now on."""
        store.limits = limits
        names = [name or "" for name in store.metrics]
        store.configure(rules, [self._chooser(i, names, self._clock) for i in range(len(rules))])
        store.single_rule = False

    def _rules_of(self, limit: Limit, clock: Any) -> tuple[Rule, ...]:  # noqa: ARG002 - the server's clock counts
        if limit not in self._rules:
            if len(self._rules) > 10_000:
                self._rules.clear()
            self._rules[limit] = shared_options.rules_at(limit, self._engine)
        return self._rules[limit]

    def _rules_for(self, keys: tuple[str | None, ...]) -> tuple[Rule, ...]:
        shelves = self._store.keyed_ledgers
        each = keys if self._registry.metrics else keys * len(shelves)
        return tuple(keyed.rule_for(key) for keyed, key in zip(shelves, each, strict=True))

    def _own_limits(self, limit: Limits) -> dict[str, Limit]:
        limits = metrics_of(limit, self._remote)
        return {
            metric: shared_options.at_distance(part, self._engine, measure=False)
            for metric, part in limits.items()
        }

    def _checked_override(self, key: str, limit: Limits, clock: Any) -> tuple[Rule, ...]:
        rules = Limiter._checked_override(self, key, limit, clock)
        own = self._flat_rules(self._limits, clock)
        if "" not in self._limits and any(type(a) is not type(b) for a, b in zip(rules, own, strict=True)):
            # Those who wait at one root are served by whoever comes, and he has to know every kind that is there.
            raise InvalidArgument("overrides", {key: limit}, "limits of the same kinds as the metrics' own")
        return rules

    def _tell_trouble(self, kind: str, ledger: LedgerClient, length: float) -> None:
        if self._listener is not None:
            self._listener.emit(kind, ledger.key, None, length)

    def __repr__(self) -> str:
        return f"{Limiter.__repr__(self)[:-1]}, engine={self._engine.address!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (dict(self._options),)

    # -- rarer verbs -------------------------------------------------------------------------------------

    def reserve(self, key: Key = None, *, cost: Cost = 1) -> Permit:
        return self._run(self._reserving(key, cost))

    async def reserve_async(self, key: Key = None, *, cost: Cost = 1) -> Permit:
        return await self._run_async(self._reserving(key, cost))

    def _reserving(self, key: Key, cost: Cost) -> Flow[Permit]:
        keys, costs = self.request(key, cost)
        ledger = self._account(keys)
        for rule in ledger.rules:
            if not rule.promises or len(ledger.rules) > 1:
                raise NotPromised(rule.limit)
            if rule.capacity == 0:
                raise RateLimited(math.inf, limit=rule.limit, key=keys[0], reason="never")
        acquire = self._new_ask(ledger, costs, None, RESERVE)
        try:
            yield Send(acquire)
        except BaseException as error:  # noqa: BLE001 - raised again, if nobody decides instead
            return self._unanswered(acquire, error, key, cost).reserve(key, cost=cost)
        if acquire.verdict != GRANTED:
            limited = self._limited_by(acquire, key, cost, reason(acquire), None)
            wait_ns, _ = self._registry.backoff(acquire)
            if wait_ns is None:
                raise limited
            # When a slot can be reserved again, which is before it has come.
            raise RateLimited(wait_ns / 1e9, limit=limited.limit, key=limited.key, status=limited.status)
        permit = self._got(acquire, key, cost)
        if acquire.slot > acquire.replied_at:
            permit.promise(acquire.slot)
        return permit

    def _telling(self, request: Request) -> Flow[None]:
        """What only the engine can do or tell: without it there is nothing to fall back on."""
        try:
            yield Send(request)
        except EngineUnavailable:
            self._tell_trouble("engine_error", request.ledger, 0.0)
            raise

    def peek(self, key: Key = None, *, cost: Cost = 1) -> Status:
        return self._run(self._peeking(key, cost))

    async def peek_async(self, key: Key = None, *, cost: Cost = 1) -> Status:
        return await self._run_async(self._peeking(key, cost))

    def _peeking(self, key: Key, cost: Cost) -> Flow[Status]:
        keys, costs = self.request(key, cost)
        peek = Peek(self._account(keys), costs)
        yield from self._telling(peek)
        return status(peek)

    def pause(self, seconds: float | timedelta, key: str | None = None) -> None:
        self._run(self._pausing(seconds, key))

    async def pause_async(self, seconds: float | timedelta, key: str | None = None) -> None:
        await self._run_async(self._pausing(seconds, key))

    def _pausing(self, length: float | timedelta, key: str | None) -> Flow[None]:
        ns = span_of(length)
        if ns is None or not 0 <= ns < 1 << 62:
            raise InvalidArgument("seconds", length, "seconds from 0 up, or a timedelta; 0 lifts the pause")
        if key is not None and not isinstance(key, str):
            raise InvalidKey(key, costs=False)
        ledger = self._account((key,) * len(self._registry.names))
        yield from self._telling(Pause(ledger, numbers(PAUSE, -(-ns // TICK))))
        if self._listener is not None:
            self._listener.emit("paused", key, None, ns / 1e9)

    def reset(self, key: Key = None) -> None:
        self._run(self._resetting(key))

    async def reset_async(self, key: Key = None) -> None:
        await self._run_async(self._resetting(key))

    def _resetting(self, key: Key) -> Flow[None]:
        ledger = self._account(self._keys(key, self._store.metrics, costs=False))
        yield from self._telling(Request(ledger, numbers(RESET)))

    def set_limit(self, limit: Limits) -> None:
        limits = self._from_afar(limit)
        rules = self._flat_rules(limits, self._clock)
        self._compare(self._store, rules, self._metric_of_each_rule(limits))
        self._limits = limits
        # The book decides nothing here: it only has to know by which rules requests are checked.
        self._configure(self._store, limits, rules)
        self._registry.declare(shared_options.text_of(limits), rules)
        self._fallback.set_limit(limits)
        # A copy that is made of it elsewhere says what this one says: the newest governs.
        self._options["limit"] = limit
        # Who waits may be served under the new limit, or never.
        for ledger in self._registry.everybody():
            ledger.visited = 0
        self._engine.worker.wake()

    async def set_limit_async(self, limit: Limits) -> None:
        self.set_limit(limit)

    def stats(self) -> LimiterStats:
        registry, own, instead = self._registry, Limiter.stats(self), self._fallback.stats()
        if instead is not None:
            own = LimiterStats(
                *(getattr(own, part.name) + getattr(instead, part.name) for part in fields(LimiterStats))
            )
        return replace(own, waiting=len(registry.waiters) + own.waiting, keys=registry.known())

    def close(self) -> None:
        self._registry.close()
        self._fallback.close()

    async def close_async(self) -> None:
        self.close()


def _rebuild(options: dict[str, Any]) -> SharedLimiter:
    return SharedLimiter(**options)
