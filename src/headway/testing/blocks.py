"""Blocks in which limiters that already exist behave differently: `virtual_time` and `disabled`.

The limiter that a test must slow down, speed up or switch off is seldom the test's own. It is in an imported module,
around a decorated function, on the system's clock. So these blocks do not take a limiter: the system's clock as a whole
is replaced, and with it the time of every limiter that has no clock of its own.

Two times must not meet in one ledger: a permit used at 81,234 seconds of machine time looks, at second 0 of a virtual
one, like a day into the future. Therefore the ledgers on the system's clock are set aside when a block begins: inside,
each starts as if fresh, and after it they are what they were before. A nested block does the same with those of the
outer one.

Both blocks change the process, not the thread: all threads see them, and tests that use them cannot share a process in
parallel (pytest-xdist gives each worker a process of its own, so there is no conflict).
"""

from __future__ import annotations

import functools
import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headway.clock import substitute_system_clock
from headway.errors import InvalidArgument
from headway.testing.clocks import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Block", "current_clock", "disabled", "virtual_time"]

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

_clocks: list[ManualClock] = []


class Block(Generic[T]):
    """A context manager that is also a decorator, for `def` and for `async def`; it may be used again and nested."""

    def __init__(self, enter: Callable[[ExitStack], T]) -> None:
        self._enter = enter
        self._open: list[ExitStack] = []

    def __enter__(self) -> T:
        with ExitStack() as stack:
            value = self._enter(stack)
            self._open.append(stack.pop_all())
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.pop().close()

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument(
                "function", function, "a def or an async def without yield; use `with` inside"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def inside_async(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return cast("F", inside_async)

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast("F", inside)


def virtual_time(clock: ManualClock | None = None) -> Block[ManualClock]:
    """A block in which the system's clock, as limiters see it, is a `ManualClock`; it yields that clock.

    Without an argument it is a new one that jumps (`autojump=True`): waits are over at once, and `clock.time()` tells
    how long they were, in seconds. Pass `ManualClock()` to move time by hand.

    >>> from headway.clock import SYSTEM
    >>> with virtual_time() as clock:
    ...     SYSTEM.sleep(3600)
    ...     clock.time()
    3600.0
    """

    def enter(stack: ExitStack) -> ManualClock:
        from headway import prefetch
        from headway.engines import memory
        from headway.pacer import lifecycle

        now = ManualClock(autojump=True) if clock is None else clock
        # Undone from the bottom up: first the old clock, then the ledgers and pools that are written in its time.
        stack.callback(memory.bring_back, memory.set_aside())
        stack.callback(prefetch.bring_back, prefetch.set_aside())
        pools: list[Any] = []
        stack.callback(lifecycle.bring_back, pools)
        stack.callback(memory.bring_back_gates, memory.set_aside_gates())
        stack.callback(substitute_system_clock, substitute_system_clock(now))
        memory.begin_gates_anew()
        pools += lifecycle.set_aside(now.now())
        _clocks.append(now)
        stack.callback(_clocks.pop)
        return now

    return Block(enter)


def disabled() -> Block[None]:
    """A block in which every limiter grants at once and consumes nothing.

    For tests of something else, in which a limit is only in the way.

    >>> with disabled():
    ...     pass
    """

    def enter(stack: ExitStack) -> None:
        from headway import prefetch
        from headway.engines import memory
        from headway.pacer import lifecycle

        before = memory.set_disabled(True)
        stack.callback(lifecycle.set_disabled, before)
        stack.callback(memory.set_disabled, before)
        stack.callback(prefetch.set_disabled, before)
        lifecycle.set_disabled(True)
        prefetch.set_disabled(True)

    return Block(enter)


def current_clock() -> ManualClock | None:
    """The clock of the innermost `virtual_time` block."""
    return _clocks[-1] if _clocks else None
