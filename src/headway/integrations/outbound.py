"""What all HTTP clients have in common: which limiter a call belongs to, and what its answer means for it.

A call is bracketed: its permit is taken before anything is sent, and completed when the headers of the answer are
there, which is what makes a window cheap. An exception ends the permit by what it proves (`headway.outcome`):
connection refused and names that do not resolve cancel it, time-outs and broken connections abandon it. Then the
limiter hears what the remote said. A redirect is another call, as the remote counts it.

A client module brackets, and does nothing else of its own:

    call = outbound.call(host, request)
    with call.hold() as permit:
        response = send(request)
        call.settle(permit, response)
    call.hear(response)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from headway import InvalidArgument, Limiter, Permit
from headway.core.limits import Limit
from headway.feedback import Feedback
from headway.limiter.hold import Hold
from headway.limiter.request_input import Cost, Timeout

Limits = str | Limit | Limiter | Mapping[str, str | Limit | Limiter | None]
"""One limit for all calls, or one for each pattern of hosts; None in a mapping: no limit."""
Key = str | Callable[[Any], str | None] | None
Costs = Cost | Callable[[Any], Cost]

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
NOT_SERVED: Final = 429
"""A refusal with this status was not served, so that it is safe to repeat whatever the method."""


class Outbound:
    """The limits of a client, by the hosts that it calls.

    >>> outbound = Outbound({"api.github.com": "5000/hour", "*.example.com": "10/s", "*": "2/s"})
    >>> [outbound.pattern_of(host) for host in ("api.github.com", "www.example.com", "example.org")]
    ['api.github.com', '*.example.com', '*']

    Every host that a pattern with `*` stands for has a ledger of its own, unless `key` says otherwise.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        key: Key = None,
        cost: Costs = 1,
        settle: Callable[[Any], Cost | None] | None = None,
        timeout: Timeout = ...,
        retries: int = 0,
        feedback: bool = True,
        follow: bool = True,
        profile: str | None = None,
        **options: Any,
    ) -> None:
        if type(retries) is not int or retries < 0:
            raise InvalidArgument("retries", retries, "an integer from 0 up")
        self.key = key
        self.cost = cost
        self.settle = settle
        self.timeout = timeout
        self.retries = retries
        self.feedback = feedback
        self.follow = follow
        self.profile = profile
        patterns = limit if isinstance(limit, Mapping) else {"": limit}
        self._limiters = {
            _checked(pattern): _limiter(pattern, one, options) for pattern, one in patterns.items()
        }

    def pattern_of(self, host: str) -> str | None:
        """The pattern that a host belongs to: its own name, else the longest that it ends with."""
        if "" in self._limiters:
            return ""
        host = host.rstrip(".").lower()
        if host in self._limiters:
            return host
        parts = host.split(".")
        for start in range(1, len(parts)):
            pattern = ".".join(["*", *parts[start:]])
            if pattern in self._limiters:
                return pattern
        return "*" if "*" in self._limiters else None

    def call(self, host: str, request: Any) -> Call | None:
        """A call of this host; None: it is not limited."""
        pattern = self.pattern_of(host)
        limiter = None if pattern is None else self._limiters[pattern]
        if limiter is None:
            return None
        if callable(self.key):
            key = self.key(request)
        elif self.key is None and pattern is not None and pattern.startswith("*"):
            key = host.rstrip(".").lower()
        else:
            key = self.key
        cost = self.cost(request) if callable(self.cost) else self.cost
        return Call(self, limiter, key, cost)

    def close(self) -> None:
        """End the waits of its limiters."""
        for limiter in self._limiters.values():
            if limiter is not None:
                limiter.close()


class Call:
    """One call, which may be sent several times."""

    __slots__ = ("_cost", "_key", "_limiter", "_outbound", "_sent")

    def __init__(self, outbound: Outbound, limiter: Limiter, key: str | None, cost: Cost) -> None:
        self._outbound = outbound
        self._limiter = limiter
        self._key = key
        self._cost = cost
        self._sent = 0

    def hold(self) -> Hold:
        """The bracket for one attempt: it waits in line like any other call."""
        self._sent += 1
        return self._limiter.hold(self._key, cost=self._cost, timeout=self._outbound.timeout)

    def settle(self, permit: Permit, response: Any) -> None:
        """End the permit with what the call really cost, where that is known from the headers."""
        actual = None if self._outbound.settle is None else self._outbound.settle(response)
        if actual is not None:
            permit.settle(actual)

    def hear(self, response: Any) -> Feedback | None:
        """Act on what the remote said."""
        outbound = self._outbound
        if not outbound.feedback:
            return None
        return self._limiter.feedback(response, self._key, profile=outbound.profile, follow=outbound.follow)

    async def hear_async(self, response: Any) -> Feedback | None:
        outbound = self._outbound
        if not outbound.feedback:
            return None
        return await self._limiter.feedback_async(
            response, self._key, profile=outbound.profile, follow=outbound.follow
        )

    def repeats(self, said: Feedback | None, status: int, method: str, *, replayable: bool) -> bool:
        """Whether to send it again: it was refused, attempts are left, and no effect can happen twice."""
        if said is None or not said.refused or self._sent > self._outbound.retries or not replayable:
            return False
        return status == NOT_SERVED or method.upper() in IDEMPOTENT


def _checked(pattern: Any) -> str:
    name = pattern.rstrip(".").lower() if isinstance(pattern, str) else ""
    rest = name.removeprefix("*.") if name.startswith("*.") else name.removeprefix("*")
    if (pattern and not name) or set(rest) & set("*/:@ "):
        raise InvalidArgument("limit", pattern, 'hosts such as "api.github.com", "*.example.com" or "*"')
    return name


def _limiter(pattern: str, limit: str | Limit | Limiter | None, options: Mapping[str, Any]) -> Limiter | None:
    if limit is None:
        return None
    if isinstance(limit, Limiter):
        if options:
            raise InvalidArgument(
                "limit", limit, f"a limit, or a Limiter without {', '.join(sorted(options))}"
            )
        return limit
    name = options.get("name")
    named = {**options, "name": f"{name}/{pattern}"} if name is not None and pattern else options
    return Limiter(limit, **named)
