"""Starts the API's process, and talks to it over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.lab.demo.api import Report

if TYPE_CHECKING:
    from types import TracebackType

    from headway import Window


class ApiProcess:
    """An API in a process of its own, until the end of the `with` block or of this process."""

    def __init__(self, limit: Window, latency_ns: int, seed: int) -> None:
        numbers = [limit.count, limit.per_ns, latency_ns, seed]
        # -P: a random.py in the current folder must not be imported. A session of its own: Ctrl-C reaches only this
        # process, which ends the API.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headway.lab.demo.api", *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._port: int | None = None

    @property
    def port(self) -> int:
        """Where it listens; waits until it does."""
        if self._port is None:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if not line:
                raise ConnectionError("the simulated API did not start")
            self._port = int(line)
        return self._port

    def __enter__(self) -> ApiProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # closes the pipes and waits for it
            self._process.kill()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    retry_after: float
    body: bytes


class Connection:
    """One HTTP connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def get(self, path: str = "/") -> Answer:
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            body = await self._reader.readexactly(int(headers["Content-Length"]))
        except (asyncio.IncompleteReadError, OSError):
            raise ConnectionError("the simulated API went away") from None
        return Answer(int(first.split()[1]), float(headers.get("Retry-After", 0)), body)

    async def report(self) -> Report:
        return Report(**json.loads((await self.get("/report")).body))

    def close(self) -> None:
        self._writer.close()
