"""What all server middlewares have in common: whose request it is, whether it is admitted, and what is answered if
not.

A middleware asks for each request, and ends the permit when the response is known. The ends of a permit do what
others have options for: a response that is not to be charged (`deduct_when`) cancels it, and a limit of what
happens at once is free again when the response has ended. A server's own limit counts at its decision, so limiters
are built with `remote=False` here.

A refusal is a 429 with the headers of the IETF's draft (`RateLimit`, `RateLimit-Policy`), `Retry-After`, and a
problem (RFC 9457) of type quota-exceeded. An engine that does not answer within `engine_timeout` is what
`on_engine_error` says it is; if that is "closed", the answer is a 503, and never a 500 of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from headway import Denied, EngineUnavailable, InvalidArgument, Limiter, Permit, Status
from headway.core.limits import Limit
from headway.limiter.request_input import Cost

Limits = str | Limit | Limiter | Mapping[str, str | Limit | Limiter | None]
"""One limit, or one for each tier; None in a mapping: that tier is not limited."""
Ban = tuple[str | Limit, float]
"""So many refusals, and for how many seconds a key is shut out then."""

QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
ENGINE_RETRY: Final = 1
"""Seconds until a client may ask again whose request could not be decided."""

LEGACY: Final = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


class Refusal(NamedTuple):
    """What a request is answered with that is not admitted."""

    status: int
    headers: dict[str, str]
    body: bytes


class Admission(NamedTuple):
    """A permit, or a refusal; neither: the request is not limited."""

    permit: Permit | None = None
    refusal: Refusal | None = None


FREE: Final = Admission()


class Inbound:
    """Limits of what comes in.

    `key`, `cost`, `exempt` and `tier` are functions of the request as the framework has it. `tier` names the limit
    where `limit` has several. `ban=("10/minute", 600)` shuts a key out for ten minutes that was refused more than
    ten times in a minute.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        key: Callable[[Any], str | None],
        cost: Cost | Callable[[Any], Cost] = 1,
        exempt: Callable[[Any], bool] | None = None,
        tier: Callable[[Any], str] | None = None,
        ban: Ban | None = None,
        headers: bool = True,
        legacy_headers: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(limit, Mapping) != (tier is not None):
            accepted = "a function of the request, where `limit` is a mapping from tiers to limits"
            raise InvalidArgument("tier", tier, accepted)
        self._limiters = {
            name: limiter_of(name, one, options)
            for name, one in (limit.items() if isinstance(limit, Mapping) else (("", limit),))
        }
        self._only = None if tier is not None else self._limiters[""]
        self._tier = tier
        self._key = key
        self._cost = cost
        self._exempt = exempt
        self._bans = None if ban is None else Bans(ban, options)
        self.headers = headers
        self.legacy_headers = legacy_headers
        if headers:
            for limiter in self._limiters.values():
                if limiter is not None and limiter._shared is not None:
                    limiter._shared.ledgers.report_grants()

    def limiter_for(self, request: Any) -> Limiter | None:
        """The limiter of a request; None: it is not limited."""
        if self._exempt is not None and self._exempt(request):
            return None
        if self._tier is None:
            return self._only
        tier = self._tier(request)
        if tier not in self._limiters:
            raise InvalidArgument("tier", tier, f"one of: {', '.join(map(repr, self._limiters))}")
        return self._limiters[tier]

    def admit(self, request: Any) -> Admission:
        """Decide a request, for a thread."""
        limiter = self.limiter_for(request)
        if limiter is None:
            return FREE
        key, cost = self._asked(request)
        try:
            found = limiter.try_acquire(key, cost=cost)
            if found:
                return Admission(found)
            if self._bans is not None and self._bans.exceeded(found):
                limiter.pause(self._bans.seconds, key)
                found = limiter.try_acquire(key, cost=cost)
        except EngineUnavailable:
            return Admission(refusal=unavailable())
        return Admission(found) if found else Admission(refusal=self.refused(found))

    async def admit_async(self, request: Any) -> Admission:
        """Decide a request, for a task."""
        limiter = self.limiter_for(request)
        if limiter is None:
            return FREE
        key, cost = self._asked(request)
        if limiter._shared is None and self._bans is None:
            found = limiter.try_acquire(key, cost=cost)  # in memory there is nothing to wait for
            return Admission(found) if found else Admission(refusal=self.refused(found))
        try:
            found = await limiter.try_acquire_async(key, cost=cost)
            if found:
                return Admission(found)
            if self._bans is not None and await self._bans.exceeded_async(found):
                await limiter.pause_async(self._bans.seconds, key)
                found = await limiter.try_acquire_async(key, cost=cost)
        except EngineUnavailable:
            return Admission(refusal=unavailable())
        return Admission(found) if found else Admission(refusal=self.refused(found))

    def _asked(self, request: Any) -> tuple[str | None, Cost]:
        return self._key(request), self._cost(request) if callable(self._cost) else self._cost

    def refused(self, denied: Denied) -> Refusal:
        """The answer to a request for which there is no permit."""
        status = denied.status
        headers = self.headers_of(status) if self.headers else _retry_after(status)
        problem = {
            "type": QUOTA_EXCEEDED,
            "title": "Too many requests",
            "status": 429,
            "detail": str(denied).strip("<>"),
            "violated-policies": [_policy(status)],
        }
        return _refusal(429, headers, problem)

    def headers_of(self, status: Status) -> dict[str, str]:
        """The headers that tell of the limit."""
        headers = status.headers()
        if not self.legacy_headers:
            for name in LEGACY:
                headers.pop(name, None)
        return headers

    def close(self) -> None:
        for limiter in self._limiters.values():
            if limiter is not None:
                limiter.close()


