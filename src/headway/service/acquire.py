"""The decision that the service is for: a parsed request in, a permit or a problem out.

Nothing here knows of HTTP, so that the same function can answer a call outside of the web framework. A request that
waits stands in the queue of its limiter: it is woken, and nothing is polled. The caller cancels the task when its
client has gone; the place in the queue then goes back, and so does a permit that was granted in the same moment.

While a request waits, its limit may be changed. A limiter that was replaced ends its waits (`LimiterClosed`), and the
request goes on with the one that took its place, for what is left of its time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headway.denied import Denied
from headway.errors import (
    EngineUnavailable,
    HeadwayError,
    InvalidArgument,
    LimiterClosed,
    RateLimited,
    seconds_text,
)
from headway.service.messages import (
    Acquire,
    AcquireAll,
    AcquireEach,
    AllAnswer,
    EachAnswer,
    EachItem,
    Grant,
    Take,
    seconds,
    status_message,
)
from headway.service.problems import Problem, later, problem_of

if TYPE_CHECKING:
    from headway.limiter.limiter import Limiter
    from headway.limiter.permits import Permit
    from headway.service.limits import Limits, ServedLimit
    from headway.service.metrics import Metrics
    from headway.service.permits import HeldPermits
    from headway.status import Status

UNKNOWN_RESET = 60.0
"""Seconds for which a key is counted when it is not known until when its ledger is used."""
FULL_RETRY = 1.0


class Decided(NamedTuple):
    """A grant, the headers that go with it, its permit (None: there is none), and how long it took."""

    grant: Grant
    headers: dict[str, str]
    permit: Permit | None
    seconds: float


class Decider:
    """Decides requests for permits."""

    def __init__(
        self,
        limits: Limits,
        permits: HeldPermits,
        metrics: Metrics,
        now: Callable[[], float],
        max_waiting: int = 10_000,
    ) -> None:
        self._limits = limits
        self._permits = permits
        self._metrics = metrics
        self._now = now
        self._max_waiting = max_waiting
        self._waiting: set[asyncio.Task[Any]] = set()
        self.closing = False

    # -- requests ----------------------------------------------------------------------------------------

    async def acquire(self, body: Acquire) -> Decided:
        """A permit; raises a `Problem`."""
        found = await self._decide(body, body.wait)
        self._count(found)
        return found

    async def acquire_each(self, body: AcquireEach) -> tuple[EachAnswer, list[Decided]]:
        """Each request by itself: on a shared engine they travel together."""
        items, granted = [], []
        for found in await self._together([self._decide(take, take.wait) for take in body.requests]):
            if isinstance(found, BaseException):
                items.append(EachItem(granted=False, problem=_problem(found).body()))
            else:
                self._count(found)
                granted.append(found)
                items.append(EachItem(granted=True, grant=found.grant))
        return EachAnswer(answers=items), granted

    async def acquire_all(self, body: AcquireAll) -> tuple[AllAnswer, list[Decided]]:
        """All permits or none: where one is not granted, the others go back. Raises the first `Problem`."""
        found = await self._together([self._decide(take, 0) for take in body.requests])
        granted = [decided for decided in found if not isinstance(decided, BaseException)]
        for index, error in enumerate(found):
            if isinstance(error, BaseException):
                self.give_back(granted)
                problem = _problem(error)
                problem.members["index"] = index
                raise problem
        for decided in granted:
            self._count(decided)
        return AllAnswer(permits=[decided.grant for decided in granted]), granted

    async def _together(self, requests: list[Coroutine[Any, Any, Decided]]) -> list[Decided | BaseException]:
        tasks = [asyncio.ensure_future(request) for request in requests]
        try:
            return list(await asyncio.gather(*tasks, return_exceptions=True))
        except asyncio.CancelledError:
            # The client has gone: what was granted so far goes back with the rest.
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            self.give_back([end for end in ends if not isinstance(end, BaseException)])
            raise

    def give_back(self, granted: Iterable[Decided]) -> None:
        """No client has these permits: nothing was sent for them, so they are cancelled."""
        for grant, _, permit, _ in granted:
            if grant.permit is not None:
                self._permits.release(grant.permit, "cancel")
            elif permit is not None:
                permit.cancel()

    def _count(self, decided: Decided) -> None:
        grant = decided.grant
        if grant.would_deny is None:
            served = self._limits.get(grant.limit)
            if served is not None:
                served.granted += 1
            self._metrics.granted(grant.limit, decided.seconds)

    def end_waits(self) -> None:
        """Grant nothing any more, and end every wait."""
        self.closing = True
        for task in self._waiting:
            task.cancel("closing")

    # -- one decision ------------------------------------------------------------------------------------

    async def _decide(self, take: Take, wait: float) -> Decided:
        started = self._now()
        served = self._limits.find(take.limit)
        if self.closing:
            raise later("closing", "this server is about to end", FULL_RETRY)
        try:
            if served.limiter is not None and not served.keys.admits(take.key, started):
                raise _no_room(served, started)
            permit = await self._permit(served, take, wait)
        except (RateLimited, _DeniedError, EngineUnavailable) as error:
            return self._refused(served, take, error, started)
        if permit is None:
            return Decided(Grant(limit=served.name), {}, None, self._now() - started)
        return await self._granted(served, take, permit, started)

    async def _permit(self, served: ServedLimit, take: Take, wait: float) -> Permit | None:
        """A permit; None where none is needed, as the limit is unlimited."""
        deadline = self._now() + wait
        while True:
            limiter = served.limiter
            if limiter is None:
                return None
            try:
                if wait and not served.config.shadow:
                    return await self._wait(served, limiter, take, max(0.0, deadline - self._now()))
                return await _at_once(limiter, take)
            except LimiterClosed:
                # It was replaced, and the next one decides; or it was deleted, or the server ends.
                if self._limits.find(take.limit) is not served or served.limiter is limiter:
                    raise

    async def _wait(self, served: ServedLimit, limiter: Limiter, take: Take, wait: float) -> Permit:
        if len(self._waiting) >= self._max_waiting:
            detail = f"{self._max_waiting} requests wait here already"
            raise later("too-many-waiting", detail, FULL_RETRY)
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        served.waiting += 1
        try:
            if take.hold:
                return await limiter.hold(take.key, cost=take.cost, timeout=wait).__aenter__()
            return await limiter.acquire_async(take.key, cost=take.cost, timeout=wait)
        except asyncio.CancelledError as cancelled:
            if self.closing and cancelled.args == ("closing",):
                task.uncancel()
                raise later("closing", "this server is about to end", FULL_RETRY) from None
            raise
        finally:
            served.waiting -= 1
            self._waiting.discard(task)

    async def _granted(self, served: ServedLimit, take: Take, permit: Permit, started: float) -> Decided:
        kept = bool(take.hold or permit._held)
        try:
            if kept and self._permits.full:
                raise later("too-many-permits", "this server holds no more permits", FULL_RETRY)
            status = await _status(permit)
        except BaseException:
            permit.cancel()
            raise
        now = self._now()
        served.keys.note(take.key, now + _until(status, served))
        lease = take.lease or served.config.lease
        spend_within = None if kept else seconds(permit.expires_in)
        id = self._permits.add(served.name, permit, lease) if kept else None
        grant = Grant(
            limit=served.name,
            permit=id,
            expires_in=lease if kept else None,
            spend_within=spend_within,
            waited=now - started if isinstance(take, Acquire) and take.wait else 0.0,
            status=None if status is None else status_message(status),
        )
        return Decided(grant, {} if status is None else status.headers(), permit, now - started)

    def _refused(self, served: ServedLimit, take: Take, error: HeadwayError, started: float) -> Decided:
        """The answer without a permit: a problem, or a grant where the limit is only watched."""
        now = self._now()
        status = getattr(error, "status", None)
        reason = "engine" if isinstance(error, EngineUnavailable) else getattr(error, "reason", "limit")
        if status is not None:
            served.keys.note(take.key, now + _until(status, served))
        served.denied += 1
        self._metrics.denied(served.name, reason, now - started, shadow=served.config.shadow)
        if served.config.shadow:
            message = None if status is None else status_message(status)
            return Decided(Grant(limit=served.name, would_deny=reason, status=message), {}, None, 0.0)
        if isinstance(error, EngineUnavailable):
            raise error
        raise denial(served.name, error, status, reason)


async def _status(permit: Permit) -> Status | None:
    """The status after a grant. None: it must be asked for, and the engine is away. The permit is good all the same."""
    try:
        return await permit.status_async()
    except EngineUnavailable:
        return None


async def _at_once(limiter: Limiter, take: Take) -> Permit:
    if take.hold:
        return await limiter.hold(take.key, cost=take.cost, timeout=0).__aenter__()
    answer = await limiter.try_acquire_async(take.key, cost=take.cost)
    if isinstance(answer, Denied):
        raise _DeniedError(answer.status, answer.reason)
    return answer


class _DeniedError(HeadwayError):
    """A denial of `try_acquire`, which is a value there."""

    def __init__(self, status: Status | None, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = status.retry_after if retry_after is None and status is not None else retry_after


def denial(name: str, error: Any, status: Status | None, reason: str) -> Problem:
    """The problem of a request that got no permit."""
    wait = math.inf if error.retry_after is None else error.retry_after
    headers = {} if status is None else status.headers()
    if 0 < wait < math.inf:
        headers.setdefault("Retry-After", str(math.ceil(wait)))
    when = f"retry after {seconds_text(wait)}" if 0 < wait < math.inf else "it is not known when to retry"
    if status is not None and not status.exact:
        when = "permits are out, so it is not known when to retry"
    return Problem(
        "rate-limited",
        f"{name}: {WORDS.get(reason, reason)}; {when}",
        headers=headers,
        granted=False,
        limit=name,
        reason=reason,
        retry_after=seconds(wait),
        limit_status=None if status is None else msgspec.to_builtins(status_message(status)),
    )


WORDS: Mapping[str, str] = {
    "limit": "the limit is used up",
    "timeout": "not granted within the time that it may wait",
    "max_waiting": "too many are waiting for it already",
    "max_keys": "it has ledgers for as many keys as it may",
    "paused": "it is paused",
    "quarantine": "its ledger was lost, and what it forgot is waited for",
    "never": "it never grants so much",
}


def _no_room(served: ServedLimit, now: float) -> _DeniedError:
    return _DeniedError(None, "max_keys", max(1.0, served.keys.retry_after(now)))


def _until(status: Status | None, served: ServedLimit) -> float:
    if status is None or not math.isfinite(status.reset_after):
        return max(UNKNOWN_RESET, served.config.lease)
    return status.reset_after


def _problem(error: BaseException) -> Problem:
    if isinstance(error, InvalidArgument):
        return Problem("bad-request", str(error), member=error.argument, accepted=error.accepted)
    if not isinstance(error, HeadwayError):
        raise error
    return problem_of(error)
