"""What `try_acquire_async` and `reserve_async` return: a coroutine that says what to write where it is misused.

A coroutine is true. So `if limiter.try_acquire_async():` would let every call pass, and Python's warning that it was
never awaited comes later, if it is seen at all. Here it is an error, at that line. `acquire_async` stays a plain
coroutine: it is awaited for every call, and wrapping it would cost a third of its time.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, NoReturn, TypeVar

from headway.errors import InvalidUse

_T = TypeVar("_T")


class AsyncCall(Coroutine[Any, Any, _T]):
    """A coroutine, for `await`, `asyncio.create_task` and all else that takes one."""

    __slots__ = ("_coroutine", "_instead")

    def __init__(self, coroutine: Coroutine[Any, Any, _T], instead: str) -> None:
        self._coroutine = coroutine
        self._instead = instead

    def __await__(self) -> Generator[Any, Any, _T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        # What asyncio shows of a coroutine: its name, its code, whether it runs.
        return getattr(self._coroutine, name)

    def __bool__(self) -> bool:  # noqa: PLE0304 - it raises
        self._refuse("a coroutine is true, whatever its result will be")

    def _aenter(self) -> NoReturn:
        self._refuse("the permit is not there before the coroutine was awaited")

    def _refuse(self, problem: str) -> NoReturn:
        self._coroutine.close()  # it is not awaited any more, and Python need not warn of that too
        raise InvalidUse(problem, self._instead)


# Unknown to type checkers, which refuse `async with` themselves.
AsyncCall.__aenter__ = AsyncCall._aenter  # type: ignore[attr-defined]
AsyncCall.__aexit__ = AsyncCall._aenter  # type: ignore[attr-defined]
