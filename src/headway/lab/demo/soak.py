"""Tasks and threads together, through one limiter, against the strict API in its own process.

    python -m headway.lab.demo.soak --seconds 20

Prints how much of the ceiling was used and how many calls were answered 429, and exits with 1 if any was.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import random
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass

from headway import Limiter, LimiterClosed, Remote, SystemClock, Window, throttle
from headway.core.remote import gap_ns
from headway.lab.demo.api import Report
from headway.lab.demo.crowd import Visit
from headway.lab.demo.host import Answer, ApiProcess, Connection
from headway.lab.demo.score import busy

TASKS, THREADS = 200, 32
LATENCY_NS = 60_000_000
LONGEST_DRAIN = 10.0


@dataclass(frozen=True, slots=True)
class Result:
    """What both sides saw."""

    seconds: float
    calls: int
    by_threads: int
    refused: int
    report: Report
    latency: float
    ceiling: float
    use: float

    def __str__(self) -> str:
        return (
            f"{self.calls} calls in {self.seconds:.1f} s, {self.by_threads} of them by threads\n"
            f"answered 429:         {self.refused}\n"
            f"violations they saw:  {self.report.violations}, at most {self.report.most_in_window} in a window\n"
            f"mean round trip:      {self.latency * 1e3:.0f} ms\n"
            f"ceiling:              {self.ceiling:.1f} calls/s\n"
            f"use of the ceiling:   {self.use:.1%}"
        )


class Soak:
    """Tasks and threads call as fast as the limiter lets them, until it is closed."""

    def __init__(self, limit: Window, port: int) -> None:
        self._limit = limit
        self._limiter = Limiter(limit)
        self._port = port
        self._start = time.monotonic()
        self._by_tasks: list[Visit] = []
        self._by_threads: list[Visit] = []
        gate = throttle(self._limiter, timeout=None)
        self._call = gate(self._send)
        self._call_async = gate(self._send_async)

    def _note(self, visits: list[Visit], asked: float, sent: float, status: int) -> None:
        start = self._start
        visits.append(Visit(asked - start, sent - start, time.monotonic() - start, status == 429))

    def _send(self, connection: http.client.HTTPConnection, asked: float) -> None:
        sent = time.monotonic()
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
        self._note(self._by_threads, asked, sent, answer.status)

    async def _send_async(self, connection: Connection, asked: float) -> None:
        sent = time.monotonic()
        answer: Answer = await connection.get()
        self._note(self._by_tasks, asked, sent, answer.status)

    def _thread(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            try:
                while True:
                    self._call(connection, time.monotonic())
            except LimiterClosed:
                pass

    async def _task(self, connection: Connection) -> None:
        try:
            while True:
                await self._call_async(connection, time.monotonic())
        except LimiterClosed:
            pass

    async def run(self, seconds: float) -> Result:
        connections = [await Connection.open(self._port) for _ in range(TASKS + 1)]
        self._start = time.monotonic()
        threads = [threading.Thread(target=self._thread, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        tasks = [asyncio.create_task(self._task(connection)) for connection in connections[1:]]
        # A caller that fails ends the run at once: none stops by itself.
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        elapsed = time.monotonic() - self._start
        self._limiter.close()
        async with asyncio.timeout(LONGEST_DRAIN):
            await asyncio.gather(*tasks)
            for thread in threads:
                await asyncio.to_thread(thread.join)
        report = await connections[0].report()
        for connection in connections:
            connection.close()
        return self._result(elapsed, report)

    def _result(self, elapsed: float, report: Report) -> Result:
        limit = self._limit
        visits = self._by_tasks + self._by_threads
        clock = SystemClock()
        resolution_ns = int(clock.resolution * 1e9) + 1
        gap = gap_ns(limit.per_ns, limit.remote or Remote(), resolution_ns, clock.drift_ppm) / 1e9
        latency = sum(visit.done - visit.sent for visit in visits) / len(visits)
        return Result(
            seconds=elapsed,
            calls=len(visits),
            by_threads=len(self._by_threads),
            refused=sum(visit.refused for visit in visits),
            report=report,
            latency=latency,
            ceiling=limit.count / (gap + latency),
            use=busy(visits, gap, elapsed) / (limit.count * elapsed),
        )


def soak(seconds: float, count: int = 100, seed: int = 0, allowed: int | None = None) -> Result:
    """Run 200 tasks and 32 threads for so long at `count` a second; the API allows as many, or `allowed`."""
    limit = Window(count, per=1, remote=Remote())
    with ApiProcess(Window(count if allowed is None else allowed, per=1), LATENCY_NS, seed) as api:
        return asyncio.run(Soak(limit, api.port).run(seconds))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headway.lab.demo.soak")
    parser.add_argument("--seconds", type=float, default=20, help="how long (20)")
    parser.add_argument("--count", type=int, default=100, help="what the API allows in any second (100)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1000), help="draw the same latencies again"
    )
    chosen = parser.parse_args()
    result = soak(chosen.seconds, chosen.count, chosen.seed)
    sys.stdout.write(f"{TASKS} tasks and {THREADS} threads, {chosen.count}/s, seed {chosen.seed}\n{result}\n")
    return 1 if result.refused or result.report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
