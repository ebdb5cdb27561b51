"""Celery with a limit: 4 workers, 1,000 tasks under "50/s burst 1", and 200 other tasks between them.

Broker, results and ledgers are on one embedded server (Valkey). Every task notes when its body begins, by a clock that
headway does not use. Three things have to hold:

- at use, no stretch of time `d` sees a whole task more than `burst + rate * d`;
- other tasks are not delayed: their delay is compared with that of the same tasks when nothing is limited, in a run
  before and a run after (so the speed of the machine cancels), and with that of a run in which limited tasks wait in
  their worker, as they do with `limiter.acquire()`;
- no retry is used.

Beside it is noted how often limited tasks were in a pool process: once each, unless a task lost its slot because the
machine was too busy to begin it in time.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.alone import ROOT, in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section

RATE, BURST = 50, 1
WORKERS = 4
TASKS = 1000
OTHERS_IN = 5
PATIENCE = 30

APP = """
import os, time
from celery import Celery
from celery.signals import task_prerun
from headway.integrations.celery import limited

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.worker_prefetch_multiplier = 4

def note(*facts):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(" ".join(map(str, (time.monotonic_ns(), *facts))) + "\\n")

@task_prerun.connect
def begin(sender, **_):
    if sender.name == "send":
        note("pass", 1, 0)

def send(self, sent):
    note("send", sent, self.request.retries)

if os.environ["LIMIT"]:
    wait = float(os.environ["WAIT"])
    send = limited(os.environ["LIMIT"], name="partner", engine=os.environ["BROKER"], engine_timeout=10, wait=wait)(send)
send = app.task(bind=True, max_retries=0, name="send", ignore_result=True)(send)

@app.task(name="other", ignore_result=True)
def other(sent):
    note("other", sent, 0)
"""

SEND = """
import time
from shop import send, other
for number in range({tasks}):
    send.delay(time.monotonic_ns())
    if number % {others} == {others} - 1:
        other.delay(time.monotonic_ns())
"""


class Note(NamedTuple):
    at: float
    what: str
    delay: float
    retries: int


@contextlib.contextmanager
def workers(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "shop",
        "worker",
        "--concurrency",
        "2",
        "--loglevel",
        "ERROR",
    ]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with contextlib.ExitStack() as stack:
        for number in range(WORKERS):
            process = subprocess.Popen(
                [*command, *quiet, "-n", f"worker{number}@bench"],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.terminate)
        yield


def run(limit: str, tasks: int, wait: float = 0) -> list[Note]:
    """All tasks, sent at once to workers that are there."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from tests.redis.servers import Server

    with Server("valkey") as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "shop.py").write_text(APP)
        notes = folder / "notes"
        notes.touch()
        environment = {
            **os.environ,
            "BROKER": server.url,
            "NOTES": str(notes),
            "LIMIT": limit,
            "WAIT": str(wait),
        }

        def program(code: str) -> None:
            subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)

        with workers(folder, environment):
            program("from shop import other\nfor _ in range(8): other.delay(0)")
            wait_for(notes, 8)
            program(SEND.format(tasks=tasks, others=OTHERS_IN))
            wait_for(notes, 8 + tasks + tasks // OTHERS_IN)
        rows = [line.split() for line in notes.read_text().splitlines()]
    found = [(int(at), what, int(sent), int(retries)) for at, what, sent, retries in rows]
    return sorted(
        Note(at / 1e9, what, (at - sent) / 1e9, retries) for at, what, sent, retries in found if sent
    )


def wait_for(notes: Path, number: int) -> None:
    end = time.monotonic() + 300
    while (ran := sum(" pass " not in line for line in notes.read_text().splitlines())) < number:
        if time.monotonic() > end:
            raise NotMeasured(f"{ran} of {number} tasks ran in 300 s")
        time.sleep(0.1)


def excess(times: list[float]) -> float:
    """The most by which any stretch was above `burst + rate * d`, in tasks."""
    span = 4 * RATE
    return max(
        later - first + 1 - (BURST + RATE * (times[later] - times[first]))
        for first in range(len(times))
        for later in range(first, min(first + span, len(times)))
    )


def steady_rate(times: list[float]) -> float:
    """Tasks in a second, in the second half of the run."""
    half = times[len(times) // 2 :]
    return (len(half) - 1) / (half[-1] - half[0])


@in_own_process()
def celery(effort: Effort) -> Findings:
    tasks = 200 if effort.quick else TASKS
    limit = f"{RATE}/s burst {BURST}"
    before, limited, after = run("", tasks), run(limit, tasks), run("", tasks)
    waiting = run(limit, tasks, wait=PATIENCE)
    sent = [note for note in limited if note.what == "send"]
    passes = sum(note.what == "pass" for note in limited)
    times = [note.at for note in sent]
    delay, in_worker, base = (
        statistics.median(note.delay for note in notes if note.what == "other")
        for notes in (limited, waiting, before + after)
    )
    found = Findings()
    found.readings["excess"] = Reading(
        max(0, int(excess(times))),
        note=f"{len(sent)} tasks in {times[-1] - times[0]:.1f} s, {steady_rate(times):.1f}/s in the second half; "
        f"at most {excess(times):.2f} of a task above; {passes / len(sent):.2f} passes of the pool for each",
    )
    longest, longest_base = (
        max(note.delay for note in notes if note.what == "other") for notes in (limited, before + after)
    )
    found.readings["others"] = Reading(
        delay / in_worker,
        note=f"median {delay:.3f} s from being sent to the body; {in_worker:.2f} s if limited tasks wait in a worker",
    )
    found.readings["others-free"] = Reading(
        delay / base,
        note=f"median {delay * 1e3:.1f} ms (longest {longest * 1e3:.0f}), and {base * 1e3:.1f} ms (longest "
        f"{longest_base * 1e3:.0f}) if nothing is limited",
    )
    found.readings["retries"] = Reading(sum(note.retries for note in sent))
    return found


LIMITED = f'Celery, 4 workers, 1,000 tasks under "{RATE}/s burst {BURST}"'

SECTION = Section(
    "celery",
    "Task queues",
    (
        Figure("excess", f"{LIMITED}: whole tasks above burst + rate * d, at use", celery, "<=", 0, "count"),
        Figure(
            "others",
            f"{LIMITED}: delay of 200 other tasks, over waiting in the worker",
            celery,
            "<=",
            0.1,
            "x",
        ),
        Figure("others-free", f"{LIMITED}: delay of 200 other tasks, over no limit", celery, "<=", 2, "x"),
        Figure("retries", f"{LIMITED}: retries used", celery, "<=", 0, "count"),
    ),
)
