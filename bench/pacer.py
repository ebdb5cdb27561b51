"""The pacer: what a call costs, what threads lose to each other, and whether it holds its rate while it sleeps."""

from __future__ import annotations

import threading
import time

import headway
from bench.alone import in_own_process
from bench.crowd import asleep, one_and_many
from bench.figure import Effort, Figure, Findings, Reading, Section
from bench.timing import Side, clock_side, ratio, spread, take_turns

CROWD = 32
THREADS = 8
BUSIEST = 10_000
"""Of the rates at which the CPU has a bar."""
RATES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


def side(rate: float, statement: str = "f()") -> Side:
    pacer = headway.Pacer(rate)
    time.sleep(0.01)
    return Side(statement, {"f": pacer.acquire}, granted=pacer.try_acquire)


def single(effort: Effort) -> Findings:
    rounds = take_turns([side(1e9), clock_side()], effort)
    calls = ratio(rounds, 1, 0)
    return Findings({"pacer": Reading(calls.value, calls.low, calls.high, ratio(rounds).ns)})


def bulk(effort: Effort) -> Findings:
    rounds = take_turns([side(1e12, "f(ops=1000)"), side(1e12)], effort)
    return Findings({"pacer-bulk": ratio(rounds)})


@in_own_process()
def parallel(effort: Effort) -> Findings:
    _, rounds = one_and_many(lambda: headway.Pacer(1e9).acquire, CROWD, effort)
    return Findings({"pacer-threads": spread([one / many for one, many in rounds])})


def hold(rate: int, seconds: float) -> tuple[float, float, float, str]:
    """Share of the rate that 8 blocked threads achieve, how many operations it is off, CPU, and what happened."""
    pacer = headway.Pacer(rate, ratio=1.1)
    counts = [0] * THREADS
    over = False

    def work(number: int) -> None:
        f = pacer.acquire
        while not over:
            f()
            counts[number] += 1

    crowd = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in crowd:
        thread.start()
    start, cpu, before = time.perf_counter(), time.process_time(), sum(counts)
    time.sleep(seconds)
    done, end, cpu = sum(counts) - before, time.perf_counter(), time.process_time() - cpu
    over = True
    if rate >= THREADS * 10:  # slower ones would be waited for; they are daemons and harmless
        for thread in crowd:
            thread.join()
    elapsed = end - start
    return done / elapsed / rate, abs(done - elapsed * rate), cpu / elapsed, f"{done} in {elapsed:.4f} s"


# In a process of its own: the CPU time is that of all of a process's threads.
@in_own_process()
def holding(effort: Effort) -> Findings:
    found = Findings()
    for rate in RATES:
        share, off, cpu, note = hold(rate, max(effort.seconds, 1.0))
        # Within 0.1 % or one operation, whichever is more.
        error = 0.0 if off <= 1 else abs(share - 1)
        found.readings[f"pacer-{rate}"] = Reading(error, note=f"{note}, {share:.5f} of the rate")
        found.readings[f"pacer-{rate}-cpu"] = Reading(cpu)
    found.readings["pacer-floor"] = Reading(asleep(THREADS, BUSIEST, max(effort.seconds, 1.0)))
    return found


def figures() -> tuple[Figure, ...]:
    found = []
    for rate in RATES:
        title = f"{THREADS} threads blocked in `acquire()` at {rate:,}/s, ratio 1.1"
        found.append(Figure(f"pacer-{rate}", f"{title}: off the rate by", holding, "<=", 0.001, "%"))
        bar = 0.2 if rate <= BUSIEST else None
        found.append(Figure(f"pacer-{rate}-cpu", "the same: CPU, share of one core", holding, "<=", bar, "%"))
        if rate == BUSIEST:
            title = f"{THREADS} threads that only sleep, {rate:,} times a second in all: CPU"
            found.append(Figure("pacer-floor", title, holding, unit="%"))
    return tuple(found)


SECTION = Section(
    "pacer",
    "The pacer",
    (
        Figure(
            "pacer",
            "`acquire()`, 1e9/s: calls/s over those of `time.monotonic_ns()`",
            single,
            ">=",
            0.75,
            "x",
        ),
        Figure(
            "pacer-threads", f"{CROWD} threads on one pacer over 1 thread, calls/s", parallel, ">=", 0.8, "x"
        ),
        Figure("pacer-bulk", "`acquire(ops=1000)` over `acquire()`, 1e12/s", bulk, "<=", 1.3, "x"),
        *figures(),
    ),
)
