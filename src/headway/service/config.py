"""`headway.toml`: limits, gates, tokens and the server, as one frozen value.

    [server]                            all of it is optional
    engine = "redis://db:6379/0"
    host = "127.0.0.1"

    [limits.api]
    limit = "100/s; 5 concurrent"       or a table of metrics, with a limit for each
    overrides = { vip = "1000/s; 50 concurrent", crew = "unlimited" }

    [limits.reports]
    limit = "10/minute"
    shadow = true                       decides and tells, and never denies

    [gates.orders]
    duration = "5min"

    [envoy]                             rules for Envoy proxies, over gRPC: `headway.service.envoy.settings`
    limits = "ratelimit"

    [tokens.billing]
    token_env = "BILLING_TOKEN"         or token = "...", or sha256 = "64 hex digits"
    role = "use"

`parse_config` is a function of the text alone (and of the environment that it is given), so a file is wrong before
anything has changed. Of a token only its digest is kept. What has to be done when a file has changed is a value too
(`headway.service.config_changes`).
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.limits import AllOf, Limit
from headway.errors import InvalidArgument
from headway.limiter.limit_input import check_remote, limits_of
from headway.service import config_values as values
from headway.service.config_values import A_NAME, NAME, ROLES, ConfigError, Field, Place
from headway.service.envoy.settings import EnvoyConfig, read_envoy

__all__ = [
    "Config",
    "ConfigError",
    "GateConfig",
    "LimitConfig",
    "ServerConfig",
    "TokenConfig",
    "parse_config",
    "read_limit",
]

DEFAULT_LEASE = 60.0
DEFAULT_MAX_KEYS = 100_000

LIMIT: dict[str, Field] = {
    "limit": Field(values.limit, None),
    "unlimited": Field(values.flag, False),
    "shadow": Field(values.flag, False),
    "overrides": Field(values.overrides, None),
    "remote": Field(values.options(values.REMOTE), None),
    "max_waiting": Field(values.number(0, 1_000_000), None),
    "max_keys": Field(values.number(1, 100_000_000), DEFAULT_MAX_KEYS),
    "lease": Field(values.seconds(0.1, 86400), DEFAULT_LEASE),
    "prefetch": Field(values.prefetch, False),
    "on_engine_error": Field(values.one_of("closed", "open", "local"), None),
    "engine_timeout": Field(values.seconds(0.001, 3600), None),
    "local_share": Field(values.share, None),
    "on_ledger_loss": Field(values.one_of("quarantine", "trust"), None),
    "max_quarantine": Field(values.seconds(0, 1e9), None),
}
GATE: dict[str, Field] = {
    "duration": Field(values.gate_duration),
    "mode": Field(values.one_of("only", "strict"), "only"),
    "max_pending": Field(values.number(1, 1 << 40), 100_000),
    "retention": Field(values.seconds(0, 1e9), 3600.0),
}
SERVER: dict[str, Field] = {
    "engine": Field(values.engine, "embedded://", secret=True),
    "host": Field(values.text, "127.0.0.1"),
    "port": Field(values.number(0, 65535), 8080),
    "drain": Field(values.seconds(0, 3600), 5.0),
    "max_body": Field(values.number(1024, 1 << 30), 1 << 20),
    "max_batch": Field(values.number(1, 100_000), 1000),
    "max_waiting": Field(values.number(0, 1_000_000), 10_000),
    "max_permits": Field(values.number(1, 10_000_000), 100_000),
    "max_limits": Field(values.number(1, 100_000), 1000),
    "max_connections": Field(values.number(1, 1_000_000), 20_000),
}
TOKEN: dict[str, Field] = {
    "token": Field(values.text, None, secret=True),
    "token_env": Field(values.text, None),
    "sha256": Field(values.text, None, secret=True),
    "role": Field(values.one_of(*ROLES)),
}
SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """One limit. None in the last ones: what the library does without a word."""

    name: str
    limit: str | dict[str, str] | None
    unlimited: bool = False
    shadow: bool = False
    overrides: dict[str, str | dict[str, str] | None] | None = None
    remote: bool | dict[str, float] | None = None
    max_waiting: int | None = None
    max_keys: int = DEFAULT_MAX_KEYS
    lease: float = DEFAULT_LEASE
    prefetch: bool | dict[str, float] = False
    on_engine_error: str | None = None
    engine_timeout: float | None = None
    local_share: float | None = None
    on_ledger_loss: str | None = None
    max_quarantine: float | None = None

    @property
    def ledgers(self) -> str:
        """The name of its ledgers on the engine: its own, and the kinds that they are of.

        A limit that becomes one of another kind begins with ledgers of its own, on every server at its own time.

        >>> LimitConfig("api", "100/s; 5 concurrent").ledgers
        'api~window+concurrency'
        >>> LimitConfig("llm", {"requests": "500/minute", "tokens": "10/s burst 3"}).ledgers
        'llm~requests=window,tokens=bucket'
        """
        if self.limit is None:
            return f"{self.name}~"
        kinds = limits_of(self.limit, None).items()
        return f"{self.name}~" + ",".join(
            f"{metric}={_kind(part)}" if metric else _kind(part) for metric, part in kinds
        )

    @property
    def text(self) -> str:
        """The limit, as a person reads it."""
        if self.limit is None:
            return values.UNLIMITED
        parts = self.limit.items() if isinstance(self.limit, dict) else [("", self.limit)]
        return "; ".join(f"{metric}: {part}" if metric else part for metric, part in parts)

    def table(self) -> dict[str, Any]:
        """The table that it was read from, without what is as it is by default."""
        found = {name: getattr(self, name) for name in LIMIT}
        if self.overrides is not None:
            found["overrides"] = {
                key: values.UNLIMITED if own is None else own for key, own in self.overrides.items()
            }
        return {name: value for name, value in found.items() if value != LIMIT[name].default}


def _kind(limit: Limit) -> str:
    return "+".join(map(_kind, limit.limits)) if isinstance(limit, AllOf) else limit.kind


@dataclass(frozen=True, slots=True)
class GateConfig:
    """One gate."""

    name: str
    duration: float
    mode: str = "only"
    max_pending: int = 100_000
    retention: float = 3600.0


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """One token, by its digest: the token itself is not kept."""

    name: str
    digest: bytes = field(repr=False)
    role: str


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the server listens, where its ledgers are, and its bounds."""

    engine: str = field(default="embedded://", repr=False)
    host: str = "127.0.0.1"
    port: int = 8080
    drain: float = 5.0
    max_body: int = 1 << 20
    max_batch: int = 1000
    max_waiting: int = 10_000
    max_permits: int = 100_000
    max_limits: int = 1000
    max_connections: int = 20_000


