"""A small company's traffic for `headway try`: a limit that is sometimes used up, one that is waited for, and alarms.

It is what clients would do, gently: some permits a second, in the process of the service itself, so that nothing else
has to be installed or started. A limit that a person changes, pauses or deletes meanwhile is met as any client meets
it: a refusal is counted, and the client goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final

from headway.errors import HeadwayError
from headway.service.messages import Acquire
from headway.service.service import Service

CONFIG: Final = """\
[server]
drain = 1

[limits.api]
limit = "60/minute"

[limits.calls]
limit = "3 concurrent"

[gates.alarms]
duration = "12s"
mode = "strict"
"""
CALLERS: Final = {"alice": 1.6, "bob": 0.8, "carol": 0.3}
"""Requests a second, by key: the first is more than the limit."""
WORKERS: Final = 5
ALARMS: Final = tuple(
    f"{what} on {where}"
    for what in ("disk full", "queue is long", "no backup")
    for where in ("db-1", "db-2", "eu-west")
)
NOTICE: Final = 0.1
"""Seconds within which a client notices that the server ends."""


class Traffic:
    """The clients, as tasks of the running loop. They end by themselves when the service does."""

    def __init__(self, service: Service, seed: int | None = None) -> None:
        self._service = service
        self._random = random.Random(seed)
        clients: list[Coroutine[Any, Any, None]] = [self._call(key, rate) for key, rate in CALLERS.items()]
        clients += [self._work() for _ in range(WORKERS)]
        clients.append(self._alarm())
        self.tasks = [asyncio.ensure_future(client) for client in clients]

    @property
    def _open(self) -> bool:
        return not self._service.decider.closing

    async def _pause(self, mean: float) -> None:
        """For about so long, and not for longer than the service is open."""
        left = min(self._random.expovariate(1 / mean), 5 * mean)
        while left > 0 and self._open:
            await asyncio.sleep(min(left, NOTICE))
            left -= NOTICE

    async def _take(self, **request: Any) -> str | None:
        """A permit's id, if it has one; None too if it was refused."""
        try:
            return (await self._service.decider.acquire(Acquire(**request))).grant.permit
        except HeadwayError:
            return None  # the service has counted it

    async def _call(self, key: str, rate: float) -> None:
        while self._open:
            await self._pause(1 / rate)
            await self._take(limit="api", key=key)

    async def _work(self) -> None:
        while self._open:
            await self._pause(1.5)
            permit = await self._take(limit="calls", wait=60)
            if permit is not None:
                try:
                    await self._pause(2)
                finally:
                    self._end(permit)

    def _end(self, permit: str) -> None:
        try:
            self._service.permits.release(permit, "complete")
        except HeadwayError:
            return  # its lease has run out, or a person has ended it

    async def _alarm(self) -> None:
        while self._open:
            await self._pause(4)
            gate = self._service.gates.get("alarms")
            if gate is not None and self._open:
                try:
                    await gate.submit_async(self._random.choice(ALARMS))
                except HeadwayError:
                    continue  # the engine is away for a moment
