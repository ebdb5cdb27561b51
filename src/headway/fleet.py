"""A limiter whose ledgers are elsewhere: the same verbs, for any number of processes and machines.

`Limiter(..., engine="redis://...")` is one. The decision is made on the server, in one step and by its clock; here
are the verbs, what happens when the server does not answer, and what the limiter has to know to ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headway import talk
from headway.clock import as_clock
from headway.core.concurrency import ConcurrencyRule
from headway.core.durations import to_ns
from headway.core.ledger import Rule
from headway.core.limits import Limit, Spacing
from headway.core.rules import check_exact, rules_of
from headway.core.spacing import SpacingRule
from headway.desk import Cost, Desk, Key, Timeout, timeout_to_ns
from headway.drive import need_loop
from headway.engines.memory.book import Book
from headway.engines.redis import open_engine
from headway.engines.redis.requests import ABANDON, CANCEL, COMPLETE, Ask, Look, Request, Row
from headway.engines.redis.spec import Spec
from headway.engines.redis.words import GRANTED, NEVER, PAUSE, REFUSED, RESET, STANDING, TICK, numbers
from headway.errands import Errand, Say, obtain
from headway.errors import (
    Closed,
    EngineUnavailable,
    InvalidArgument,
    InvalidKey,
    NotPromised,
    RateLimited,
)
from headway.fleet_permit import FleetPermit, HeldFleetPermit
from headway.flows import Late
from headway.health import check_health, warn_blocking
from headway.limiter import Limiter, Limits, Listener, Overrides, _as_remote, _metrics
from headway.permit import Permit
from headway.status import Denied, Status, seconds, status_of

if TYPE_CHECKING:
    from headway.core.remote import Remote
    from headway.engines.redis.account import Account

_T = TypeVar("_T")

ERROR_MODES = ("closed", "open", "local")
LOSS_MODES = ("quarantine", "trust")


class FleetLimiter(Limiter):
    """A `Limiter` on a shared engine."""

    __slots__ = (
        "_clock", "_closed", "_engine", "_held", "_leased", "_local", "_on_error", "_options", "_share", "_sleeping",
        "_spec",
    )  # fmt: skip

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
        if not isinstance(name, str) or not name:
            raise InvalidArgument("name", name, "a name: on a shared engine it says whose ledgers are meant")
        if start != "idle":
            raise InvalidArgument("start", start, "'idle': a shared ledger survives its clients")
        if on_engine_error not in ERROR_MODES:
            raise InvalidArgument("on_engine_error", on_engine_error, "'closed', 'open' or 'local'")
        if on_ledger_loss not in LOSS_MODES:
            raise InvalidArgument("on_ledger_loss", on_ledger_loss, "'quarantine' or 'trust'")
        if type(local_share) not in (int, float) or not 0 < local_share <= 1:
            raise InvalidArgument("local_share", local_share, "a share of the limit, above 0 and up to 1")
        timeout_engine = to_ns(engine_timeout)
        if timeout_engine is None or not 1_000_000 <= timeout_engine <= 3_600_000_000_000:
            raise InvalidArgument(
                "engine_timeout", engine_timeout, "seconds from 0.001 to 3600, or a timedelta"
            )
        quarantine_ns = None if max_quarantine is None else to_ns(max_quarantine)
        if max_quarantine is not None and (quarantine_ns is None or quarantine_ns < 0):
            raise InvalidArgument("max_quarantine", max_quarantine, "seconds from 0 up, or None for no cap")
        self._check_common(max_waiting, on_event)
        self._clock = as_clock(clock)
        self._remote = _as_remote(remote)
        self._engine = open_engine(engine, timeout_engine / 1e9)
        self._limits = {
            metric: self._at_distance(part) for metric, part in _metrics(limit, self._remote).items()
        }
        self._overrides = overrides
        self._rules: dict[Limit, tuple[Rule, ...]] = {}
        self._on_error = on_engine_error
        self._share = float(local_share)
        self._local: Limiter | None = None
        self._closed = False
        self._sleeping = 0
        timeout_ns = timeout_to_ns(timeout)
        rules = self._flat_rules(self._limits, self._clock)
        names = [
            metric or None for metric, part in self._limits.items() for _ in self._rules_of(part, self._clock)
        ]
        self._check_overrides(overrides, self._clock)
        # A book of our own: it checks requests and counts, and decides nothing.
        book = Book(None, self._clock, False)
        book.name = name
        book.metrics = names
        self._furnish(book, rules)
        book.health = check_health
        book.on_block = warn_blocking
        book.limits = self._limits
        self._note_kinds(rules)
        self._spec = Spec(
            self._engine,
            name,
            self._clock,
            self._text(self._limits),
            names,
            rules,
            None if overrides is None else self._rules_for_key,
            timeout_ns=timeout_engine,
            allowance_ns=self._allowance(rules),
            on_loss=on_ledger_loss,
            max_quarantine_ns=quarantine_ns,
            tell=self._tell_trouble,
        )
        listener = None if on_event is None else Listener(on_event, name, self._clock)
        Desk.__init__(self, book, timeout_ns, max_waiting, listener)

    # -- construction ------------------------------------------------------------------------------------

    def _furnish(self, book: Book, rules: tuple[Rule, ...]) -> None:
        names = [name or "" for name in book.metrics]
        book.furnish(rules, [self._chooser(i, names, self._clock) for i in range(len(rules))])
        book.solo = False

    def _note_kinds(self, rules: tuple[Rule, ...]) -> None:
        self._held = any(rule.held for rule in rules)
        self._leased = [i for i, rule in enumerate(rules) if isinstance(rule, ConcurrencyRule)]

    def _at_distance(self, limit: Limit) -> Limit:
        """A limit as it is kept from afar: whoever sleeps until a slot of a `Spacing` may be late by a little."""
        if not isinstance(limit, Spacing) or not limit.strict:
            return limit
        trip = self._engine.round_trip_ns()
        least = 2 * trip
        if limit.expire_after_ns is None:
            allowance = max(limit.interval_ns // 100, least, 3_000_000)
            return Spacing(
                f"{limit.interval_ns}ns", max_reserved=limit.max_reserved, expire_after=f"{allowance}ns"
            )
        if limit.expire_after_ns < least:
            raise InvalidArgument(
                "expire_after",
                limit.expire_after_ns / 1e9,
                f"at least {least / 1e9:.3g} s, twice the round trip to {self._engine.address}: less and every slot is "
                "over before it is heard of",
            )
        return limit

    def _allowance(self, rules: tuple[Rule, ...]) -> int:
        """How late after its slot a permit may still be spent, on our clock."""
        slack = [rule.allowance * TICK for rule in rules if isinstance(rule, SpacingRule) and rule.strict]
        allowed = min(self._engine.lease_ns, *slack) if slack else self._engine.lease_ns
        return int(allowed * (1 - self._engine.drift))

    def _rules_of(self, limit: Limit, clock: Any) -> tuple[Rule, ...]:  # noqa: ARG002 - the server's clock counts
        if limit not in self._rules:
            if len(self._rules) > 10_000:
                self._rules.clear()
            engine = self._engine
            rules = rules_of(limit, TICK, engine.drift_ppm, TICK, engine.lease_ns)
            check_exact(rules)
            self._rules[limit] = rules
        return self._rules[limit]

    def _rules_for_key(self, key: str) -> tuple[Rule, ...]:
        limit = self._overrides(key) if callable(self._overrides) else (self._overrides or {}).get(key)
        if limit is None:
            return self._spec.rules
        return self._checked_override(key, limit, self._clock)

    def _text(self, limits: dict[str, Limit]) -> str:
        return "; ".join(f"{metric}: {part}" if metric else str(part) for metric, part in limits.items())

    def _tell_trouble(self, kind: str, account: Account, length: float) -> None:
        if self._listener is not None:
            self._listener.tell(kind, account.key, None, length)

    def __repr__(self) -> str:
        return f"{Limiter.__repr__(self)[:-1]}, engine={self._engine.address!r})"

    def __reduce__(self) -> Any:
        options = self._options
        return _rebuild, (options,)

    # -- asking ------------------------------------------------------------------------------------------

    def _account(self, keys: tuple[str | None, ...]) -> Account:
        self._check_open()
        return self._spec.account(keys if self._spec.metrics else keys[:1])

    def _permit(self, ask: Ask) -> Permit:
        self._book.granted += 1
        kind = HeldFleetPermit if self._held else FleetPermit
        return kind(self, ask, ask.account.key)

    def _new_ask(
        self, account: Account, costs: tuple[int, ...], deadline: int | None, patient: bool = True
    ) -> Ask:
        longest = NEVER if deadline is None else float(max(0, deadline - self._clock.now()) // TICK)
        return Ask(account, self._engine.new_ticket(), costs, patient, longest)

    def try_acquire(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        keys, costs = self.request(key, cost)
        account = self._account(keys)
        ask = Ask(account, self._engine.new_ticket(), costs, False, 0.0)
        try:
            self._engine.lane(account).ask(ask)
        except EngineUnavailable as error:
            answer: Permit | Denied = self._without_engine(error, "try_acquire", key, cost)
            return answer
        except BaseException:
            ask.withdraw()
            raise
        if ask.verdict == GRANTED and self._too_late(ask):
            ask.give_back()
            return self.try_acquire(key, cost=cost)
        return self._verdict(ask, key, cost)

    async def try_acquire_async(self, key: Key = None, *, cost: Cost = 1) -> Permit | Denied:
        keys, costs = self.request(key, cost)
        account = self._account(keys)
        ask = Ask(account, self._engine.new_ticket(), costs, False, 0.0)
        try:
            await self._engine.task_lane(account, need_loop()).ask(ask)
        except EngineUnavailable as error:
            answer: Permit | Denied = self._without_engine(error, "try_acquire", key, cost)
            return answer
        except BaseException:
            ask.withdraw()
            raise
        if ask.verdict == GRANTED and self._too_late(ask):
            ask.give_back()
            return await self.try_acquire_async(key, cost=cost)
        return self._verdict(ask, key, cost)

    def _too_late(self, ask: Ask) -> bool:
        """Whether we were stopped while the answer was on its way, for so long that the permit is another's by now."""
        now = self._clock.now()
        if now <= ask.expires:
            return False
        ask.heard = now
        return True

    def _verdict(self, ask: Ask, key: Key, cost: Cost) -> Permit | Denied:
        if ask.verdict == GRANTED:
            permit = self._permit(ask)
            if self._listener is not None:
                self._listener.tell("granted", key, cost)
            return permit
        self._book.denied += 1
        if self._listener is not None:
            self._listener.tell("denied", key, cost)
        return Denied(key, self._survey(ask), self._reason(ask))

    def _reason(self, ask: Ask) -> str:
        if ask.quarantine > 0:
            return "quarantine"
        return "paused" if ask.pause > 0 else "limit"

    def _survey(self, ask: Ask | Look) -> list[tuple[Any, int, int, int, int, int, bool]]:
        rules = ask.account.rules
        rows = ask.rows or [(0, NEVER, NEVER, 0, 0, 0)] * len(rules)
        return [self._row(rule, row) for rule, row in zip(rules, rows, strict=True)]

    def _row(self, rule: Rule, row: Row) -> tuple[Any, int, int, int, int, int, bool]:
        remaining, wait, reset, waiting, out, exact = row
        return (
            rule.limit, int(remaining), self._spec.stretched(wait) if wait < NEVER else 1 << 62,
            int(reset * TICK), int(waiting), int(out), exact == 1,
        )  # fmt: skip

    def acquire(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        keys, costs = self.request(key, cost)
        account, deadline = self._account(keys), self._deadline(timeout)
        ask = self._new_ask(account, costs, deadline)
        try:
            self._engine.lane(account).ask(ask)
            if ask.verdict != GRANTED or ask.slot > ask.heard or self._too_late(ask):
                ask = self._run(self._waiting(ask, costs, deadline))
        except Late as late:
            raise self._refused(ask, key, cost, timeout, _why(late)) from None
        except EngineUnavailable as error:
            permit: Permit = self._without_engine(error, "acquire", key, cost, timeout)
            return permit
        except BaseException:
            ask.withdraw()
            raise
        return self._got(ask, key, cost)

    async def acquire_async(self, key: Key = None, *, cost: Cost = 1, timeout: Timeout = ...) -> Permit:
        keys, costs = self.request(key, cost)
        account, deadline = self._account(keys), self._deadline(timeout)
        ask = self._new_ask(account, costs, deadline)
        try:
            await self._engine.task_lane(account, need_loop()).ask(ask)
            if ask.verdict != GRANTED or ask.slot > ask.heard or self._too_late(ask):
                ask = await self._run_async(self._waiting(ask, costs, deadline))
        except Late as late:
            raise self._refused(ask, key, cost, timeout, _why(late)) from None
        except EngineUnavailable as error:
            answer = self._without_engine(error, "acquire_async", key, cost, timeout)
            permit: Permit = await answer if hasattr(answer, "__await__") else answer
            return permit
        except BaseException:
            ask.withdraw()
            raise
        return self._got(ask, key, cost)

    def _deadline(self, timeout: Timeout) -> int | None:
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        return None if timeout_ns is None else self._clock.now() + timeout_ns

    def _got(self, ask: Ask, key: Key, cost: Cost) -> Permit:
        permit = self._permit(ask)
        if self._listener is not None:
            self._listener.tell("granted", key, cost)
        return permit

    # -- waiting -----------------------------------------------------------------------------------------

    def _waiting(self, ask: Ask, costs: tuple[int, ...], deadline: int | None) -> Errand[Ask]:
        """Until a permit may be spent."""
        if self._max_waiting is not None and self._sleeping >= self._max_waiting:
            ask.withdraw()
            raise _TooMany
        account = ask.account

        def again() -> Ask:
            self._check_open()
            return self._new_ask(account, costs, deadline)

        self._sleeping += 1
        try:
            found = yield from obtain(ask, deadline, again)
        finally:
            self._sleeping -= 1
        if self._closed:
            found.withdraw()
            raise Closed(self.name)
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self.name)

    def _run(self, errand: Errand[_T]) -> _T:
        return talk.run(errand, self._clock, self._book.tell_blocking)

    def _run_async(self, errand: Errand[_T]) -> Coroutine[Any, Any, _T]:
        return talk.run_async(errand, self._clock)

    def _refused(
        self, ask: Ask, key: Key, cost: Cost, timeout: Timeout, reason: str = "timeout"
    ) -> RateLimited:
        self._book.denied += 1
        if self._listener is not None:
            self._listener.tell("denied", key, cost)
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        status = status_of(self._survey(ask)) if ask.rows else None
        never = ask.verdict == REFUSED
        retry = math.inf if never or status is None else status.retry_after
        if ask.verdict == STANDING:
            retry = max(0, ask.ready - self._clock.now()) / 1e9
        return RateLimited(
            retry,
            limit=ask.account.rules[0].limit if status is None else status.limit,
            key=key if key is None or isinstance(key, str) else str(dict(key)),
            status=status,
            reason="never" if never else reason,
            timeout=None if timeout_ns is None else seconds(timeout_ns),
            max_waiting=self._max_waiting,
        )

    # -- without the engine ------------------------------------------------------------------------------

    def _without_engine(
        self, error: EngineUnavailable, verb: str, key: Key, cost: Cost, timeout: Any = ...
    ) -> Any:
        """What `on_engine_error` says."""
        if self._listener is not None:
            self._listener.tell("engine_error", key, cost)
        if self._on_error == "closed":
            raise error
        if self._on_error == "open":
            return _OPEN.try_acquire()
        local = self._local_limiter()
        if verb in ("try_acquire", "reserve"):
            return getattr(local, verb)(key, cost=cost)
        return getattr(local, verb)(key, cost=cost, timeout=timeout)

    def _local_limiter(self) -> Limiter:
        """A share of the limit, kept in this process while the engine is away."""
        if self._local is None:
            share = {metric: part.share(self._share) for metric, part in self._limits.items()}
            limit: Any = share.get("", share)
            self._local = Limiter(limit, clock=self._options["clock"])
        return self._local

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
        ask = self._new_ask(account, costs, None)
        try:
            yield Say(ask)
        except EngineUnavailable as error:
            instead: Permit = self._without_engine(error, "reserve", key, cost)
            return instead
        except BaseException:
            ask.withdraw()
            raise
        if ask.verdict != GRANTED:
            raise self._refused(ask, key, cost, None, self._reason(ask))
        permit = self._permit(ask)
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
        return status_of(self._survey(look))

    def pause(self, seconds: float | timedelta, key: str | None = None) -> None:
        self._run(self._pausing(seconds, key))

    async def pause_async(self, seconds: float | timedelta, key: str | None = None) -> None:
        await self._run_async(self._pausing(seconds, key))

    def _pausing(self, length: float | timedelta, key: str | None) -> Errand[None]:
        ns = to_ns(length)
        if ns is None or not 0 <= ns < 1 << 62:
            raise InvalidArgument("seconds", length, "seconds from 0 up, or a timedelta; 0 lifts the pause")
        if key is not None and not isinstance(key, str):
            raise InvalidKey(key)
        account = self._account((key,) * len(self._spec.names))
        if self._listener is not None:
            self._listener.tell("paused", key, None, ns / 1e9)
        yield from self._telling(Request(account, numbers(PAUSE, -(-ns // TICK))))

    def reset(self, key: Key = None) -> None:
        self._run(self._resetting(key))

    async def reset_async(self, key: Key = None) -> None:
        await self._run_async(self._resetting(key))

    def _resetting(self, key: Key) -> Errand[None]:
        account = self._account(self.request(key, 1)[0])
        yield from self._telling(Request(account, numbers(RESET)))

    def retarget(self, limit: Limits) -> None:
        limits = {metric: self._at_distance(part) for metric, part in _metrics(limit, self._remote).items()}
        rules = self._flat_rules(limits, self._clock)
        names = [name for name, part in limits.items() for _ in self._rules_of(part, self._clock)]
        self._compare(self._book, rules, names)
        self._limits = self._book.limits = limits
        # The book decides nothing here: it only has to know by which rules requests are checked.
        self._furnish(self._book, rules)
        self._note_kinds(rules)
        self._spec.allowance_ns = self._allowance(rules)
        self._spec.declare(self._text(limits), rules)
        self._local = None

    async def retarget_async(self, limit: Limits) -> None:
        self.retarget(limit)

    def close(self) -> None:
        self._closed = True
        for account in list(self._spec.accounts.values()):
            for ask in [*account.standing.values(), *account.sleepers]:
                ask.withdraw()
                ask.void = True
                ask.ring()

    async def close_async(self) -> None:
        self.close()

    def _ended(self, permit: FleetPermit, how: int) -> None:
        """Count how a permit ended."""
        book = self._book
        if how == CANCEL:
            book.cancelled += 1
        else:
            book.ended += 1
            if how == ABANDON:
                book.abandoned += 1
            elif how == COMPLETE and self._held:
                book.flight_ns += max(0, self._clock.now() - permit._ask.slot)
            if book.ended & 255 == 0:
                book.check_health()
        if self._listener is not None:
            self._listener.tell_end(permit, {1: "complete", 2: "cancel", 3: "abandon"}.get(how, "settled"))


class _TooMany(Late):
    """More wait already than `max_waiting`."""


def _why(late: Late) -> str:
    return "max_waiting" if isinstance(late, _TooMany) else "timeout"


_OPEN = Limiter("1000000000/s burst 1000000000")
"""Lets everything pass, where `on_engine_error="open"` says so."""


def _rebuild(options: dict[str, Any]) -> FleetLimiter:
    return FleetLimiter(options.pop("limit"), **options)
