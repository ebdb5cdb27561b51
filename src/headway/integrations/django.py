"""Limits of a Django project and of its views.

    MIDDLEWARE = ["headway.integrations.django.RateLimitMiddleware", ...]
    HEADWAY = {"limit": "100/minute", "key": "user_or_ip", "trusted": ["10.0.0.0/8"]}

    @ratelimit("5/minute", key="ip", method="POST")
    def login(request): ...

`HEADWAY` holds what all limits of the project have in common, and the limit of the middleware; a decorator's own
options come first. Sync and async views are the same to both. Where one request has several limits, a refusal by one
gives back what the others granted, and the outermost of them tells the headers and ends the permits, when the response
was sent.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from headway import InvalidArgument
from headway.integrations.charges import Charges
from headway.integrations.client_address import ClientAddress
from headway.integrations.inbound import Inbound, Limits
from headway.integrations.refusals import Refusal

__all__ = ["RateLimitMiddleware", "ratelimit"]

CHARGES: Final = "_headway_charges"
OF_MIDDLEWARE: Final = ("limit", "tier", "cost", "exempt", "deduct_when")
FUNCTIONS: Final = ("key", "tier", "cost", "exempt", "deduct_when", "limit")
KEYS: Final = "'ip', 'user', 'user_or_ip', 'header:name', a function of the request, or its dotted path"


def shared_options() -> dict[str, Any]:
    """What `HEADWAY` says for all limits of the project."""
    given = dict(getattr(settings, "HEADWAY", {}))
    return {name: value for name, value in given.items() if name not in OF_MIDDLEWARE}


def inbound_of(limit: Limits, given: dict[str, Any]) -> Inbound:
    """What decides the requests of a limit."""
    options = {name: _imported(value) if name in FUNCTIONS else value for name, value in given.items()}
    key = key_function(options.pop("key", "ip"), ClientAddress(options.pop("trusted", ())))
    if options.get("engine") is not None:
        options.setdefault("name", "django")
    return Inbound(limit, key=key, **options)


def key_function(key: Any, address: ClientAddress) -> Callable[[Any], str | None]:
    """The function that a name of a key stands for."""

    def ip(request: HttpRequest) -> str | None:
        return address.of_environ(request.META)

    def user(request: HttpRequest) -> str | None:
        found = getattr(request, "user", None)
        return f"user {found.pk}" if found is not None and found.is_authenticated else None

    if callable(key):
        return key  # type: ignore[no-any-return]
    if isinstance(key, str) and key.startswith("header:"):
        header = key.removeprefix("header:")
        return lambda request: request.headers.get(header)
    named = {"ip": ip, "user": user, "user_or_ip": lambda request: user(request) or ip(request)}
    if key not in named:
        raise InvalidArgument("key", key, KEYS)
    return named[key]


def _imported(value: Any) -> Any:
    """A dotted path as what it names: limits and the names of keys have spaces, slashes, colons, or no dot."""
    dotted = isinstance(value, str) and "." in value and all(part.isidentifier() for part in value.split("."))
    return import_string(value) if dotted else value


class Bracket:
    """Around the handling of one request. The outermost one tells the headers, and ends the permits."""

    __slots__ = ("charges", "outermost")

    def __init__(self, request: HttpRequest) -> None:
        self.outermost = not hasattr(request, CHARGES)
        if self.outermost:
            setattr(request, CHARGES, Charges())
        self.charges: Charges = getattr(request, CHARGES)

    def done(self, response: HttpResponse) -> HttpResponse:
        """The response is there, though a stream has not been sent yet."""
        if not self.outermost:
            return response
        for name, value in self.charges.responded(response).items():
            response.setdefault(name, value)
        if getattr(response, "streaming", False):
            close, end = response.close, self.charges.end

            def closing() -> None:
                close()
                end()

            response.close = closing
        else:
            self.charges.end()
        return response

    def failed(self) -> None:
        """An exception goes on to the layers above."""
        if self.outermost:
            self.charges.end()


def answer(refusal: Refusal) -> HttpResponse:
    """The response to a request that is not admitted."""
    return HttpResponse(refusal.body, status=refusal.status, headers=refusal.headers)


class RateLimitMiddleware:
    """For `MIDDLEWARE`. Its limit is `HEADWAY["limit"]`; without one, it tells of the limits of views and throttles."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        given = dict(getattr(settings, "HEADWAY", {}))
        limit = given.pop("limit", None)
        self._inbound = None if limit is None else inbound_of(_imported(limit), given)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return run_async(self._inbound, request, self._get_response)
        return run(self._inbound, request, self._get_response)


