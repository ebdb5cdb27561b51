"""Workers: processes that say when they are ready, start when they are told to, and answer in one line of JSON.

A module with workers is run as `python -m MODULE ORDER`. Such a worker calls `wait_for_start` when it is set up, and
`answer` at its end.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.alone import ROOT
from bench.figure import NotMeasured

Worker = subprocess.Popen[str]


@contextlib.contextmanager
def crew(module: str, order: Mapping[str, Any], processes: int) -> Iterator[list[Worker]]:
    """So many workers with the same order, all of them ready; they are ended (by their ids) at the end."""
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(processes):
            command = [sys.executable, "-m", module, json.dumps(order)]
            pipe = subprocess.PIPE
            worker = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            workers.append(worker)
        if not all(worker.stdout and worker.stdout.readline() == "ready\n" for worker in workers):
            raise NotMeasured("a worker did not start")
        yield workers


def start(workers: Sequence[Worker]) -> None:
    """Let all of them begin."""
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()


def answers(workers: Sequence[Worker]) -> list[Any]:
    """What each of them found; waits for all."""
    found = []
    for worker in workers:
        assert worker.stdout
        said = worker.stdout.readline()
        if not said:
            raise NotMeasured("a worker did not come to its end")
        found.append(json.loads(said))
    return found


def wait_for_start() -> None:
    """In a worker: all is set up."""
    print("ready", flush=True)
    sys.stdin.readline()


def answer(found: object) -> None:
    """In a worker: what it found."""
    print(json.dumps(found), flush=True)
