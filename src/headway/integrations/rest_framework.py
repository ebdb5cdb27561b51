"""Throttles of Django REST framework that keep their limits: in any window, for all workers, also under concurrency.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["headway.integrations.rest_framework.UserRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"user": "1000/day; 10/s"},
    }

The classes have the names and scopes of the framework's own. The settings of all limits (`trusted`, `engine`, ...) are
those of `headway.integrations.django`. The framework asks all throttles of a view; a refusal by one gives back what
the others granted. With `RateLimitMiddleware` among the middlewares every response tells how the limit stands.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Final, NamedTuple

from rest_framework.exceptions import APIException
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from headway import InvalidArgument, InvalidUse
from headway.integrations.charges import Charges
from headway.integrations.client_address import ClientAddress
from headway.integrations.django import CHARGES, inbound_of, shared_options
from headway.integrations.inbound import Inbound
from headway.integrations.refusals import Refusal

__all__ = ["AnonRateThrottle", "RateThrottle", "ScopedRateThrottle", "UserRateThrottle"]

_inbounds: dict[tuple[type, str], Inbound] = {}
_lock: Final = threading.Lock()


class Asked(NamedTuple):
    """What a throttle has found out about a request."""

    limit: Any
    key: str
    cost: Any


class EngineAway(APIException):  # type: ignore[misc] # the framework has no types
    """The engine did not answer, and `on_engine_error` is "closed"."""

    status_code = 503
    default_code = "temporary-reduced-capacity"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.problem["detail"])
        self.wait = refusal.retry_after


class RateThrottle(BaseThrottle):  # type: ignore[misc] # the same
    """A throttle by user, or by address where there is none.

    >>> class Uploads(RateThrottle):
    ...     scope = "uploads"
    ...     limit = "5/minute; 100/day"
    ...     def get_cost(self, request, view):
    ...         return len(request.FILES)

    `limit` is a limit or a `headway.Limiter`; without one it is the rate of its `scope` in `DEFAULT_THROTTLE_RATES`.
    A subclass may override `get_limit`, `get_key` and `get_cost`; no limit, no key and a cost of 0 do not throttle.
    """

    scope: str | None = None
    limit: Any = None
    _refusal: Refusal | None = None

    def get_limit(self, request: Any, view: Any) -> Any:  # noqa: ARG002 - for subclasses
        """The limit of this request."""
        if self.limit is not None:
            return self.limit
        rates = api_settings.DEFAULT_THROTTLE_RATES
        if self.scope not in rates:
            raise InvalidArgument("scope", self.scope, f"one of DEFAULT_THROTTLE_RATES: {', '.join(rates)}")
        return rates[self.scope]

    def get_key(self, request: Any, view: Any) -> str | None:  # noqa: ARG002 - for subclasses
        """Whose request it is."""
        return user_of(request) or address_of(request)

    def get_cost(self, request: Any, view: Any) -> Any:  # noqa: ARG002 - for subclasses
        """What it costs."""
        return 1

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether there is a permit for it."""
        self._refusal = None
        limit, key = self.get_limit(request, view), self.get_key(request, view)
        if limit is None or key is None:
            return True
        charges, ends = _charges_of(request)
        if not ends and "concurrent" in str(getattr(limit, "limit", limit)):
            raise InvalidUse(
                "a throttle does not learn when a response has ended, which a limit of what happens at once needs",
                'MIDDLEWARE = ["headway.integrations.django.RateLimitMiddleware", ...]',
            )
        inbound = _inbound_of(type(self), self.scope or type(self).__qualname__)
        refused = charges.refusal is not None
        self._refusal = charges.admit(inbound, Asked(limit, key, self.get_cost(request, view))).refusal
        if refused:
            charges.cancel()  # another throttle has refused this request
        if self._refusal is not None and self._refusal.status == 503:
            raise EngineAway(self._refusal)
        return self._refusal is None

    def wait(self) -> float | None:
        """Seconds until the next request; None: it is not known."""
        return None if self._refusal is None else self._refusal.retry_after


class AnonRateThrottle(RateThrottle):
    """By address; users are not throttled."""

    scope = "anon"

    def get_key(self, request: Any, view: Any) -> str | None:  # noqa: ARG002
        """The address of a request without a user."""
        return None if user_of(request) else address_of(request)


class UserRateThrottle(RateThrottle):
    """By user, or by address where there is none."""

    scope = "user"


class ScopedRateThrottle(RateThrottle):
    """By user or address, for all views of one `throttle_scope` together; a view without one is not throttled."""

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether there is a permit for it."""
        self.scope = getattr(view, "throttle_scope", None)
        return self.scope is None or super().allow_request(request, view)


def user_of(request: Any) -> str | None:
    """The user of a request, if it has one."""
    user = request.user
    return f"user {user.pk}" if user is not None and user.is_authenticated else None


def address_of(request: Any) -> str:
    """The address of its client; requests without one count together."""
    return _address(tuple(shared_options().get("trusted", ()))).of_environ(request.META) or ""


@functools.lru_cache
def _address(trusted: tuple[str, ...]) -> ClientAddress:
    return ClientAddress(trusted)


def _charges_of(request: Any) -> tuple[Charges, bool]:
    """The permits of a request, and whether they are ended when its response was sent."""
    plain = request._request
    if not hasattr(plain, "_headway_throttled") and not hasattr(plain, CHARGES):
        plain._headway_throttled = Charges()
    kept = getattr(plain, CHARGES, None)
    return (plain._headway_throttled, False) if kept is None else (kept, True)


def _inbound_of(throttle: type, scope: str) -> Inbound:
    with _lock:
        if (throttle, scope) not in _inbounds:
            options = shared_options()
            if options.get("engine") is not None:
                options["name"] = f"{options.get('name', 'django')}/{scope}"
            options.update(key=lambda asked: asked.key, cost=lambda asked: asked.cost)
            _inbounds[throttle, scope] = inbound_of(lambda asked: asked.limit, options)
        return _inbounds[throttle, scope]