def run(
    inbound: Inbound | None, request: HttpRequest, view: Callable[[HttpRequest], Any], block: bool = True
) -> Any:
    """Handle a request if it is admitted."""
    bracket = Bracket(request)
    try:
        refusal = None if inbound is None else bracket.charges.admit(inbound, request, block=block).refusal
        _mark(request, refusal)
        return bracket.done(view(request) if refusal is None or not block else answer(refusal))
    except BaseException:
        bracket.failed()
        raise


async def run_async(
    inbound: Inbound | None, request: HttpRequest, view: Callable[[HttpRequest], Any], block: bool = True
) -> Any:
    """`run` for a task."""
    bracket = Bracket(request)
    try:
        refusal = None
        if inbound is not None:
            refusal = (await bracket.charges.admit_async(inbound, request, block=block)).refusal
        _mark(request, refusal)
        return bracket.done(await view(request) if refusal is None or not block else answer(refusal))
    except BaseException:
        bracket.failed()
        raise


def _mark(request: HttpRequest, refusal: Refusal | None) -> None:
    request.limited = refusal is not None or getattr(request, "limited", False)


class ratelimit:  # noqa: N801 - a decorator, and the name that people know
    """A limit of a view.

    >>> @ratelimit("5/minute", key="ip", method="POST")
    ... def login(request): ...

    `limit` is one limit, a function of the request that names one, or one for each tier that `tier` names. Requests of
    a view count together, or those of all views of one `group`. `method` is one or several that the limit is of. With
    `block=False` a request above the limit is handled, and finds `request.limited`. The other options are those of
    `HEADWAY`. On a class: `@method_decorator(ratelimit("5/minute"), name="dispatch")`.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        group: str | None = None,
        method: str | Iterable[str] | None = None,
        block: bool = True,
        **options: Any,
    ) -> None:
        names = [method] if isinstance(method, str) else method
        self._methods = None if names is None else frozenset(name.upper() for name in names)
        self._limit = limit
        self._group = group
        self._block = block
        self._options = options
        self._inbounds: dict[str, Inbound] = {}
        self._lock = threading.Lock()

    def __call__(self, view: Callable[..., Any]) -> Callable[..., Any]:
        # What `method_decorator` passes is a method of the instance that handles the request.
        owner = getattr(getattr(view, "func", None), "__self__", None)
        group = self._group or _name_of(view, owner)
        if iscoroutinefunction(view) or getattr(owner, "view_is_async", False):

            async def limited_async(request: HttpRequest, *args: Any, **keywords: Any) -> Any:
                handle = functools.partial(_with, view, args, keywords)
                if self._passes(request):
                    return await handle(request)
                return await run_async(self._inbound(group), request, handle, self._block)

            return functools.wraps(view)(limited_async)

        def limited(request: HttpRequest, *args: Any, **keywords: Any) -> Any:
            handle = functools.partial(_with, view, args, keywords)
            if self._passes(request):
                return handle(request)
            return run(self._inbound(group), request, handle, self._block)

        return functools.wraps(view)(limited)

    def _passes(self, request: HttpRequest) -> bool:
        return self._methods is not None and request.method not in self._methods

    def _inbound(self, group: str) -> Inbound:
        """Made when the first request comes: settings may not be there when a view is decorated."""
        found = self._inbounds.get(group)
        if found is None:
            with self._lock:
                if group not in self._inbounds:
                    options = {**shared_options(), **self._options}
                    if options.get("engine") is not None or self._group is not None:
                        text = f"/{self._limit}" if isinstance(self._limit, str) else ""
                        options["name"] = f"{options.get('name', 'django')}/{group}{text}"
                    self._inbounds[group] = inbound_of(_imported(self._limit), options)
                found = self._inbounds[group]
        return found


def _with(view: Callable[..., Any], args: Any, keywords: Any, request: HttpRequest) -> Any:
    return view(request, *args, **keywords)


def _name_of(view: Any, owner: Any) -> str:
    """The name of a function, or of a method and the class that it is called on, which may have inherited it."""
    if owner is None:
        return f"{view.__module__}.{view.__qualname__}"
    return f"{type(owner).__module__}.{type(owner).__qualname__}.{view.__name__}"
