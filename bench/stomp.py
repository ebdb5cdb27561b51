"""Gates over STOMP on WebSocket: how late changes come to many subscribers, and what those cost that do not read.

A server (uvicorn, in a process of its own) serves one gate. Subscribers are plain sockets that know as much of
WebSocket and STOMP as they need, so that what they take of the machine is small beside the server; a connection more
submits on a schedule. How late a change comes is reckoned from the time that it carries, which is the gate's, on the
same machine.

Some stop reading after their key frame. So that they are noticed within seconds and not after what a kernel buffers,
both ends have small socket buffers there. What the server keeps is read from /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.alone import ROOT, in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section

SUBSCRIBERS = 200
STUCK = 20
CHANGES_PER_SECOND = 50
SMALL_BUFFER = 16 * 1024
MIB = 1 << 20


# -- the server -----------------------------------------------------------------------------------------------


def serve(order: dict[str, Any]) -> None:
    """Serve one gate until standard input ends; says on which port."""
    import threading

    import uvicorn

    from headway import Once
    from headway.once import stomp_app
    from headway.service.running import uvicorn_config

    listening = socket.socket()
    if order.get("small_buffers"):
        # What is accepted inherits it.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1000)
    app = stomp_app({"a": Once(60)}, **order.get("options", {}))
    server = uvicorn.Server(uvicorn_config(app))

    def end() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    print(listening.getsockname()[1], flush=True)
    asyncio.run(server.serve([listening]))


@dataclass
class Server:
    port: int
    pid: int

    def kept(self) -> int:
        """Bytes of memory that it has."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def waited(self) -> float:
        """Seconds in which it could have run and had no core."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(**order: Any) -> Iterator[Server]:
    command = [sys.executable, "-m", "bench.stomp", json.dumps(order)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        said = process.stdout.readline()
        if not said:
            raise NotMeasured("the server did not start")
        yield Server(int(said), process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


# -- clients --------------------------------------------------------------------------------------------------


HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: v12.stomp\r\n\r\n"
)


def text_message(payload: bytes) -> bytes:
    """A client's WebSocket message, masked with zeros."""
    if len(payload) < 126:
        head = struct.pack("!BB", 0x81, 0x80 | len(payload))
    else:
        head = struct.pack("!BBH", 0x81, 0x80 | 126, len(payload))
    return head + bytes(4) + payload


