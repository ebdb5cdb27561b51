"""The bracket around a throttled call, and the callable that a plain function becomes.

A Python wrapper around a function costs more than the decision it makes. So a throttled function is an object
whose call goes straight to the desk and then to the function; compiled, by the vectorcall protocol, without
packing arguments into a tuple and a dict.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from headway.errors import InvalidArgument, InvalidKey, RateLimited
from headway.limiter.local import LocalLimiter

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has it from calls.pxd, as a C function.
    from headway.limiter.local import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.limiter.limiter import Limiter
    from headway.limiter.permits import Permit


class CallPolicy:
    """How calls are throttled: which permit a call takes, and how it ends."""

    def __init__(
        self,
        limiter: Limiter,
        asked: tuple[Any, Any, Any],
        timeout: Any,
        skip: bool,
        answered: Any,
        not_sent: Any,
    ) -> None:
        self.limiter = limiter
        self.desk: LocalLimiter = limiter
        self.key, self.cost, self.settling = asked
        self.timeout = timeout
        self.skip = skip
        self.answered = answered
        self.not_sent = not_sent
        # Nothing to be asked of the call itself, so the quick way will do.
        self.simple: bool = (
            self.key is None and type(self.cost) is int and self.cost == 1 and self.settling is None
        )

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Key, cost and time-out of this call."""
        key: Any = self.key
        if callable(key):
            key = key(*args, **kwargs)
            if type(key) is int:
                key = str(key)
            if key is None:
                raise InvalidArgument("key", None, "a function that returns a str or an int for every call")
            if not isinstance(key, str | dict):
                raise InvalidKey(key, costs=False)
        cost = self.cost(*args, **kwargs) if callable(self.cost) else self.cost
        return key, cost, self.timeout

    def open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Permit:
        """Take a permit for a call; raises `RateLimited`."""
        return self.desk._acquire_held(*self.ask(args, kwargs))

    async def open_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Permit:
        """The same for a task."""
        return await self.desk._acquire_held_async(*self.ask(args, kwargs))

    def close(self, permit: Permit, error: BaseException) -> None:
        """The call raised."""
        try:
            permit.finish(error, self.answered, self.not_sent)
        except BaseException:
            # What the error proves was asked of a function that failed itself: nobody knows.
            if permit.ended is None:
                permit.abandon()
            raise

    def settle(self, permit: Permit, result: Any) -> None:
        """The call returned."""
        if self.settling is None or permit.ended:
            permit.finish(None)
            return
        try:
            permit.settle(self.settling(result))
        except BaseException:
            permit.finish(None)
            raise


class ThrottledFunction:
    """A function that takes a permit before it runs.

    It binds like a function, and whatever is looked up in it is found in the function.
    """

    def __init__(self, bracket: CallPolicy, function: Callable[..., Any]) -> None:
        self.bracket = bracket
        self.function = function
        if cython.compiled:
            equip(self)  # type: ignore[name-defined] # noqa: F821 - a C function, in calls.pxd

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        bracket = self.bracket
        permit: Any = self.begin()
        if permit is None:
            try:
                permit = bracket.open(args, kwargs)
            except RateLimited:
                if bracket.skip:
                    return None
                raise
        try:
            result = self.function(*args, **kwargs)
        except BaseException as error:
            bracket.close(permit, error)
            raise
        bracket.settle(permit, result)
        return result

    def begin(self) -> Any:
        """A permit by the quick way, or None."""
        bracket = self.bracket
        if not bracket.simple:
            return None
        permit = bracket.desk._grant_quickly(None, 1, True)
        return None if refused(permit) else permit

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str:
        name: str | None = getattr(self, "__qualname__", None)
        if name is None:
            raise TypeError(f"{self!r} cannot be pickled: it has no name to be found by")
        return name

    def __repr__(self) -> str:
        return f"<throttled {self.function!r} by {self.bracket.limiter!r}>"
