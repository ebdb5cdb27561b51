"""`headway try` as a person runs it, and as a machine without a terminal does."""

import asyncio
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests.conftest import needs_program
from tests.service.virtual import serving

from headway.cli.serve import tell
from headway.cli.try_service import show
from headway.lab.demo.service_traffic import CONFIG, Traffic
from headway.testing import run
from waiting import NEVER

TRY = [sys.executable, "-m", "headway.cli", "try"]


def environment(folder):
    return {**os.environ, "XDG_STATE_HOME": str(folder)}


class Terminal:
    """A command on a terminal of its own; `output` is what it has said so far."""

    def __init__(self, *command, env):
        self.output = ""
        own, other = pty.openpty()
        self.child = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env)
        os.close(other)
        self._own = own
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self._own, 65536)
            except OSError:
                break  # the other side is closed
            if not data:
                break
            self.output += data.decode(errors="replace").replace("\r\n", "\n")

    def wait_for(self, pattern):
        end = time.monotonic() + NEVER
        while not re.search(pattern, self.output):
            assert time.monotonic() < end, self.output
            assert self.child.poll() is None, self.output
            time.sleep(0.02)

    def interrupt(self):
        """Ctrl-C; the exit code."""
        self.child.send_signal(signal.SIGINT)
        return self.finish()

    def finish(self):
        code = self.child.wait(NEVER)
        self._reader.join(NEVER)
        os.close(self._own)
        return code


@pytest.mark.realtime
@pytest.mark.slow
@needs_program("curl", install="apt-get install curl")
def test_what_it_prints_works_as_printed_until_ctrl_c(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        terminal = Terminal(*TRY, "--port", str(port), env=environment(tmp_path))
        try:
            terminal.wait_for("Read next")
            said = terminal.output
            assert re.match(rf"headway: port {port}: Address already in use; using port \d+\n", said)
            lines = re.findall(r"^  (curl .*)$", said, re.MULTILINE)
            (url,) = re.findall(r"^Open (\S+)$", said, re.MULTILINE)
            assert len(lines) == 5
            for line in (*lines, f"curl -s {url}"):
                done = subprocess.run(
                    ["bash", "-c", f"{line} --fail-with-body"], capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, (line, done.stdout)
                assert (
                    "granted" in done.stdout
                    or "<title>headway" in done.stdout
                    or "done" in done.stdout
                    or ("accepted" in done.stdout)
                ), line
        finally:
            code = terminal.interrupt()
    assert code == 0
    assert terminal.output.endswith("headway: ended\n"), terminal.output[-700:]
    assert "Traceback" not in terminal.output


@pytest.mark.realtime
@pytest.mark.slow
def test_without_a_terminal_it_shows_figures_and_ends_by_itself(tmp_path):
    done = subprocess.run(
        [*TRY, "--port", "0"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=3 * NEVER,
        check=False,
    )
    assert done.returncode == 0
    # On a busy machine the engine may be said to be slow; nothing else is.
    assert [line for line in done.stderr.splitlines() if not line.startswith("engine embedded:")] == []
    figures = re.findall(r"^  api (\d+) granted, .*alarms [\d?]+ pending$", done.stdout, re.MULTILINE)
    assert len(figures) == 6
    assert int(figures[-1]) > 0
    assert done.stdout.endswith("headway: ended\n")


def test_the_traffic_is_gentle_and_shows_everything():
    """Ten minutes: permits that are granted, denied and waited for, events that are published and invalidated."""

    async def main():
        async with serving(CONFIG) as peer:
            traffic = Traffic(peer.service, seed=1)
            waited = 0
            for _ in range(600):
                await asyncio.sleep(1)
                waited += peer.service.limits.find("calls").waiting > 0
            api, calls = (peer.service.limits.find(name) for name in ("api", "calls"))
            assert min(api.granted, api.denied, calls.granted, waited) > 50
            assert api.granted + api.denied + calls.granted < 5 * 600
            changes = [change.status.name for change in peer.service.gates["alarms"].changes()]
            assert min(changes.count("PUBLISHED"), changes.count("INVALIDATED")) > 5
            # A person deletes what it uses: the clients go on.
            await peer.delete("/v1/limits/calls")
            await asyncio.sleep(30)
            assert not any(task.done() for task in traffic.tasks)
            peer.service.decider.end_waits()
            await asyncio.wait_for(asyncio.gather(*traffic.tasks), 10)
            assert len(peer.service.permits) == 0

    run(main())


def test_it_ends_when_what_reads_its_output_has_gone(monkeypatch):
    """As in `headway try | head`."""
    ended: list[int] = []

    def gone(*words, **options):
        raise BrokenPipeError

    monkeypatch.setattr("typer.echo", gone)
    monkeypatch.setattr(os, "kill", lambda process, number: ended.append(number))

    async def main():
        async with serving(CONFIG) as peer:
            await show(peer.service, 60)

    run(main())
    assert ended == [signal.SIGTERM]


def test_a_reload_is_told_also_where_nothing_reads_stderr(monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr(sys, "stderr", Gone())
    tell("headway.toml was read again")
