"""The policy of a throttled call, and the callable that a plain function becomes.

A Python wrapper around a function costs more than the decision it makes. So a throttled function is an object whose
call goes straight to the limiter and then to the function; in the compiled form by the vectorcall protocol, without
packing arguments into a tuple and a dict.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from os import urandom
from types import MethodType
from typing import TYPE_CHECKING, Any

from headway.errors import InvalidArgument, InvalidKey, RateLimited
from headway.limiter.local import LocalLimiter

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has it from call_policy.pxd, as a C function.
    from headway.limiter.local import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.limiter.limiter import Limiter
    from headway.limiter.permits import Permit


MANY = 1024
"""So many policies of pickled functions are kept."""


def by_value() -> bool:
    """Whether cloudpickle is at work (also the one inside joblib), which sends functions of `__main__` as they are."""
    frame: Any = sys._getframe(0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").rpartition(".")[2] == "cloudpickle":
            return True
        frame = frame.f_back
    return False


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
        source: Any = None,
    ) -> None:
        self.limiter = limiter
        self.desk: LocalLimiter = limiter
        self.key, self.cost, self.settling = asked
        self.timeout = timeout
        self.skip = skip
        self.answered = answered
        self.not_sent = not_sent
        # What it was made from, for a copy in another process; and the name under which that process keeps the copy.
        self.source = limiter if source is None else source
        self.token = urandom(16)
        if source is not None:
            _makers[limiter] = weakref.ref(self)
        # Nothing to be asked of the call itself, so the quick way will do.
        self.simple: bool = (
            self.key is None and type(self.cost) is int and self.cost == 1 and self.settling is None
        )

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Key, cost and time-out of this call."""
        key: Any = self.key
        if callable(key):
            key = as_key(key(*args, **kwargs))
            if key is None:
                raise InvalidArgument("key", None, "a function that returns a str or an int for every call")
            if isinstance(key, Mapping):
                key = {metric: as_key(part) for metric, part in key.items()}
            elif not isinstance(key, str):
                raise InvalidKey(key, costs=False)
        cost = self.cost(*args, **kwargs) if callable(self.cost) else self.cost
        return key, cost, self.timeout

    def open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Permit | None:
        """Take a permit for a call; None: there is none, and the call is to be skipped."""
        asked = self.ask(args, kwargs)
        try:
            return self.desk._acquire_held(*asked)
        except RateLimited:
            if self.skip:
                return None
            raise

    async def open_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Permit | None:
        """The same for a task."""
        asked = self.ask(args, kwargs)
        try:
            return await self.desk._acquire_held_async(*asked)
        except RateLimited:
            if self.skip:
                return None
            raise

    def close(self, permit: Permit, error: BaseException) -> None:
        """The call raised."""
        try:
            permit._finish(error, self.answered, self.not_sent)
        except BaseException:
            # The function that says what the error proves failed itself: the outcome is unknown.
            if permit.ended is None:
                permit.abandon()
            raise

    def settle(self, permit: Permit, result: Any) -> None:
        """The call returned."""
        if self.settling is None or permit.ended:
            permit._finish(None)
            return
        try:
            permit.settle(self.settling(result))
        except BaseException:
            permit._finish(None)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        _remember(self)
        asked = (self.key, self.cost, self.settling)
        return policy_again, (
            self.token, self.source, asked, self.timeout, self.skip, self.answered, self.not_sent,
        )  # fmt: skip


def as_key(key: Any) -> Any:
    """A key as limiters take it: a number becomes its digits."""
    return str(int(key)) if isinstance(key, int) and not isinstance(key, bool) else key


_known: dict[bytes, CallPolicy] = {}
_makers: weakref.WeakKeyDictionary[Limiter, weakref.ref[CallPolicy]] = weakref.WeakKeyDictionary()


def _remember(policy: CallPolicy) -> None:
    if policy.token not in _known:
        while len(_known) >= MANY:
            _known.pop(next(iter(_known)), None)
        _known[policy.token] = policy


def reduced(limiter: Limiter) -> tuple[Any, ...] | None:
    """How cloudpickle sends the limiter that a policy has made for itself; None: it is no such limiter."""
    policy = _makers[limiter]() if limiter in _makers and by_value() else None
    return None if policy is None else (limiter_again, (policy,))


def limiter_again(policy: CallPolicy) -> Limiter:
    return policy.limiter


def policy_again(token: bytes, source: Any, *terms: Any) -> CallPolicy:
    """The policy of a pickled function: this process has one for all copies of that function, and so one limit."""
    policy = _known.get(token)
    if policy is None:
        if not isinstance(source, LocalLimiter):
            from headway.limiter.limiter import Limiter

            limits, options = source
            policy = CallPolicy(Limiter(limits, **options), *terms, source)  # type: ignore[call-arg]
        else:
            policy = CallPolicy(source, *terms)  # type: ignore[arg-type]
        policy.token = token
        _remember(policy)
    return policy


class ThrottledFunction:
    """A function that takes a permit before it runs.

    It binds like a function, and its attributes are those of the function.
    """

    def __init__(self, bracket: CallPolicy, function: Callable[..., Any]) -> None:
        self.bracket = bracket
        self.function = function
        if cython.compiled:
            equip(self)  # type: ignore[name-defined] # noqa: F821 - a C function, in call_policy.pxd

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        bracket = self.bracket
        permit: Any = self.begin()
        if permit is None:
            permit = bracket.open(args, kwargs)
            if permit is None:
                return None
        try:
            result = self.function(*args, **kwargs)
        except BaseException as error:
            bracket.close(permit, error)
            raise
        bracket.settle(permit, result)
        return result

    def begin(self) -> Any:
        """A permit by the fast path, or None."""
        bracket = self.bracket
        if not bracket.simple:
            return None
        permit = bracket.desk._grant_quickly(None, 1, True)
        return None if refused(permit) else permit

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name: str | None = getattr(self, "__qualname__", None)
        if by_value() and not self._importable(name):
            from headway.throttle.decorator import decorate

            own = {key: value for key, value in vars(self).items() if key not in ("__wrapped__", "limiter")}
            return decorate, (self.bracket, self.function), own
        if name is None:
            raise TypeError(f"{self!r} cannot be pickled: it has no name to be found by")
        return name

    def _importable(self, name: str | None) -> bool:
        """Whether another process finds it by its name: what `__main__` has is not there."""
        module = getattr(self, "__module__", None)
        found: Any = None
        if module is not None and module != "__main__":
            found = sys.modules.get(module)
        for part in (name or "?").split("."):
            found = getattr(found, part, None)
        return found is self

    def __repr__(self) -> str:
        return f"<throttled {self.function!r} by {self.bracket.limiter!r}>"
