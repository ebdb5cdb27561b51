"""A limit that is served: what the file or the API said of it, its limiter, and what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from headway.service.keys import KeyTable

if TYPE_CHECKING:
    from headway.limiter.limiter import Limiter
    from headway.service.config import LimitConfig

Source = Literal["file", "api"]


class ServedLimit:
    """A limit and its limiter; None where it is unlimited. The counts are of this server since it began."""

    __slots__ = (
        "config",
        "denied",
        "granted",
        "keys",
        "limiter",
        "paused_until",
        "plan",
        "source",
        "waiting",
    )

    def __init__(self, config: LimitConfig, source: Source, limiter: Limiter | None) -> None:
        self.config = config
        self.source = source
        self.limiter = limiter
        self.keys = KeyTable(config.max_keys)
        self.granted = self.denied = self.waiting = 0
        # Until when the API has paused all keys, by the service's clock; others may pause it too.
        self.paused_until = 0.0
        # How it is decided quickly (`headway.service.quick`), with this configuration and this limiter.
        self.plan: Any = None

    @property
    def name(self) -> str:
        return self.config.name
