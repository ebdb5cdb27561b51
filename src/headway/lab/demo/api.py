"""A strict API: never more than n requests in any w, by its own clock.

Run in a process of its own, on a loopback port that it prints:

    python -m headway.lab.demo.api COUNT PER_NS LATENCY_NS SEED

It answers 200, or 429 with `Retry-After` to a request too many, and `/report` says how many those were. Its clock is
like the clock of any other machine: coarse, and a little slow. Requests reach it late and answers come back late, by
times that vary. It ends with the process that started it: when its standard input is closed, for whatever reason.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass

TICK_NS = 16_000_000
SLOW_PPM = 200  # slow is the side that hurts: a true second is less than a second there
PENALTY = 4  # a request too many closes the API for 1/4 of the window


@dataclass(slots=True)
class Report:
    """What the API has seen so far."""

    accepted: int = 0
    refused: int = 0
    violations: int = 0
    in_window: int = 0
    most_in_window: int = 0


class Meter:
    """Accepts or refuses requests: at most `count` in any `per_ns`, both ends included.

    >>> meter = Meter(2, 1000)
    >>> [meter.judge(now) for now in (0, 10, 1000, 1100, 1251)]
    [0, 0, 250, 150, 0]
    >>> meter.report.violations, meter.report.refused, meter.report.most_in_window
    (1, 2, 3)
    """

    def __init__(self, count: int, per_ns: int) -> None:
        self.report = Report()
        self._count = count
        self._per_ns = per_ns
        self._accepted: deque[int] = deque()
        self._arrived: deque[int] = deque()
        self._closed_until = 0

    def judge(self, now: int) -> int:
        """Nanoseconds until the next try is worth it; 0: the request is accepted."""
        self.look(now)
        report = self.report
        self._arrived.append(now)
        report.most_in_window = max(report.most_in_window, len(self._arrived))
        if len(self._accepted) >= self._count:
            report.violations += 1
            self._closed_until = now + self._per_ns // PENALTY
        if now < self._closed_until:
            report.refused += 1
            return self._closed_until - now
        self._accepted.append(now)
        report.accepted += 1
        report.in_window = len(self._accepted)
        return 0

    def look(self, now: int) -> Report:
        """The report as of now."""
        for times in (self._accepted, self._arrived):
            while times and times[0] < now - self._per_ns:
                times.popleft()
        self.report.in_window = len(self._accepted)
        return self.report


class CoarseClock:
    """The machine's clock as if it were that of another machine: in ticks, a little slow, with another start."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns - time.monotonic_ns()

    def now(self) -> int:
        true = time.monotonic_ns() + self._start_ns
        shown = true - true * SLOW_PPM // 1_000_000
        return shown - shown % TICK_NS


class Api:
    """HTTP around a meter, with a slow and uneven network on both ways."""

    def __init__(self, count: int, per_ns: int, latency_ns: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self._clock = CoarseClock(self._chance.randrange(10**9))
        self._meter = Meter(count, per_ns)
        self._latency = latency_ns / 1e9

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until its client leaves."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                is_report = head.startswith(b"GET /report ")
                writer.write(self._report() if is_report else await self._answer())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _report(self) -> bytes:
        return response("200 OK", json.dumps(asdict(self._meter.look(self._clock.now()))))

    async def _answer(self) -> bytes:
        await asyncio.sleep(self._one_way())
        wait_ns = self._meter.judge(self._clock.now())
        await asyncio.sleep(self._one_way())
        if wait_ns:
            seconds = math.ceil(wait_ns / 1e9)
            return response("429 Too Many Requests", "slow down", f"Retry-After: {seconds}\r\n")
        return response("200 OK", "hello")

    def _one_way(self) -> float:
        """Half the latency on average; never below a quarter of that, and now and then several times as long."""
        return self._latency / 2 * (0.25 + 0.75 * min(self._chance.expovariate(1), 8))


def response(status: str, body: str, headers: str = "") -> bytes:
    """An HTTP response as it goes over the wire."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def end_with_parent() -> None:
    """Wait until standard input is closed, then exit at once: there is nothing to save."""
    while os.read(0, 1024):  # not sys.stdin: a thread must not hold its lock when Python ends
        pass
    os._exit(0)


async def run(api: Api) -> None:
    """Serve on a free port of the loopback interface, and print it."""
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    try:
        os.write(1, b"%d\n" % server.sockets[0].getsockname()[1])
    except BrokenPipeError:
        os._exit(0)  # the process that started it has gone
    await server.serve_forever()


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    asyncio.run(run(Api(*map(int, sys.argv[1:]))))
