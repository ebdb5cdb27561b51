"""Programs of frameworks (workers, servers) in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from conftest import find_program
from waiting import NEVER, wait_until


class Program:
    """A process of a framework, and those that it forks; they are a process group, which ends with the test."""

    def __init__(self, command, folder, **environment):
        guard = find_program("setpriv")
        name, *words = command
        path = find_program(name)
        assert path, f"no {name} here: pip install {name}"
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*([guard, "--pdeathsig", "KILL"] if guard else []), path, *words],
                cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def wait_until(self, holds, what, within=NEVER):
        """Wait until `holds()`; if it never does, what the program wrote is told."""
        try:
            wait_until(lambda: holds() or self.process.poll() is not None, what, within=within)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it wrote:\n{self.log}") from None
        assert holds(), f"it ended with {self.process.returncode} before {what}; it wrote:\n{self.log}"

    def kill(self):
        """End all of its processes at once: none of them can finish anything."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(NEVER)

    def end(self):
        """SIGTERM, on which it finishes what it does; a process that is left after that is killed."""
        self.process.terminate()
        try:
            self.process.wait(NEVER)
        finally:
            self.kill()
