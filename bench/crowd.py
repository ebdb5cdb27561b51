"""Many threads on one limiter: what they lose to each other, and what waiting costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import headway
from bench.alone import in_own_process
from bench.calls import HUGE_BUCKET
from bench.figure import Effort, Figure, Findings, Reading, Section
from bench.timing import spread

THREADS = 32
RATE = 1000


def seconds_for(f: Callable[[], object], calls: int, threads: int) -> float:
    """Wall time in which `threads` threads together make `calls` calls of `f`."""
    gate = threading.Barrier(threads + 1)

    def take() -> None:
        call = f
        gate.wait()
        for _ in range(calls // threads):
            call()

    crowd = [threading.Thread(target=take) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    start = time.perf_counter()
    gate.wait()
    for thread in crowd:
        thread.join()
    return time.perf_counter() - start


def one_and_many(
    make: Callable[[], Callable[[], object]], threads: int, effort: Effort
) -> tuple[int, list[tuple[float, float]]]:
    """Calls in a round, and the seconds of each round: by one thread and by many, each time on a fresh `make()`."""
    calls = 100_000
    while seconds_for(make(), calls, 1) < (0.05 if effort.quick else 0.2):
        calls *= 2
    rounds = range(5 if effort.quick else 15)
    return calls, [(seconds_for(make(), calls, 1), seconds_for(make(), calls, threads)) for _ in rounds]


@in_own_process()
def parallel(effort: Effort) -> Findings:
    decisions, rounds = one_and_many(lambda: headway.Limiter(HUGE_BUCKET).try_acquire, THREADS, effort)
    per_second = sorted(decisions / many for _, many in rounds)[len(rounds) // 2]
    note = f"{per_second / 1e6:.1f} million decisions/s in all"
    return Findings({"threads": spread([one / many for one, many in rounds], note=note)})


def asleep(threads: int, rate: float, seconds: float) -> float:
    """CPU, as a share of one core, of threads that only sleep and wake as often in all: what a machine takes for it."""
    over = False

    def nap(number: int) -> None:
        due = time.perf_counter() + number / rate
        while not over:
            due += threads / rate
            time.sleep(max(0.0, due - time.perf_counter()))

    crowd = [threading.Thread(target=nap, args=(number,)) for number in range(threads)]
    for thread in crowd:
        thread.start()
    start, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    over = True
    for thread in crowd:
        thread.join()
    return cpu / elapsed


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
            "blocked-floor": Reading(asleep(THREADS, RATE, min(effort.seconds, 1.0))),
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
        Figure("blocked-floor", "as many that only sleep, as often: CPU", blocked, unit="%"),
    ),
)
