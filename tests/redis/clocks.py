"""A wall clock that can be set, for a process of its own: a server's, or that of a client which is wrong.

No test may set the clock of the machine. So the process is started with a library (`clock.c`) that stands in for the
system's clock: whatever it does with the time, it does with this one, also what a test would not think of, as expiring
keys. Clocks that only measure (CLOCK_MONOTONIC) are the true ones.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def build_library(folder):
    """The library, made by the C compiler; None where there is none that works."""
    library = folder / "clock.so"
    try:
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE]
        subprocess.run(command, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return library


class WallClock:
    """Give its `environment` to a process that is started."""

    def __init__(self, library, file):
        file.write_bytes(bytes(24))
        with file.open("r+b") as opened:
            self._wanted = mmap.mmap(opened.fileno(), 24)
        self.environment = {"LD_PRELOAD": str(library), "HEADWAY_CLOCK": str(file)}

    def set(self, offset):
        """From now on it is off by so many seconds."""
        self._wanted[0:8] = struct.pack("d", offset * 1e6)

    def drift(self, ppm):
        """It is fast by so many parts in a million. Say so before its process starts: it is not one number."""
        self._wanted[8:24] = struct.pack("dd", ppm, time.time() * 1e6)

    def close(self):
        self._wanted.close()