@dataclass(frozen=True, slots=True)
class Config:
    """A whole file."""

    server: ServerConfig = ServerConfig()
    limits: dict[str, LimitConfig] = field(default_factory=dict)
    gates: dict[str, GateConfig] = field(default_factory=dict)
    tokens: dict[str, TokenConfig] = field(default_factory=dict)
    envoy: EnvoyConfig | None = None


# -- reading ---------------------------------------------------------------------------------------------


def parse_config(text: str, file: str = "headway.toml", env: Mapping[str, str] | None = None) -> Config:
    """The configuration that a text says; raises `ConfigError`. `env` has the variables that `token_env` may name.

    >>> config = parse_config('[limits.api]\\nlimit = "100/s"')
    >>> config.limits["api"].text, config.server.host
    ('100/s', '127.0.0.1')
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file, "", "", "", "", f"is no TOML: {error}") from None
    known = {"server", "limits", "gates", "tokens", "envoy"}
    for name in tables:
        if name not in known:
            raise Place(file, "").misplaced(
                name, f"only the tables {', '.join(sorted(known))}", "is not known"
            )
    server = ServerConfig(**Place(file, "server").read(tables.get("server", {}), SERVER))
    found = Config(
        server,
        {name: read_limit(name, table, place) for name, table, place in _named(tables, "limits", file)},
        {name: _gate(name, table, place) for name, table, place in _named(tables, "gates", file)},
        {
            name: _token(name, table, place, env or {})
            for name, table, place in _named(tables, "tokens", file)
        },
        read_envoy(tables.get("envoy"), Place(file, "envoy")),
    )
    if len(found.limits) > server.max_limits:
        accepted = f"at most {server.max_limits} limits, or a higher [server] max_limits"
        raise ConfigError(file, "limits", "", "", accepted, f"has {len(found.limits)} tables")
    _check_equal_tokens(found.tokens, file)
    return found


def _named(tables: Mapping[str, Any], kind: str, file: str) -> list[tuple[str, Any, Place]]:
    """The tables of one kind, by their names."""
    found = tables.get(kind, {})
    if not isinstance(found, Mapping):
        raise Place(file, "").misplaced(kind, f"tables such as [{kind}.name]", "is no table")
    for name in found:
        if NAME.fullmatch(name) is None:
            raise Place(file, kind).misplaced(name, f"a name of {A_NAME}", "has no name that is accepted")
    return [(name, table, Place(file, f"{kind}.{name}")) for name, table in found.items()]


def read_limit(name: str, table: Any, place: Place) -> LimitConfig:
    """One limit; `place` is for messages."""
    found = LimitConfig(name, **place.read(table, LIMIT))
    if found.unlimited:
        others = [key for key in found.table() if key not in ("unlimited", "limit")]
        if found.limit is not None or others:
            key = "limit" if found.limit is not None else others[0]
            raise place.error(
                key, table[key], "it without unlimited = true", "means nothing beside unlimited"
            )
        return found
    if found.limit is None:
        accepted = 'limit = "100/s", or unlimited = true'
        raise ConfigError(place.file, place.table, "", "", accepted, "has no limit")
    _check_remote(found, table, place)
    _check_overrides(found, place)
    return found


def _check_remote(found: LimitConfig, table: Any, place: Place) -> None:
    if found.remote and found.limit is not None:
        try:
            check_remote(True, limits_of(found.limit, None))
        except InvalidArgument as error:
            raise place.error("remote", table["remote"], error.accepted) from None


def _check_overrides(found: LimitConfig, place: Place) -> None:
    """An override is of the kinds that the limit itself has: a ledger that changes its kind cannot be read."""
    for key, own in (found.overrides or {}).items():
        at = Place(place.file, f"{place.table}.overrides")
        if own is None:
            if isinstance(found.limit, dict):
                raise at.error(key, values.UNLIMITED, "limits: with metrics no key is exempt")
            continue
        whole = {**found.limit, **own} if isinstance(own, dict) and isinstance(found.limit, dict) else own
        if LimitConfig(found.name, whole).ledgers != found.ledgers:
            raise at.error(key, own, f"limits of the same kinds as '{found.text}'")


def _gate(name: str, table: Any, place: Place) -> GateConfig:
    found = place.read(table, GATE)
    if "duration" not in found:
        raise ConfigError(place.file, place.table, "", "", 'duration = "5min"', "has no duration")
    return GateConfig(name, **found)


def _token(name: str, table: Any, place: Place, env: Mapping[str, str]) -> TokenConfig:
    found = place.read(table, TOKEN)
    if "role" not in found:
        raise ConfigError(place.file, place.table, "", "", f"role = one of {', '.join(ROLES)}", "has no role")
    given = [key for key in ("token", "token_env", "sha256") if found[key] is not None]
    if len(given) != 1:
        accepted = 'one of token = "...", token_env = "VARIABLE" and sha256 = "64 hex digits"'
        has = " and ".join(given) or "no token"
        raise ConfigError(place.file, place.table, "", "", accepted, f"has {has}")
    key = given[0]
    if key == "sha256":
        if re.fullmatch(r"[0-9a-fA-F]{64}", found[key]) is None:
            raise place.error(key, "", "64 hex digits: printf %s TOKEN | sha256sum", secret=True)
        return TokenConfig(name, bytes.fromhex(found[key]), found["role"])
    token = found[key]
    if key == "token_env":
        if token not in env:
            raise place.error(
                key, token, "a variable that is set, without which there is no token", "is not set"
            )
        token = env[token]
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        accepted = f"a token of {SHORTEST_TOKEN} or more printable ASCII characters without spaces"
        raise place.error(key, found[key], accepted, secret=key == "token")
    return TokenConfig(name, hashlib.sha256(token.encode()).digest(), found["role"])


def _check_equal_tokens(tokens: Mapping[str, TokenConfig], file: str) -> None:
    seen: dict[bytes, str] = {}
    for token in tokens.values():
        other = seen.setdefault(token.digest, token.name)
        if other != token.name:
            table, problem = f"tokens.{token.name}", f"is the same token as [tokens.{other}]"
            raise ConfigError(file, table, "", "", "a token of its own", problem)
