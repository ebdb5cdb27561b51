"""The usual way to throttle: a token bucket, as in a hundred blog posts. For contrast only."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class TokenBucket:
    """`rate` tokens a second flow in, `burst` fit in; every call takes one, and waits for it if it must.

    It is right about the average and about nothing else: a full bucket lets `burst + rate` through in a second, and
    calls that leave evenly do not arrive evenly.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = time.monotonic()
        self._line = asyncio.Lock()

    async def acquire(self) -> None:
        async with self._line:
            self._fill()
            while self._tokens < 1:
                await asyncio.sleep((1 - self._tokens) / self._rate)
                self._fill()
            self._tokens -= 1

    def _fill(self) -> None:
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now

    def throttle(self, function: Callable[_P, Awaitable[_R]]) -> Callable[_P, Awaitable[_R]]:
        """The decorator that `headway.throttle` is compared with."""

        @functools.wraps(function)
        async def throttled(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            await self.acquire()
            return await function(*args, **kwargs)

        return throttled
