"""The hot call of the service, HTTP acquire on memory://, beside servers that do less or the same.

Each server runs on one core, one at a time, and the load on another: plain sockets that send the same bytes again when
an answer is there. What counts is answers per second of the server's processor time, which is its throughput when it is
busy; whether it was busy is looked at too (a server that waits for the load is not measured). Sides alternate, and a
ratio is the median of the ratios of the rounds.

    nothing         the same server and the same bytes in and out; the call is not read, and nothing is decided
    uvicorn         plain uvicorn with uvloop and httptools, and a bare ASGI application that answers the same bytes
    throttlecrab    its HTTP server (Rust); `cargo install throttlecrab-server`, on PATH or in $HEADWAY_PEERS
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.alone import ROOT, in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section

CONNECTIONS = 64
BUSY = 0.9
"""The share of the time for which a server should run, or be ready to. Where it is less, a note says so."""
IDLE = 0.5
"""Where it is less than that, nothing is measured."""
BODY = b'{"limit": "api", "key": "alice"}'
HEAD = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
ACQUIRE = HEAD % (b"/v1/acquire", len(BODY)) + BODY
DENIED = ACQUIRE.replace(b'"api"', b'"few"')
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CRAB = b'{"key": "alice", "max_burst": 1000000000, "count_per_period": 1000000000, "period": 1}'
THROTTLE = HEAD % (b"/throttle", len(CRAB)) + CRAB
CONFIG = '[limits.api]\nlimit = "1000000000/hour"\n[limits.few]\nlimit = "1/hour"\n'
INSTALL = (
    "throttlecrab-server is not there: cargo install throttlecrab-server, or set HEADWAY_PEERS to its folder"
)


# -- servers ---------------------------------------------------------------------------------------------------


class Nothing:
    """In place of the step that answers requests for permits: it looks at nothing, and says the same again."""

    done = len(ACQUIRE)
    answered = 1

    def __init__(self, hot: Any, answer: Any) -> None:
        self._hot = hot
        self._answer = answer
        self._headers: Any = None
        self._written = b""

    def __call__(self, data: bytes, headers: Any) -> bytes:  # noqa: ARG002
        if headers is not self._headers:  # they have the date
            self._headers, self._written = headers, self._hot.written(self._answer, headers)
        return self._written


def serve(kind: str, port: str) -> None:
    """Serve until standard input ends."""
    import threading

    import uvicorn

    from headway.service.config import parse_config
    from headway.service.hot import HotCalls
    from headway.service.running import uvicorn_config
    from headway.service.service import Service
    from headway.service.web import web_app

    async def main() -> None:
        service = Service(parse_config(CONFIG), engine="memory://")
        await service.start()
        hot = HotCalls(service)
        call = hot.find(b"POST", b"/v1/acquire")
        assert call is not None
        answer: Any = hot.answer(call, {b"host": b"localhost", b"content-type": b"application/json"}, BODY)
        if kind == "uvicorn":
            headers = [
                *answer.pairs(),
                (b"content-length", b"%d" % len(answer.body)),
                (b"content-type", b"application/json"),
            ]

            async def bare(scope: Any, receive: Any, send: Any) -> None:
                if scope["type"] == "http":
                    while (await receive()).get("more_body"):
                        pass
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    await send({"type": "http.response.body", "body": answer.body})

            config = uvicorn.Config(
                bare,
                http="httptools",
                loop="uvloop",
                log_level="error",
                access_log=False,
                server_header=False,
                lifespan="off",
            )
        else:
            if kind == "nothing":
                hot.quick = Nothing(hot, answer)  # type: ignore[assignment]
            config = uvicorn_config(web_app(service), hot=hot)
        server = uvicorn.Server(config)

        def end() -> None:
            sys.stdin.read()
            server.should_exit = True

        threading.Thread(target=end, daemon=True).start()
        listening = socket.create_server(("127.0.0.1", int(port)), backlog=1000)
        await server.serve([listening])

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@dataclass
class Server:
    port: int
    pid: int

    def cpu(self) -> tuple[float, float]:
        """Seconds that its threads have run, and seconds that they were ready to and had no core."""
        ran = waited = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(
                FileNotFoundError, ProcessLookupError
            ):  # a thread that has ended meanwhile
                fields = (task / "schedstat").read_text().split()
                ran, waited = ran + int(fields[0]), waited + int(fields[1])
        return ran / 1e9, waited / 1e9


def crab() -> str:
    found = shutil.which("throttlecrab-server", path=os.environ.get("HEADWAY_PEERS")) or shutil.which(
        "throttlecrab-server"
    )
    if found is None:
        raise NotMeasured(INSTALL)
    return found


@contextlib.contextmanager
def server(kind: str, core: int) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bench.service", kind, str(port)]
    if kind == "throttlecrab":
        command = [
            crab(),
            "--http",
            "--http-host",
            "127.0.0.1",
            "--http-port",
            str(port),
            "--log-level",
            "error",
        ]
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # which a child inherits
    try:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    finally:
        os.sched_setaffinity(0, here)
    assert process.stdin
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 10).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotMeasured(f"the server {kind} did not start")
            time.sleep(0.05)
        yield Server(port, process.pid)
    finally:
        process.stdin.close()
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


# -- the load --------------------------------------------------------------------------------------------------


class Load:
    """Connections that send the same request again when its answer, whose last byte is a brace, is there."""

    def __init__(self, of: Server, request: bytes) -> None:
        self._server = of
        self._request = request
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for _ in range(CONNECTIONS):
            one = socket.create_connection(("127.0.0.1", of.port), 60)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[one.fileno()] = one
            self._poll.register(one.fileno(), select.EPOLLIN)

    def run(self, seconds: float, status: bytes) -> tuple[float, float]:
        """Answers per second of the server's processor time, and for which share of the time it was busy."""
        request, poll = self._request, self._poll.poll
        receive: dict[int, Callable[[int], bytes]] = {
            number: one.recv for number, one in self._sockets.items()
        }
        send: dict[int, Callable[[bytes], int]] = {number: one.send for number, one in self._sockets.items()}
        parts: dict[int, bytes] = {}
        count, answer = 0, b""
        for one in send.values():
            one(request)
        begin, (ran, waited) = time.monotonic(), self._server.cpu()
        end = begin + seconds
        while time.monotonic() < end:
            for number, _ in poll(1):
                answer = receive[number](65536)
                if number in parts:
                    answer = parts.pop(number) + answer
                if not answer.endswith(b"}"):
                    if not answer:
                        raise NotMeasured("the server has closed a connection")
                    parts[number] = answer
                    continue
                count += 1
                send[number](request)
        took, (ran_now, waited_now) = time.monotonic() - begin, self._server.cpu()
        if status not in answer[:15]:
            raise NotMeasured(f"the server said {answer[:60]!r}")
        self._drain(parts)
        ran, waited = ran_now - ran, waited_now - waited
        return count / ran, (ran + waited) / took

    def _drain(self, parts: dict[int, bytes]) -> None:
        """Read the answers that are still due, so that the next run begins with silence."""
        due = set(self._sockets)
        while due and (ready := self._poll.poll(5)):
            for number, _ in ready:
                parts[number] = parts.get(number, b"") + self._sockets[number].recv(65536)
                if parts[number].endswith(b"}"):
                    due.discard(number)

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._poll.close()


