"""What `on_engine_error` says: who decides while the engine is away. Nobody does, or everything passes, or a share of
the limit is kept in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.limiter import Limiter

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.limits import Limit
    from headway.errors import EngineUnavailable

EVERYTHING = "1000000000000/s burst 1000000000000"
"""A limit that nobody reaches."""


class Standby:
    """Stands in for the engine."""

    __slots__ = ("_clock", "_limiter", "_limits", "_mode", "_share")

    def __init__(self, mode: str, share: float, limits: dict[str, Limit], clock: Clock) -> None:
        self._mode = mode
        self._share = share
        self._limits = limits
        self._clock = clock
        self._limiter: Limiter | None = None

    def instead(self, error: EngineUnavailable) -> Limiter:
        """The limiter to ask; raises the engine's error where nobody stands in."""
        if self._mode == "closed":
            raise error
        if self._limiter is None:
            self._limiter = self._make()
        return self._limiter

    def retarget(self, limits: dict[str, Limit]) -> None:
        """The limiter keeps other limits from now on."""
        self._limits = limits
        self._limiter = None

    def _make(self) -> Limiter:
        limits: dict[str, str | Limit] = {
            metric: EVERYTHING if self._mode == "open" else limit.share(self._share)
            for metric, limit in self._limits.items()
        }
        return Limiter(limits.get("", limits), clock=self._clock)
