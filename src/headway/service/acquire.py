"""The decision that the service is for: a parsed request in, a permit or a problem out.

Nothing here knows of HTTP, so that the same function can answer a call outside of the web framework. Most requests can
be decided at once, since the ledger is in this process and they do not wait (`at_once`); all others are coroutines. A
request that waits stands in the queue of its limiter: it is woken, and nothing is polled. The caller cancels the task
when its client has gone; the place in the queue then goes back, and so does a permit that was granted in the same
moment.

While a request waits, its limit may be changed. A limiter that was replaced ends its waits (`LimiterClosed`), and the
request goes on with the one that took its place, for what is left of its time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headway.denied import Denied
from headway.errors import (
    EngineUnavailable,
    HeadwayError,
    InvalidArgument,
    InvalidKey,
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
)
from headway.service.problems import Problem, later, problem_of
from headway.service.standing import Standing, reset_or, standing, standing_of_rows

if TYPE_CHECKING:
    from headway.limiter.limiter import Limiter
    from headway.limiter.permits import Permit
    from headway.service.config import LimitConfig
    from headway.service.limits import Limits
    from headway.service.metrics import Metrics
    from headway.service.permits import HeldPermits
    from headway.service.served_limit import ServedLimit

FULL_RETRY = 1.0


class Decided(Struct, frozen=True):
    """A grant, the headers that go with it, its permit (None: there is none), and how long it took."""

    grant: Grant
    head: bytes
    permit: Permit | None
    seconds: float
    served: ServedLimit


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

    def acquire_at_once(self, body: Acquire) -> Decided | HeadwayError | None:
        """`acquire` where nothing has to be waited for: a permit, or what would be raised; None where there is."""
        found = None if body.wait else self._at_once(body)
        if type(found) is Decided and found.grant.would_deny is None:
            found.served.granted += 1
            self._metrics.granted(found.grant.limit, found.seconds)
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
        for decided in granted:
            if decided.grant.permit is not None:
                self._permits.release(decided.grant.permit, "cancel")
            elif decided.permit is not None:
                decided.permit.cancel()

    def _count(self, decided: Decided) -> None:
        if decided.grant.would_deny is None:
            decided.served.granted += 1
            self._metrics.granted(decided.served.config.name, decided.seconds)

    def end_waits(self) -> None:
        """Grant nothing any more, and end every wait."""
        self.closing = True
        for task in self._waiting:
            task.cancel("closing")

    # -- one decision ------------------------------------------------------------------------------------

    async def _decide(self, take: Take, wait: float) -> Decided:
        found = None if wait else self._at_once(take)
        if found is None:
            found = await self._by_and_by(take, wait)
        if isinstance(found, HeadwayError):
            raise found
        return found

    def _at_once(self, take: Take) -> Decided | HeadwayError | None:
        """The decision, where the ledger is in this process; None where it is not, or something is unusual."""
        served = self._limits.get(take.limit)
        if served is None or self.closing or take.hold:
            return None
        limiter = served.limiter
        if limiter is None:
            return Decided(Grant(served.name), b"", None, 0.0, served)
        started = self._now()
        if limiter._shared is not None or not served.keys.admits(take.key, started):
            return None
        try:
            answer = limiter.try_acquire(take.key, cost=take.cost)
            metrics = limiter._store.metrics
            if isinstance(answer, Denied):
                found = standing_of_rows(answer._rows(), metrics, True)
                return self._refused(served, take, found, answer.reason, None, started)
            return self._granted(
                served, take, answer, standing_of_rows(answer._rows(), metrics, False), started
            )
        except EngineUnavailable as error:
            return self._refused(served, take, None, "engine", error, started)
        except (LimiterClosed, InvalidArgument, InvalidKey):
            return None  # nothing has changed, and asked again it says so again

    async def _by_and_by(self, take: Take, wait: float) -> Decided | HeadwayError:
        """The decision of any request."""
        started = self._now()
        served = self._limits.find(take.limit)
        if self.closing:
            return later("closing", "this server is about to end", FULL_RETRY)
        if served.limiter is not None and not served.keys.admits(take.key, started):
            return self._refused(served, take, None, "max_keys", None, started)
        try:
            permit = await self._permit(served, take, wait)
        except RateLimited as error:
            found = None if error.status is None else standing(error.status)
            return self._refused(served, take, found, error.reason, error, started)
        except EngineUnavailable as error:
            return self._refused(served, take, None, "engine", error, started)
        if isinstance(permit, Denied):
            return self._refused(served, take, standing(permit.status), permit.reason, None, started)
        if permit is None:
            return Decided(Grant(served.name), b"", None, self._now() - started, served)
        try:
            found = await _standing(permit)
        except BaseException:
            permit.cancel()
            raise
        return self._granted(served, take, permit, found, started)

    async def _permit(self, served: ServedLimit, take: Take, wait: float) -> Permit | Denied | None:
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

    def _granted(
        self, served: ServedLimit, take: Take, permit: Permit, found: Standing | None, started: float
    ) -> Decided | HeadwayError:
        """The answer with a permit, which goes back where the server cannot hold it."""
        kept = bool(take.hold or permit._held)
        if kept and self._permits.full:
            permit.cancel()
            return later("too-many-permits", "this server holds no more permits", FULL_RETRY)
        now = self._now()
        config = served.config
        reset = math.inf if found is None else found.reset_after
        served.keys.note(take.key, now + (reset_or(found, config.lease) if reset == math.inf else reset))
        waited = now - started if isinstance(take, Acquire) and take.wait else 0.0
        if not kept:
            grant = plain_grant(config.name, found, waited, permit.expires_in)
        else:
            lease = take.lease or config.lease
            id = self._permits.add(config.name, permit, lease)
            message = None if found is None else found.message
            grant = Grant(limit=config.name, permit=id, expires_in=lease, waited=waited, status=message)
        head = b"" if found is None else found.head
        return Decided(grant, head, permit, now - started, served)

    def _refused(
        self,
        served: ServedLimit,
        take: Take,
        found: Standing | None,
        reason: str,
        error: RateLimited | EngineUnavailable | None,
        started: float,
    ) -> Decided | HeadwayError:
        """The answer without a permit: a problem, or a grant where the limit is only watched."""
        now = self._now()
        config = served.config
        if found is not None:
            served.keys.note(take.key, now + reset_or(found, config.lease))
        served.denied += 1
        self._metrics.denied(config.name, reason, now - started, shadow=config.shadow)
        if isinstance(error, EngineUnavailable) and not config.shadow:
            return error
        if isinstance(error, RateLimited):
            wait = error.retry_after
        elif found is not None:
            wait = found.retry_after
        else:
            wait = max(1.0, served.keys.retry_after(now))  # there is no room for its key
        said = refusal(config, wait, found, reason)
        return said if isinstance(said, Problem) else Decided(said, b"", None, 0.0, served)


async def _standing(permit: Permit) -> Standing | None:
    """How the limit stands after a grant. None: the engine would have to say, and is away; the permit is good."""
    try:
        return standing(await permit.status_async())
    except EngineUnavailable:
        return None


async def _at_once(limiter: Limiter, take: Take) -> Permit | Denied:
    if take.hold:
        return await limiter.hold(take.key, cost=take.cost, timeout=0).__aenter__()
    return await limiter.try_acquire_async(take.key, cost=take.cost)


def plain_grant(name: str, found: Standing | None, waited: float = 0.0, within: float = math.inf) -> Grant:
    """The grant of a permit that need not be ended."""
    message = None if found is None else found.message
    return Grant(name, True, None, None, None if within == math.inf else within, waited, None, message)


def refusal(config: LimitConfig, wait: float, found: Standing | None, reason: str) -> Grant | Problem:
    """What is said to a request that got no permit: a problem, or a grant where the limit is only watched."""
    if config.shadow:
        return Grant(config.name, would_deny=reason, status=None if found is None else found.message)
    return denial(config.name, wait, found, reason)


def denial(name: str, wait: float, found: Standing | None, reason: str) -> Problem:
    """The problem of a request that got no permit."""
    head = b"" if found is None else found.head
    when = "it is not known when to retry"
    if 0 < wait < math.inf:
        when = f"retry after {seconds_text(wait)}"
        if b"\r\nretry-after: " not in head:
            head += b"retry-after: %d\r\n" % math.ceil(wait)
    if found is not None and not found.message.exact:
        when = "permits are out, so it is not known when to retry"
    return Problem(
        "rate-limited",
        f"{name}: {WORDS.get(reason, reason)}; {when}",
        head=head,
        granted=False,
        limit=name,
        reason=reason,
        retry_after=seconds(wait),
        limit_status=None if found is None else found.message,
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


def _problem(error: BaseException) -> Problem:
    if isinstance(error, InvalidArgument):
        return Problem("bad-request", str(error), member=error.argument, accepted=error.accepted)
    if not isinstance(error, HeadwayError):
        raise error
    return problem_of(error)
