"""What `on_engine_error` says: who decides while the engine is away. Nobody does, or everything passes, or a share of
the limit is kept in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.errors import InvalidArgument
from headway.limiter.limit_input import Limits, metrics_of
from headway.limiter.limiter import Limiter, Overrides

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core.limits import Limit
    from headway.core.remote import Remote
    from headway.errors import EngineUnavailable
    from headway.events import LimiterEvent
    from headway.limiter.local import Cost, Key
    from headway.status import LimiterStats

EVERYTHING = "1000000000000/s burst 1000000000000"
"""A limit that nobody reaches."""


class Fallback:
    """Stands in for the engine. It is made before it is needed: of two, each would grant the whole share."""

    __slots__ = ("_limiter", "_mode", "_overrides", "_remote", "_share")

    def __init__(
        self,
        name: str,
        mode: str,
        share: float,
        limits: dict[str, Limit],
        overrides: Overrides | None,
        remote: Remote | None,
        clock: Clock,
        on_event: Callable[[LimiterEvent], object] | None,
    ) -> None:
        self._mode = mode
        self._share = share
        self._remote = remote
        self._overrides = overrides
        self._limiter: Limiter | None = None
        # What it says is said in the limiter's name. That every process has one of its own is no surprise here.
        tell = on_event and (lambda event: on_event(replace(event, limiter=name)))
        if mode == "open":
            everything = dict.fromkeys(limits, EVERYTHING)
            self._limiter = Limiter(everything.get("", everything), on_event=tell, clock=clock)
        elif mode == "local":
            own = None if overrides is None else self._share_of_key
            self._limiter = Limiter(self._part(limits), overrides=own, on_event=tell, clock=clock)
        if self._limiter is not None:
            self._limiter._store.name = name
            self._limiter._store.counts.first_time("fork")

    def limiter_for(self, error: EngineUnavailable, key: Key, cost: Cost) -> Limiter:
        """The limiter to ask; raises the engine's error where nobody stands in, or not for so much."""
        if self._limiter is None:
            raise error
        try:
            self._limiter.request(key, cost)
        except InvalidArgument:
            # It made sense when the engine was asked; it is more than the share can ever grant.
            raise error from None
        return self._limiter

    def set_limit(self, limits: dict[str, Limit]) -> None:
        """Keep a share of other limits from now on; what was used stays used."""
        if self._limiter is not None and self._mode == "local":
            self._limiter.set_limit(self._part(limits))

    def stats(self) -> LimiterStats | None:
        """What it has done, if there is one."""
        return None if self._limiter is None else self._limiter.stats()

    def close(self) -> None:
        """End every wait."""
        if self._limiter is not None:
            self._limiter.close()

    def _share_of_key(self, key: str) -> Limits | None:
        overrides = self._overrides
        limit = overrides(key) if callable(overrides) else (overrides or {}).get(key)
        return None if limit is None else self._part(metrics_of(limit, self._remote))

    def _part(self, limits: dict[str, Limit]) -> Limits:
        parts = {metric: limit.share(self._share) for metric, limit in limits.items()}
        return parts.get("", parts)
