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
from typing import Any, Literal

from headway.core.remote import Remote
from headway.engines.uri import MEMORY, public
from headway.errors import EngineUnavailable, InvalidArgument, InvalidLimit
from headway.limiter.limiter import Limiter
from headway.limiter.prefetch_options import Prefetch
from headway.service.config import LimitConfig
from headway.service.config_values import Place
from headway.service.keys import KeyTable
from headway.service.problems import Problem

Source = Literal["file", "api"]

SHARED = ("on_engine_error", "engine_timeout", "local_share", "on_ledger_loss", "max_quarantine")
HERE = ("shadow", "max_keys", "lease")
"""What a limiter does not know of."""
READY = "headway~ready"
"""The limiter whose ledger is looked at to learn whether the engine answers."""


class ServedLimit:
    """A limit and its limiter; None where it is unlimited. The counts are of this server since it began."""

    __slots__ = ("config", "denied", "granted", "keys", "limiter", "source", "waiting")

    def __init__(self, config: LimitConfig, source: Source, limiter: Limiter | None) -> None:
        self.config = config
        self.source = source
        self.limiter = limiter
        self.keys = KeyTable(config.max_keys)
        self.granted = self.denied = self.waiting = 0

    @property
    def name(self) -> str:
        return self.config.name


def limiter_of(config: LimitConfig, engine: str) -> Limiter | None:
    """The limiter of a limit; raises `InvalidArgument` and its like for what this engine does not take."""
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
    return Limiter(config.limit, name=config.ledgers, engine=engine, **options)


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

    def get(self, name: str) -> ServedLimit | None:
        return self._served.get(name)

    def find(self, name: str) -> ServedLimit:
        """The limit of a name; raises a `Problem`."""
        served = self._served.get(name)
        if served is None:
            raise Problem("unknown-limit", "no limit of this name is served here", limit=name[:128])
        return served

    async def put(self, config: LimitConfig, source: Source, file: str = "") -> bool:
        """Serve this limit from now on; whether it is a new one. Raises `ConfigError`, and has changed nothing then."""
        async with self._changing:
            served = self._served.get(config.name)
            try:
                if served is None:
                    if len(self._served) >= self._most:
                        raise Problem("too-many-limits", f"this server has {self._most} limits at most")
                    limiter = await asyncio.to_thread(limiter_of, config, self.engine)
                    self._served[config.name] = ServedLimit(config, source, limiter)
                    return True
                await self._change(served, config)
            except (InvalidArgument, InvalidLimit) as error:
                place = Place(file, f"limits.{config.name}")
                raise place.error("", "", "", f"is not accepted by {self.address}: {error}") from None
            served.source = source
            return False

    async def _change(self, served: ServedLimit, config: LimitConfig) -> None:
        before, limiter = served.config, served.limiter
        untouched = {name: getattr(before, name) for name in (*HERE, "limit")}
        same_limiter = replace(config, **untouched) == before and config.ledgers == before.ledgers
        if same_limiter and limiter is not None and config.limit is not None:
            if config.limit != before.limit:
                await asyncio.to_thread(limiter.set_limit, config.limit)
        elif config != before:
            # The new one first: in memory the ledgers live as long as a limiter has them.
            served.limiter = await asyncio.to_thread(limiter_of, config, self.engine)
            if limiter is not None:
                served.config = config  # the waiters of the old one look for the new one at once
                await asyncio.to_thread(limiter.close)
        served.config = config
        served.keys.most = config.max_keys

    async def delete(self, name: str) -> None:
        """Serve it no more: waits for it end, and its permits may still be ended. Raises a `Problem`."""
        async with self._changing:
            served = self.find(name)
            del self._served[name]
            if served.limiter is not None:
                await asyncio.to_thread(served.limiter.close)

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
            if limiter is not None:
                await asyncio.to_thread(limiter.close)
