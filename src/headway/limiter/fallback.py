"""What `on_engine_error` says: which limiter decides while the engine is away.

"closed": none, and the caller hears that the engine is away. "open": every call passes. "local": this process keeps a
share of the limit by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.unlimited import Unlimited
from headway.errors import EngineUnavailable, InvalidArgument
from headway.limiter.limit_input import Limits, limits_of
from headway.status import LimiterStats

if TYPE_CHECKING:
    from headway.core.limits import Limit
    from headway.limiter.limiter import Limiter
    from headway.limiter.request_input import Cost, Key
    from headway.limiter.shared_options import SharedOptions


class Fallback:
    """Stands in for the engine. Its limiter is made before it is needed: two of them would each grant the share."""

    __slots__ = ("_limiter", "_options")

    def __init__(self, options: SharedOptions, limits: dict[str, Limit]) -> None:
        from headway.limiter.limiter import Limiter

        self._options = options
        self._limiter: Limiter | None = None
        name, on_event, clock = options.name, options.on_event, options.clock
        # Its events carry the limiter's name. That every process has a fallback of its own is no surprise here.
        tell = on_event and (lambda event: on_event(replace(event, limiter=name)))
        if options.on_engine_error == "open":
            everything = dict.fromkeys(limits, Unlimited())
            self._limiter = Limiter(everything.get("", everything), on_event=tell, clock=clock)
        elif options.on_engine_error == "local":
            own = None if options.overrides is None else self._share_of_key
            self._limiter = Limiter(self._share(limits), overrides=own, on_event=tell, clock=clock)
        if self._limiter is not None:
            self._limiter._stand_in_for(name)

    @classmethod
    def exempt(cls, options: SharedOptions) -> Fallback:
        """For keys that are exempt: they need no engine."""
        return cls(replace(options, on_engine_error="open", overrides=None), {"": Unlimited()})

    def for_exempt(self) -> Limiter:
        """The limiter of exempt keys."""
        assert self._limiter is not None
        return self._limiter

    def limiter_for(self, error: EngineUnavailable, key: Key, cost: Cost) -> Limiter:
        """The limiter to ask; raises the engine's error where there is none, or where the share is too small."""
        if self._limiter is None:
            raise error
        try:
            self._limiter._request(key, cost)
        except InvalidArgument:
            # It made sense when the engine was asked; it is more than the share can ever grant.
            raise error from None
        return self._limiter

    def stand_in(self, address: str) -> Limiter:
        """The limiter to ask when it is known that the engine is away."""
        if self._limiter is None:
            raise EngineUnavailable(address, "it did not answer the limit before this one")
        return self._limiter

    def set_limit(self, limits: dict[str, Limit]) -> None:
        """Keep a share of other limits from now on; what was used stays used."""
        if self._limiter is not None and self._options.on_engine_error == "local":
            self._limiter.set_limit(self._share(limits))

    def stats(self) -> LimiterStats:
        """What the fallback has done."""
        return LimiterStats(0, 0, 0, 0, 0, 0, 0) if self._limiter is None else self._limiter.stats()

    def close(self) -> None:
        """End every wait."""
        if self._limiter is not None:
            self._limiter.close()

    def _share_of_key(self, key: str) -> Limits | None:
        overrides = self._options.overrides
        limit = overrides(key) if callable(overrides) else (overrides or {}).get(key)
        return None if limit is None else self._share(limits_of(limit, self._options.remote))

    def _share(self, limits: dict[str, Limit]) -> Limits:
        parts = {metric: limit.share(self._options.local_share) for metric, limit in limits.items()}
        return parts.get("", parts)
