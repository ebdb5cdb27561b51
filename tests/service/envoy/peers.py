"""Programs of others that are built from source, and are compared with or asked for an opinion.

They are looked for in build/peers, where CI installs them, in the directory that HEADWAY_PEERS names, and on PATH.
Where one is not found its tests are skipped, with the line that installs it as the reason.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from waiting import NEVER

PEERS = Path(__file__).parents[3] / "build" / "peers"
RATELIMIT = "v1.4.1-0.20260122083618-3fb702589d36"
GO_INSTALL = "GOBIN=$PWD/build/peers go install github.com"
INSTALL = {
    "h2spec": f"{GO_INSTALL}/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible",
    "ratelimit": f"{GO_INSTALL}/envoyproxy/ratelimit/src/service_cmd@{RATELIMIT}, and apt-get install redis-server",
}


def find_peer(*names):
    """The path of a program, under one of these names, or None."""
    places = [str(PEERS), os.environ.get("HEADWAY_PEERS", ""), os.environ.get("PATH", os.defpath)]
    for name in names:
        found = shutil.which(name, path=os.pathsep.join(filter(None, places)))
        if found:
            return found
    return None


H2SPEC = find_peer("h2spec")
ENVOYS_OWN = find_peer("ratelimit", "service_cmd") if shutil.which("redis-server") else None
"""envoyproxy/ratelimit; `go install` calls it by the name of its folder."""


def needs_peer(found, name):
    """Mark a test that runs such a program; the skip says how to get it."""
    return pytest.mark.skipif(found is None, reason=f"needs {name}: {INSTALL[name]}")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for_port(port, process):
    deadline = time.monotonic() + NEVER
    while True:
        assert process.poll() is None, "it has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < deadline, "it does not listen"
        time.sleep(0.02)


@contextlib.contextmanager
def running(command, port, **environment):
    """A program that listens, until the block ends."""
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, **environment}, **quiet)
    try:
        wait_for_port(port, process)
        yield process
    finally:
        process.terminate()
        process.wait(NEVER)


@contextlib.contextmanager
def envoys_own(folder: Path, texts):
    """envoyproxy/ratelimit with these files, on a Redis of its own: the port of gRPC."""
    config = folder / "runtime" / "ratelimit" / "config"
    config.mkdir(parents=True)
    for name, text in texts.items():
        (config / name).write_text(text)
    redis, grpc, http, debug = (free_port() for _ in range(4))
    arguments = f"--bind 127.0.0.1 --port {redis} --appendonly no --dir {folder}".split()
    with (
        running(["redis-server", *arguments, "--save", ""], redis),
        running(
            [ENVOYS_OWN],
            grpc,
            RUNTIME_ROOT=str(folder / "runtime"),
            RUNTIME_SUBDIRECTORY="ratelimit",
            RUNTIME_WATCH_ROOT="false",
            USE_STATSD="false",
            LOG_LEVEL="error",
            BACKEND_TYPE="redis",
            REDIS_SOCKET_TYPE="tcp",
            REDIS_URL=f"127.0.0.1:{redis}",
            HOST="127.0.0.1",
            PORT=str(http),
            GRPC_HOST="127.0.0.1",
            GRPC_PORT=str(grpc),
            DEBUG_HOST="127.0.0.1",
            DEBUG_PORT=str(debug),
        ),
    ):
        yield grpc
