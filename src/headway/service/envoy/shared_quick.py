"""The usual request on a shared engine: one descriptor that takes hits of one limit.

The decision is the engine's, and what is left here is to say it: which command a request comes to is kept under its
bytes, as in `quick`, and the answer is written from the numbers that came with the grant. Requests of one key that come
while a command is under way travel together in the next one, as all commands of an engine do.

Everything else goes the way of `decide`: several descriptors, refunds, looks, denials, an engine that does not answer,
a key beyond `max_keys`. What is answered is the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headway.core.ledger import FOREVER
from headway.engines.base import Acquire, Patience, Verdict
from headway.errors import EngineUnavailable
from headway.limiter.results import denied
from headway.service.envoy.codec import decode_request, encode_current_limit, encode_response
from headway.service.envoy.messages import (
    MAX_UINT32,
    Code,
    DescriptorStatus,
    MalformedMessage,
    RateLimitResponse,
)
from headway.service.envoy.units import current_limit

if TYPE_CHECKING:
    from headway.service.envoy.decide import Ask, RateLimitService

MOST_PLANS = 10_000
LONGEST = 1024
"""Bytes of a request that is kept."""
SECOND = 1_000_000_000
GRANTED = int(Verdict.GRANTED)


class SharedPart:
    """What a request comes to: the ask itself, and what is the same each time."""

    __slots__ = ("ask", "command", "current", "limit", "near", "noted_until", "said", "shared")

    def __init__(self, ask: Ask, near_ratio: float) -> None:
        shared = ask.kept.limiter._shared
        assert shared is not None
        self.ask = ask
        self.shared = shared
        self.command = Acquire((ask.key,), (ask.hits,), Patience.NOW, 0)
        self.limit = ask.kept.limit
        self.current = current_limit(self.limit, ask.name)
        self.said = encode_current_limit(self.current)
        self.near = int(ask.capacity * near_ratio)
        # Until when its key needs not be noted again as one that has a ledger.
        self.noted_until = 0


class SharedDecisions:
    """Decides for a `RateLimitService` on a shared engine."""

    def __init__(self, service: RateLimitService) -> None:
        self.service = service
        self._young: dict[bytes, SharedPart | None] = {}
        self._old: dict[bytes, SharedPart | None] = {}
        self._answer = answer_writer()

    def __len__(self) -> int:
        """How many plans are kept."""
        return len(self._young) + len(self._old)

    def forget(self) -> None:
        """Drop all plans: the configuration has changed."""
        self._young, self._old = {}, {}

    def find(self, message: bytes) -> SharedPart | None:
        """What a request comes to; None where `decide` has to be asked."""
        found = self._young.get(message, self)
        if found is not self:
            return found  # type: ignore[return-value]
        found = self._old.get(message, self)
        if found is self:
            found = self._plan(message)
        if len(message) <= LONGEST:
            if len(self._young) >= MOST_PLANS:
                self._old, self._young = self._young, {}
            self._young[message] = found  # type: ignore[assignment]
        return found  # type: ignore[return-value]

    def _plan(self, message: bytes) -> SharedPart | None:
        try:
            plan = self.service.plan(decode_request(message))
        except MalformedMessage:
            return None
        if len(plan.statuses) != 1 or len(plan.asks) != 1:
            return None
        ask = plan.asks[0]
        shared = ask.kept.limiter._shared
        if ask.override is not None or ask.overdraft or not 0 < ask.hits <= ask.capacity or shared is None:
            return None
        return None if len(shared.rules) != 1 else SharedPart(ask, self.service.stats.near_ratio)

    async def decide(self, part: SharedPart) -> bytes:
        """The answer. Raises as `RateLimitService.decide` does."""
        service, ask = self.service, part.ask
        kept, key, hits = ask.kept, ask.key, ask.hits
        now = service.now()
        if now >= part.noted_until and not kept.has_room(key, service.max_keys):
            return encode_response(await service.conclude_one(ask, kept.no_room(key)))
        shared = part.shared
        try:
            decision: Any = await shared.ledgers.send_async(part.command, asyncio.get_running_loop())
        except EngineUnavailable as error:
            answer: Any = shared._instead(error, key, hits).try_acquire(key, cost=hits)
            return encode_response(await service.conclude_one(ask, answer))
        now = service.now()
        if now >= part.noted_until:
            kept.note(key)
            part.noted_until = now + min(SECOND, kept.refunds.period_ns)
        if decision.verdict != GRANTED:
            shared._count_denial(key, hits)
            answer = denied(decision, key, shared.table.metrics)
            return encode_response(await service.conclude_one(ask, answer))
        if not decision.spendable():  # this process was stopped for so long that the permit has expired
            decision.withdraw()
            answer = await kept.limiter.try_acquire_async(key, cost=hits)
            return encode_response(await service.conclude_one(ask, answer))
        permit = shared._granted(decision, key, hits)
        rows = decision.rows()
        if (
            len(rows) != 1 or rows[0][0] != part.limit
        ):  # not said with the grant, or by a newer limit of another server
            return encode_response(await service.conclude_one(ask, permit))
        kept.refunds.add(key, permit, hits, now)
        _, remaining, _, reset, *_ = rows[0]
        service.stats.requests += 1
        figures = ask.figures
        figures.total_hits += hits
        figures.within_limit += hits
        if ask.capacity - remaining > part.near:
            figures.near_limit += min(hits, ask.capacity - remaining - part.near)
        return self._answer(part, min(max(0, remaining), MAX_UINT32), reset)  # type: ignore[no-any-return]


def answer_writer() -> Any:
    """Writes the answer of a grant: compiled, where headway is."""
    try:
        from headway.service.envoy.quick import granted
    except ImportError:
        return _granted
    return lambda part, remaining, reset: granted(part.said, remaining, reset)


def _granted(part: SharedPart, remaining: int, reset: int) -> bytes:
    until = reset if reset < FOREVER else None
    status = DescriptorStatus(Code.OK, part.current, remaining, until)
    return encode_response(RateLimitResponse(Code.OK, (status,)))
