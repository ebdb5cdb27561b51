"""The limits that are served: one `Limiter` for each name, on the engine of the service.

A limit is put by the file, by its reload and by the API, in one way. Where only numbers change, the limiter keeps its
ledgers and its waiters (`set_limit`). Where an option changes that a limiter has from its beginning, a new limiter
takes its place; the ledgers are the same ones. Where the kind changes, the ledgers are new too, since their name says
the kind (`LimitConfig.ledgers`). The limiter that was replaced is closed: its waiters go on with the new one
(`headway.service.acquire`).

Opening a limiter on a shared engine may be a round trip, so that is done in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headway.core.remote import Remote
from headway.engines.uri import MEMORY, public
from headway.errors import EngineUnavailable, InvalidArgument, InvalidLimit
from headway.limiter.limiter import Limiter
from headway.limiter.prefetch_options import Prefetch
from headway.service.config import ConfigError, LimitConfig
from headway.service.config_changes import Changes
from headway.service.problems import Problem
from headway.service.served_limit import ServedLimit, Source

SHARED = ("on_engine_error", "engine_timeout", "local_share", "on_ledger_loss", "max_quarantine")
HERE = ("shadow", "max_keys", "lease")
"""What a limiter does not know of."""
READY = "headway~ready"
"""The limiter whose ledger is looked at to learn whether the engine answers."""


def limiter_of(config: LimitConfig, engine: str, *, trial: bool = False) -> Limiter | None:
    """The limiter of a limit; raises `InvalidArgument` and its like for what this engine does not take.

    `trial`: it may be thrown away. In memory it has ledgers of its own then, since the newest limit governs there.
    """
    if config.limit is None:
        return None
    remote, prefetch = config.remote, config.prefetch
    options: dict[str, Any] = {
        "remote": Remote(**remote) if isinstance(remote, dict) else remote,
        "prefetch": Prefetch(**prefetch) if isinstance(prefetch, dict) else prefetch,  # type: ignore[arg-type]
        "overrides": config.overrides,
        "max_waiting": config.max_waiting,
    }
    options |= {name: getattr(config, name) for name in SHARED if getattr(config, name) is not None}
    name = None if trial and engine == MEMORY else config.ledgers
    return Limiter(config.limit, name=name, engine=engine, **options)


def keeps_limiter(before: LimitConfig, after: LimitConfig) -> bool:
    """Whether only numbers change, or what a limiter does not know of.

    >>> keeps_limiter(LimitConfig("a", "1/s"), LimitConfig("a", "2/s", lease=5))
    True
    >>> keeps_limiter(LimitConfig("a", "1/s"), LimitConfig("a", "1 concurrent"))
    False
    >>> keeps_limiter(LimitConfig("a", "1/s"), LimitConfig("a", "1/s", max_waiting=5))
    False
    """
    untouched = {name: getattr(before, name) for name in (*HERE, "limit")}
    return replace(after, **untouched) == before and after.ledgers == before.ledgers


async def _close(limiter: Limiter | None) -> None:
    if limiter is not None:
        await asyncio.to_thread(limiter.close)


class Limits:
    """All limits by their names."""

    def __init__(self, engine: str, most: int = 1000) -> None:
        self.engine = engine
        self.address = public(engine)
        self._most = most
        self._served: dict[str, ServedLimit] = {}
        # One change at a time: two of one name must not both make a limiter.
        self._changing = asyncio.Lock()
        self._ready: Limiter | None = None

    def __iter__(self) -> Iterator[ServedLimit]:
        return iter(self._served.values())

    def __contains__(self, name: object) -> bool:
        return name in self._served

    @property
    def by_name(self) -> dict[str, ServedLimit]:
        """The same dict at all times: what is served now."""
        return self._served

    def get(self, name: str) -> ServedLimit | None:
        return self._served.get(name)

    def find(self, name: str) -> ServedLimit:
        """The limit of a name; raises a `Problem`."""
        served = self._served.get(name)
        if served is None:
            raise Problem("unknown-limit", "no limit of this name is served here", limit=name[:128])
        return served

    async def put(self, config: LimitConfig, source: Source, file: str = "") -> bool:
        """Serve this limit from now on; whether it is a new one. Raises, and has changed nothing then."""
        new = config.name not in self._served
        await self.apply(Changes(added=(config,)), source, file)
        return new

    async def delete(self, name: str) -> None:
        """Serve it no more: waits for it end, and its permits may still be ended. Raises a `Problem`."""
        await self.apply(Changes(removed=(self.find(name).config,)), "api")

    async def apply(self, changes: Changes[LimitConfig], source: Source, file: str = "") -> None:
        """Make all of these changes, or none of them: then it raises `ConfigError` or a `Problem`."""
        wanted = [*changes.added, *(after for _, after in changes.changed)]
        async with self._changing:
            gone = {config.name for config in changes.removed if config.name in self._served}
            names = {config.name for config in wanted} | set(self._served)
            if len(names - gone) > self._most:
                raise Problem("too-many-limits", f"this server has {self._most} limits at most")
            opened = await self._open(wanted, file)
            for config in wanted:
                await self._install(config, source, opened)
            for name in gone:
                served = self._served.pop(name)
                await _close(served.limiter)

    async def _open(self, wanted: list[LimitConfig], file: str) -> dict[str, Limiter | None]:
        """The limiters that are new: what an engine does not accept is known before anything changes."""
        opened: dict[str, Limiter | None] = {}
        for config in wanted:
            served = self._served.get(config.name)
            if served is not None and keeps_limiter(served.config, config):
                continue
            try:
                opened[config.name] = await asyncio.to_thread(limiter_of, config, self.engine, trial=True)
            except (InvalidArgument, InvalidLimit) as error:
                for limiter in opened.values():
                    await _close(limiter)
                problem = f"is not accepted on {self.address}: {error}"
                raise ConfigError(file, f"limits.{config.name}", "", "", "", problem) from None
        return opened

    async def _install(self, config: LimitConfig, source: Source, opened: dict[str, Limiter | None]) -> None:
        served = self._served.get(config.name)
        if config.name in opened:
            limiter = opened[config.name]
            if self.engine == MEMORY:
                # What was opened to see whether it can be has ledgers of its own.
                await _close(limiter)
                # Without overrides it would keep those of the limiter that it takes the ledgers over from.
                had = served is not None and served.config.overrides is not None
                limiter = limiter_of(
                    replace(config, overrides=config.overrides or {}) if had else config, self.engine
                )
            if served is None:
                self._served[config.name] = ServedLimit(config, source, limiter)
                return
            # The new one first: in memory the ledgers live as long as a limiter has them. The waiters of the old one
            # look for the new one at once.
            before, served.limiter = served.limiter, limiter
            served.config = config
            await _close(before)
        assert served is not None
        limit = config.limit
        if limit is not None and served.limiter is not None and limit != served.config.limit:
            await asyncio.to_thread(served.limiter.set_limit, limit)
        served.config, served.source = config, source
        served.keys.most = config.max_keys

    async def check_engine(self) -> None:
        """Raise `EngineUnavailable` unless the engine answers."""
        if self.engine == MEMORY:
            return
        if self._ready is None:
            self._ready = await asyncio.to_thread(
                Limiter, "1/s", name=READY, engine=self.engine, engine_timeout=2
            )
        await self._ready.peek_async()

    async def start(self, seconds: float = 15.0) -> None:
        """Wait until the engine answers for the first time: one that is started here takes a while."""
        try:
            async with asyncio.timeout(seconds):
                await self.check_engine()
        except TimeoutError:
            raise EngineUnavailable(self.address, f"no answer within {seconds:g} s") from None

    async def close(self) -> None:
        """End every wait, and hand back what is held."""
        limiters = [served.limiter for served in self._served.values()]
        for limiter in (*limiters, self._ready):
            await _close(limiter)
