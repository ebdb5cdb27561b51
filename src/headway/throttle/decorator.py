"""`@throttle`: every call of a function takes a permit first and ends it by how the call ended.

The decorator always brackets the call, which is why it can be safe against a remote by default: it knows when
the answer is there. A function stays what it was. A coroutine function is still one, a generator is throttled
from its first value to its end, a method binds, signatures stay, and a decorated function pickles by its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from datetime import timedelta
from types import EllipsisType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from headway.core.remote import Remote
from headway.errors import InvalidArgument, RateLimited
from headway.limiter.limit_input import Limits
from headway.limiter.limiter import Limiter
from headway.limiter.local import timeout_to_ns
from headway.outcome import Proof, check_proof
from headway.throttle.call_policy import CallPolicy, ThrottledFunction

_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")
_G = TypeVar("_G", bound=Generator[Any, Any, Any] | AsyncGenerator[Any, Any])

KeyOf = str | Callable[..., str | int | Mapping[str, str]]
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
    remote: Remote | bool | None = None,
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
    remote: Remote | bool | None = None,
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
    remote: Remote | bool | None = None,
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
    exception) say what an exception proves about the call. A `Window` counts as the remote does, until the call is
    over; `remote=False` counts at the decision instead, a `Remote` says what is known of the remote, and a `Window`'s
    own `remote` wins. Other options are the limiter's.
    """
    if on_limit not in ("raise", "skip"):
        raise InvalidArgument("on_limit", on_limit, "'raise' or 'skip'")
    limiter = _given(limit, remote, limiter_options)
    limits: Any = limit
    check_proof("answered", answered)
    check_proof("not_sent", not_sent)
    asked = _checked(key, cost, settle, timeout)

    def bracket(limiter: Limiter) -> CallPolicy:
        if not callable(cost):
            limiter._costs(cost, limiter._store.metrics)
        return CallPolicy(limiter, asked, timeout, on_limit == "skip", answered, not_sent)

    if limiter is None and (
        limiter_options.get("engine", "memory://") == "memory://" or "name" in limiter_options
    ):
        limiter = Limiter(limits, remote=remote, **limiter_options)
    if limiter is not None:
        return functools.partial(_decorate, bracket(limiter))

    # On a shared engine every process has to name the same ledger: by default the function's own.
    def decorate(function: Any) -> Any:
        own = Limiter(limits, remote=remote, name=_name_of(function), **limiter_options)
        return _decorate(bracket(own), function)

    return decorate


def _given(limit: Any, remote: Any, options: dict[str, Any]) -> Limiter | None:
    """The limiter, if it is one and no limit; raises for what does not go with it."""
    if isinstance(limit, Limiter):
        if options:
            raise InvalidArgument("options", options, "none: the limiter that is given has its own")
        if remote is not None:
            raise InvalidArgument("remote", remote, "it to the limiter itself: Limiter(..., remote=...)")
        return limit
    if callable(limit):
        raise InvalidArgument("limit", limit, 'one, and decorate with that: @throttle("100/minute")')
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
    if key is not None and not callable(key) and not isinstance(key, str):
        raise InvalidArgument("key", key, "a str, or a function of the call's arguments")
    if settle is not None and not callable(settle):
        raise InvalidArgument("settle", settle, "a function of the call's result")
    return key, cost, settle


def _decorate(bracket: CallPolicy, function: Any) -> Any:
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(f"put @throttle below @{type(function).__name__}: it decorates the function itself")
    if not callable(function):
        raise TypeError(f"@throttle decorates functions, not {type(function).__name__}")
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
        try:
            permit = await bracket.open_async(args, kwargs)
        except RateLimited:
            if bracket.skip:
                return None
            raise
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
        try:
            permit = bracket.open(args, kwargs)
        except RateLimited:
            if bracket.skip:
                return None
            raise
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
        try:
            permit = await bracket.open_async(args, kwargs)
        except RateLimited:
            if bracket.skip:
                return
            raise
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
