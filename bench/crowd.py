"""Many threads on one limiter: what they lose to each other, and what waiting costs."""

from __future__ import annotations

import threading
import time

import headway
from bench.alone import in_own_process
from bench.calls import HUGE_BUCKET
from bench.figure import Effort, Figure, Findings, Reading, Section
from bench.timing import spread

THREADS = 32
RATE = 1000


def seconds_for(decisions: int, threads: int) -> float:
    """Wall time in which `threads` threads together take `decisions` permits of one limiter."""
    limiter = headway.Limiter(HUGE_BUCKET)
    gate = threading.Barrier(threads + 1)

    def take() -> None:
        f = limiter.try_acquire
        gate.wait()
        for _ in range(decisions // threads):
            f()

    crowd = [threading.Thread(target=take) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    start = time.perf_counter()
    gate.wait()
    for thread in crowd:
        thread.join()
    return time.perf_counter() - start


@in_own_process()
def parallel(effort: Effort) -> Findings:
    decisions = 100_000
    while seconds_for(decisions, 1) < (0.05 if effort.quick else 0.2):
        decisions *= 2
    rounds = [
        (seconds_for(decisions, 1), seconds_for(decisions, THREADS)) for _ in range(5 if effort.quick else 15)
    ]
    per_second = sorted(decisions / many for _, many in rounds)[len(rounds) // 2]
    note = f"{per_second / 1e6:.1f} million decisions/s in all"
    return Findings({"threads": spread([one / many for one, many in rounds], note=note)})


@in_own_process(times=5)
def blocked(effort: Effort) -> Findings:
    limiter = headway.Limiter(f"{RATE}/s burst 1")
    grants = [0] * THREADS
    gate = threading.Barrier(THREADS + 1)
    over = threading.Event()

    def wait_in_line(number: int) -> None:
        gate.wait()
        while not over.is_set():
            limiter.acquire()
            grants[number] += 1

    crowd = [threading.Thread(target=wait_in_line, args=(number,)) for number in range(THREADS)]
    for thread in crowd:
        thread.start()
    gate.wait()
    start, cpu = time.perf_counter(), time.process_time()
    time.sleep(effort.seconds)
    granted = sum(grants)
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    over.set()
    for thread in crowd:
        thread.join()
    note = f"{granted} grants in {elapsed:.2f} s, fewest {min(grants)} and most {max(grants)} to a thread"
    return Findings(
        {
            "blocked-rate": Reading(granted / elapsed / RATE, note=note),
            "blocked-cpu": Reading(cpu / elapsed),
        }
    )


SECTION = Section(
    "crowd",
    "Many threads",
    (
        Figure(
            "threads",
            f"{THREADS} threads on one limiter over 1 thread, decisions/s",
            parallel,
            ">=",
            0.8,
            "x",
        ),
        Figure(
            "blocked-rate",
            f'{THREADS} threads blocked in `acquire()` on `"{RATE}/s burst 1"`: share of the rate achieved',
            blocked,
            ">=",
            0.99,
            "%",
        ),
        Figure("blocked-cpu", "the same threads: CPU, share of one core", blocked, "<=", 0.05, "%"),
    ),
)
