"""The hot half of a limiter whose ledgers are elsewhere: the verbs of every call, waiting, and the counting of ends.

`headway.limiter.local` asks a ledger in this process; here asking takes time, and may fail. The verbs for threads
and for tasks
share all but the line that asks: another generator or coroutine between them would cost more than it says. Whatever
ends a question early comes to one place (`_unanswered`), which says who decides instead.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headway.diagnostics import check_health, notice_wait, warn_blocking
from headway.engines.redis.client.batching import loop_batcher, thread_batcher
from headway.engines.redis.client.requests import Acquire
from headway.engines.redis.script.protocol import GRANTED, NEVER, NOW, TICK, WAIT
from headway.errors import EngineUnavailable, LimiterClosed
from headway.flows import drive_shared
from headway.flows.drive import need_loop
from headway.flows.local import DeadlinePassed
from headway.flows.shared import Flow, QueueFull, acquire_flow
from headway.limiter.limiter import Limiter
from headway.limiter.local import Cost, Key, Timeout, timeout_to_ns
from headway.limiter.permits import Permit
from headway.limiter.results import denied, limited
from headway.limiter.shared_permits import SharedPermit, new_shared_permit
from headway.outcome import Outcome
from headway.status import Denied

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.client.registry import LimiterRegistry
    from headway.engines.redis.engine import Engine
    from headway.errors import RateLimited
    from headway.limiter.fallback import Fallback

_T = TypeVar("_T")


class SharedCalls(Limiter):
    """The hot half of a `SharedLimiter`, which furnishes it."""

    __slots__ = ("_clock", "_engine", "_fallback", "_registry")

    _clock: Clock
    _engine: Engine
    _registry: LimiterRegistry
    _fallback: Fallback

    # -- verbs -------------------------------------------------------------------------------------------

    def try_acquire(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        while True:
            acquire = self._question(key, cost)
            try:
                thread_batcher(acquire.ledger).send(acquire)
            except BaseException as error:  # noqa: BLE001 - raised again, if nobody decides instead
                return self._unanswered(acquire, error, key, cost).try_acquire(key, cost=cost)
            answer = self._verdict(acquire, key, cost)
            if answer is not None:
                return answer

    async def try_acquire_async(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        while True:
            acquire = self._question(key, cost)
            try:
                await loop_batcher(acquire.ledger, need_loop()).send(acquire)
            except BaseException as error:  # noqa: BLE001 - as above
                return self._unanswered(acquire, error, key, cost).try_acquire(key, cost=cost)
            answer = self._verdict(acquire, key, cost)
            if answer is not None:
                return answer

    def acquire(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        deadline = None if timeout is ... and self._timeout_ns is None else self._deadline(timeout)
        acquire = self._patient_question(key, cost, deadline)
        since = 0
        try:
            thread_batcher(acquire.ledger).send(acquire)
            if not acquire.spendable():
                since = acquire.replied_at
                acquire = self._run(self._waiting(acquire, deadline))
        except BaseException as error:  # noqa: BLE001 - as above
            instead = self._unanswered(acquire, error, key, cost, timeout)
            return instead.acquire(key, cost=cost, timeout=self._left(deadline))
        return self._got(acquire, key, cost, since)

    async def acquire_async(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        deadline = None if timeout is ... and self._timeout_ns is None else self._deadline(timeout)
        acquire = self._patient_question(key, cost, deadline)
        since = 0
        try:
            await loop_batcher(acquire.ledger, need_loop()).send(acquire)
            if not acquire.spendable():
                since = acquire.replied_at
                acquire = await self._run_async(self._waiting(acquire, deadline))
        except BaseException as error:  # noqa: BLE001 - as above
            instead = self._unanswered(acquire, error, key, cost, timeout)
            return await instead.acquire_async(key, cost=cost, timeout=self._left(deadline))
        return self._got(acquire, key, cost, since)

    # -- questions ---------------------------------------------------------------------------------------

    def _account(self, keys: tuple[str | None, ...]) -> LedgerClient:
        registry = self._registry
        if registry.closed:
            raise LimiterClosed(self.name)
        return registry.ledger(keys if registry.metrics else keys[:1])

    def _whose(self, key: Key, cost: Cost) -> tuple[LedgerClient, tuple[int, ...]]:
        """The account that is asked, and for how much of each metric."""
        if key is None and type(cost) is int and cost == 1:
            default_request = self._registry.default_request
            if default_request is None:
                keys, costs = self.request(key, cost)
                default_request = self._registry.make_default_request(self._account(keys), costs)
            return default_request
        keys, costs = self.request(key, cost)
        return self._account(keys), costs

    def _question(self, key: Key, cost: Cost) -> Acquire:
        """Of who does not wait."""
        ledger, costs = self._whose(key, cost)
        return Acquire(ledger, costs, NOW, 0.0)

    def _patient_question(self, key: Key, cost: Cost, deadline: int | None) -> Acquire:
        ledger, costs = self._whose(key, cost)
        return self._new_ask(ledger, costs, deadline)

    def _new_ask(
        self, ledger: LedgerClient, costs: tuple[int, ...], deadline: int | None, patience: int = WAIT
    ) -> Acquire:
        longest = NEVER if deadline is None else float(max(0, deadline - self._clock.now()) // TICK)
        return Acquire(ledger, costs, patience, longest)

    def _timeout(self, timeout: Timeout) -> int | None:
        return self._timeout_ns if timeout is ... else timeout_to_ns(timeout)

    def _deadline(self, timeout: Timeout) -> int | None:
        timeout_ns = self._timeout(timeout)
        return None if timeout_ns is None else self._clock.now() + timeout_ns

    def _left(self, deadline: int | None) -> float | None:
        """The time-out of who decides instead: it ends when that of the engine would have."""
        return None if deadline is None else max(0, deadline - self._clock.now()) / 1e9

    # -- answers -----------------------------------------------------------------------------------------

    def _verdict(self, acquire: Acquire, key: Key, cost: Cost) -> Permit | Denied | None:
        """None: we were stopped while the answer was on its way, for so long that the permit is another's by now."""
        if acquire.verdict == GRANTED:
            if self._clock.now() <= acquire.expires:
                return self._got(acquire, key, cost)
            acquire.give_back()
            return None
        self._tell_denied(key, cost)
        return denied(acquire, key)

    def _got(self, acquire: Acquire, key: Key, cost: Cost, since: int = 0) -> Permit:
        """`since`: when it began to wait, if it had to."""
        permit = new_shared_permit(self, acquire)
        waited = self._clock.now() - since if since else 0
        if since:
            notice_wait(self._store, waited)
        if self._listener is not None:
            if since:
                self._listener.emit("waited", key, cost, waited / 1e9)
            else:
                self._listener.emit("granted", key, cost)
        return permit

    def _unanswered(
        self, acquire: Acquire, error: BaseException, key: Key, cost: Cost, timeout: Timeout = ...
    ) -> Limiter:
        """Who decides instead, where the engine is away and `on_engine_error` names somebody; else it raises."""
        acquire.withdraw()
        if isinstance(error, DeadlinePassed):
            why = "max_waiting" if isinstance(error, QueueFull) else "timeout"
            raise self._limited_by(acquire, key, cost, why, timeout) from None
        if not isinstance(error, EngineUnavailable):
            raise error
        if self._listener is not None:
            self._listener.emit("engine_error", key, cost)
        return self._fallback.limiter_for(error, key, cost)

    def _limited_by(self, acquire: Acquire, key: Key, cost: Cost, why: str, timeout: Timeout) -> RateLimited:
        self._tell_denied(key, cost)
        return limited(acquire, key, why, self._timeout(timeout), self._max_waiting)

    def _tell_denied(self, key: Key, cost: Cost) -> None:
        self._store.counts.denied += 1
        if self._listener is not None:
            self._listener.emit("denied", key, cost)

    # -- waiting -----------------------------------------------------------------------------------------

    def _run(self, flow: Flow[_T]) -> _T:
        return drive_shared.run(flow, self._clock, partial(warn_blocking, self._store))

    def _run_async(self, flow: Flow[_T]) -> Coroutine[Any, Any, _T]:
        return drive_shared.run_async(flow, self._clock)

    def _waiting(self, acquire: Acquire, deadline: int | None) -> Flow[Acquire]:
        """Until a permit may be spent."""
        ledger, costs = acquire.ledger, acquire.costs
        return acquire_flow(
            acquire, deadline, self._max_waiting, lambda: self._new_ask(ledger, costs, deadline)
        )

    # -- ends --------------------------------------------------------------------------------------------

    def _ended(self, permit: SharedPermit, how: int) -> None:
        """Count how a permit ended."""
        counts = self._store.counts
        if how == Outcome.CANCEL:
            counts.cancelled += 1
        else:
            counts.ended += 1
            if how == Outcome.ABANDON:
                counts.abandoned += 1
            elif how == Outcome.COMPLETE and permit._held:
                counts.flight_ns += max(0, self._clock.now() - permit._call.slot)
            if counts.ended & 255 == 0:
                check_health(self._store)
        if self._listener is not None:
            self._listener.emit_end(permit, how)
