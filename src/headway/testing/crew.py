"""When may time jump? When no thread or task can do anything now.

For one thread that is easy: it sleeps, so nothing is awake, so time jumps to the end of its sleep. An event loop knows
its own ready tasks. Several threads are the hard case, because a clock cannot see whether a thread that is not asleep
on it is computing, is blocked in `queue.get()`, or will never use this clock at all. If time jumps too soon, an hour
passes for a thread while it adds two numbers. If time waits for every thread, `main`, blocked in `join()`, stops it for
ever. The rule:

1. A sleeper that has been woken (its time came, its bell was rung, its loop has something ready) is awake, even if it
   has not run yet. Time does not jump before it has.
2. A job in an executor of a `VirtualLoop` is waited for as long as it takes, unless it sleeps on the clock itself.
   One that has not begun is waited for too, as long as there can be a free worker (no other job sleeps); else see 3.
   But a job may itself wait for a thread that sleeps here (`join`, a lock). So while a thread does, a job in which
   nothing happens for PATIENCE of real time (1 s) counts as elsewhere.
3. Every other live thread is waited for until it sleeps, ends, or has let `grace` of real time (10 ms) pass in which
   nothing happened on the clock. Then it counts as *elsewhere*, and is not waited for again until it comes back. A
   thread that the system (Linux) reports as running is not blocked but slow, or on a busy machine: it gets PATIENCE.
4. A thread that sleeps here for the first time was started by another one, so all threads that were elsewhere get a new
   grace.

So one thread jumps at once, a set of threads that only sleep on the clock jumps as soon as the last one lies down, and
bystanders (`main` in `join()`, a watchdog) cost one grace, not one per jump. What the rule cannot see: a thread that
waits for a real answer for longer than the grace, or computes for a second. Raise `ManualClock.grace` for those.
"""

from __future__ import annotations

import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE = 0.001
"""How long, in real seconds, to wait before checking again, where no event reports a change."""


PATIENCE = 1.0
"""How long, in real seconds, to wait for a thread that is busy, perhaps for ever."""


class Job:
    """A call in an executor; `thread` is None before it runs, and where it runs in another process."""

    __slots__ = ("ended", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.ended = False


class Crew:
    """The threads that use one clock. It has no lock: the clock has one."""

    def __init__(self) -> None:
        self._asleep: dict[threading.Thread, Callable[[], bool]] = {}
        self._loops: set[threading.Thread] = set()
        self._seen: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._elsewhere: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._jobs: set[Job] = set()
        self._stirred = time.monotonic()

    def stir(self) -> None:
        """Something happened: a grace begins anew."""
        self._stirred = time.monotonic()

    def lie_down(self, is_called: Callable[[], bool], *, is_loop: bool = False) -> None:
        """The calling thread sleeps; `is_called` tells whether it has been woken and has not run yet."""
        me = threading.current_thread()
        if me not in self._seen:
            self._seen.add(me)
            self._elsewhere.clear()
        self._elsewhere.discard(me)
        self._asleep[me] = is_called
        if is_loop:
            self._loops.add(me)
        self.stir()

    def get_up(self) -> None:
        me = threading.current_thread()
        self._asleep.pop(me, None)
        self._loops.discard(me)
        self.stir()

    def begin(self, job: Job) -> None:
        self._jobs.add(job)
        if job.thread is not None:
            self._elsewhere.discard(job.thread)
        self.stir()

    def end(self, job: Job) -> None:
        self._jobs.discard(job)
        if job.thread is not None and all(job.thread is not other.thread for other in self._jobs):
            self._elsewhere.add(job.thread)  # an idle worker: no need for a grace to find that out
        self.stir()

    def others(self) -> set[threading.Thread]:
        """Live threads that neither sleep here nor are the calling one."""
        return set(threading.enumerate()) - self._asleep.keys() - {threading.current_thread()}

    def obstacle(self, grace: float, *, patient: bool = True) -> float:
        """Real seconds after which to check again; 0 when all are asleep. Without patience a job gets only a grace."""
        if any(is_called() for is_called in self._asleep.values()):
            return SLICE
        quiet = time.monotonic() - self._stirred
        awake = self.others()
        others = awake.difference(self._elsewhere)
        workers = {job.thread for job in self._jobs}
        if patient and self._jobs_hold(workers, awake, others, quiet):
            return SLICE
        if (others or None in workers) and quiet < grace:
            return min(grace - quiet, SLICE)
        if quiet < PATIENCE and any(map(_is_running, others)):
            return SLICE
        self._elsewhere.update(others)
        return 0.0

    def _jobs_hold(
        self,
        workers: set[threading.Thread | None],
        awake: set[threading.Thread],
        others: set[threading.Thread],
        quiet: float,
    ) -> bool:
        if self._asleep.keys() <= self._loops:  # no thread sleeps, so there is none that a job could wait for
            return bool(workers & awake) or None in workers
        stands = workers & others or (None in workers and workers.isdisjoint(self._asleep))
        return bool(stands) and quiet < PATIENCE


def _is_running(thread: threading.Thread) -> bool:
    """Whether a thread is about to start or is runnable, as far as the system reports it."""
    if thread.native_id is None:
        return True
    try:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_bytes()
    except OSError:  # not Linux, or it has just ended
        return False
    return stat.rpartition(b") ")[2][:1] in (b"R", b"D")
