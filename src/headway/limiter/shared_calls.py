"""The hot half of a limiter whose ledgers are elsewhere: the verbs of every call, waiting, and the counting of ends.

`headway.desk` asks a ledger in this process; here asking takes time, and may fail. The verbs for threads and for tasks
share all but the line that asks: another generator or coroutine between them would cost more than it says. Whatever
ends a question early comes to one place (`_unanswered`), which says who decides instead.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from headway import talk
from headway.desk import Cost, Key, Timeout, timeout_to_ns
from headway.drive import need_loop
from headway.engines.redis.lanes import lane_of_tasks, lane_of_threads
from headway.engines.redis.requests import ABANDON, CANCEL, COMPLETE, Ask
from headway.engines.redis.words import GRANTED, NEVER, NOW, TICK, WAIT
from headway.errands import Errand, TooMany, obtain
from headway.errors import Closed, EngineUnavailable
from headway.fleet_answers import denied, limited
from headway.fleet_permit import FleetPermit, new_fleet_permit
from headway.flows import Late
from headway.health import notice_wait
from headway.limiter import Limiter
from headway.permit import Permit
from headway.status import Denied

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.redis.account import Account
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.spec import Spec
    from headway.errors import RateLimited
    from headway.fleet_standby import Standby

_T = TypeVar("_T")


class FleetDesk(Limiter):
    """The hot half of a `FleetLimiter`, which furnishes it."""

    __slots__ = ("_clock", "_engine", "_spec", "_standby")

    _clock: Clock
    _engine: Engine
    _spec: Spec
    _standby: Standby

    # -- verbs -------------------------------------------------------------------------------------------

    def try_acquire(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        while True:
            ask = self._question(key, cost)
            try:
                lane_of_threads(ask.account).ask(ask)
            except BaseException as error:  # noqa: BLE001 - raised again, if nobody decides instead
                return self._unanswered(ask, error, key, cost).try_acquire(key, cost=cost)
            answer = self._verdict(ask, key, cost)
            if answer is not None:
                return answer

    async def try_acquire_async(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        while True:
            ask = self._question(key, cost)
            try:
                await lane_of_tasks(ask.account, need_loop()).ask(ask)
            except BaseException as error:  # noqa: BLE001 - as above
                return self._unanswered(ask, error, key, cost).try_acquire(key, cost=cost)
            answer = self._verdict(ask, key, cost)
            if answer is not None:
                return answer

    def acquire(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        deadline = None if timeout is ... and self._timeout_ns is None else self._deadline(timeout)
        ask = self._patient_question(key, cost, deadline)
        since = 0
        try:
            lane_of_threads(ask.account).ask(ask)
            if not ask.spendable():
                since = ask.heard
                ask = self._run(self._waiting(ask, deadline))
        except BaseException as error:  # noqa: BLE001 - as above
            instead = self._unanswered(ask, error, key, cost, timeout)
            return instead.acquire(key, cost=cost, timeout=self._left(deadline))
        return self._got(ask, key, cost, since)

    async def acquire_async(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        deadline = None if timeout is ... and self._timeout_ns is None else self._deadline(timeout)
        ask = self._patient_question(key, cost, deadline)
        since = 0
        try:
            await lane_of_tasks(ask.account, need_loop()).ask(ask)
            if not ask.spendable():
                since = ask.heard
                ask = await self._run_async(self._waiting(ask, deadline))
        except BaseException as error:  # noqa: BLE001 - as above
            instead = self._unanswered(ask, error, key, cost, timeout)
            return await instead.acquire_async(key, cost=cost, timeout=self._left(deadline))
        return self._got(ask, key, cost, since)

    # -- questions ---------------------------------------------------------------------------------------

    def _account(self, keys: tuple[str | None, ...]) -> Account:
        spec = self._spec
        if spec.closed:
            raise Closed(self.name)
        return spec.account(keys if spec.metrics else keys[:1])

    def _whose(self, key: Key, cost: Cost) -> tuple[Account, tuple[int, ...]]:
        """The account that is asked, and for how much of each metric."""
        if key is None and type(cost) is int and cost == 1:
            usual = self._spec.usual
            if usual is None:
                keys, costs = self.request(key, cost)
                usual = self._spec.make_usual(self._account(keys), costs)
            return usual
        keys, costs = self.request(key, cost)
        return self._account(keys), costs

    def _question(self, key: Key, cost: Cost) -> Ask:
        """Of who does not wait."""
        account, costs = self._whose(key, cost)
        return Ask(account, costs, NOW, 0.0)

    def _patient_question(self, key: Key, cost: Cost, deadline: int | None) -> Ask:
        account, costs = self._whose(key, cost)
        return self._new_ask(account, costs, deadline)

    def _new_ask(
        self, account: Account, costs: tuple[int, ...], deadline: int | None, patience: int = WAIT
    ) -> Ask:
        longest = NEVER if deadline is None else float(max(0, deadline - self._clock.now()) // TICK)
        return Ask(account, costs, patience, longest)

    def _timeout(self, timeout: Timeout) -> int | None:
        return self._timeout_ns if timeout is ... else timeout_to_ns(timeout)

    def _deadline(self, timeout: Timeout) -> int | None:
        timeout_ns = self._timeout(timeout)
        return None if timeout_ns is None else self._clock.now() + timeout_ns

    def _left(self, deadline: int | None) -> float | None:
        """The time-out of who decides instead: it ends when that of the engine would have."""
        return None if deadline is None else max(0, deadline - self._clock.now()) / 1e9

    # -- answers -----------------------------------------------------------------------------------------

    def _verdict(self, ask: Ask, key: Key, cost: Cost) -> Permit | Denied | None:
        """None: we were stopped while the answer was on its way, for so long that the permit is another's by now."""
        if ask.verdict == GRANTED:
            if self._clock.now() <= ask.expires:
                return self._got(ask, key, cost)
            ask.give_back()
            return None
        self._tell_denied(key, cost)
        return denied(ask, key)

    def _got(self, ask: Ask, key: Key, cost: Cost, since: int = 0) -> Permit:
        """`since`: when it began to wait, if it had to."""
        permit = new_fleet_permit(self, ask)
        waited = self._clock.now() - since if since else 0
        if since:
            notice_wait(self._book, waited)
        if self._listener is not None:
            if since:
                self._listener.tell("waited", key, cost, waited / 1e9)
            else:
                self._listener.tell("granted", key, cost)
        return permit

    def _unanswered(
        self, ask: Ask, error: BaseException, key: Key, cost: Cost, timeout: Timeout = ...
    ) -> Limiter:
        """Who decides instead, where the engine is away and `on_engine_error` names somebody; else it raises."""
        ask.withdraw()
        if isinstance(error, Late):
            why = "max_waiting" if isinstance(error, TooMany) else "timeout"
            raise self._limited_by(ask, key, cost, why, timeout) from None
        if not isinstance(error, EngineUnavailable):
            raise error
        if self._listener is not None:
            self._listener.tell("engine_error", key, cost)
        return self._standby.instead(error, key, cost)

    def _limited_by(self, ask: Ask, key: Key, cost: Cost, why: str, timeout: Timeout) -> RateLimited:
        self._tell_denied(key, cost)
        return limited(ask, key, why, self._timeout(timeout), self._max_waiting)

    def _tell_denied(self, key: Key, cost: Cost) -> None:
        self._book.denied += 1
        if self._listener is not None:
            self._listener.tell("denied", key, cost)

    # -- waiting -----------------------------------------------------------------------------------------

    def _run(self, errand: Errand[_T]) -> _T:
        return talk.run(errand, self._clock, self._book.tell_blocking)

    def _run_async(self, errand: Errand[_T]) -> Coroutine[Any, Any, _T]:
        return talk.run_async(errand, self._clock)

    def _waiting(self, ask: Ask, deadline: int | None) -> Errand[Ask]:
        """Until a permit may be spent."""
        account, costs = ask.account, ask.costs
        return obtain(ask, deadline, self._max_waiting, lambda: self._new_ask(account, costs, deadline))

    # -- ends --------------------------------------------------------------------------------------------

    def _ended(self, permit: FleetPermit, how: int) -> None:
        """Count how a permit ended."""
        book = self._book
        if how == CANCEL:
            book.cancelled += 1
        else:
            book.ended += 1
            if how == ABANDON:
                book.abandoned += 1
            elif how == COMPLETE and permit._held:
                book.flight_ns += max(0, self._clock.now() - permit._ask.slot)
            if book.ended & 255 == 0:
                book.check_health()
        if self._listener is not None:
            self._listener.tell_end(permit, {1: "complete", 2: "cancel", 3: "abandon"}.get(how, "settled"))
