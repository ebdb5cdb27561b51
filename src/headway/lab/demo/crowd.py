"""Workers that call the API as fast as their limiter allows, and what they saw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from headway.lab.demo.api import Report
from headway.lab.demo.host import Answer, Connection

LOOK_EVERY = 0.1
LONGEST_DRAIN = 5.0

Call = Callable[[Connection, float], Awaitable[Answer]]


class PacerCore(Protocol):
    """A decorator that holds calls back."""

    def __call__(self, call: Call, /) -> Call: ...


@dataclass(frozen=True, slots=True)
class Visit:
    """One call of the API, in seconds since the crowd started."""

    asked: float
    sent: float
    done: float
    refused: bool


class Crowd:
    """Workers of one gate: each asks, waits for its turn, calls, and asks again."""

    def __init__(self, name: str, gate: PacerCore, port: int, workers: int) -> None:
        self.name = name
        self.visits: list[Visit] = []
        self.report = Report()
        self.waiting = 0
        self.elapsed = 0.0
        self._call = gate(self._send)
        self._port = port
        self._workers = workers
        self._start = 0.0
        self._sending: set[asyncio.Task[None] | None] = set()
        self._over = False

    @property
    def in_flight(self) -> int:
        return len(self._sending)

    def _now(self) -> float:
        return time.monotonic() - self._start

    async def run(self, seconds: float) -> None:
        """Run the workers for so long. Then calls under way are finished, and workers that wait are cancelled."""
        connections = [await Connection.open(self._port) for _ in range(self._workers + 1)]
        self._start = time.monotonic()
        workers = [asyncio.create_task(self._work(connection)) for connection in connections[1:]]
        try:
            await self._look_on(connections[0], workers, seconds)
            self._over = True
            for worker in workers:
                if worker not in self._sending:
                    worker.cancel()
            await asyncio.wait(workers, timeout=LONGEST_DRAIN)
            self.report = await connections[0].report()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for connection in connections:
                connection.close()

    async def _look_on(
        self, connection: Connection, workers: list[asyncio.Task[None]], seconds: float
    ) -> None:
        while (left := seconds - self._now()) > 0:
            self.report = await connection.report()
            self.elapsed = self._now()
            done, _ = await asyncio.wait(
                workers, timeout=min(left, LOOK_EVERY), return_when=asyncio.FIRST_COMPLETED
            )
            for worker in done:  # a worker does not end by itself, so something went wrong
                worker.result()
        self.elapsed = self._now()

    async def _work(self, connection: Connection) -> None:
        while not self._over:
            self.waiting += 1
            answer = await self._call(connection, self._now())
            if answer.retry_after and not self._over:
                await asyncio.sleep(answer.retry_after)

    async def _send(self, connection: Connection, asked: float) -> Answer:
        me = asyncio.current_task()
        sent = self._now()
        self.waiting -= 1
        self._sending.add(me)
        try:
            answer = await connection.get()
        finally:
            self._sending.discard(me)
        self.visits.append(Visit(asked, sent, self._now(), answer.status == 429))
        return answer