class Client(asyncio.Protocol):
    """Connects, and keeps what it is told."""

    def __init__(self, subscribe: bytes | None, path: str) -> None:
        self.clocks: list[int] = []
        self.late: list[float] = []
        self.key_frames = 0
        self.errors: list[bytes] = []
        self.last_id = b""
        self.receipts = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()
        self._subscribe, self._path = subscribe, path
        self._buffer = bytearray()
        self._upgraded = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(HANDSHAKE % self._path.encode())

    def connection_lost(self, _: Exception | None) -> None:
        for future in (self.ready, self.ended):
            if not future.done():
                future.set_result(None)

    def send(self, frame: bytes) -> None:
        self.transport.write(text_message(frame))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._upgraded:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            del buffer[: end + 4]
            self._upgraded = True
            self.send(b"CONNECT\naccept-version:1.2\nhost:here\n\n\0")
        start = 0
        while len(buffer) - start >= 4:
            size, head = buffer[start + 1], 2
            if size == 126:
                size, head = int.from_bytes(buffer[start + 2 : start + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(buffer[start + 2 : start + 10], "big"), 10
            if len(buffer) - start < head + size:
                break
            self._message(buffer[start] & 15, bytes(buffer[start + head : start + head + size]))
            start += head + size
        del buffer[:start]

    def _message(self, opcode: int, payload: bytes) -> None:
        if opcode == 9:
            self.transport.write(struct.pack("!BB", 0x8A, 0x80 | len(payload)) + bytes(4) + payload)
        elif opcode == 8:
            self.transport.write(struct.pack("!BB", 0x88, 0x80) + bytes(4))
        elif payload.startswith(b"MESSAGE"):
            self._on_message(payload)
        elif payload.startswith(b"CONNECTED"):
            if self._subscribe is not None:
                self.send(self._subscribe)
            elif not self.ready.done():
                self.ready.set_result(None)
        elif payload.startswith(b"RECEIPT"):
            self.receipts += 1
        elif payload.startswith(b"ERROR"):
            self.errors.append(payload)

    def _on_message(self, payload: bytes) -> None:
        now = time.time()
        headers, _, body = payload.partition(b"\n\n")
        begin = headers.index(b"\nmessage-id:") + 12
        self.last_id = headers[begin : headers.index(b"\n", begin)]
        if b"\nkind:KEY_FRAME" in headers:
            self.key_frames += 1
            if not self.ready.done():
                self.ready.set_result(None)
            return
        change = json.loads(body[:-1])
        self.clocks.append(change["clock"])
        self.late.append(now - change["time"])
        if not self.ready.done():
            self.ready.set_result(None)


SUBSCRIBE = b"SUBSCRIBE\nid:0\ndestination:/topic/gates/a\n\n\0"


async def client(port: int, subscribe: bytes | None, small_buffers: bool = False, path: str = "/") -> Client:
    """Connected, and at its first message if it subscribes."""
    own = socket.socket()
    if small_buffers:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    own.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(own, ("127.0.0.1", port))
    _, made = await loop.create_connection(lambda: Client(subscribe, path), sock=own)
    await asyncio.wait_for(made.ready, 60)
    return made


@dataclass
class Seen:
    """What a crowd saw of `changes` changes."""

    changes: int
    readers: list[Client] = field(default_factory=list)
    stuck: list[Client] = field(default_factory=list)
    source: Client | None = None
    kept_before: int = 0
    kept_most: int = 0
    cpu: float = 0.0
    own_cpu: float = 0.0
    waited: float = 0.0
    seconds: float = 0.0

    @property
    def complete(self) -> int:
        """How many readers saw every clock value in order."""
        return sum(reader.clocks == list(range(1, self.changes + 1)) for reader in self.readers)

    def late_p99(self) -> float:
        return statistics.quantiles([one for reader in self.readers for one in reader.late], n=100)[98]


@contextlib.asynccontextmanager
async def crowd(
    served: Server, subscribers: int, seconds: float, stuck: int = 0, value: int = 0, grace: float = 60.0
) -> AsyncIterator[Seen]:
    """Subscribers that read and others that stop to; a connection more submits, two changes for each event."""
    events = round(seconds * CHANGES_PER_SECOND / 2)
    seen = Seen(events * 2)
    try:
        for number in range(subscribers):
            one = await client(served.port, SUBSCRIBE, small_buffers=number < stuck)
            (seen.stuck if number < stuck else seen.readers).append(one)
        for one in seen.stuck:
            one.transport.pause_reading()
        seen.source = await client(served.port, None)
        await run(served, seen, seen.source, events, "x" * value, grace)
        yield seen
    finally:
        for one in [*seen.readers, *seen.stuck, *filter(None, [seen.source])]:
            one.transport.abort()
        await asyncio.sleep(0.01)


async def run(served: Server, seen: Seen, source: Client, events: int, text: str, grace: float) -> None:
    """Submit on schedule, and wait until all have seen it all."""
    seen.kept_before, readers = served.kept(), seen.readers
    cpu, own_cpu, waited, start = served.cpu(), time.process_time(), served.waited(), time.monotonic()
    for number in range(events):
        await asyncio.sleep(max(0.0, start + number * 2 / CHANGES_PER_SECOND - time.monotonic()))
        body = json.dumps({"event": f"event {number}", "value": text})
        source.send(f"SEND\ndestination:/app/gates/a\nreceipt:{number}\n\n{body}\0".encode())
        seen.kept_most = max(seen.kept_most, served.kept())
    end = time.monotonic() + grace
    while any(len(reader.clocks) < seen.changes for reader in readers) and time.monotonic() < end:
        await asyncio.sleep(0.02)
        if any(reader.ended.done() for reader in readers):
            break
    seen.seconds = time.monotonic() - start
    seen.cpu, seen.own_cpu = served.cpu() - cpu, time.process_time() - own_cpu
    seen.waited = served.waited() - waited
    seen.kept_most = max(seen.kept_most, served.kept())


# -- probes ---------------------------------------------------------------------------------------------------


def look(effort: Effort, stuck: int, value: int, **order: Any) -> Seen:
    seconds = 2.0 if effort.quick else 10.0

    async def main(served: Server) -> Seen:
        async with crowd(served, SUBSCRIBERS, seconds, stuck, value) as seen:
            return seen

    with server(**order) as served:
        seen = asyncio.run(main(served))
    if seen.complete < len(seen.readers):
        raise NotMeasured(
            f"{len(seen.readers) - seen.complete} subscribers have not seen every clock value in order"
        )
    return seen


@in_own_process()
def fan_out(effort: Effort) -> Findings:
    seen = look(effort, 0, 0)
    late = [one for reader in seen.readers for one in reader.late]
    each = seen.cpu * 1e6 / (len(seen.readers) * seen.changes)
    note = (
        f"every one of {len(seen.readers)} saw all {seen.changes} in order; median "
        f"{statistics.median(late) * 1e3:.1f} ms, latest {max(late) * 1e3:.0f} ms; "
        f"in {seen.seconds:.1f} s the server ran {seen.cpu:.1f} s ({each:.0f} us a message) and waited "
        f"{seen.waited:.1f} s for a core; its clients ran {seen.own_cpu:.1f} s"
    )
    return Findings({"stomp-late": Reading(seen.late_p99() * 1e3, note=note)})


@in_own_process()
def not_reading(effort: Effort) -> Findings:
    limit = 256 * 1024
    seen = look(effort, STUCK, 4000, small_buffers=True, options={"max_unsent": limit})
    grown = (seen.kept_most - seen.kept_before) / MIB
    note = f"{seen.changes} changes of 4 kB; max_unsent {limit // 1024} KiB; the others saw all, in order"
    return Findings(
        {"stomp-kept": Reading(grown, note=note), "stomp-late-stuck": Reading(seen.late_p99() * 1e3)}
    )


SECTION = Section(
    "stomp",
    "Gates over STOMP",
    (
        Figure(
            "stomp-late",
            f"{SUBSCRIBERS} subscribers, {CHANGES_PER_SECOND} changes/s: how late, p99",
            fan_out,
            "<=",
            250,
            "ms",
        ),
        Figure(
            "stomp-kept",
            f"the same, {STUCK} of them do not read: what the server grows by",
            not_reading,
            "<=",
            32,
            "MiB",
        ),
        Figure("stomp-late-stuck", "the same: how late for the others, p99", not_reading, "<=", 250, "ms"),
    ),
)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
