"""Limits of a Flask application and of its routes, in the words of flask-limiter.

    limiter = Limiter(app=app, default_limits=["200 per day", "50 per hour"])

    @app.get("/search")
    @limiter.limit("5/minute", cost=lambda: 2 if flask.request.args.get("all") else 1)
    def search(): ...

Application limits are asked before every request; default limits before views that have no limits of their own; the
limits of a view when it is called, so that its key may be something that `before_request` has found out. All of them
must grant, and a refusal by one gives back what the others granted.

A limit counts for a key (the client's address, or what `key_func` says) within a scope: the endpoint, everything for
an application limit, or the name of a shared limit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from flask import Blueprint, Flask, Response, current_app, g, request
from werkzeug.exceptions import HTTPException, ServiceUnavailable, TooManyRequests

from headway import InvalidArgument, InvalidUse, Permit
from headway import Limiter as HeadwayLimiter
from headway.core.limits import Limit
from headway.core.notation import parse_limit
from headway.integrations.charges import Charges
from headway.integrations.client_address import ClientAddress
from headway.integrations.inbound import Ban, Inbound, Limiters
from headway.integrations.refusals import Refusal, explained
from headway.limiter.request_input import Cost

__all__ = ["Limiter"]

OneLimit = str | Limit | HeadwayLimiter | Callable[[], Any]
"""A limit, a `headway.Limiter`, or a function that names one for this request (None: not limited)."""
View = TypeVar("View", bound=Any)

RULES: Final = "_headway_rules"
EXEMPT: Final = "_headway_exempt"


@dataclass(frozen=True, eq=False)
class Rule:
    """A limit, and what it is of."""

    limit: OneLimit
    key_func: Callable[[], str | None] | None = None
    scope: str | Callable[[str], str] | None = None
    per_method: bool = False
    methods: frozenset[str] | None = None
    error_message: str | Callable[[], str] | None = None
    exempt_when: Callable[[], bool] | None = None
    override_defaults: bool = True
    deduct_when: Callable[[Any], bool] | None = None
    cost: Cost | Callable[[], Cost] = 1

    def __post_init__(self) -> None:
        if isinstance(self.limit, str):
            parse_limit(self.limit)
        elif not isinstance(self.limit, Limit) and not callable(self.limit):
            raise InvalidArgument(
                "limit", self.limit, 'a limit such as "5/minute", or a function that names one'
            )

    def exempts(self) -> bool:
        """Whether the request of this moment is not limited by it."""
        if self.methods is not None and request.method not in self.methods:
            return True
        return self.exempt_when is not None and bool(self.exempt_when())

    def named(self) -> Any:
        """The limit of this request."""
        if isinstance(self.limit, HeadwayLimiter) or not callable(self.limit):
            return self.limit
        return self.limit()

    def key_of(self, key: str | None) -> str:
        """The key of this request, within the scope of this limit."""
        endpoint = request.endpoint or ""
        scope = (
            endpoint if self.scope is None else self.scope(endpoint) if callable(self.scope) else self.scope
        )
        method = f"{request.method} " if self.per_method else ""
        return f"{method}{scope}:{key or ''}"


class Limiter:
    """A Flask extension.

    >>> app = Flask("app")
    >>> limiter = Limiter(app=app, default_limits=["200 per day"], application_limits=["20/s"])

    `key_func` is a function without arguments; without one, the key is the client's address, for which `trusted` names
    the networks of one's own proxies. `enabled=False` lets everything pass. `ban=("10/minute", 600)` shuts a key out of
    a limit for ten minutes that was refused more than ten times in a minute. All other options are those of
    `headway.Limiter`: `engine`, and then `name`, `on_engine_error`, `engine_timeout`.
    """

    def __init__(
        self,
        key_func: Callable[[], str | None] | None = None,
        *,
        app: Flask | None = None,
        default_limits: Iterable[OneLimit] = (),
        default_limits_per_method: bool = False,
        default_limits_exempt_when: Callable[[], bool] | None = None,
        default_limits_deduct_when: Callable[[Any], bool] | None = None,
        default_limits_cost: Cost | Callable[[], Cost] = 1,
        application_limits: Iterable[OneLimit] = (),
        application_limits_exempt_when: Callable[[], bool] | None = None,
        headers_enabled: bool = True,
        legacy_headers: bool = False,
        trusted: Iterable[str] = (),
        ban: Ban | None = None,
        enabled: bool = True,
        **options: Any,
    ) -> None:
        address = ClientAddress(trusted)
        self._key_func = key_func or (lambda: address.of_environ(request.environ))
        self._defaults = [
            Rule(
                limit, per_method=default_limits_per_method, exempt_when=default_limits_exempt_when,
                deduct_when=default_limits_deduct_when, cost=default_limits_cost,
            )
            for limit in default_limits
        ]  # fmt: skip
        self._application = [
            Rule(limit, scope="", exempt_when=application_limits_exempt_when) for limit in application_limits
        ]
        self._blueprints: dict[Any, list[Rule]] = {}
        self._exempt: set[Blueprint] = set()
        self._filters: list[Callable[[], bool]] = []
        self._common: dict[str, Any] = {
            "headers": headers_enabled,
            "legacy_headers": legacy_headers,
            "ban": ban,
        }
        self._options = options
        self.enabled = enabled
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit this application. Ledgers in memory are of one application; those of an engine are of its name."""
        app.extensions.setdefault("headway", {})[self] = State(self)
        app.before_request(self._before)
        app.after_request(self._after)
        app.teardown_request(self._teardown)

    # -- decorators --------------------------------------------------------------------------------------

    def limit(
        self,
        limit: OneLimit,
        *,
        key_func: Callable[[], str | None] | None = None,
        per_method: bool = False,
        methods: Iterable[str] | None = None,
        error_message: str | Callable[[], str] | None = None,
        exempt_when: Callable[[], bool] | None = None,
        override_defaults: bool = True,
        deduct_when: Callable[[Any], bool] | None = None,
        cost: Cost | Callable[[], Cost] = 1,
        scope: str | Callable[[str], str] | None = None,
    ) -> Callable[[View], View]:
        """A limit of a view or of all views of a blueprint.

        `deduct_when` gets the response: where it is false, the permit is cancelled and the request costs nothing.
        """
        upper = None if methods is None else frozenset(method.upper() for method in methods)
        rule = Rule(
            limit, key_func, scope, per_method, upper, error_message, exempt_when, override_defaults, deduct_when, cost
        )  # fmt: skip
        return functools.partial(self._decorate, rule)

    def shared_limit(
        self, limit: OneLimit, scope: str | Callable[[str], str], **options: Any
    ) -> Callable[[View], View]:
        """A limit of several views together; `scope` is its name, or a function of the endpoint."""
        return self.limit(limit, scope=scope, **options)

    def exempt(self, view: View) -> View:
        """Nothing of this view, or of the views of this blueprint, is limited."""
        if isinstance(view, Blueprint):
            self._exempt.add(view)
        else:
            setattr(view, EXEMPT, (*getattr(view, EXEMPT, ()), self))
        return view

    def request_filter(self, function: Callable[[], bool]) -> Callable[[], bool]:
        """A request of which this is true is not limited."""
        self._filters.append(function)
        return function

    def _decorate(self, rule: Rule, view: View) -> View:
        if isinstance(view, Blueprint):
            self._blueprints.setdefault(view, []).append(rule)
            return view

        @functools.wraps(view)
        def limited(*args: Any, **keywords: Any) -> Any:
            if not self._passes():
                self._check([rule])
            return current_app.ensure_sync(view)(*args, **keywords)

        setattr(limited, RULES, (*getattr(view, RULES, ()), (self, rule)))
        return limited  # type: ignore[return-value]

    # -- requests ----------------------------------------------------------------------------------------

    @property
    def permits(self) -> list[Permit]:
        """The permits of this request, to settle one for instance."""
        return self._charges().permits

    def _charges(self) -> Charges:
        kept: dict[Limiter, Charges] = g.setdefault("_headway_charges", {})
        return kept.setdefault(self, Charges())

    def _passes(self) -> bool:
        """Whether this request is not limited at all."""
        if not self.enabled or request.endpoint == "static":
            return True
        view = current_app.view_functions.get(request.endpoint or "")
        if self in getattr(view, EXEMPT, ()):
            return True
        if self._exempt and any(current_app.blueprints[name] in self._exempt for name in request.blueprints):
            return True
        return any(passes() for passes in self._filters)

    def _before(self) -> None:
        if not self._passes():
            self._check(self._application)
            if request.endpoint is not None:
                self._check(self._inherited())

    def _inherited(self) -> list[Rule]:
        """The limits that a view has without naming them: of its blueprints, else the default ones."""
        view = current_app.view_functions.get(request.endpoint or "")
        rules = [rule for owner, rule in getattr(view, RULES, ()) if owner is self]
        if any(rule.override_defaults for rule in rules):
            return []
        owners = [current_app.blueprints[name] for name in request.blueprints]
        found = [rule for owner in owners for rule in self._blueprints.get(owner, [])]
        return found if any(rule.override_defaults for rule in found) else [*found, *self._defaults]

    def _check(self, rules: Iterable[Rule]) -> None:
        state = current_app.extensions.get("headway", {}).get(self)
        if state is None:
            raise InvalidUse("this application was not given to the limiter", "limiter.init_app(app)")
        charges = self._charges()
        for rule in rules:
            refusal = charges.admit(state.inbound(rule), rule).refusal
            if refusal is not None:
                raise refused(refusal, rule.error_message)

    def _after(self, response: Response) -> Response:
        for name, value in self._charges().responded(response).items():
            if name not in response.headers:
                response.headers[name] = value
        return response

    def _teardown(self, error: BaseException | None) -> None:  # noqa: ARG002 - how Flask calls it
        self._charges().end()


