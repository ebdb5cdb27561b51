"""`[envoy]` of `headway.toml`: where the rules for Envoy proxies are, and how they are served.

    [envoy]
    limits = "ratelimit"        a YAML file of envoyproxy/ratelimit's format, a directory of them, or a list of both,
                                seen from the folder of headway.toml
    port = 8081                 of gRPC; HTTP has [server] port

`LIVE` names what a reload changes at once. The rest needs a restart, and a reload says so.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from headway.service import config_values as values
from headway.service.config_values import ConfigError, Field, Place

DEFAULT_PORT = 8081
DEFAULT_MAX_KEYS = 100_000

ENVOY: dict[str, Field] = {
    "limits": Field(values.paths, None),
    "port": Field(values.number(0, 65535), DEFAULT_PORT),
    "transport": Field(values.one_of("nghttp2", "grpcio"), None),
    "namespace": Field(values.text, "envoy"),
    "fixed": Field(values.flag, False),
    "merge": Field(values.flag, False),
    "shadow": Field(values.flag, False),
    "near_ratio": Field(values.share, 0.8),
    "max_keys": Field(values.number(1, 100_000_000), DEFAULT_MAX_KEYS),
    "on_engine_error": Field(values.one_of("closed", "open", "local"), None),
    "engine_timeout": Field(values.seconds(0.001, 3600), None),
    "local_share": Field(values.share, None),
    "on_ledger_loss": Field(values.one_of("quarantine", "trust"), None),
    "max_quarantine": Field(values.seconds(0, 1e9), None),
}
LIVE = ("limits", "fixed", "merge", "shadow", "near_ratio", "max_keys")
SHARED = ("on_engine_error", "engine_timeout", "local_share", "on_ledger_loss", "max_quarantine")


@dataclass(frozen=True, slots=True)
class EnvoyConfig:
    """The table. None in the last ones: what the library does without a word."""

    limits: tuple[str, ...]
    port: int = DEFAULT_PORT
    transport: str | None = None
    namespace: str = "envoy"
    fixed: bool = False
    merge: bool = False
    shadow: bool = False
    near_ratio: float = 0.8
    max_keys: int = DEFAULT_MAX_KEYS
    on_engine_error: str | None = None
    engine_timeout: float | None = None
    local_share: float | None = None
    on_ledger_loss: str | None = None
    max_quarantine: float | None = None

    @property
    def limiter_options(self) -> dict[str, Any]:
        """What the limiters of the rules are made with."""
        return {name: getattr(self, name) for name in SHARED if getattr(self, name) is not None}


def read_envoy(table: Any, place: Place) -> EnvoyConfig | None:
    """The table, or None where there is none; `place` is for messages."""
    if table is None:
        return None
    found = place.read(table, ENVOY)
    if found["limits"] is None:
        accepted = 'limits = "ratelimit.yaml", or a directory of such files'
        raise ConfigError(place.file, place.table, "", "", accepted, "has no limits")
    return EnvoyConfig(**found)


def restart_needed(before: EnvoyConfig | None, after: EnvoyConfig | None) -> tuple[str, ...]:
    """The keys whose change only a restart can make.

    >>> restart_needed(EnvoyConfig(("a.yaml",)), EnvoyConfig(("b.yaml",), port=9000))
    ('envoy.port',)
    """
    if before is None or after is None:
        return () if before == after else ("envoy",)
    names = [field.name for field in fields(EnvoyConfig) if field.name not in LIVE]
    return tuple(f"envoy.{name}" for name in names if getattr(before, name) != getattr(after, name))


def merged(before: EnvoyConfig | None, after: EnvoyConfig | None) -> EnvoyConfig | None:
    """What holds after a reload: the live keys of the new one, and the others as they were."""
    if before is None or after is None:
        return before
    return replace(before, **{name: getattr(after, name) for name in LIVE})