class Bans:
    """Counts refusals by key."""

    def __init__(self, ban: Ban, options: Mapping[str, Any]) -> None:
        limit, seconds = ban
        if not seconds > 0:
            raise InvalidArgument("ban", ban, 'a limit of refusals, and seconds above 0: ("10/minute", 600)')
        self.seconds = seconds
        self._counter = limiter_of("bans", limit, options)

    def exceeded(self, denied: Denied) -> bool:
        """Whether this refusal is one too many. One during a pause is none: a ban does not prolong itself."""
        return (
            denied.reason == "limit"
            and self._counter is not None
            and not self._counter.try_acquire(denied.key)
        )

    async def exceeded_async(self, denied: Denied) -> bool:
        if denied.reason != "limit" or self._counter is None:
            return False
        return not await self._counter.try_acquire_async(denied.key)


def limiter_of(tier: str, limit: str | Limit | Limiter | None, options: Mapping[str, Any]) -> Limiter | None:
    if limit is None or isinstance(limit, Limiter):
        return limit
    name = options.get("name")
    named = {**options, "name": f"{name}/{tier}"} if name is not None and tier else options
    return Limiter(limit, **{"remote": False, **named})


def unavailable() -> Refusal:
    """The answer to a request that could not be decided."""
    problem = {
        "type": REDUCED_CAPACITY,
        "title": "Temporarily unavailable",
        "status": 503,
        "detail": "the limit is not known now",
    }
    return _refusal(503, {"Retry-After": str(ENGINE_RETRY)}, problem)


def _refusal(status: int, headers: dict[str, str], problem: dict[str, Any]) -> Refusal:
    body = json.dumps(problem).encode()
    sized = {**headers, "Content-Type": "application/problem+json", "Content-Length": str(len(body))}
    return Refusal(status, sized, body)


def _policy(status: Status) -> str:
    """The name of the policy that refused, as the header has it."""
    return status.headers()["RateLimit"].split('"')[1]


def _retry_after(status: Status) -> dict[str, str]:
    found = status.headers().get("Retry-After")
    return {} if found is None else {"Retry-After": found}