def rates(sides: dict[str, tuple[str, bytes, bytes]], effort: Effort) -> dict[str, list[float]]:
    """Answers per second of each side (a server, a request, the status of its answer), round by round."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    found: dict[str, list[float]] = {name: [] for name in sides}
    shares: dict[str, list[float]] = {name: [] for name in sides}
    with contextlib.ExitStack() as stack:
        servers = {
            kind: stack.enter_context(server(kind, cores[0]))
            for kind in {kind for kind, _, _ in sides.values()}
        }
        loads = {
            name: stack.enter_context(contextlib.closing(Load(servers[kind], request)))
            for name, (kind, request, _) in sides.items()
        }
        rounds = 5 if effort.quick else 15
        for number in range(rounds + 1):
            for name, (_, _, status) in sides.items():
                rate, busy = loads[name].run(0.4, status)
                if number:  # the first round warms up
                    found[name].append(rate)
                    shares[name].append(busy)
    for name, of_side in shares.items():
        busy = statistics.median(of_side)
        if busy < IDLE:
            raise NotMeasured(f"{name}: the server was busy for {busy:.0%} of the time: the load is too slow")
        if busy < BUSY:
            print(f"{name}: the server was busy for {busy:.0%} of the time", file=sys.stderr)
    return found


def ratio(ours: list[float], theirs: list[float]) -> Reading:
    found = [one / other for one, other in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    said = f"{statistics.median(ours):,.0f}/s over {statistics.median(theirs):,.0f}/s"
    return Reading(middle, low, high, note=said)


@in_own_process()
def acquires(effort: Effort) -> Findings:
    found = rates(
        {
            "acquire": ("headway", ACQUIRE, b"200"),
            "nothing": ("nothing", ACQUIRE, b"200"),
            "uvicorn": ("uvicorn", ACQUIRE, b"200"),
            "denied": ("headway", DENIED, b"429"),
            "healthz": ("headway", HEALTH, b"200"),
        },
        effort,
    )
    ours = found["acquire"]
    return Findings(
        {
            "service-nothing": ratio(ours, found["nothing"]),
            "service-uvicorn": ratio(ours, found["uvicorn"]),
            "service-denied": ratio(found["denied"], ours),
            "service-healthz": ratio(ours, found["healthz"]),
        }
    )


@in_own_process()
def throttlecrab(effort: Effort) -> Findings:
    crab()
    sides = {"acquire": ("headway", ACQUIRE, b"200"), "throttle": ("throttlecrab", THROTTLE, b"200")}
    found = rates(sides, effort)
    return Findings({"service-throttlecrab": ratio(found["acquire"], found["throttle"])})


SECTION = Section(
    "service",
    "The service over HTTP, one core",
    (
        Figure(
            "service-nothing",
            "HTTP acquire, over the same server without a decision",
            acquires,
            ">=",
            0.8,
            "x",
        ),
        Figure(
            "service-uvicorn",
            "HTTP acquire, over plain uvicorn with a bare application",
            acquires,
            ">=",
            2.5,
            "x",
        ),
        Figure(
            "service-throttlecrab", "HTTP acquire, over throttlecrab (Rust)", throttlecrab, ">=", 1.0, "x"
        ),
        Figure("service-denied", "HTTP acquire that is denied, over one that is granted", acquires, unit="x"),
        Figure("service-healthz", "HTTP acquire, over /healthz, which has no body", acquires, unit="x"),
    ),
)


if __name__ == "__main__":
    serve(*sys.argv[1:])
