"""`headway serve` as a process of its own, as a user starts it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.service.serving import Client

from waiting import NEVER

HEADWAY = (sys.executable, "-m", "headway.cli")


class Process:
    """A server that has said that it is ready. `before` are the words of a command that runs it."""

    def __init__(self, *arguments, folder, env=None, before=()):
        self.child: Any = subprocess.Popen(
            [*before, *HEADWAY, "serve", "--port", "0", *arguments],
            cwd=folder,
            env={**os.environ, "XDG_STATE_HOME": str(folder), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._connections: list[socket.socket] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_for("/v1/acquire|--json|ended|headway: ")
        self.wait_for(r"status\?key=alice'")
        self.url = re.findall(r"https?://[\w.:\[\]]+:\d+", self.output)[0]
        self.client = Client(self.url.replace("https:", "http:"))
        self.file: Any = None

    def _read(self):
        for line in self.child.stdout:
            self.output += line

    def wait_for(self, pattern):
        """Wait until it has said so."""
        deadline = time.monotonic() + NEVER
        while not re.search(pattern, self.output):
            assert time.monotonic() < deadline, self.output
            assert self.child.poll() is None or re.search(pattern, self.output), self.output
            time.sleep(0.02)

    def acquire(self, limit, **body):
        return self.client.post("/v1/acquire", {"limit": limit, **body})

    def end(self, number=signal.SIGTERM):
        """Send a signal; the exit code."""
        self.child.send_signal(number)
        code = self.child.wait(NEVER)
        self.forget()
        return code

    def connect(self, text=""):
        """A connection on which this was sent; closed with the server at the latest."""
        connection = socket.create_connection((self.client.host, self.client.port), timeout=NEVER)
        self._connections.append(connection)
        connection.sendall(text.encode())
        return connection

    def forget(self):
        self._reader.join(NEVER)
        self.child.stdout.close()
        for connection in self._connections:
            connection.close()

    def memory(self):
        """Bytes that it has in memory."""
        text = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) * 1024


@contextmanager
def served(folder, text="", *arguments, env=None, before=()):
    """A server with this configuration."""
    file = folder / "served.toml"
    file.write_text(text)
    process = Process("--config", str(file), *arguments, folder=folder, env=env, before=before)
    process.file = file
    try:
        yield process
    finally:
        if process.child.poll() is None:
            process.end()
        process.forget()


def body(reply):
    return reply.body if isinstance(reply.body, dict) else json.loads(reply.body)
