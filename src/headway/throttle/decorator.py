"""`@throttle`: every call of a function takes a permit first and ends it by how the call ended.

The decorator always brackets the call, which is why it can be safe against a remote by default: it knows when
the answer is there. A function stays what it was. A coroutine function is still one, a generator is throttled
from its first value to its end, a method binds, signatures stay, and a decorated function pickles by its name.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from datetime import timedelta
from types import EllipsisType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from headway.core.remote import Remote
from headway.errors import InvalidArgument, InvalidUse
from headway.limiter.limit_input import Limits
from headway.limiter.limiter import Limiter
from headway.limiter.request_input import timeout_to_ns
from headway.outcome import Proof, check_proof
from headway.throttle.call_policy import CallPolicy, ThrottledFunction, as_key

_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")
_G = TypeVar("_G", bound=Generator[Any, Any, Any] | AsyncGenerator[Any, Any])

KeyOf = str | int | Callable[..., str | int | Mapping[str, str]]
_OWN = ("limit", "key", "cost", "settle", "timeout", "on_limit", "answered", "not_sent", "remote")
_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(Limiter.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in _OWN
)
"""The options that are the limiter's."""

CostOf = int | Callable[..., Any] | dict[str, int]


class Throttling(Protocol):
    """A decorator that keeps the type of what it decorates."""

    def __call__(self, function: _F, /) -> _F: ...


class Skipping(Protocol):
    """A decorator after which a call may also return None; a generator is then empty instead."""

    @overload
    def __call__(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /
    ) -> Callable[_P, Coroutine[Any, Any, _R | None]]: ...
    @overload
    def __call__(self, function: Callable[_P, _G], /) -> Callable[_P, _G]: ...
    @overload
    def __call__(self, function: Callable[_P, _R], /) -> Callable[_P, _R | None]: ...


@overload
def throttle(
    limit: Limits | Limiter,
    *,
    key: KeyOf | None = None,
    cost: CostOf = 1,
    settle: Callable[[Any], Any] | None = None,
    timeout: float | timedelta | EllipsisType | None = ...,
    on_limit: Literal["raise"] = "raise",
    answered: Proof = None,
    not_sent: Proof = None,
    remote: Remote | bool = True,
    **limiter_options: Any,
) -> Throttling: ...
@overload
def throttle(
    limit: Limits | Limiter,
    *,
    key: KeyOf | None = None,
    cost: CostOf = 1,
    settle: Callable[[Any], Any] | None = None,
    timeout: float | timedelta | EllipsisType | None = ...,
    on_limit: Literal["skip"],
    answered: Proof = None,
    not_sent: Proof = None,
    remote: Remote | bool = True,
    **limiter_options: Any,
) -> Skipping: ...
def throttle(
    limit: Limits | Limiter,
    *,
    key: KeyOf | None = None,
    cost: CostOf = 1,
    settle: Callable[[Any], Any] | None = None,
    timeout: float | timedelta | EllipsisType | None = ...,
    on_limit: Literal["raise", "skip"] = "raise",
    answered: Proof = None,
    not_sent: Proof = None,
    remote: Remote | bool = True,
    **limiter_options: Any,
) -> Any:
    """Throttle a function: by a limit of its own, or by a `Limiter` that it shares.

    >>> @throttle("100/minute", key=lambda user: user)
    ... def call_their_api(user):
    ...     return f"hello {user}"
    >>> call_their_api("alice")
    'hello alice'
    >>> call_their_api.limiter.peek("alice").remaining
    99

    `key` and `cost` may be functions of the call's arguments, `settle` a function of its result that says what it
    cost in the end. `timeout=None` waits, 0 never does, and the default is the limiter's. `on_limit="skip"` returns
    None instead of raising `RateLimited`. `answered` and `not_sent` (exception types, or a function of the
    exception) say what an exception proves about the call. `remote=True` counts as a remote measures; other options
    are the limiter's.
    """
    if on_limit not in ("raise", "skip"):
        raise InvalidArgument("on_limit", on_limit, "'raise' or 'skip'")
    limiter = _given(limit, remote, limiter_options)
    limits: Any = limit
    check_proof("answered", answered)
    check_proof("not_sent", not_sent)
    asked = _checked(key, cost, settle, timeout)

    def policy(limiter: Limiter, source: Any = None) -> CallPolicy:
        if not callable(cost):
            limiter._check_cost(cost)
        return CallPolicy(limiter, asked, timeout, on_limit == "skip", answered, not_sent, source)

    if limiter is not None:
        return functools.partial(decorate, policy(limiter))
    options = {"remote": remote, **limiter_options}
    if options.get("engine", "memory://") == "memory://" or "name" in options:
        return functools.partial(decorate, policy(Limiter(limits, **options), (limits, options)))

    # On a shared engine every process has to name the same ledger: by default the function's own.
    def decorate_by_name(function: Any) -> Any:
        own = {"name": _name_of(function), **options}
        return decorate(policy(Limiter(limits, **own), (limits, own)), function)

    return decorate_by_name


