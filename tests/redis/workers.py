# mypy: disable-error-code="arg-type, union-attr"
"""Other processes that use a limiter, and the audit of what they used.

A worker is a short script in a process of its own. It gets `make(limit, **options)`, which makes the limiter that all
of a crew share; `use()`, which writes down the time of a use; and `say(...)`, a line for the test to read. The time is
that of CLOCK_MONOTONIC, which is one clock for all processes of a machine, and has nothing to do with the clocks that
the limiter goes by: so the audit trusts no client. `use(permit)` also writes down before when it cannot have been
granted: what counts at the grant is used a moment later, and how long that is depends on how busy the machine is.
"""

from __future__ import annotations

import bisect
import contextlib
import inspect
import itertools
import os
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from conftest import find_program
from waiting import NEVER

TOLD = "\x1e"


def age_of(permit):
    """For how many seconds a permit was there to be used, at most: since just before its slot, or before it was asked
    for."""
    acquire = permit._decision
    registry = acquire.ledger.registry
    return (registry.clock.now() - acquire.expires + acquire.ledger.allowance_ns) / 1e9


def spent(permit):
    """Now; or when a permit could be spent last, if that was before: its holder may have been held up since."""
    acquire = permit._decision
    return time.monotonic() - max(0, acquire.ledger.registry.clock.now() - acquire.expires) / 1e9


class Use(float):
    """The time of a use; and before when it cannot have been granted."""

    asked: float

    def __new__(cls, used, asked):
        use = super().__new__(cls, used)
        use.asked = asked
        return use

    @classmethod
    def of(cls, permit):
        """Now, or when it could be spent last."""
        return cls(spent(permit), time.monotonic() - age_of(permit))


PRELUDE = """
import asyncio, os, signal, struct, sys, threading, time
{age_of}
{spent}
import headway
from headway import *
from headway.errors import EngineUnavailable, PermitExpired

_audit = os.open({audit!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def use(permit=None):
    now = spent(permit) if permit else time.monotonic()
    os.write(_audit, struct.pack("<dd", now, now - (age_of(permit) if permit else 0)))

say = lambda *words: (sys.stdout.write({told!r} + " ".join(map(str, words)) + "\\n"), sys.stdout.flush())

def make(limit, **options):
    return Limiter(limit, **{{"name": {name!r}, "engine": {url!r}, "engine_timeout": 2, **options}})

"""


class Worker:
    """A process that runs a script, with a wall clock of its own if it is given one (`clocks.py`)."""

    def __init__(self, script, *, warnings="error", clock=None):
        guard = find_program("setpriv")
        command = [guard, "--pdeathsig", "KILL"] if guard else []
        command += [sys.executable, "-W", warnings, "-c", script]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=None if clock is None else {**os.environ, **clock.environment},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self):
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")  # its end

    def _read_errors(self):
        self._errors.extend(self.process.stderr)

    @property
    def errors(self):
        return "".join(self._errors)

    def hear(self, within=NEVER):
        """The next thing that it says."""
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            raise TimeoutError(f"a worker said nothing for {within} s; it wrote:\n{self.errors}") from None
        if not line:
            self._readers[1].join(NEVER)
            raise ChildProcessError(f"a worker ended; it wrote:\n{self.errors}")
        return line.lstrip(TOLD)

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def cont(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait(NEVER)

    def join(self, within=NEVER):
        """Wait for its end; what it wrote to stderr."""
        self.process.wait(within)
        for reader in self._readers:
            reader.join(NEVER)
        assert self.process.returncode == 0, self.errors
        return self.errors

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(NEVER)
        for reader in self._readers:
            reader.join(NEVER)
        self.process.stdout.close()
        self.process.stderr.close()


class Crew:
    """Workers that share a limiter, and what they used."""

    _numbers = itertools.count()

    def __init__(self):
        handle, self.audit = tempfile.mkstemp(prefix="headway-audit-")
        os.close(handle)
        self.name = f"crew{os.getpid()}-{next(self._numbers)}"
        self.workers: list[Worker] = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for worker in self.workers:
            worker.close()
        Path(self.audit).unlink()

    def start(self, url, script, *, warnings="error", clock=None):
        """A worker; when this returns it runs, but may not have said or done anything yet."""
        names = {"audit": self.audit, "name": self.name, "url": url, "told": TOLD}
        prelude = PRELUDE.format(**names, age_of=inspect.getsource(age_of), spent=inspect.getsource(spent))
        worker = Worker(prelude + script, warnings=warnings, clock=clock)
        self.workers.append(worker)
        return worker

    def uses(self):
        """The times of all uses so far, in seconds, sorted."""
        data = Path(self.audit).read_bytes()
        return sorted(Use(used, asked) for used, asked in struct.iter_unpack("<dd", data))


def most_in_any(window, times):
    """The most uses in any window of that many seconds, wherever it starts (it ends before its end)."""
    return max((bisect.bisect_left(times, begin + window) - i for i, begin in enumerate(times)), default=0)


def most_for_certain(window, uses):
    """The most that were both granted and used in any window of that many seconds."""
    return max(
        (
            sum(begin <= use.asked and use < begin + window for use in uses)
            for begin in [u.asked for u in uses]
        ),
        default=0,
    )


def longest_silence(times):
    """The longest time without any use, in seconds, and when it began."""
    return max(
        ((later - earlier, earlier) for earlier, later in itertools.pairwise(times)), default=(0.0, 0.0)
    )
