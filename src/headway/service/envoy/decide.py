"""The decision: descriptors in, a status for each out, and all of them or nothing taken.

**Hits.** A request's `hits_addend` of 0, or none, means 1. A descriptor's own takes its place; an explicit 0 takes
nothing and is OVER_LIMIT where not even one hit would be granted. With `is_negative_hits` the hits are given back
(`refunds`), before anything is taken.

**All or nothing.** A request that any descriptor denies consumes nothing. In memory every descriptor is asked in turn,
and what was taken is cancelled at the first denial that counts; no other request comes in between, since there is no
`await`. On a shared engine all are asked at once, in one batch, and the granted ones are cancelled when one is
denied: for that moment, about a round trip, another request may find them taken and be denied, and none is granted
too much. The same holds if the engine fails halfway.

**What is answered.** A grant and a denial carry how the limit stands, so that remaining and reset cost no second
question. Of what was cancelled, the cost is added to what remains. `duration_until_reset` is the time until a denied
request may succeed; of a granted one, the time until the whole limit is there again.

A rule in shadow mode is asked like any other, and its denial does not count. A rule that another matching rule
`replaces` is not asked. A rule with `overdraft` is for hits that are reported when they have been spent already: those
that do not fit are OVER_LIMIT and charged, as a debt that is paid before the next grant, and so is the rest of their
request, unless a rule without `overdraft` denies it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway import Denied, InvalidArgument, LimiterClosed, Permit, Status
from headway._pure import pure_wanted
from headway.clock import as_clock
from headway.engines.uri import is_local
from headway.service.envoy.config import Config
from headway.service.envoy.limiters import MAX_KEYS, Kept, Limiters
from headway.service.envoy.messages import (
    MAX_UINT32,
    Code,
    CurrentLimit,
    Descriptor,
    DescriptorStatus,
    MalformedMessage,
    RateLimitRequest,
    RateLimitResponse,
    Unit,
)
from headway.service.envoy.rules import label, ledger_key
from headway.service.envoy.settings import DEFAULT_MAX_KEYS
from headway.service.envoy.shared_quick import SharedDecisions
from headway.service.envoy.stats import RuleStats, Stats
from headway.service.envoy.units import current_limit

MOST_HITS = 1 << 60
"""More than any limit per unit grants, and few enough to be added up."""

NO_LIMIT = DescriptorStatus(Code.OK)
UNLIMITED = DescriptorStatus(Code.OK, limit_remaining=MAX_UINT32)


class Ask(NamedTuple):
    """What one descriptor comes to: `hits` of a key, of which 0 only looks. Below 0 they are given back."""

    place: int
    kept: Kept
    key: str | None
    hits: int
    capacity: int
    figures: RuleStats
    name: str
    shadow: bool
    override: CurrentLimit | None
    overdraft: bool


class Plan(NamedTuple):
    """What a request comes to: the statuses that are certain already, what is to be asked for the others, and the hits
    of rules without a limit, which are counted."""

    statuses: list[DescriptorStatus]
    asks: list[Ask]
    unlimited: list[tuple[RuleStats, int]]


Answer = Permit | Denied | Status
"""A status where nothing was to be taken: a look, a refund, or more hits than the limit can ever grant."""


class RateLimitService:
    """Decides requests of Envoy by a configuration, on limiters of any engine.

    >>> from headway.service.envoy.config import read_config
    >>> from headway.service.envoy.messages import Entry
    >>> config = read_config({"limits.yaml": "{domain: shop, descriptors: [{key: user, limit: 1/minute}]}"})
    >>> service = RateLimitService(config)
    >>> request = RateLimitRequest("shop", (Descriptor((Entry("user", "alice"),)),))
    >>> [asyncio.run(service.decide(request)).overall_code.name for _ in range(2)]
    ['OK', 'OVER_LIMIT']

    `options` are those of `Limiter`: `engine`, `on_engine_error` and so on. Services of one `namespace` share their
    ledgers: in memory those of one process, on a shared engine all. `shadow`: every request is answered OK. A rule has
    ledgers for `max_keys` keys at most; hits of further ones are over the limit until a ledger is idle.
    """

    def __init__(
        self,
        config: Config,
        *,
        namespace: str = "envoy",
        shadow: bool = False,
        near_ratio: float = 0.8,
        max_keys: int = DEFAULT_MAX_KEYS,
        **options: Any,
    ) -> None:
        if options.get("prefetch"):
            accepted = "False: no request waits here, and the first one of each key would be denied"
            raise InvalidArgument("prefetch", options["prefetch"], accepted)
        self.stats = Stats(near_ratio)
        self._namespace = namespace
        self.shadow = shadow
        self.max_keys = max_keys
        """How many keys of one rule may have ledgers: a client that invents keys must not fill the memory."""
        self._options: Mapping[str, Any] = options
        self._clock = as_clock(options.get("clock"))
        self._config = config
        self._limiters = Limiters(namespace, options, fixed=config.fixed)
        self._closed = False
        self.shared = not is_local(options.get("engine", "memory://"))
        """Whether a decision has to be waited for."""
        self.quick = None if self.shared else quick_decisions(self)
        """Decides the usual request at once: bytes in, bytes out, or None for what is left to `decide`."""
        self.shared_quick = SharedDecisions(self) if self.shared else None
        if self.quick is not None:
            self.stats.quick = self.quick

    def now(self) -> int:
        """Nanoseconds, by its clock."""
        return self._clock.now()

    @property
    def config(self) -> Config:
        """The configuration that decides now."""
        return self._config

    def use(self, config: Config, prepared: Limiters | None = None) -> None:
        """Decide by another configuration from the next request on. Rules that stay, with whatever number, keep what
        was used. `prepared` is what `prepare` returned for it."""
        self._limiters, self._config = prepared or self.prepare(config), config
        for decisions in (self.quick, self.shared_quick):
            if decisions is not None:
                decisions.forget()

    def prepare(self, config: Config) -> Limiters:
        """Open the limiters of a configuration. In memory its numbers count from here on."""
        limiters = Limiters(self._namespace, self._options, fixed=config.fixed, before=self._limiters)
        for rule in config.rules():
            if rule.limit is not None:
                # Opened while the old ones are there: ledgers in memory live as long as a limiter has them. Those are
                # not closed, since requests may be under way; they end when nothing refers to them any more.
                limiters.of_rule(rule)
        return limiters

    def close(self) -> None:
        """Decide nothing any more."""
        self._closed = True
        self.quick = self.shared_quick = None
        self._limiters.close()

    # -- a request ---------------------------------------------------------------------------------------

    async def decide(self, request: RateLimitRequest) -> RateLimitResponse:
        """The answer. Raises `MalformedMessage` for a request that makes no sense, and `EngineUnavailable` where the
        engine does not answer and `on_engine_error` is "closed"."""
        if self._closed:
            raise LimiterClosed(self._namespace)
        statuses, asks, unlimited = self.plan(request)
        self.stats.requests += 1
        for figures, hits in unlimited:
            figures.passed(hits)
        for ask in asks:
            if ask.hits < 0:
                self._refund(ask)
        if any(ask.kept.shared for ask in asks):
            answers = await self._ask_together(asks)
        else:
            answers = self._ask_in_turn(asks)
        return await self._conclude(statuses, asks, answers)

    async def conclude_one(self, ask: Ask, answer: Answer) -> RateLimitResponse:
        """The answer to a request of one descriptor, for which this was answered."""
        self.stats.requests += 1
        return await self._conclude([NO_LIMIT], [ask], [answer])

    async def _conclude(
        self, statuses: list[DescriptorStatus], asks: list[Ask], answers: list[Answer]
    ) -> RateLimitResponse:
        """What is answered, and what is charged or goes back."""
        # What is over its limit; and whether the request is refused, so that nothing of it is charged.
        over = [ask for ask, answer in zip(asks, answers, strict=True) if not _granted(ask, answer)]
        denied = any(not ask.shadow for ask in over)
        refused = any(not ask.shadow and not ask.overdraft for ask in over)
        if refused:
            _cancel(answers)
        for ask, answer in zip(asks, answers, strict=True):
            status = await self._status(ask, answer)
            statuses[ask.place] = self._settle(ask, answer, status, refused)
            if ask.overdraft and not refused and ask.hits > 0 and not _granted(ask, answer):
                await self._overdraw(ask, status.remaining)
        if denied and self.shadow:
            self.stats.shadowed += 1
        code = Code.OVER_LIMIT if denied and not self.shadow else Code.OK
        return RateLimitResponse(code, tuple(statuses))

    def plan(self, request: RateLimitRequest) -> Plan:
        """What is to be asked for a request; raises `MalformedMessage`. Nothing has changed then."""
        if not request.domain:
            raise MalformedMessage("the domain is empty")
        if not request.descriptors:
            raise MalformedMessage("there are no descriptors")
        statuses = [NO_LIMIT] * len(request.descriptors)
        known = request.domain in self._config.domains
        asks: list[Ask] = []
        unlimited: list[tuple[RuleStats, int]] = []
        matches = [
            self._config.match(request.domain, descriptor.entries)
            if known and descriptor.limit is None
            else None
            for descriptor in request.descriptors
        ]
        replaced = {name for found in matches if found is not None for name in found.rule.replaces}
        for place, (descriptor, found) in enumerate(zip(request.descriptors, matches, strict=True)):
            hits = _hits(descriptor, request.hits_addend)
            if descriptor.limit is not None and known:
                asks.append(self._override(request.domain, place, descriptor, hits))
            elif found is None or (found.rule.name and found.rule.name in replaced):
                continue
            elif found.rule.limit is None:
                statuses[place] = UNLIMITED
                unlimited.append((self.stats.of(found.metric, found.rule.metric), max(0, hits)))
            else:
                rule, kept = found.rule, self._limiters.of_rule(found.rule)
                figures = self.stats.of(found.metric, rule.metric)
                asks.append(
                    Ask(
                        place,
                        kept,
                        found.key,
                        hits,
                        kept.capacity,
                        figures,
                        rule.name,
                        rule.shadow,
                        None,
                        rule.overdraft,
                    )
                )
        return Plan(statuses, asks, unlimited)

    def _override(self, domain: str, place: int, descriptor: Descriptor, hits: int) -> Ask:
        override = descriptor.limit
        assert override is not None
        kept = self._limiters.of_override(domain, override)
        values = [text for entry in descriptor.entries for text in entry]
        count = override.requests_per_unit
        metric = (domain, *(label(*entry) for entry in descriptor.entries))
        figures = self.stats.of(metric, (domain, "override"))
        limit = CurrentLimit(count, Unit(override.unit))
        return Ask(
            place, kept, f"{count}|{ledger_key(values)}", hits, count, figures, "", False, limit, False
        )

    def _refund(self, ask: Ask) -> None:
        ask.figures.refunded += ask.kept.refunds.give_back(ask.key, -ask.hits, self._clock.now())

    async def _overdraw(self, ask: Ask, left: int) -> None:
        """Charge hits that do not fit: what is left is taken, and the rest is owed."""
        limiter, refunds = ask.kept.limiter, ask.kept.refunds
        ask.figures.overdrawn += ask.hits
        if left > 0:
            part = await limiter.try_acquire_async(ask.key, cost=min(left, ask.capacity))
            if isinstance(part, Permit):
                part._resize(ask.hits)
                if part.ended is None:
                    refunds.add(ask.key, part, ask.hits, self._clock.now())
                return
        if not refunds.charge(ask.key, ask.hits, self._clock.now()):
            ask.figures.uncharged += ask.hits

    # -- asking ------------------------------------------------------------------------------------------

    def _ask_in_turn(self, asks: Sequence[Ask]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for ask in asks:
                limiter = ask.kept.limiter
                if _takes(ask):
                    full = ask.kept.full(ask.key, self.max_keys)
                    answers.append(limiter.try_acquire(ask.key, cost=ask.hits) if full is None else full)
                else:
                    answers.append(limiter.peek(ask.key))
        except BaseException:
            _cancel(answers)
            raise
        return answers

    async def _ask_together(self, asks: Sequence[Ask]) -> list[Answer]:
        calls = [
            ask.kept.take(ask.key, ask.hits, self.max_keys) if _takes(ask) else ask.kept.look(ask.key)
            for ask in asks
        ]
        if len(calls) == 1:
            return [await calls[0]]
        gathered = asyncio.gather(*calls, return_exceptions=True)
        try:
            answers = await asyncio.shield(gathered)
        except asyncio.CancelledError:
            # The client has gone. What is granted after that is not used, and goes back.
            gathered.add_done_callback(lambda done: _cancel(done.result()))
            raise
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed:
            _cancel(answers)
            raise failed[0]
        return answers  # type: ignore[return-value] # no exceptions among them

    # -- answering ---------------------------------------------------------------------------------------

    async def _status(self, ask: Ask, answer: Answer) -> Status:
        if isinstance(answer, Status):
            return answer
        decision = _decision(answer)
        if decision is not None and not decision.rows():
            # The engine has not said it with the grant, which it does but for a first time.
            return await ask.kept.look(ask.key)
        return answer.status

    def _settle(self, ask: Ask, answer: Answer, status: Status, refused: bool) -> DescriptorStatus:
        """Note a grant, count, and say how things stand. `refused`: the whole request is, and grants were cancelled."""
        granted = _granted(ask, answer)
        remaining = status.remaining
        if isinstance(answer, Permit) and not refused:
            ask.kept.refunds.add(ask.key, answer, ask.hits, self._clock.now())
        elif isinstance(answer, Permit) and _decision(answer) is not None:
            # Of the moment of the grant; in memory it is of now.
            remaining = min(ask.capacity, remaining + ask.hits)
        if ask.hits > 0:
            ask.figures.decided(ask.hits, granted, remaining, ask.capacity, ask.shadow, refused)
            if isinstance(answer, Denied) and answer.reason == MAX_KEYS:
                ask.figures.over_max_keys += ask.hits
        wait = status.retry_after if status.retry_after > 0 and not granted else status.reset_after
        return DescriptorStatus(
            Code.OK if granted or ask.shadow else Code.OVER_LIMIT,
            ask.override or current_limit(status.limit, ask.name),
            min(max(0, remaining), MAX_UINT32),
            math.ceil(wait * 1e9) if math.isfinite(wait) else None,
        )


def quick_decisions(service: RateLimitService) -> Any:
    """What decides the usual request in one compiled step; None in the interpreted form: it needs compiled ledgers."""
    if pure_wanted():
        return None
    try:
        from headway.service.envoy.quick import QuickDecisions
    except ImportError:
        return None
    return QuickDecisions(service)


def _decision(answer: Answer) -> Any:
    """What a shared engine said; None for what was decided in this process."""
    return getattr(answer, "_decision", None)


def _hits(descriptor: Descriptor, usual: int) -> int:
    hits = descriptor.hits_addend
    if hits is None:
        hits = usual or 1
    hits = min(hits, MOST_HITS)
    return -hits if descriptor.is_negative_hits else hits


def _takes(ask: Ask) -> bool:
    """Whether a permit is asked for. A limiter refuses a cost that its limit can never grant as a mistake."""
    return ask.hits > 0 and (ask.hits <= ask.capacity or ask.hits == 1)


def _granted(ask: Ask, answer: Answer) -> bool:
    """Whether a descriptor is within its limit. A refund always is; a look is, where one hit would be granted."""
    if isinstance(answer, Status):
        return ask.hits < 0 or (ask.hits == 0 and answer.retry_after == 0)
    return bool(answer)


def _cancel(answers: Sequence[object]) -> None:
    """Give back what was taken; the last first, since a grant that nothing came after leaves no trace."""
    for answer in reversed(answers):
        if isinstance(answer, Permit) and answer.ended is None:
            answer.cancel()
