"""The usual request on a shared engine: one descriptor that takes hits of one limit.

The decision is the engine's, and what is left here is to say it: which command a request comes to is kept under its
bytes, as in `quick`, and the answer is written from the numbers that came with the grant. Requests of one key that come
while a command is under way travel together in the next one, as all commands of an engine do. No task waits for the
decision, where the transport needs none: a `PendingAnswer` does.

Everything else goes the way of `decide`: several descriptors, refunds, looks, denials, an engine that does not answer,
a key beyond `max_keys`. What is answered is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from headway._pure import pure_wanted
from headway.core.ledger import FOREVER
from headway.engines.base import Acquire, Patience, Verdict
from headway.errors import EngineUnavailable, HeadwayError
from headway.limiter.results import denied
from headway.limiter.shared_permits import SharedPermit
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


class Cancellable(Protocol):
    """What works on an answer."""

    def cancel(self) -> object: ...


class Answerable(Protocol):
    """A call of a transport: answered once, what comes later is dropped."""

    def answer(self, message: bytes) -> None: ...

    def fail(self, error: Exception) -> None: ...


Otherwise = Callable[[Answerable, Awaitable[bytes]], Cancellable]


class SharedPart:
    """What a request comes to: the ask itself, and what is the same each time."""

    __slots__ = (
        "ask", "capacity", "command", "current", "figures", "hits", "kept", "key", "ledgers", "limit", "near",
        "noted_until", "refunds", "said", "shared",
    )  # fmt: skip

    def __init__(self, ask: Ask, near_ratio: float) -> None:
        shared = ask.kept.limiter._shared
        assert shared is not None
        self.ask = ask
        self.kept = ask.kept
        self.refunds = ask.kept.refunds
        self.key = ask.key
        self.hits = ask.hits
        self.capacity = ask.capacity
        self.figures = ask.figures
        self.shared = shared
        self.ledgers = shared.ledgers
        self.command = Acquire((ask.key,), (ask.hits,), Patience.NOW, 0)
        self.limit = ask.kept.limit
        self.current = current_limit(self.limit, ask.name)
        self.said = encode_current_limit(self.current)
        self.near = int(ask.capacity * near_ratio)
        # Until when its key needs not be noted again as one that has a ledger.
        self.noted_until = 0


class Taken:
    """Hits that were taken, for `refunds`: a permit is made of a receipt when one is given back, and mostly none is."""

    __slots__ = ("part", "permit", "receipt")

    if TYPE_CHECKING:
        part: SharedPart
        receipt: Any
        permit: SharedPermit | None

    def made(self) -> SharedPermit:
        if self.permit is None:
            self.permit = self.part.shared._permit_of(self.receipt, self.part.key)
        return self.permit

    @property
    def ended(self) -> str | None:
        return None if self.permit is None else self.permit.ended

    def _resize(self, cost: int) -> None:
        self.made()._resize(cost)

    def cancel(self) -> None:
        self.made().cancel()


def taken(part: SharedPart, found: Any) -> Any:
    """What `refunds` keep of a grant; an engine without receipts has its permit."""
    if isinstance(found, SharedPermit):
        return found
    hits: Taken = Taken.__new__(Taken)
    hits.part = part
    hits.receipt = found
    hits.permit = None
    return hits


class PendingAnswer:
    """Waits for a decision in the place of a task (`base.Waiter`), and has its call answered."""

    __slots__ = ("call", "decision", "decisions", "error", "gone", "otherwise", "over", "part", "rest")

    def __init__(
        self, decisions: SharedDecisions, part: SharedPart, call: Answerable, otherwise: Otherwise
    ) -> None:
        self.decisions = decisions
        self.part = part
        self.call = call
        self.otherwise = otherwise
        self.decision: Any = None
        self.error: BaseException | None = None
        self.over = self.gone = False
        # The task of an answer that is not the usual one.
        self.rest: Cancellable | None = None

    def cancelled(self) -> bool:
        return self.gone

    def done(self) -> bool:
        return self.over

    def exception(self) -> BaseException | None:
        return self.error

    def set_result(self, result: None) -> None:  # noqa: ARG002 - as of a Future
        self.over = True
        # It may be told before it knows the decision; then `begin` goes on.
        if self.decision is not None:
            self.finish()

    def set_exception(self, error: BaseException) -> None:
        self.error = error
        self.set_result(None)

    def finish(self) -> None:
        """Answer, in a task where something has to be waited for."""
        # The decision has it as its waiter: a cycle for the collector, with every request.
        decision, self.decision = self.decision, None
        try:
            said = None if self.error is not None else self.decisions.usual_answer(self.part, decision)
            if said is not None:
                self.call.answer(said)
            else:
                whole = self.decisions.conclude(self.part, decision, self.error)
                self.rest = self.otherwise(self.call, whole)
        except Exception as error:  # noqa: BLE001 - it is the engine's turn of the loop; the call is told
            self.call.fail(error)

    def cancel(self) -> None:
        """The answer is not wanted any more: what was granted goes back."""
        if self.rest is not None:
            self.rest.cancel()
        elif not self.over:
            self.over = self.gone = True
            self.decision.withdraw()


class SharedDecisions:
    """Decides for a `RateLimitService` on a shared engine."""

    def __init__(self, service: RateLimitService) -> None:
        self.service = service
        self.clock = service._clock
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
        found: Any = self._young.get(message, self)
        if found is not self:
            return found  # type: ignore[no-any-return]
        found = self._old.get(message, self)
        if found is self:
            found = self._plan(message)
        if len(message) <= LONGEST:
            if len(self._young) >= MOST_PLANS:
                self._old, self._young = self._young, {}
            self._young[message] = found
        return found  # type: ignore[no-any-return]

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

    def begin(self, message: bytes, call: Answerable, otherwise: Otherwise) -> PendingAnswer | None:
        """Decide a request without a task, and answer the call later; None where that is left to others.

        `otherwise` has a call answered by a coroutine: denials, an engine that does not answer, and what else takes
        another question.
        """
        if self.service.shared_quick is not self:
            return None  # it was closed
        part = self.find(message)
        if part is None or (
            self.clock.now() >= part.noted_until and not part.kept.has_room(part.key, self.service.max_keys)
        ):
            return None
        pending = PendingAnswer(self, part, call, otherwise)
        try:
            decision = part.ledgers.ask(part.command, asyncio.get_running_loop(), pending)
        except HeadwayError:  # nothing was sent, and whichever handler is asked next comes to the same
            return None
        if decision is None:
            return None
        pending.decision = decision
        if pending.over:
            pending.finish()
        return pending

    async def decide(self, part: SharedPart) -> bytes:
        """The answer, for a task. Raises as `RateLimitService.decide` does."""
        service = self.service
        if self.clock.now() >= part.noted_until and not part.kept.has_room(part.key, service.max_keys):
            return encode_response(await service.conclude_one(part.ask, part.kept.no_room(part.key)))
        decision: Any = None
        error: BaseException | None = None
        try:
            decision = await part.ledgers.send_async(part.command, asyncio.get_running_loop())
        except EngineUnavailable as unavailable:
            error = unavailable
        said = None if error is not None else self.usual_answer(part, decision)
        return await self.conclude(part, decision, error) if said is None else said

    def usual_answer(self, part: SharedPart, decision: Any) -> bytes | None:
        """The answer where it was granted with its status; None: see `conclude`, nothing has been done."""
        if decision.verdict != GRANTED or not decision.spendable():
            return None
        rows = decision.rows()
        if len(rows) != 1:
            return None  # not said with the grant
        limit, remaining, _, reset, _, _, _ = rows[0]
        if limit is not part.limit and limit != part.limit:
            return None  # of another server that has a newer one
        now = self.clock.now()
        if now >= part.noted_until:
            self._note(part, now)
        hits = part.hits
        part.refunds.add(part.key, taken(part, part.shared._spent(decision, part.key, hits)), hits, now)
        self.service.stats.requests += 1
        figures = part.figures
        figures.total_hits += hits
        figures.within_limit += hits
        near = part.capacity - remaining - part.near
        if near > 0:
            figures.near_limit += min(hits, near)
        return self._answer(part, min(max(0, remaining), MAX_UINT32), reset)  # type: ignore[no-any-return]

    def _note(self, part: SharedPart, now: int) -> None:
        part.kept.note(part.key)
        part.noted_until = now + min(SECOND, part.refunds.period_ns)

    async def conclude(self, part: SharedPart, decision: Any, error: BaseException | None) -> bytes:
        """The answer where it is not the usual one: a denial, no answer of the engine, a status that is to be asked
        for."""
        shared, key, hits = part.shared, part.key, part.hits
        answer: Any
        if error is not None:
            if not isinstance(error, EngineUnavailable):
                raise error
            answer = shared._instead(error, key, hits).try_acquire(key, cost=hits)
            return encode_response(await self.service.conclude_one(part.ask, answer))
        self._note(part, self.clock.now())
        if decision.verdict != GRANTED:
            shared._count_denial(key, hits)
            answer = denied(decision, key, shared.table.metrics)
        elif not decision.spendable():  # this process was stopped for so long that the permit has expired
            decision.withdraw()
            answer = await part.kept.limiter.try_acquire_async(key, cost=hits)
        else:
            answer = shared._granted(decision, key, hits)
        return encode_response(await self.service.conclude_one(part.ask, answer))


def answer_writer() -> Any:
    """Writes the answer of a grant: compiled, where headway is."""
    if pure_wanted():
        return _granted
    try:
        from headway.service.envoy.quick import granted
    except ImportError:
        return _granted
    return lambda part, remaining, reset: granted(part.said, remaining, reset)


def _granted(part: SharedPart, remaining: int, reset: int) -> bytes:
    until = reset if reset < FOREVER else None
    status = DescriptorStatus(Code.OK, part.current, remaining, until)
    return encode_response(RateLimitResponse(Code.OK, (status,)))
