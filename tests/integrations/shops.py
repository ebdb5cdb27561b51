"""An application of a task queue in a folder, its workers, and what its tasks noted.

A task notes when its body begins, by a clock that headway does not use, which process it was in and how many tries or
retries its queue has counted.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.redis.programs import Program

from waiting import NEVER

NOTE = """
import os, time

def note(what, count=0):
    with open({notes!r}, "a") as notes:
        notes.write(f"{{time.monotonic_ns()}} {{os.getpid()}} {{what}} {{count}}\\n")

URL = {url!r}
engine = dict(engine=URL, engine_timeout=10)
"""


class Note(NamedTuple):
    at: float
    process: int
    what: str
    counted: int


class Shop:
    """`code` is the module `shop`; it may use `note`, `URL` and `engine`."""

    def __init__(self, folder: Path, url: str, code: str) -> None:
        self.folder = folder
        self.url = url
        self._notes = folder / "notes"
        (folder / "shop.py").write_text(NOTE.format(url=url, notes=str(self._notes)) + code)
        self.workers: list[Program] = []

    def work(self, *command: str, **environment: str) -> Program:
        self.workers.append(Program(command, self.folder, PYTHONPATH=str(self.folder), **environment))
        return self.workers[-1]

    def send(self, code: str) -> None:
        """Run lines as a program that imports the shop."""
        command = [sys.executable, "-c", f"from shop import *\n{code}"]
        subprocess.run(command, cwd=self.folder, check=True, timeout=2 * NEVER)

    def notes(self, prefix: str = "") -> list[Note]:
        if not self._notes.exists():
            return []
        rows = [line.split() for line in self._notes.read_text().splitlines()]
        found = (Note(int(ns) / 1e9, int(process), what, int(count)) for ns, process, what, count in rows)
        return sorted(note for note in found if note.what.startswith(prefix))

    def wait_for(self, number: int, prefix: str = "") -> list[Note]:
        self.workers[-1].wait_until(
            lambda: len(self.notes(prefix)) >= number, f"{number} of {prefix or 'all'}", within=2 * NEVER
        )
        return self.notes(prefix)

    def log(self) -> str:
        return "".join(worker.log for worker in self.workers)

    def end(self) -> None:
        """At once: what tasks left to do is known by now, and a worker takes seconds to end by itself."""
        for worker in self.workers:
            worker.kill()


def excess(times: list[float], rate: float, burst: int, late: float) -> float:
    """By how many permits a stretch had more than `burst + rate * (d + late)`, at most."""
    times = sorted(times)
    return max(
        j - i + 1 - (burst + rate * (times[j] - times[i] + late))
        for i in range(len(times))
        for j in range(i, len(times))
    )
