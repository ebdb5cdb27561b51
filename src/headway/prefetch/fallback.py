"""What `on_engine_error` says of a prefetcher: which limiter decides while its fetch fails.

"closed": none, and callers hear that the server is away. "open": every request passes. A limit, or a `Limiter`: that
one decides. (A `Limiter` on a shared engine has "local", a share of its limit; a prefetcher does not know the
server's limit, so its user names one.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from headway.core.limits import Limit
from headway.core.unlimited import Unlimited
from headway.errors import HeadwayError, InvalidArgument
from headway.limiter.limiter import Limiter
from headway.prefetch.results import BY_FALLBACK, Admission

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.errors import EngineUnavailable

OnError: TypeAlias = str | Limit | Limiter

ACCEPTED = "'closed', 'open', a limit such as '10/s', or a Limiter"


class Fallback:
    """Decides instead of the server."""

    __slots__ = ("_limiter", "_own")

    def __init__(self, mode: Any, name: str, clock: Clock) -> None:
        self._own = False
        self._limiter: Limiter | None = None
        if isinstance(mode, Limiter):
            self._limiter = mode
        elif mode != "closed":
            self._limiter = self._open("open" if mode == "open" else mode, name, clock)
            self._own = True

    def _open(self, mode: Any, name: str, clock: Clock) -> Limiter:
        if not isinstance(mode, str | Limit) or mode == "local":
            raise InvalidArgument("on_engine_error", mode, ACCEPTED)
        try:
            limiter = Limiter(Unlimited() if mode == "open" else mode, clock=clock)
        except HeadwayError as error:
            raise InvalidArgument("on_engine_error", mode, ACCEPTED) from error
        # Every process has a fallback of its own, as every process has a server that is away.
        limiter._stand_in_for(name)
        return limiter

    def try_acquire(self, unavailable: EngineUnavailable, cost: int) -> Admission:
        """Decide now; raises `unavailable` where no limiter could."""
        limiter = self._for(unavailable)
        try:
            return _admission(limiter.try_acquire(cost=cost))
        except InvalidArgument:
            # It made sense when the server was asked; it is more than this limit can ever grant.
            raise unavailable from unavailable.__cause__

    async def try_acquire_async(self, unavailable: EngineUnavailable, cost: int) -> Admission:
        limiter = self._for(unavailable)
        try:
            return _admission(await limiter.try_acquire_async(cost=cost))
        except InvalidArgument:
            raise unavailable from unavailable.__cause__

    def acquire(self, unavailable: EngineUnavailable, cost: int, seconds: float | None) -> Admission:
        """Wait for so long at most."""
        limiter = self._for(unavailable)
        try:
            return _admission(limiter.acquire(cost=cost, timeout=seconds))
        except InvalidArgument:
            raise unavailable from unavailable.__cause__

    async def acquire_async(
        self, unavailable: EngineUnavailable, cost: int, seconds: float | None
    ) -> Admission:
        limiter = self._for(unavailable)
        try:
            return _admission(await limiter.acquire_async(cost=cost, timeout=seconds))
        except InvalidArgument:
            raise unavailable from unavailable.__cause__

    def close(self) -> None:
        """End the waits of the limiter that was made here; one that was given is its giver's."""
        if self._own and self._limiter is not None:
            self._limiter.close()

    def _for(self, unavailable: EngineUnavailable) -> Limiter:
        if self._limiter is None:
            raise unavailable from unavailable.__cause__
        return self._limiter


def _admission(answer: Any) -> Admission:
    return BY_FALLBACK if answer else Admission(False, "fallback", answer.retry_after)
