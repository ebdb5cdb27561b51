"""A limiter whose ledgers are elsewhere: the same verbs, for any number of processes and machines.

`Limiter(..., engine="redis://...")` is one. The decision is made on the server, in one step and by its clock; here is
what happens once or rarely: construction, looking, reserving, pausing, changing. The verbs of every call are in
`headway.fleet_desk`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from headway import fleet_terms
from headway.clock import as_clock
from headway.core.durations import span_of
from headway.core.ledger import Rule
from headway.core.limits import Limit
from headway.desk import Cost, Desk, Key, timeout_to_ns
from headway.engines.memory.book import Book
from headway.engines.redis import open_engine
from headway.engines.redis.halts import Pause
from headway.engines.redis.requests import Look, Request
from headway.engines.redis.spec import Spec
from headway.engines.redis.words import GRANTED, PAUSE, RESERVE, RESET, TICK, numbers
from headway.errands import Errand, Say
from headway.errors import EngineUnavailable, InvalidArgument, InvalidKey, NotPromised, RateLimited
from headway.events import Listener
from headway.fleet_answers import reason, status
from headway.fleet_desk import FleetDesk
from headway.fleet_standby import Standby
from headway.health import check_health, warn_blocking
from headway.limiter import Limiter, Overrides
from headway.metrics import Limits, as_remote, metrics_of
from headway.permit import Permit
from headway.status import Stats, Status

if TYPE_CHECKING:
    from headway.core.remote import Remote
    from headway.engines.redis.account import Account


class FleetLimiter(FleetDesk):
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
        fleet_terms.check_engine(engine)
        own_name = fleet_terms.checked_name(name)
        fleet_terms.check_options(start, on_engine_error, on_ledger_loss, local_share)
        engine_timeout_ns = fleet_terms.engine_timeout_ns(engine_timeout)
        max_quarantine_ns = fleet_terms.quarantine_ns(max_quarantine)
        self._check_common(max_waiting, on_event)
        timeout_ns = timeout_to_ns(timeout)
        self._clock = as_clock(clock)
        self._remote = as_remote(remote)
        self._engine = open_engine(engine, engine_timeout_ns / 1e9)
        self._limits = self._from_afar(limit)
        self._overrides = overrides
        self._rules: dict[Limit, tuple[Rule, ...]] = {}
        self._standby = Standby(
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
        book = Book(None, self._clock, False)
        book.name = own_name
        book.metrics = [metric or None for metric in self._metric_of_each_rule(self._limits)]
        book.health = partial(check_health, tick_ns=TICK)
        book.on_block = warn_blocking
        self._furnish(book, self._limits, rules)
        self._spec = Spec(
            self._engine,
            own_name,
            self._clock,
            fleet_terms.text_of(self._limits),
            book.metrics,
            rules,
            None if overrides is None else self._rules_for,
            timeout_ns=engine_timeout_ns,
            on_loss=on_ledger_loss,
            max_quarantine_ns=max_quarantine_ns,
            tell=self._tell_trouble,
        )
        listener = None if on_event is None else Listener(on_event, name, self._clock)
        Desk.__init__(self, book, timeout_ns, max_waiting, listener)

    # -- construction ------------------------------------------------------------------------------------

    def _from_afar(self, limit: Limits) -> dict[str, Limit]:
        limits = metrics_of(limit, self._remote)
        return {metric: fleet_terms.at_distance(part, self._engine) for metric, part in limits.items()}

    def _metric_of_each_rule(self, limits: dict[str, Limit]) -> list[str]:
        return [metric for metric, part in limits.items() for _ in self._rules_of(part, self._clock)]

    def _furnish(self, book: Book, limits: dict[str, Limit], rules: tuple[Rule, ...]) -> None:
        """By these rules requests are checked and permits made from now on."""
        book.limits = limits
        names = [name or "" for name in book.metrics]
        book.furnish(rules, [self._chooser(i, names, self._clock) for i in range(len(rules))])
        book.solo = False

    def _rules_of(self, limit: Limit, clock: Any) -> tuple[Rule, ...]:  # noqa: ARG002 - the server's clock counts
        if limit not in self._rules:
            if len(self._rules) > 10_000:
                self._rules.clear()
            self._rules[limit] = fleet_terms.rules_at(limit, self._engine)
        return self._rules[limit]

    def _rules_for(self, keys: tuple[str | None, ...]) -> tuple[Rule, ...]:
        shelves = self._book.shelves
        each = keys if self._spec.metrics else keys * len(shelves)
        return tuple(shelf.rule_for(key) for shelf, key in zip(shelves, each, strict=True))

    def _own_limits(self, limit: Limits) -> dict[str, Limit]:
        limits = metrics_of(limit, self._remote)
        return {
            metric: fleet_terms.at_distance(part, self._engine, measure=False)
            for metric, part in limits.items()
        }

    def _checked_override(self, key: str, limit: Limits, clock: Any) -> tuple[Rule, ...]:
        rules = Limiter._checked_override(self, key, limit, clock)
        own = self._flat_rules(self._limits, clock)
        if "" not in self._limits and any(type(a) is not type(b) for a, b in zip(rules, own, strict=True)):
            # Those who wait at one root are served by whoever comes, and he has to know every kind that is there.
            raise InvalidArgument("overrides", {key: limit}, "limits of the same kinds as the metrics' own")
        return rules

    def _tell_trouble(self, kind: str, account: Account, length: float) -> None:
        if self._listener is not None:
            self._listener.tell(kind, account.key, None, length)

    def __repr__(self) -> str:
        return f"{Limiter.__repr__(self)[:-1]}, engine={self._engine.address!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (dict(self._options),)

    # -- rarer verbs -------------------------------------------------------------------------------------

    def reserve(self, key: Key = None, *, cost: Cost = 1) -> Permit:
        return self._run(self._reserving(key, cost))

    async def reserve_async(self, key: Key = None, *, cost: Cost = 1) -> Permit:
        return await self._run_async(self._reserving(key, cost))

    def _reserving(self, key: Key, cost: Cost) -> Errand[Permit]:
        keys, costs = self.request(key, cost)
        account = self._account(keys)
        for rule in account.rules:
            if not rule.promises or len(account.rules) > 1:
                raise NotPromised(rule.limit)
            if rule.capacity == 0:
                raise RateLimited(math.inf, limit=rule.limit, key=keys[0], reason="never")
        ask = self._new_ask(account, costs, None, RESERVE)
        try:
            yield Say(ask)
        except BaseException as error:  # noqa: BLE001 - raised again, if nobody decides instead
            return self._unanswered(ask, error, key, cost).reserve(key, cost=cost)
        if ask.verdict != GRANTED:
            limited = self._limited_by(ask, key, cost, reason(ask), None)
            wait_ns, _ = self._spec.backoff(ask)
            if wait_ns is None:
                raise limited
            # When a slot can be reserved again, which is before it has come.
            raise RateLimited(wait_ns / 1e9, limit=limited.limit, key=limited.key, status=limited.status)
        permit = self._got(ask, key, cost)
        if ask.slot > ask.heard:
            permit.promise(ask.slot)
        return permit

    def _telling(self, request: Request) -> Errand[None]:
        """What only the engine can do or tell: without it there is nothing to fall back on."""
        try:
            yield Say(request)
        except EngineUnavailable:
            self._tell_trouble("engine_error", request.account, 0.0)
            raise

    def peek(self, key: Key = None, *, cost: Cost = 1) -> Status:
        return self._run(self._peeking(key, cost))

    async def peek_async(self, key: Key = None, *, cost: Cost = 1) -> Status:
        return await self._run_async(self._peeking(key, cost))

    def _peeking(self, key: Key, cost: Cost) -> Errand[Status]:
        keys, costs = self.request(key, cost)
        look = Look(self._account(keys), costs)
        yield from self._telling(look)
        return status(look)

    def pause(self, seconds: float | timedelta, key: str | None = None) -> None:
        self._run(self._pausing(seconds, key))

    async def pause_async(self, seconds: float | timedelta, key: str | None = None) -> None:
        await self._run_async(self._pausing(seconds, key))

    def _pausing(self, length: float | timedelta, key: str | None) -> Errand[None]:
        ns = span_of(length)
        if ns is None or not 0 <= ns < 1 << 62:
            raise InvalidArgument("seconds", length, "seconds from 0 up, or a timedelta; 0 lifts the pause")
        if key is not None and not isinstance(key, str):
            raise InvalidKey(key, costs=False)
        account = self._account((key,) * len(self._spec.names))
        yield from self._telling(Pause(account, numbers(PAUSE, -(-ns // TICK))))
        if self._listener is not None:
            self._listener.tell("paused", key, None, ns / 1e9)

    def reset(self, key: Key = None) -> None:
        self._run(self._resetting(key))

    async def reset_async(self, key: Key = None) -> None:
        await self._run_async(self._resetting(key))

    def _resetting(self, key: Key) -> Errand[None]:
        account = self._account(self._keys(key, self._book.metrics, costs=False))
        yield from self._telling(Request(account, numbers(RESET)))

    def retarget(self, limit: Limits) -> None:
        limits = self._from_afar(limit)
        rules = self._flat_rules(limits, self._clock)
        self._compare(self._book, rules, self._metric_of_each_rule(limits))
        self._limits = limits
        # The book decides nothing here: it only has to know by which rules requests are checked.
        self._furnish(self._book, limits, rules)
        self._spec.declare(fleet_terms.text_of(limits), rules)
        self._standby.retarget(limits)
        # A copy that is made of it elsewhere says what this one says: the newest governs.
        self._options["limit"] = limit
        # Who waits may be served under the new limit, or never.
        for account in self._spec.everybody():
            account.visited = 0
        self._engine.keeper.wake()

    async def retarget_async(self, limit: Limits) -> None:
        self.retarget(limit)

    def stats(self) -> Stats:
        spec, own, instead = self._spec, Limiter.stats(self), self._standby.stats()
        if instead is not None:
            own = Stats(*(getattr(own, part.name) + getattr(instead, part.name) for part in fields(Stats)))
        return replace(own, waiting=len(spec.waiters) + own.waiting, keys=spec.known())

    def close(self) -> None:
        self._spec.close()
        self._standby.close()

    async def close_async(self) -> None:
        self.close()


def _rebuild(options: dict[str, Any]) -> FleetLimiter:
    return FleetLimiter(**options)