class State:
    """The limiters of one application."""

    def __init__(self, extension: Limiter) -> None:
        self._common = extension._common
        self._options = extension._options
        self._key_func = extension._key_func
        self._limiters = Limiters(self._options, self._common["headers"])
        self._inbounds: dict[Rule, Inbound] = {}
        self._lock = threading.Lock()

    def inbound(self, rule: Rule) -> Inbound:
        """What decides a rule's requests. Rules of equal limits share a limiter, and differ in their scopes."""
        found = self._inbounds.get(rule)
        if found is None:
            with self._lock:
                found = self._inbounds.get(rule) or self._inbounds.setdefault(rule, self._build(rule))
        return found

    def _build(self, rule: Rule) -> Inbound:
        key_func, cost = rule.key_func or self._key_func, rule.cost
        return Inbound(
            lambda rule: self._limiters.of(rule.named()),
            key=lambda rule: rule.key_of(key_func()),
            cost=(lambda _: cost()) if callable(cost) else cost,
            exempt=Rule.exempts,
            deduct_when=rule.deduct_when,
            **self._common,
            **self._options,
        )


def refused(refusal: Refusal, message: str | Callable[[], str] | None) -> HTTPException:
    """What a request that is not admitted ends with: a 429 or 503 that an `errorhandler` may answer instead."""
    if message is not None and refusal.status == 429:
        refusal = explained(refusal, message() if callable(message) else message)
    response = Response(refusal.body, refusal.status, refusal.headers)
    kind = TooManyRequests if refusal.status == 429 else ServiceUnavailable
    return kind(refusal.problem["detail"], response)
