"""From one configuration to another: what has to be made, ended and changed, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from headway.service.config import Config, GateConfig, LimitConfig, ServerConfig, TokenConfig
from headway.service.envoy.settings import restart_needed

__all__ = ["Changes", "Difference", "difference"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Changes(Generic[_T]):
    """What has to be made, ended and changed."""

    added: tuple[_T, ...] = ()
    removed: tuple[_T, ...] = ()
    changed: tuple[tuple[_T, _T], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Difference:
    """From one configuration to another. `server` names the keys that only a restart can change; `rules` is how many
    rules for Envoy were read, where there are any."""

    limits: Changes[LimitConfig] = Changes()
    gates: Changes[GateConfig] = Changes()
    tokens: Changes[TokenConfig] = Changes()
    server: tuple[str, ...] = ()
    rules: int | None = None

    def __bool__(self) -> bool:
        return bool(self.limits or self.gates or self.tokens or self.server)


def difference(before: Config, after: Config) -> Difference:
    """What changes from one configuration to the other.

    >>> from headway.service.config import parse_config
    >>> old = parse_config('[limits.a]\\nlimit = "1/s"\\n[limits.b]\\nlimit = "1/s"')
    >>> new = parse_config('[limits.a]\\nlimit = "2/s"\\n[limits.c]\\nunlimited = true')
    >>> changes = difference(old, new).limits
    >>> [limit.name for limit in changes.added], [limit.name for limit in changes.removed], len(changes.changed)
    (['c'], ['b'], 1)
    """
    return Difference(
        _changes(before.limits, after.limits),
        _changes(before.gates, after.gates),
        _changes(before.tokens, after.tokens),
        tuple(
            item.name
            for item in fields(ServerConfig)
            if getattr(before.server, item.name) != getattr(after.server, item.name)
        )
        + restart_needed(before.envoy, after.envoy),
    )


def _changes(before: Mapping[str, _T], after: Mapping[str, _T]) -> Changes[_T]:
    return Changes(
        tuple(after[name] for name in after if name not in before),
        tuple(before[name] for name in before if name not in after),
        tuple(
            (before[name], after[name]) for name in after if name in before and before[name] != after[name]
        ),
    )
