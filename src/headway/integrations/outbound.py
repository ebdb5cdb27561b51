"""What all HTTP clients have in common: which limiter a call belongs to, and what its answer means for it.

A call is bracketed: its permit is taken before anything is sent, and completed when the headers of the answer are
there, which is what makes a window cheap. An exception ends the permit by what it proves (`headway.outcome`):
connection refused and names that do not resolve cancel it, time-outs and broken connections abandon it. Then the
limiter hears what the remote said. A redirect is another call, as the remote counts it.

A client module brackets, and does nothing else of its own:

    call = outbound.call(host, request)
    with call.hold() as permit:
        response = send(request)
        try:
            call.settle(permit, response)
            said = call.hear(response)
        except BaseException:
            response.close()  # the caller never gets it, and its connection would be out for ever
            raise
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from headway import HeadwayError, InvalidArgument, Limiter, Permit
from headway.core.limits import Limit
from headway.feedback import Feedback
from headway.feedback.profiles import find
from headway.limiter.feedback import hear
from headway.limiter.hold import Hold
from headway.limiter.request_input import Cost, Timeout, timeout_to_ns

log = logging.getLogger("headway")

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

    Every host that a pattern with `*` stands for has a ledger of its own, unless `key` says otherwise; then what one
    host answers is no word of the others: it lowers no limit of theirs, and pauses none of them.
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
        find(profile)  # refused here, and not when the first answer is there
        self.key = key
        self.cost = cost
        self.settle = settle
        self.timeout = timeout
        bound = None if timeout is ... else timeout_to_ns(timeout)
        self.patience = inf if bound is None else bound
        self.retries = retries
        self.feedback = feedback
        self.follow = follow
        self.profile = profile
        # A single limit is that of the pattern "", which no mapping can name.
        self._limiters: dict[str, Limiter | None] = {}
        if not isinstance(limit, Mapping):
            self._limiters[""] = _limiter("", limit, options)
            return
        for given, one in limit.items():
            pattern = _pattern(given)
            if pattern in self._limiters:
                raise InvalidArgument("limit", given, "each host once, as another pattern means the same")
            self._limiters[pattern] = _limiter(pattern, one, options)

    def pattern_of(self, host: str) -> str | None:
        """The pattern that a host belongs to: its own name, else the longest that it ends with."""
        if "" in self._limiters:
            return ""
        host = _as_sent(host)
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
        by_host = self.key is None and pattern is not None and pattern.startswith("*")
        key = _as_sent(host) if by_host else self.key(request) if callable(self.key) else self.key
        cost = self.cost(request) if callable(self.cost) else self.cost
        return Call(self, limiter, key, cost, one_remote=not by_host)


class Call:
    """One call, which may be sent several times."""

    __slots__ = ("_key", "_limiter", "_one_remote", "_outbound", "_sent", "cost")

    def __init__(
        self, outbound: Outbound, limiter: Limiter, key: str | None, cost: Cost, *, one_remote: bool = True
    ) -> None:
        self._outbound = outbound
        self._limiter = limiter
        self._key = key
        self.cost = cost
        self._one_remote = one_remote
        self._sent = 0

    def hold(self) -> Hold:
        """The bracket for one attempt: it waits in line like any other call."""
        self._sent += 1
        return self._limiter.hold(self._key, cost=self.cost, timeout=self._outbound.timeout)

    def settle(self, permit: Permit, response: Any) -> None:
        """End the permit, as an answer is there; with what the call really cost, where the headers tell it."""
        try:
            actual = None if self._outbound.settle is None else self._outbound.settle(response)
            if actual is not None:
                permit.settle(actual)
        finally:
            # Whatever the function makes of the answer, and if it fails: the remote has counted this call by now.
            if permit.ended is None:
                permit.complete()

    def hear(self, response: Any) -> Feedback | None:
        """Act on what the remote said."""
        if self._outbound.feedback:
            try:
                return self._limiter.feedback(response, self._key, **self._how())
            except HeadwayError as error:
                self._not_heard(error)
        return self._read(response)

    async def hear_async(self, response: Any) -> Feedback | None:
        """`hear` for a task."""
        if self._outbound.feedback:
            try:
                return await self._limiter.feedback_async(response, self._key, **self._how())
            except HeadwayError as error:
                self._not_heard(error)
        return self._read(response)

    def _how(self) -> dict[str, Any]:
        outbound = self._outbound
        return {"profile": outbound.profile, "follow": outbound.follow, "one_remote": self._one_remote}

    def _not_heard(self, error: HeadwayError) -> None:
        """The engine is down, or the limiter was closed: no reason to keep an answer from the program."""
        log.warning("headway: %s could not act on an answer: %s", self._limiter.name or "a limiter", error)

    def _read(self, response: Any) -> Feedback | None:
        """What the remote said, where nothing is done about it but to send the call again."""
        return hear(response, self._outbound.profile, time.time()).said if self._outbound.retries else None

    def repeats(self, said: Feedback | None, status: int, method: str, *, replayable: bool) -> bool:
        """Whether to send it again: it was refused, attempts are left, and no effect can happen twice.

        A refusal that asks for more than `timeout` is the answer: to wait for it would only be another error.
        """
        if said is None or not said.refused or self._sent > self._outbound.retries or not replayable:
            return False
        if said.wait is not None and self._outbound.patience < said.wait * 1e9:
            return False
        return status == NOT_SERVED or method.upper() in IDEMPOTENT


def _as_sent(host: str) -> str:
    """`_normal`, of what a client sends: it knows better what it can call."""
    try:
        return _normal(host)
    except ValueError:
        return host


def _normal(host: str) -> str:
    """A host as it is on the wire: small letters, ASCII, an address of IPv6 without brackets in its short form."""
    host = host.strip("[]").rstrip(".").lower()
    if ":" in host:
        return str(ipaddress.IPv6Address(host))
    if host.isascii():
        return host
    import idna  # every HTTP client that there is an integration for brings it

    return idna.encode(host, uts46=True).decode()


def _pattern(pattern: Any) -> str:
    wanted = 'hosts such as "api.github.com", "*.example.com" or "*", without a scheme or a port'
    if not isinstance(pattern, str):
        raise InvalidArgument("limit", pattern, wanted)
    if pattern == "*":
        return pattern
    star = "*." if pattern.startswith("*.") else ""
    try:
        host = _normal(pattern.removeprefix(star))
    except ValueError as error:  # of ipaddress or idna
        raise InvalidArgument("limit", pattern, wanted) from error
    if not host or set(host) & set("*/@ "):
        raise InvalidArgument("limit", pattern, wanted)
    return star + host


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
