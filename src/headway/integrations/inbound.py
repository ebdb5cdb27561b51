"""What all server middlewares have in common: whose request it is, and whether it is admitted.

A middleware asks for each request, and ends the permit when the response is known. The ends of a permit do what
others have options for: a response that is not to be charged (`deduct_when`) cancels it, a cost that is known only
at the end settles it, and a limit of what happens at once is free again when the response has ended. A server's own
limit counts at its decision, so limiters are built with `remote=False` here.

What is not admitted is answered by `headway.integrations.refusals`. An engine that does not answer within
`engine_timeout` is what `on_engine_error` says it is; if that is "closed", the answer is a 503, and never a 500 of
ours. Where several limits are asked for one request (`headway.integrations.charges`), that time is waited once.
"""

from __future__ import annotations

import difflib
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from headway import EngineUnavailable, InvalidArgument, Limiter, Permit, Status
from headway.core.limits import Limit
from headway.denied import Denied
from headway.integrations.client_address import ClientAddress
from headway.integrations.refusals import LEGACY, Refusal, Refusals, too_costly, unavailable
from headway.limiter.request_input import Cost

OneLimit = str | Limit | Limiter | None
"""None: not limited."""
Limits = OneLimit | Mapping[str, OneLimit] | Callable[[Any], OneLimit]
"""One limit, one for each tier, or a function of the request that says which."""
Ban = tuple[str | Limit, float]
"""So many refusals, and for how many seconds a key is shut out then."""

_ELSEWHERE: Final = {"storage_uri": "engine", "swallow_errors": "on_engine_error"}
"""What some options are called in other libraries, and here."""
MAX_LIMITS: Final = 1000
"""How many different limits a function may name: each has ledgers of its own."""

# There is one object for each small integer; see `headway.limiter.local`.
_ONE = 1


class Admission(NamedTuple):
    """A permit, or a refusal; neither: the request is not limited. `away`: the engine did not answer."""

    permit: Permit | None = None
    refusal: Refusal | None = None
    away: bool = False


FREE: Final = Admission()


