"""The ASGI middleware over a bare application: what a limit takes of a server's core.

Four uvicorns (uvloop, httptools) serve the same raw ASGI application on one core: bare, bare with the headers of a
limit (what uvicorn takes for two more headers), within a limit that always grants, and within one that always refuses.
A client on the other core keeps 32 connections busy with one of them at a time, in short slices that alternate. What
counts is requests per second of the server process's own processor time: that is what one core serves when nothing else
runs on it. Other work on this machine empties caches, and makes all sides slower. A request is the smallest that there
is: an application that does something, or one with a framework, loses a smaller share.

The time within the middleware itself is measured without a server: the same application, called in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.alone import ROOT, in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section

SIDES = {"bare": None, "told": None, "allowed": "1000000000/hour", "denied": "1/hour"}
ANSWERS = {
    "bare": b"HTTP/1.1 200 ",
    "told": b"HTTP/1.1 200 ",
    "allowed": b"HTTP/1.1 200 ",
    "denied": b"HTTP/1.1 429 ",
}
CONNECTIONS = 32
EACH = 50
"""Requests of a connection in a slice."""
ROUNDS = 90
REQUEST = b"GET /items HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: bench\r\naccept: */*\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - how ASGI calls it
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain"), (b"content-length", b"5")],
        }
    )
    await send({"type": "http.response.body", "body": b"hello"})


async def told(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 - how ASGI calls it
    """The same, with the headers of a limit that there is none of."""
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", b"5"),
        (b"ratelimit", b'"window-0";r=999999999;t=3600'),
        (b"ratelimit-policy", b'"window-0";q=1000000000;w=3600'),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


def app_of(side: str) -> Any:
    from headway.integrations.asgi import RateLimit

    limit = SIDES[side]
    if limit is None:
        return told if side == "told" else hello
    return RateLimit(hello, limit)


def cores() -> tuple[int, int]:
    """One for the servers, and one for the client."""
    found = sorted(os.sched_getaffinity(0))
    return found[0], found[-1]


# -- servers --------------------------------------------------------------------------------------------------


def serve(side: str) -> None:
    """Serve on one core until standard input ends; says on which port."""
    import uvicorn

    os.sched_setaffinity(0, {cores()[0]})
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    config = uvicorn.Config(
        app_of(side), loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="error"
    )
    server = uvicorn.Server(config)

    def end() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    print(listening.getsockname()[1], flush=True)
    server.run([listening])


class Server:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._statistics = Path(f"/proc/{process.pid}/schedstat")
        self.port = int(process.stdout.readline())

    def processor_ns(self) -> int:
        """Nanoseconds that its main thread, which serves, has used so far."""
        return int(self._statistics.read_text().split()[0])


@contextlib.contextmanager
def serving() -> Iterator[dict[str, Server]]:
    with contextlib.ExitStack() as stack:
        running = {}
        for side in SIDES:
            command = [sys.executable, "-c", f"from bench.middleware import serve; serve({side!r})"]
            process = stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            running[side] = Server(process)
        yield running


# -- load -----------------------------------------------------------------------------------------------------


class Caller(asyncio.Protocol):
    """One connection: the next request follows when a response has come, as long as there are any left."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._transport: Any = None
        self._heard = b""
        self._left = 0
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, count: int) -> asyncio.Future[None]:
        """Make so many requests, one after another."""
        self._left = count
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(REQUEST)
        return self._done

    def data_received(self, data: bytes) -> None:
        heard = self._heard + data if self._heard else data
        head = heard.find(b"\r\n\r\n")
        at = heard.find(b"content-length: ")
        if head < 0 or at < 0 or len(heard) < head + 4 + int(heard[at + 16 : heard.index(b"\r", at)]):
            self._heard = heard
            return
        assert self._done is not None
        self._heard = b""
        self._left -= 1
        if not heard.startswith(self._answer):
            self._done.set_exception(NotMeasured(f"an answer began with {heard[:15]!r}"))
        elif self._left:
            self._transport.write(REQUEST)
        else:
            self._done.set_result(None)


async def connected(port: int, answer: bytes) -> list[Caller]:
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Caller(answer), "127.0.0.1", port) for _ in range(CONNECTIONS)
    ]
    return [caller for _, caller in made]


