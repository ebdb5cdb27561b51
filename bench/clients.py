"""HTTP clients with a limit: 200 callers against a server that enforces a sliding window by its own clock.

The server (`tests/integrations/strict_server.py`, in a process of its own) serves 100 in any second and refuses what
is more. A client with `headway.integrations` keeps 200 callers at it. No call may be refused. The provable ceiling of
n permits is one use of each per flight and gap, so the call n after another one begins a flight and a gap later at
the earliest; the share of the ceiling is that time over the mean of those spans. A flight is what the client's own
transport takes, within the bracket.

httpx has the pool that it has by default, 100 connections of which 20 are kept. With 200 that are all kept, its pool
(httpcore 1.0) counts the idle connections once for each of them, at every call: 5 ms of the event loop, which leaves
89 % of the ceiling.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.alone import in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section
from bench.remotes import PATIENCE, counted, remote

COUNT = 100
CALLERS = 200

Flights = list[tuple[int, int]]


def share(flights: Flights) -> float:
    """Of the provable ceiling. The first n go at once, and are not counted."""
    from headway import Limiter

    gap = Limiter(f"{COUNT}/s")._store.rules[0].gap
    begun = sorted(flights)
    spans = [later[0] - earlier[0] for earlier, later in zip(begun, begun[COUNT:], strict=False)]
    if len(spans) < COUNT:
        raise NotMeasured(f"only {len(flights)} calls were made")
    out = statistics.fmean(end - start for start, end in begun[: len(spans)])
    return (out + gap) / statistics.fmean(spans)


def in_threads(get: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds

    def call() -> None:
        while time.monotonic() < end:
            get()

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(seconds + PATIENCE)


async def in_tasks(get: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds

    async def call() -> None:
        while time.monotonic() < end:
            await get()

    await asyncio.gather(*(call() for _ in range(CALLERS)))


# -- clients ---------------------------------------------------------------------------------------------------


def httpx_threads(url: str, seconds: float, flights: Flights) -> None:
    import httpx

    from headway.integrations.httpx import Transport

    class Timed(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            begin = time.monotonic_ns()
            response = super().handle_request(request)
            flights.append((begin, time.monotonic_ns()))
            return response

    with httpx.Client(transport=Transport(f"{COUNT}/s", Timed()), timeout=PATIENCE) as client:
        in_threads(lambda: client.get(url), seconds)


def httpx_tasks(url: str, seconds: float, flights: Flights) -> None:
    import httpx

    from headway.integrations.httpx import AsyncTransport

    class Timed(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            begin = time.monotonic_ns()
            response = await super().handle_async_request(request)
            flights.append((begin, time.monotonic_ns()))
            return response

    async def main() -> None:
        async with httpx.AsyncClient(
            transport=AsyncTransport(f"{COUNT}/s", Timed()), timeout=PATIENCE
        ) as client:
            await in_tasks(lambda: client.get(url), seconds)

    asyncio.run(main())


def requests_threads(url: str, seconds: float, flights: Flights) -> None:
    import requests
    from requests.adapters import HTTPAdapter

    from headway.integrations.requests import Adapter

    send = HTTPAdapter.send

    def timed(self: HTTPAdapter, *args: Any, **options: Any) -> requests.Response:
        begin = time.monotonic_ns()
        response = send(self, *args, **options)
        flights.append((begin, time.monotonic_ns()))
        return response

    HTTPAdapter.send = timed  # type: ignore[method-assign]
    with requests.Session() as session:
        session.mount("http://", Adapter(f"{COUNT}/s", adapter={"pool_maxsize": CALLERS}))
        in_threads(lambda: session.get(url, timeout=PATIENCE), seconds)


def aiohttp_tasks(url: str, seconds: float, flights: Flights) -> None:
    import aiohttp

    from headway.integrations.aiohttp import Middleware

    async def timed(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        begin = time.monotonic_ns()
        response = await handler(request)
        flights.append((begin, time.monotonic_ns()))
        return response

    async def main() -> None:
        async with aiohttp.ClientSession(
            middlewares=[Middleware(f"{COUNT}/s"), timed], connector=aiohttp.TCPConnector(limit=CALLERS)
        ) as session:

            async def get() -> None:
                async with session.get(url) as response:
                    await response.read()

            await in_tasks(get, seconds)

    asyncio.run(main())


CLIENTS: dict[str, Callable[[str, float, Flights], None]] = {
    "httpx": httpx_threads,
    "httpx-async": httpx_tasks,
    "requests": requests_threads,
    "aiohttp": aiohttp_tasks,
}


@in_own_process()
def clients(effort: Effort) -> Findings:
    found = Findings()
    for name, run in CLIENTS.items():
        flights: Flights = []
        with remote("strict_server.py", COUNT, 1) as url:
            run(url, 2 if effort.quick else 6, flights)
            figures = counted(url)
        found.readings[f"{name}-refused"] = Reading(
            figures["refused"], note=f"{figures['served']} were served"
        )
        found.readings[f"{name}-share"] = Reading(share(flights))
    return found


SECTION = Section(
    "clients",
    "HTTP clients",
    tuple(
        figure
        for name in CLIENTS
        for figure in (
            Figure(
                f"{name}-refused", f"{name}, 200 callers: answers that are 429", clients, "<=", 0, "count"
            ),
            Figure(
                f"{name}-share",
                f"{name}, 200 callers: share of the provable ceiling",
                clients,
                ">=",
                0.98,
                "%",
            ),
        )
    ),
)
