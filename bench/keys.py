"""A million keys: what they weigh while they live, and that they go when they idle.

Weighed as the growth of the process's resident memory, key strings and all, over the number of keys. Resident memory
counts what an allocator keeps for itself too, and memory that Python's own accounting does not see.

They idle on a manual clock. Then one other key is used again and again, and what is left of the million is counted.
"""

from __future__ import annotations

import gc
import os
import subprocess
import threading
from pathlib import Path

import headway
from bench.alone import in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section
from headway.testing import ManualClock

KEYS = 1_000_000
FURTHER_CALLS = 1_000_000
STATM, TASKS = Path("/proc/self/statm"), Path("/proc/self/task")


def resident_bytes() -> int:
    gc.collect()
    if STATM.exists():
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    kilobytes = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True)
    return int(kilobytes.stdout) * 1024


def threads() -> int:
    """Python's threads, and where the system tells, those that Python knows nothing of."""
    return max(threading.active_count(), len(list(TASKS.iterdir())) if TASKS.exists() else 0)


@in_own_process()
def million(effort: Effort) -> Findings:
    keys = KEYS // 4 if effort.quick else KEYS
    clock = ManualClock()
    limiter = headway.Limiter("10/hour burst 10", clock=clock)
    limiter.try_acquire("warm-up")
    before = resident_bytes()
    for number in range(keys):
        limiter.try_acquire(f"user:{number}")
    weight = (resident_bytes() - before) / keys
    live = limiter.stats().keys - 1
    if live != keys:
        raise NotMeasured(f"{keys:,} keys took a permit, {live:,} are remembered")

    clock.advance(3600)
    calls = 0
    while (kept := limiter.stats().keys - 1) > 0 and calls < FURTHER_CALLS:
        for _ in range(1000):
            limiter.try_acquire("asked again")
        calls += 1000
    if threads() > 1:
        raise NotMeasured("a thread was started")
    left = resident_bytes() - before
    note = f"after {calls:,} further calls, no thread started; {left / 1e6:.0f} MB of memory not given back"
    return Findings(
        {
            "key-bytes": Reading(
                weight, note=f"growth of resident memory with {keys:,} keys `user:N`, over their number"
            ),
            "keys-kept": Reading(max(0, kept), note=note),
        }
    )


SECTION = Section(
    "keys",
    "A million keys",
    (
        Figure("key-bytes", "1,000,000 live `Bucket` keys: bytes per key", million, "<=", 200, "B"),
        Figure("keys-kept", "idle keys kept after at most 1,000,000 further calls", million, "<=", 0, "keys"),
    ),
)
