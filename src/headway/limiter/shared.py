"""A limiter whose ledgers are on a shared engine: the same verbs, for any number of processes and machines.

The engine decides, in one step and by its clock; this file says what is sent and what becomes of the answer. The verbs
for threads and for tasks share all but the line that sends: a generator or coroutine between them would cost more than
it says. Whatever goes wrong comes to one place (`_instead`), which says which limiter decides while the engine is away.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headway.counts import LimiterCounts
from headway.denied import Denied
from headway.diagnostics import check_health, notice_abandoned_here, notice_drop, notice_wait, warn_blocking
from headway.engines.base import Acquire, LimiterTerms, Patience, Pause, Peek, Reset, Verdict
from headway.errors import EngineUnavailable, InvalidArgument, NotPromised, RateLimited
from headway.flows import drive_shared
from headway.flows.drive import need_loop
from headway.flows.shared import Flow, Refused, Send, acquire_flow
from headway.limiter.fallback import Fallback
from headway.limiter.limit_input import Limits, check_remote, limits_of
from headway.limiter.limit_table import LimitTable
from headway.limiter.request_input import Cost, Key, Timeout, keys_of, pause_to_ns, request_of, timeout_to_ns
from headway.limiter.results import denied, limited, status
from headway.limiter.shared_permits import SharedPermit, new_shared_permit
from headway.outcome import Outcome
from headway.status import LimiterStats, Status

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.core.remote import Remote
    from headway.engines.base import Command, Decision, Engine, Report
    from headway.limiter.limiter import Limiter
    from headway.limiter.permits import Permit
    from headway.limiter.shared_options import SharedOptions

_T = TypeVar("_T")

GRANTED = int(Verdict.GRANTED)


class SharedLimiter:
    """The verbs of a `Limiter` on a shared engine."""

    __slots__ = (
        "__weakref__",
        "_abandoned_at",
        "_bare",
        "_bracket",
        "_clock",
        "_emitter",
        "_engine",
        "_exempt",
        "_fallback",
        "_max_waiting",
        "_now",
        "_read",
        "_timeout_ns",
        "counts",
        "ledgers",
        "name",
        "table",
    )

    def __init__(self, limit: Limits, options: SharedOptions) -> None:
        engine = options.engine
        self._engine = engine
        self._clock = options.clock
        self._emitter = options.emitter
        self._read = partial(_read, engine, options.remote)
        self._timeout_ns = options.timeout_ns
        self._max_waiting = options.max_waiting
        self.name = options.name
        for own in options.measured_overrides():
            self._read(own, measure=True)
        limits = self._read(limit, measure=True)
        if options.overrides is None:
            check_remote(options.remote, limits)
        self.table = LimitTable(limits, options.overrides, self._read, engine.rules_of, same_kinds=True)
        self._fallback = Fallback(options, self.table.limits)
        self._exempt = self._exempt_limiter(options) if self.table.exempts else None
        self.counts = LimiterCounts()
        # When this process abandoned a permit last; 0: never.
        self._abandoned_at = 0
        self.ledgers = engine.open(
            LimiterTerms(
                self.name,
                self._clock,
                self.table.text,
                self.table.metrics,
                self.table.rules,
                self._rules_for if self.table.has_overrides else None,
                options.engine_timeout_ns,
                options.on_ledger_loss,
                options.max_quarantine_ns,
                self._notify,
                options.lease_ttl_ns,
            )
        )
        # The commands of most calls: no key, one permit.
        self._bare = self._command(None, 1, Patience.WAIT)
        self._now = self._command(None, 1, Patience.NOW)
        self._bracket = self._bare._replace(brackets=True)

    def _exempt_limiter(self, options: SharedOptions) -> Fallback:
        if self.table.metrics[0] is not None:
            accepted = "limits: with metrics no key is exempt on a shared engine"
            raise InvalidArgument("overrides", options.overrides, accepted)
        return Fallback.exempt(options)

    def _rules_for(self, keys: tuple[str | None, ...]) -> tuple[Any, ...]:
        table = self.table
        each = keys if table.metrics[0] is not None else keys * len(table.rules)
        return tuple(table.rule_for(index, key) for index, key in enumerate(each))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The common rule of each metric and part."""
        return self.table.rules

    @property
    def address(self) -> str:
        """Where its ledgers are, without passwords."""
        return self._engine.address

    # -- verbs of every call -----------------------------------------------------------------------------

    def try_acquire(self, key: Key, cost: Cost) -> Permit | Denied:
        if self._exempt is not None and self.table.is_exempt(key):
            return self._exempt.for_exempt().try_acquire(key, cost=cost)
        command = self._try_command(key, cost)
        while True:
            try:
                decision = self.ledgers.send(command)
            except EngineUnavailable as error:
                return self._instead(error, key, cost).try_acquire(key, cost=cost)
            answer = self._verdict(decision, key, cost)
            if answer is not None:
                return answer

    async def try_acquire_async(self, key: Key, cost: Cost) -> Permit | Denied:
        if self._exempt is not None and self.table.is_exempt(key):
            return self._exempt.for_exempt().try_acquire(key, cost=cost)
        command = self._try_command(key, cost)
        while True:
            try:
                decision = await self.ledgers.send_async(command, need_loop())
            except EngineUnavailable as error:
                return self._instead(error, key, cost).try_acquire(key, cost=cost)
            answer = self._verdict(decision, key, cost)
            if answer is not None:
                return answer

    def acquire(self, key: Key, cost: Cost, timeout: Timeout, brackets: bool = False) -> Permit:
        if self._exempt is not None and self.table.is_exempt(key):
            return self._exempt.for_exempt().acquire(key, cost=cost, timeout=timeout)
        deadline = None if timeout is ... and self._timeout_ns is None else self._deadline(timeout)
        usual = deadline is None and key is None and type(cost) is int and cost == 1
        if usual:
            command = self._bracket if brackets else self._bare
        else:
            command = self._command(key, cost, Patience.WAIT, deadline, brackets)
        since = 0
        try:
            decision = self.ledgers.send(command)
            if not decision.spendable():
                since = self._clock.now()
                decision = self.run(self._waiting(command, decision, deadline))
        except Refused as refused:
            raise self._limited(refused, key, cost, timeout) from None
        except EngineUnavailable as error:
            instead = self._instead(error, key, cost)
            left = self._left(deadline)
            if brackets:
                return instead._acquire_held(key, cost, left)
            return instead.acquire(key, cost=cost, timeout=left)
        return self._granted(decision, key, cost, since)

    async def acquire_async(self, key: Key, cost: Cost, timeout: Timeout, brackets: bool = False) -> Permit:
        if self._exempt is not None and self.table.is_exempt(key):
            return await self._exempt.for_exempt().acquire_async(key, cost=cost, timeout=timeout)
        deadline = None if timeout is ... and self._timeout_ns is None else self._deadline(timeout)
        usual = deadline is None and key is None and type(cost) is int and cost == 1
        if usual:
            command = self._bracket if brackets else self._bare
        else:
            command = self._command(key, cost, Patience.WAIT, deadline, brackets)
        since = 0
        try:
            decision = await self.ledgers.send_async(command, need_loop())
            if not decision.spendable():
                since = self._clock.now()
                decision = await self.run_async(self._waiting(command, decision, deadline))
        except Refused as refused:
            raise self._limited(refused, key, cost, timeout) from None
        except EngineUnavailable as error:
            instead = self._instead(error, key, cost)
            left = self._left(deadline)
            if brackets:
                return await instead._acquire_held_async(key, cost, left)
            return await instead.acquire_async(key, cost=cost, timeout=left)
        return self._granted(decision, key, cost, since)

    # -- commands ----------------------------------------------------------------------------------------

    def _command(
        self,
        key: Key,
        cost: Cost,
        patience: Patience,
        deadline: int | None = None,
        brackets: bool = False,
    ) -> Acquire:
        keys, costs = self._request(key, cost)
        longest = None if deadline is None else max(0, deadline - self._clock.now())
        return Acquire(keys, costs, patience, 0 if patience == Patience.NOW else longest, brackets)

    def _try_command(self, key: Key, cost: Cost) -> Acquire:
        usual = key is None and type(cost) is int and cost == 1
        return self._now if usual else self._command(key, cost, Patience.NOW)

    def _request(self, key: Key, cost: Cost) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
        """Keys as the engine wants them (one for all rules of a limiter without metrics), and a cost for each rule."""
        table = self.table
        keys, costs = request_of(key, cost, table.metrics, table.rule_for)
        return keys if table.metrics[0] is not None else keys[:1], costs

    def _deadline(self, timeout: Timeout) -> int | None:
        timeout_ns = self._timeout(timeout)
        return None if timeout_ns is None else self._clock.now() + timeout_ns

    def _timeout(self, timeout: Timeout) -> int | None:
        return self._timeout_ns if timeout is ... else timeout_to_ns(timeout)

    def _left(self, deadline: int | None) -> float | None:
        """The time-out of the limiter that decides instead: it ends when that of the engine would have."""
        return None if deadline is None else max(0, deadline - self._clock.now()) / 1e9

    # -- answers -----------------------------------------------------------------------------------------

    def _verdict(self, decision: Decision, key: Key, cost: Cost) -> Permit | Denied | None:
        """None: this process was stopped while the answer travelled, for so long that the permit has expired."""
        if decision.verdict == GRANTED:
            if decision.spendable():
                return self._granted(decision, key, cost)
            decision.withdraw()
            return None
        self._count_denial(key, cost)
        return denied(decision, key, self.table.metrics)

    def _granted(self, decision: Decision, key: Key, cost: Cost, since: int = 0) -> SharedPermit:
        """`since`: when the caller began to wait, if it had to."""
        first = key if key is None or type(key) is str else _first(key)
        permit = new_shared_permit(self, decision, first, key)
        self.counts.granted += 1
        if permit._held:
            self.ledgers.hold(decision)
        if since:
            notice_wait(self, self._clock.now() - since)
        if self._emitter is not None:
            if since:
                self._emitter.emit("waited", key, cost, (self._clock.now() - since) / 1e9)
            else:
                self._emitter.emit("granted", key, cost)
        return permit

    def _spent(self, decision: Decision, key: Key, cost: Cost) -> object:
        """What `_granted` does for a permit that is spent at once and may only be given back: its receipt, or the
        permit where there is no receipt."""
        receipt = self.ledgers.receipt(decision)
        if receipt is None:
            return self._granted(decision, key, cost)
        self.counts.granted += 1
        if self._emitter is not None:
            self._emitter.emit("granted", key, cost)
        return receipt

    def _permit_of(self, receipt: object, key: str | None) -> SharedPermit:
        """The permit that a receipt is of."""
        return new_shared_permit(self, self.ledgers.decision_of(receipt), key, key)

    def _instead(self, error: EngineUnavailable, key: Key, cost: Cost) -> Limiter:
        """The limiter that decides while the engine is away, if `on_engine_error` names one; else raises."""
        if self._emitter is not None:
            self._emitter.emit("engine_error", key, cost)
        return self._fallback.limiter_for(error, key, cost)

    def stand_in(self) -> Limiter:
        """The limiter that decides while the engine is away; raises `EngineUnavailable` where there is none."""
        return self._fallback.stand_in(self.address)

    def decided_without_engine(self, permit: Permit) -> bool:
        """Whether this permit was granted because the engine is away."""
        if isinstance(permit, SharedPermit):
            return False
        return self._exempt is None or not self.table.is_exempt(permit.key)

    def _limited(self, refused: Refused, key: Key, cost: Cost, timeout: Timeout) -> RateLimited:
        self._count_denial(key, cost)
        timeout_ns = self._timeout(timeout)
        return limited(
            refused.decision,
            refused.report,
            key,
            self.table.metrics,
            refused.reason,
            timeout_ns,
            self._max_waiting,
        )

    def _count_denial(self, key: Key, cost: Cost) -> None:
        self.counts.denied += 1
        if self._emitter is not None:
            self._emitter.emit("denied", key, cost)

    def _notify(self, kind: str, key: str | None, length: float) -> None:
        if self._emitter is not None:
            self._emitter.emit(kind, key, None, length)

    # -- waiting -----------------------------------------------------------------------------------------

    def _waiting(self, command: Acquire, decision: Decision, deadline: int | None) -> Flow[Decision]:
        if self._abandoned_at:
            self._notice_abandoned()
        return acquire_flow(
            self.ledgers, self.name, command, decision, self._clock, deadline, self._max_waiting
        )

    def _notice_abandoned(self) -> None:
        now = self._clock.now()
        notice_abandoned_here(self, now, now - self._abandoned_at, self._engine.tick_ns)

    def run(self, flow: Flow[_T]) -> _T:
        """Run a flow in this thread."""
        return drive_shared.run(flow, self.ledgers, self._clock, partial(warn_blocking, self))

    def run_async(self, flow: Flow[_T]) -> Coroutine[Any, Any, _T]:
        """Run a flow in this task."""
        return drive_shared.run_async(flow, self.ledgers, self._clock)

    # -- ends of permits ---------------------------------------------------------------------------------

    def ended(self, permit: SharedPermit, how: int) -> None:
        """A permit ended, and its ledger has been told."""
        if how == Outcome.ABANDON:
            self._abandoned_at = self._clock.now()
            if self.ledgers.waiting:
                self._notice_abandoned()
        flight = permit._decision.flight_ns() if how == Outcome.COMPLETE and permit._held else 0
        self.counts.count_end(how, flight)
        if self.counts.ended & 255 == 0:
            check_health(self)
        if self._emitter is not None:
            self._emitter.emit_end(permit, how)

    def dropped(self, permit: SharedPermit) -> None:
        """A permit was dropped without an end. Called by a finalizer."""
        self._abandoned_at = self._clock.now()
        self.counts.count_end(Outcome.ABANDON, 0)
        if self._emitter is not None:
            self._emitter.emit_end(permit, Outcome.ABANDON)
        notice_drop(self, permit)

    def owns(self, decision: Decision) -> bool:
        """Whether this process took the permit."""
        return self.ledgers.owns(decision)

    # -- rarer verbs, as flows ---------------------------------------------------------------------------

    def reserving(self, key: Key, cost: Cost) -> Flow[Permit]:
        if self._exempt is not None and self.table.is_exempt(key):
            return self._exempt.for_exempt().reserve(key, cost=cost)
        keys, costs = self._request(key, cost)
        rules = self.table.rules if keys[0] is None else self._rules_for(keys)
        for rule in rules:
            if not rule.promises or len(rules) > 1:
                raise NotPromised(rule.limit)
            if rule.capacity == 0:
                raise RateLimited(math.inf, limit=rule.limit, key=keys[0], reason="never")
        try:
            decision = yield Send(Acquire(keys, costs, Patience.RESERVE))
        except EngineUnavailable as error:
            return self._instead(error, key, cost).reserve(key, cost=cost)
        if decision.verdict != GRANTED:
            self._count_denial(key, cost)
            refusal = limited(decision, decision, key, self.table.metrics, decision.reason())
            again_ns = decision.reserve_again_ns()
            if again_ns is None:
                raise refusal
            # When a slot can be reserved again, which is before that slot has come.
            raise RateLimited(again_ns / 1e9, limit=refusal.limit, key=refusal.key, status=refusal.status)
        permit = self._granted(decision, key, cost)
        permit._slot = 1 if decision.wait_ns() else 0
        if permit._slot:
            self.ledgers.hold(decision)
        return permit

    def peeking(self, key: Key, cost: Cost) -> Flow[Status]:
        if self._exempt is not None and self.table.is_exempt(key):
            return self._exempt.for_exempt().peek(key, cost=cost)
        keys, costs = self._request(key, cost)
        report: Report = yield from self._telling(Peek(keys, costs), key)
        return status(report, self.table.metrics)

    def pausing(self, length: Any, key: str | None) -> Flow[None]:
        ns = pause_to_ns(length)
        if self._exempt is not None:
            self._exempt.for_exempt().pause(length, key)
            if self.table.is_exempt(key):
                return
        names = self.table.metrics if self.table.metrics[0] is not None else self.table.metrics[:1]
        yield from self._telling(Pause((key,) * len(names), ns), key)
        if self._emitter is not None:
            self._emitter.emit("paused", key, None, ns / 1e9)

    def resetting(self, key: Key) -> Flow[None]:
        if self._exempt is not None and self.table.is_exempt(key):
            return self._exempt.for_exempt().reset(key)
        keys = keys_of(key, self.table.metrics, costs=False)
        yield from self._telling(Reset(keys if self.table.metrics[0] is not None else keys[:1]), key)

    def _telling(self, command: Command, key: Key) -> Flow[Any]:
        """What only the engine can do or tell: without it there is nothing to fall back on."""
        try:
            return (yield Send(command))
        except EngineUnavailable:
            self._notify("engine_error", key if isinstance(key, str) else None, 0.0)
            raise

    # -- the limiter itself ------------------------------------------------------------------------------

    def set_limit(self, limit: Limits) -> None:
        table = self.table.replace(self._read(limit, measure=True))
        table.check_same_shape(self.name, self.table.metrics, self.table.rules)
        self.table = table
        self._fallback.set_limit(table.limits)
        self.ledgers.set_limit(table.text, table.rules)

    def stats(self) -> LimiterStats:
        counts, instead = self.counts, self._fallback.stats()
        exempt = 0 if self._exempt is None else self._exempt.stats().granted
        return LimiterStats(
            granted=counts.granted + instead.granted + exempt,
            denied=counts.denied + instead.denied,
            waiting=self.ledgers.waiting + instead.waiting,
            completed=counts.ended - counts.abandoned + instead.completed,
            cancelled=counts.cancelled + instead.cancelled,
            abandoned=counts.abandoned + instead.abandoned,
            keys=self.ledgers.known_keys(),
        )

    def close(self) -> None:
        self.ledgers.close()
        self._fallback.close()
        if self._exempt is not None:
            self._exempt.close()


def _read(
    engine: Engine, remote: Remote | bool | None, limit: Limits, measure: bool = False
) -> dict[str, Any]:
    """Limits as the engine can keep them. In the midst of a call nothing is measured."""
    return {metric: engine.adapt(part, measure=measure) for metric, part in limits_of(limit, remote).items()}


def _first(key: Any) -> str | None:
    """The key that a permit of several metrics is shown with."""
    return (
        next((value for value in key.values() if value is not None), None)
        if hasattr(key, "values")
        else str(key)
    )
