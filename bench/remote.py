"""The `http://` engine: what four client processes decide through one server, with tokens at hand and without.

One `headway serve` on a private server of Redis. Each process decides as fast as it can, with `prefetch=True` and
without by turns; without, every decision is a command to the server, which combines those that come together.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator

from bench.alone import ROOT, in_own_process
from bench.crew import answers, crew, start
from bench.figure import Effort, Figure, Findings, NotMeasured, Section
from bench.prefetch import middle
from bench.server import private_server

PROCESSES = 4


@contextlib.contextmanager
def service(engine: str) -> Iterator[str]:
    """`headway serve` on this engine, as a process; its URL."""
    command = [sys.executable, "-m", "headway.cli", "serve", "--port", "0", "--engine", engine]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            for line in server.stdout:
                if found := re.search(r"http://[\w.]+:\d+", line):
                    yield found[0]
                    return
            raise NotMeasured("the server did not start")
        finally:
            server.kill()


@in_own_process()
def processes(effort: Effort) -> Findings:
    rounds, seconds = (1, 1.0) if effort.quick else (3, 2.0)
    with private_server() as url, service(url) as http:
        order = {"what": "hurry", "url": http, "seconds": seconds, "rounds": rounds}
        with crew("bench.prefetch", order, PROCESSES) as workers:
            start(workers)
            said = answers(workers)
    sums = [
        [sum(worker[turn][side][0] for worker in said) / seconds for side in (0, 1)] for turn in range(rounds)
    ]
    many, few = (statistics.median(column) for column in zip(*sums, strict=True))
    note = f"{many:,.0f} decisions/s with, {few:,.0f} without"
    return Findings({"remote-prefetch": middle([with_ / plain for with_, plain in sums], note)})


SECTION = Section(
    "remote",
    "Through a service (`http://`)",
    (
        Figure(
            "remote-prefetch",
            f"{PROCESSES} processes through one `headway serve`, decisions with `prefetch` over without",
            processes,
            ">=",
            50,
            "x",
        ),
    ),
)