class Inbound:
    """Limits of what comes in.

    `limit` is one limit, a function of the request that names one, or a mapping from tiers, of which `tier` names the
    request's. `key`, `cost` and `exempt` are functions of the request too, as the framework has it; a cost of 0 is
    free. A response of which `deduct_when` is false is not charged. `ban=("10/minute", 600)` shuts a key out for ten
    minutes that was refused more than ten times in a minute.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        key: Callable[[Any], str | None],
        cost: Cost | Callable[[Any], Cost] = 1,
        exempt: Callable[[Any], bool] | None = None,
        tier: Callable[[Any], str] | None = None,
        deduct_when: Callable[[Any], bool] | None = None,
        ban: Ban | None = None,
        headers: bool = True,
        legacy_headers: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(limit, Mapping) != (tier is not None):
            accepted = "a function of the request, where `limit` is a mapping from tiers to limits"
            raise InvalidArgument("tier", tier, accepted)
        functions: dict[str, Any] = {"key": key, "exempt": exempt, "tier": tier, "deduct_when": deduct_when}
        for name, given in functions.items():
            if given is not None and not callable(given):
                what = "the response" if name == "deduct_when" else "the request"
                raise InvalidArgument(name, given, f"a function of {what}, or None")
        self.headers = headers
        self.legacy_headers = legacy_headers
        self.deduct_when = deduct_when
        self._limiters = Limiters(options, headers)
        self._choose = limit if callable(limit) and not isinstance(limit, Limiter) else None
        self._tiers: dict[str, Limiter | None] = {}
        if isinstance(limit, Mapping):
            self._tiers = {name: self._limiters.add(name, one) for name, one in limit.items()}
        self._only = None if tier or self._choose else self._limiters.add("", limit)  # type: ignore[arg-type]
        self._tier = tier
        self._key = key
        # Mostly the key is the address of a client, and then it is found without a call of Python.
        owner = getattr(key, "__self__", None)
        of_scope = isinstance(owner, ClientAddress) and key.__name__ == "of_scope"
        self._address = owner if of_scope else None
        self._cost = cost
        self._exempt = exempt
        self._bans = None if ban is None else Bans(ban, options)
        self._refusals = Refusals(headers, legacy_headers)

    def limiter_for(self, request: Any) -> Limiter | None:
        """The limiter of a request; None: it is not limited."""
        if self._exempt is not None and self._exempt(request):
            return None
        if self._choose is not None:
            return self._limiters.of(self._choose(request))
        if self._tier is None:
            return self._only
        tier = self._tier(request)
        if tier not in self._tiers:
            raise InvalidArgument("tier", tier, f"one of: {', '.join(map(repr, self._tiers))}")
        return self._tiers[tier]

    # -- decisions ---------------------------------------------------------------------------------------

    def admit(self, request: Any, *, away: bool = False) -> Admission:
        """Decide a request, for a thread. `away`: the engine did not answer just now, and is not asked again."""
        limiter = self.limiter_for(request)
        return FREE if limiter is None else self._admit(limiter, request, away)

    def _admit(self, limiter: Limiter, request: Any, away: bool) -> Admission:
        if not away or limiter._shared is None:
            return self._admission(limiter, self.take(limiter, request), away)
        try:
            stand_in = limiter._shared.stand_in()
        except EngineUnavailable:
            return Admission(refusal=unavailable(), away=True)
        return self._admission(limiter, self.take(stand_in, request, False), away)

    async def admit_async(self, request: Any, *, away: bool = False) -> Admission:
        """Decide a request, for a task."""
        limiter = self.limiter_for(request)
        if limiter is None:
            return FREE
        if limiter._shared is None or away:
            return self._admit(limiter, request, away)  # there is nothing to wait for
        return self._admission(limiter, await self.take_async(limiter, request), away)

    def _admission(self, limiter: Limiter, found: Permit | Refusal | None, away: bool) -> Admission:
        if found is None:
            return FREE
        if isinstance(found, Refusal):
            return Admission(None, found, away or found.status == 503)
        shared = limiter._shared
        return Admission(found, None, away or (shared is not None and shared.decided_without_engine(found)))

    def take(self, limiter: Limiter, request: Any, bans: bool = True) -> Permit | Refusal | None:
        """Ask this limiter, for a thread; None: it costs nothing. Without `bans`, a refusal is not counted."""
        key = self._key(request) if self._address is None else self._address.of_scope(request)
        cost = self._cost
        if cost is not _ONE:
            if callable(cost):
                cost = cost(request)
            if cost == 0:
                return None
        try:
            found = limiter._try(key, cost)
            if not isinstance(found, Denied):
                return found
            if bans and self._bans is not None and self._bans.exceeded(limiter, found):
                limiter.pause(self._bans.seconds, key)
                found = limiter._try(key, cost)
        except EngineUnavailable:
            return unavailable()
        except InvalidArgument as error:
            return self._too_costly(limiter, cost, error)
        return self._refusals.of(found) if isinstance(found, Denied) else found

    async def take_async(self, limiter: Limiter, request: Any) -> Permit | Refusal | None:
        """Ask this limiter, for a task."""
        key, cost = self._key(request), self._cost(request) if callable(self._cost) else self._cost
        if cost == 0:
            return None
        try:
            found = await limiter.try_acquire_async(key, cost=cost)
            if not found and self._bans is not None and await self._bans.exceeded_async(limiter, found):
                await limiter.pause_async(self._bans.seconds, key)
                found = await limiter.try_acquire_async(key, cost=cost)
        except EngineUnavailable:
            return unavailable()
        except InvalidArgument as error:
            return self._too_costly(limiter, cost, error)
        return found or self._refusals.of(found)

    def _too_costly(self, limiter: Limiter, cost: Cost, error: InvalidArgument) -> Refusal:
        """A client may ask for more than there ever is; whatever else is wrong is the program's."""
        if error.argument != "cost":
            raise error
        limiter._check_cost(cost)
        return too_costly(error)

    # -- answers -----------------------------------------------------------------------------------------

    def status_of(self, permit: Permit) -> Status | None:
        """How the limit stands after a grant; None: it is not to be told, or the engine is away."""
        try:
            return permit.status if self.headers else None
        except EngineUnavailable:
            return None

    def headers_of(self, status: Status | None) -> dict[str, str]:
        """The headers that tell of the limit."""
        if status is None:
            return {}
        headers = status.headers()
        if not self.legacy_headers:
            for name in LEGACY:
                headers.pop(name, None)
        return headers

    def close(self) -> None:
        """End the waits of its limiters."""
        self._limiters.close()


