"""The rules for Envoy as a part of `headway serve`: read from files, reloaded with the rest, asked over gRPC.

A reload has two steps. `load` reads the files and may raise; nothing has changed then. What it returns makes the
change, and cannot fail. Between the two the service makes the other changes of its file, so a file that is wrong
anywhere changes nothing at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.engines.uri import public
from headway.errors import InvalidArgument, InvalidLimit
from headway.service.config_values import ConfigError
from headway.service.envoy import grpc_server
from headway.service.envoy.config import Config, files_of, load_config
from headway.service.envoy.decide import RateLimitService
from headway.service.envoy.grpc_server import GrpcServer
from headway.service.envoy.settings import EnvoyConfig
from headway.service.grpc.server import Guard


class EnvoyRules:
    """What `[envoy]` of a file says, as it is served. `file` is the TOML file, from which paths are seen."""

    def __init__(self, config: EnvoyConfig, engine: str, file: str = "") -> None:
        self.config = config
        self.file = file
        self._engine = engine
        self._server: GrpcServer | None = None
        self.service = RateLimitService(
            Config({}), namespace=config.namespace, engine=engine, **config.limiter_options
        )

    @property
    def port(self) -> int | None:
        """Where gRPC is served; None while it is not."""
        return None if self._server is None else self._server.port

    def files(self, config: EnvoyConfig | None = None) -> list[Path]:
        """The directories and files that its rules are read from."""
        folder = Path(self.file).parent
        return [folder / path for path in (config or self.config).limits]

    def watched(self) -> list[Path]:
        """What is to be looked at for changes."""
        return [*self.files(), *files_of(self.files())]

    async def load(self, config: EnvoyConfig) -> Callable[[], int]:
        """Read the files of a configuration; raises `InvalidConfig`. What is returned makes the change, and tells how
        many rules there are."""
        try:
            rules = await asyncio.to_thread(
                load_config, self.files(config), fixed=config.fixed, merge=config.merge
            )
        except Exception:
            self.service.stats.failed_loads += 1
            raise
        prepared = await asyncio.to_thread(self._prepare, rules) if self.service.shared else None

        def use() -> int:
            self.config = config
            self.service.shadow = config.shadow
            self.service.stats.near_ratio = config.near_ratio
            self.service.max_keys = config.max_keys
            self.service.use(rules, prepared)
            self.service.stats.loads += 1
            return len(rules.rules())

        return use

    def _prepare(self, rules: Config) -> Any:
        """Open the limiters of new rules: what a shared engine does not accept is known before anything changes."""
        try:
            return self.service.prepare(rules)
        except (InvalidArgument, InvalidLimit) as error:
            self.service.stats.failed_loads += 1
            problem = f"is not accepted on {public(self._engine)}: {error}"
            raise ConfigError(self.file, "envoy", "", "", "", problem) from None

    async def start(self, host: str, port: int, tls: tuple[Path, Path] | None, guard: Guard | None) -> None:
        """Serve gRPC. `guard` refuses what has no token."""
        transport: Any = self.config.transport
        self._server = await grpc_server.start(
            self.service, host=host, port=port, tls=tls, transport=transport, guard=guard
        )

    async def stop(self, grace: float) -> None:
        """Tell health checks and proxies to go elsewhere, answer what is under way, and end."""
        if self._server is not None:
            await self._server.stop(grace)

    def close(self) -> None:
        """Decide nothing any more."""
        self.service.close()