@in_own_process()
def served(effort: Effort) -> Findings:
    import uvloop

    os.sched_setaffinity(0, {cores()[1]})
    costs: dict[str, list[float]] = {side: [] for side in SIDES}

    async def main() -> None:
        with serving() as servers:
            (first,) = (await connected(servers["denied"].port, b"HTTP/1.1 200 "))[:1]
            await first.ask(1)  # its only permit
            callers = {side: await connected(server.port, ANSWERS[side]) for side, server in servers.items()}
            for number in range(ROUNDS // 5 if effort.quick else ROUNDS):
                sides = list(SIDES)
                for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                    before = servers[side].processor_ns()
                    await asyncio.gather(*(caller.ask(EACH) for caller in callers[side]))
                    costs[side].append((servers[side].processor_ns() - before) / (EACH * CONNECTIONS))

    uvloop.run(main())
    found = Findings()
    bare = costs.pop("bare")
    for side, each in costs.items():
        low, middle, high = statistics.quantiles(
            [base / ours for ours, base in zip(each, bare, strict=True)], n=4
        )
        rate, base = (f"{1e9 / statistics.median(one):,.0f}" for one in (each, bare))
        note = f"{rate} requests/s of a core, bare {base}"
        found.readings[f"asgi-{side}"] = Reading(middle, low, high, note=note)
    return found


# -- without a server -----------------------------------------------------------------------------------------


@in_own_process()
def called(effort: Effort) -> Findings:
    """Microseconds that a call takes with the middleware more than without it."""
    scope = {
        "type": "http", "path": "/items", "client": ("127.0.0.1", 50000),
        "headers": [(b"host", b"127.0.0.1"), (b"user-agent", b"bench"), (b"accept", b"*/*")],
    }  # fmt: skip
    times: dict[str, list[float]] = {side: [] for side in SIDES if side != "told"}

    async def send(message: Any) -> None: ...

    async def main() -> None:
        apps = {side: app_of(side) for side in times}
        count = 2_000
        for _ in range(20 if effort.quick else 100):
            for side, app in apps.items():
                begin = time.process_time()
                for _ in range(count):
                    await app({**scope}, None, send)
                times[side].append((time.process_time() - begin) / count * 1e6)

    asyncio.run(main())
    found = Findings()
    bare = statistics.median(times.pop("bare"))
    for side, each in times.items():
        low, middle, high = statistics.quantiles(each, n=4)
        found.readings[f"asgi-{side}-us"] = Reading(middle - bare, low - bare, high - bare)
    return found


# -- a server that is away ------------------------------------------------------------------------------------


@in_own_process()
def outages(effort: Effort) -> Findings:
    """How late the worst answer comes when the server of a middleware's limits was stopped, or killed.

    What the asking thread waited for a core while other programs ran is in the note, and not in the figure.
    """
    command = [sys.executable, "tests/integrations/outages.py", "--answers", "4" if effort.quick else "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasured(done.stderr.strip().rpartition("\n")[2])
    found = Findings()
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if said["wrong"]:
            raise NotMeasured(f"{said['wrong']} answers were not what was configured")
        worst = max(said["late_ms"], key=said["late_ms"].get)
        whole = max(said["with_waits_for_a_core_ms"].values())
        note = f"of {worst}; {whole:.0f} ms with the waits for a core"
        found.readings[f"away-{said['way']}"] = Reading(said["late_ms"][worst], note=note)
    return found


OVER = "requests/s of a core, over the bare application"
AWAY = "the worst answer of six middlewares, after `engine_timeout`"
SECTION = Section(
    "middleware",
    "Server middleware",
    (
        Figure("asgi-allowed", f"ASGI middleware, allowed: {OVER}", served, ">=", 0.85, "x"),
        Figure("asgi-denied", f"ASGI middleware, denied: {OVER}", served, ">=", 0.9, "x"),
        Figure(
            "asgi-told",
            f"bare, with the headers of a limit: {OVER}",
            served,
            unit="x",
        ),
        Figure("asgi-allowed-us", "ASGI middleware alone, allowed", called, unit="us"),
        Figure("asgi-denied-us", "ASGI middleware alone, denied", called, unit="us"),
        Figure("away-stopped", f"engine stopped: {AWAY}", outages, "<=", 50, "ms"),
        Figure("away-killed", f"engine killed: {AWAY}", outages, "<=", 50, "ms"),
    ),
)