def limiter_of(function: Callable[..., Any]) -> Limiter:
    """The limiter of a throttled function or method. `function.limiter` is the same, but type checkers do not know it.

    >>> @throttle("100/minute")
    ... def call_their_api(user):
    ...     return f"hello {user}"
    >>> limiter_of(call_their_api).peek().remaining
    100
    """
    limiter = getattr(function, "limiter", None)
    if not isinstance(limiter, Limiter):
        raise InvalidUse(f"{function!r} is not throttled", "limiter_of(a function decorated with @throttle)")
    return limiter


def _given(limit: Any, remote: Any, options: dict[str, Any]) -> Limiter | None:
    """The limiter, if it is one and no limit; raises for what does not go with it."""
    if isinstance(limit, Limiter):
        if options:
            raise InvalidArgument("options", options, "none: the limiter that is given has its own")
        if remote is not True:
            raise InvalidArgument("remote", remote, "it to the limiter itself: Limiter(..., remote=...)")
        return limit
    if callable(limit):
        raise InvalidArgument("limit", limit, 'one, and decorate with that: @throttle("100/minute")')
    for option in options:
        if option not in _OPTIONS:
            near = difflib.get_close_matches(option, [*_OWN, *_OPTIONS], 1, 0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"throttle() got an unexpected keyword argument {option!r}{hint}")
    return None


def _name_of(function: Any) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in (None, "__main__") or name is None or "<locals>" in name or "<lambda>" in name:
        raise InvalidArgument(
            "name", None, f"one: {name or function!r} of {module} may be another function in another process"
        )
    return f"{module}:{name}"


def _checked(key: Any, cost: Any, settle: Any, timeout: Any) -> tuple[Any, Any, Any]:
    if timeout is not ...:
        timeout_to_ns(timeout)
    key = as_key(key)
    if key is not None and not callable(key) and not isinstance(key, str):
        raise InvalidArgument("key", key, "a str, an int, or a function of the call's arguments")
    if settle is not None and not callable(settle):
        raise InvalidArgument("settle", settle, "a function of the call's result")
    return key, cost, settle


def decorate(bracket: CallPolicy, function: Any) -> Any:
    """The function, throttled by a policy."""
    kind = type(function).__name__
    if isinstance(function, staticmethod | classmethod):
        raise InvalidUse(f"put @throttle below @{kind}", f"@{kind} @throttle(...) def ...")
    if isinstance(function, type):
        name = function.__qualname__
        raise InvalidUse(
            f"@throttle decorates functions, not the class {name}", "@throttle(...) at its methods"
        )
    if not callable(function):
        raise InvalidUse(f"@throttle decorates functions, not {kind}", "@throttle(...) def ...")
    if _is(inspect.isasyncgenfunction, function):
        wrapper: Any = _async_generator(bracket, function)
    elif _is(inspect.iscoroutinefunction, function):
        wrapper = _coroutine(bracket, function)
    elif _is(inspect.isgeneratorfunction, function):
        wrapper = _generator(bracket, function)
    else:
        wrapper = ThrottledFunction(bracket, function)
    functools.update_wrapper(wrapper, function)
    wrapper.limiter = bracket.limiter
    return wrapper


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Whether a call is of this kind; of an object, its class says so."""
    return kind(function) or kind(type(function).__call__)


def _coroutine(bracket: CallPolicy, function: Callable[..., Any]) -> Any:
    async def throttled(*args: Any, **kwargs: Any) -> Any:
        permit = await bracket.open_async(args, kwargs)
        if permit is None:
            return None
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            bracket.close(permit, error)
            raise
        bracket.settle(permit, result)
        return result

    return throttled


def _generator(bracket: CallPolicy, function: Callable[..., Any]) -> Any:
    def throttled(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        permit = bracket.open(args, kwargs)
        if permit is None:
            return None
        try:
            result = yield from function(*args, **kwargs)
        except BaseException as error:
            bracket.close(permit, error)
            raise
        bracket.settle(permit, result)
        return result

    return throttled


def _async_generator(bracket: CallPolicy, function: Callable[..., Any]) -> Any:
    async def throttled(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        permit = await bracket.open_async(args, kwargs)
        if permit is None:
            return
        try:
            inner = function(*args, **kwargs)
            # An async generator has no `yield from`; what is sent or thrown in is handed on by hand.
            sent, thrown = None, None
            while True:
                try:
                    value = await (inner.athrow(thrown) if thrown is not None else inner.asend(sent))
                except StopAsyncIteration:
                    break
                sent, thrown = None, None
                try:
                    sent = yield value
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - it is handed to the generator it was meant for
                    thrown = error
        except BaseException as error:
            bracket.close(permit, error)
            raise
        bracket.settle(permit, None)

    return throttled