class Limiters:
    """The limiters of some limits, built with the same options. `headers`: their grants say how the limit stands."""

    def __init__(self, options: Mapping[str, Any], headers: bool) -> None:
        _check_names(options)
        self._options = options
        self._headers = headers
        self._named: dict[str, Limiter | None] = {}
        self._lock = threading.Lock()

    def add(self, name: str, limit: OneLimit) -> Limiter | None:
        """The limiter of a limit, which is known by this name from now on."""
        limiter = self._named[name] = limiter_of(name, limit, self._options)
        if self._headers and limiter is not None and limiter._shared is not None:
            limiter._shared.ledgers.report_grants()
        return limiter

    def of(self, limit: OneLimit) -> Limiter | None:
        """The limiter of a limit that a function has named: there is one for each text."""
        name = f"{id(limit)}" if isinstance(limit, Limiter) else str(limit)
        if limit is None or name in self._named:
            return self._named.get(name)
        with self._lock:
            if name in self._named:
                return self._named[name]
            if len(self._named) >= MAX_LIMITS:
                raise InvalidArgument("limit", limit, f"one of at most {MAX_LIMITS} different limits")
            return self.add(name, limit)

    def close(self) -> None:
        """End their waits."""
        for limiter in self._named.values():
            if limiter is not None:
                limiter.close()


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise for an option that no limiter has, now: some limiters are built by the first request that names them."""
    known = [name for name in inspect.signature(Limiter.__init__).parameters if name not in ("self", "limit")]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(_ELSEWHERE.get(name, name), known, 1, 0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"got an unexpected keyword argument {name!r}{hint}")


class Bans:
    """Counts refusals by key. Without a key there is none to shut out: a pause would be for all."""

    def __init__(self, ban: Ban, options: Mapping[str, Any]) -> None:
        accepted = 'a limit of refusals, and seconds above 0: ("10/minute", 600)'
        try:
            limit, seconds = ban
        except (TypeError, ValueError):
            raise InvalidArgument("ban", ban, accepted) from None
        if type(seconds) not in (int, float) or not seconds > 0:
            raise InvalidArgument("ban", ban, accepted)
        self.seconds = seconds
        self._counter = limiter_of("bans", limit, options)

    def exceeded(self, limiter: Limiter, denied: Denied) -> bool:
        """Whether this refusal is one too many."""
        if self._counter is None or not _counts(limiter, denied):
            return False
        return not self._counter.try_acquire(denied.key)

    async def exceeded_async(self, limiter: Limiter, denied: Denied) -> bool:
        """`exceeded` for a task."""
        if self._counter is None or not _counts(limiter, denied):
            return False
        return not await self._counter.try_acquire_async(denied.key)


def _counts(limiter: Limiter, denied: Denied) -> bool:
    """Whether a refusal counts for a ban.

    One during a pause does not: a ban does not prolong itself. One by this process's share, while the engine is away,
    does not either: counting it would wait for the engine once more.
    """
    if denied.reason != "limit" or denied.key is None:
        return False
    if limiter._shared is None:
        return True
    try:
        stand_in = limiter._shared.stand_in()
    except EngineUnavailable:
        return True
    return all(rule.limit is not denied.limit for rule in stand_in._store.rules)


def limiter_of(tier: str, limit: OneLimit, options: Mapping[str, Any]) -> Limiter | None:
    """The limiter of a limit, under a name of its own where the options have one."""
    if limit is None or isinstance(limit, Limiter):
        return limit
    name = options.get("name")
    named = {**options, "name": f"{name}/{tier}"} if name is not None and tier else options
    return Limiter(limit, **{"remote": False, **named})
