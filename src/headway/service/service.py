"""The service as one object: its limits, gates, tokens, permits and figures, and how they follow the file.

A reload makes all of the changes that a file has, or none: the file is read, compared with the one before, and its new
limiters and gates are opened, before the first change is made. Where the API has changed a limit since, the file leaves
it alone until the file says something else about it than before: the newest word counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from headway.errors import HeadwayError, LimitMismatch
from headway.once import Once
from headway.service.acquire import Decider
from headway.service.answers import RememberedAnswers
from headway.service.config import Config, ConfigError, GateConfig, parse_config
from headway.service.config_changes import Difference, difference
from headway.service.encoded import Encoded
from headway.service.envoy.settings import EnvoyConfig, merged
from headway.service.hosts import is_loopback
from headway.service.limits import Limits
from headway.service.metrics import Metrics
from headway.service.permits import HeldPermits
from headway.service.remote.sessions import Sessions
from headway.service.tokens import Tokens

if TYPE_CHECKING:
    from headway.service.envoy.served import EnvoyRules

_log = logging.getLogger("headway")

GATE_TIMEOUT = 2.0
"""Seconds that the engine of a gate has for an answer."""


class Service:
    """What is served. Made in a running event loop; `start` opens what the configuration names."""

    def __init__(
        self,
        config: Config,
        *,
        engine: str | None = None,
        host: str | None = None,
        insecure: bool = False,
        file: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.file = file
        self.host = host or config.server.host
        self.engine = engine or config.server.engine
        self._insecure = insecure
        self.now = now
        self.metrics = Metrics()
        self.limits = Limits(self.engine, config.server.max_limits)
        self.permits = HeldPermits(now, config.server.max_permits)
        self.decider = Decider(self.limits, self.permits, self.metrics, now, config.server.max_waiting)
        self.answers: RememberedAnswers[Encoded] = RememberedAnswers(now)
        self.tokens = Tokens(config.tokens)
        self.gates: dict[str, Once] = {}
        self.envoy: EnvoyRules | None = None
        self.remote = Sessions(self.engine)
        check_exposure(config, self.host, insecure, file)

    async def start(self) -> None:
        """Open the engine, limits, gates and rules; raises `ConfigError` and `EngineUnavailable`."""
        await self.limits.start()
        self.metrics.engine_up.set(1)
        if self.config.envoy is not None:
            from headway.service.envoy.served import EnvoyRules  # which needs a reader of YAML

            self.envoy = EnvoyRules(self.config.envoy, self.engine, self.file)
        use_rules = await self._load_rules(self.config.envoy)
        await self._apply(difference(Config(self.config.server, envoy=self.config.envoy), self.config))
        use_rules()

    async def reload(self, text: str, env: Mapping[str, str]) -> Difference:
        """Follow a file that has changed; raises `HeadwayError`, and has changed nothing then."""
        try:
            after = parse_config(text, self.file, env)
            check_exposure(after, self.host, self._insecure, self.file)
            found = difference(self.config, after)
            use_rules = await self._load_rules(merged(self.config.envoy, after.envoy))
            await self._apply(found)
        except HeadwayError:
            self.metrics.reloaded("failed")
            raise
        self.tokens.replace(after.tokens)
        # What needs a restart stays as it is, and is named again by the next reload.
        envoy = merged(self.config.envoy, after.envoy)
        self.config = replace(after, server=self.config.server, envoy=envoy)
        self.metrics.reloaded("ok")
        return replace(found, rules=use_rules())

    async def _load_rules(self, config: EnvoyConfig | None) -> Callable[[], int | None]:
        """Read the rules for Envoy; what is returned makes the change, and cannot fail."""
        if self.envoy is None or config is None:
            return lambda: None
        return await self.envoy.load(config)

    async def _apply(self, found: Difference) -> None:
        for _, after in found.gates.changed:
            problem = "cannot change while events are kept by it"
            raise ConfigError(self.file, f"gates.{after.name}", "", "", "another name to a new gate", problem)
        opened: dict[str, Once] = {}
        try:
            for gate in found.gates.added:
                opened[gate.name] = await asyncio.to_thread(self._open_gate, gate)
            await self.limits.apply(found.limits, "file", self.file)
        except BaseException:
            for one in opened.values():
                one.close()
            raise
        self.gates.update(opened)
        for config in found.gates.removed:
            self.gates.pop(config.name).close()

    def _open_gate(self, gate: GateConfig) -> Once:
        try:
            return open_gate(gate, self.engine)
        except LimitMismatch as error:  # it was served before, and its events are remembered by what it was
            table, accepted = f"gates.{gate.name}", "another name to a new gate, or what it was"
            raise ConfigError(self.file, table, "", "", accepted, f"cannot be opened: {error}") from None

    async def check(self) -> None:
        """Raise unless it can serve: `EngineUnavailable`, or a `Problem` when it is about to end."""
        try:
            await self.limits.check_engine()
        except HeadwayError:
            self.metrics.engine_up.set(0)
            raise
        self.metrics.engine_up.set(1)

    async def drain(self, seconds: float) -> None:
        """Grant nothing more, end every wait, and give clients so long to end their permits."""
        self.decider.end_waits()
        self.remote.drain()
        try:
            async with asyncio.timeout(seconds):
                await self.permits.all_ended()
                await self.remote.all_ended()
        except TimeoutError:
            out = len(self.permits) + self.remote.held
            _log.warning("permits that were still out when the server ended: %d", out)
        self.remote.close()

    async def close(self) -> None:
        """Release what is held, and close everything."""
        self.decider.end_waits()
        self.remote.close()
        self.permits.abandon_all()
        await self.limits.close()
        if self.envoy is not None:
            self.envoy.close()
        for gate in self.gates.values():
            gate.close()


def open_gate(gate: GateConfig, engine: str) -> Once:
    """A gate that has answered: what is wrong with it is told before it is served."""
    mode = cast("Any", gate.mode)
    found = Once(
        gate.duration,
        mode,
        name=gate.name,
        engine=engine,
        max_pending=gate.max_pending,
        retention=gate.retention,
        engine_timeout=GATE_TIMEOUT,
    )
    try:
        found.snapshot()
    except BaseException:
        found.close()
        raise
    return found


def check_exposure(config: Config, host: str, insecure: bool, file: str = "") -> None:
    """Raise where other machines can reach the server and no token is needed, unless that is wanted."""
    if config.tokens or insecure or is_loopback(host):
        return
    accepted = (
        'tokens ([tokens.NAME] token_env = "VARIABLE", role = "use"), a loopback address such as 127.0.0.1, '
        "or --insecure where every machine that reaches it may do everything"
    )
    problem = "is open to other machines, and there are no tokens"
    raise ConfigError(file, "server", "host", repr(host), accepted, problem)
