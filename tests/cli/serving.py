"""`headway events serve` as a process of its own, on a free port."""

import os
import re
import signal
import subprocess
import sys
import threading

from typer.testing import CliRunner

from headway.cli.app import app
from waiting import NEVER, wait_until

HEADWAY = [sys.executable, "-m", "headway.cli"]
PLAIN = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}


def headway(*words, **options):
    """Run a command to its end."""
    return subprocess.run(
        [*HEADWAY, *words], capture_output=True, text=True, timeout=NEVER, check=False, env=PLAIN, **options
    )


class Process:
    """A command that goes on; its output is read while it runs."""

    def __init__(self, *words, program=tuple(HEADWAY), **environment):
        self.program = subprocess.Popen(
            [*program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=PLAIN | {"PYTHONUNBUFFERED": "1"} | environment,
        )
        self.said = self.complained = ""
        self._readers = [
            threading.Thread(target=self._read, args=("stdout", "said")),
            threading.Thread(target=self._read, args=("stderr", "complained")),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, into):
        source = getattr(self.program, stream)
        while part := os.read(source.fileno(), 1 << 16):
            setattr(self, into, getattr(self, into) + part.decode())
        source.close()

    def until(self, pattern, within=NEVER):
        """Wait until it has said something."""
        wait_until(
            lambda: re.search(pattern, self.said, re.DOTALL) or self.program.poll() is not None,
            pattern,
            within=within,
        )
        found = re.search(pattern, self.said, re.DOTALL)
        assert found, (pattern, self.said, self.complained)
        return found

    def end(self, how=signal.SIGINT):
        """Send a signal, and wait for the end; the exit code."""
        if self.program.poll() is None:
            self.program.send_signal(how)
        code = self.program.wait(NEVER)
        for reader in self._readers:
            reader.join(NEVER)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.program.poll() is None:
            self.end(signal.SIGKILL)


class Served(Process):
    """The server; `url` is where it is."""

    def __init__(self, *gates, engine="memory://", port=0, options=()):
        words = [word for gate in gates for word in ("--gate", gate)]
        super().__init__("events", "serve", *words, "--engine", str(engine), "--port", str(port), *options)

    def __enter__(self):
        self.url = self.until(r"(http://\S+)/v1/gates/")[1]
        self.until("curl .*\n")
        return self

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def submit(self, gate, event, *words, **options):
        """Submit, by the command in this process."""
        return CliRunner().invoke(
            app, ["events", "submit", gate, event, "--url", self.url, *words], **options
        )
