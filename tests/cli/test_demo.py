"""`headway demo` as a person runs it: in a process of its own, on a real clock."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.lab.demo.token_bucket import TokenBucket
from waiting import NEVER

pytestmark = pytest.mark.realtime

DEMO = [sys.executable, "-m", "headway.cli", "demo"]
SEEDS = count(os.getpid() * 1000)  # names the API processes of one test


def apis(seed):
    """The ids of the running API processes that were started with this seed."""
    if Path("/proc/self/cmdline").exists():
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            found.append(" ".join([folder.name, *(word.decode(errors="replace") for word in words)]))
    else:
        found = subprocess.run(
            ["ps", "-A", "-o", "pid=,args="], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in found
        if "headway.lab.demo.api" in line and line.strip().endswith(f" {seed}")
    ]


def wait_for(number, seed, seconds=NEVER):
    """Whether so many API processes are running before the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if len(apis(seed)) == number:
            return True
        time.sleep(0.02)
    return False


def figures(output, label):
    """The two cells of a row of the final table."""
    (row,) = re.findall(rf"^\W*{re.escape(label)}\W+(\S.*)$", output, re.MULTILINE)
    return [float(number) for number in re.findall(r"[\d.]+", row)]


def test_headway_has_no_violation_and_the_token_bucket_has():
    seed = next(SEEDS)
    result = subprocess.run(
        [*DEMO, "--seconds", "2", "--seed", str(seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    ours, plain = figures(result.stdout, "violations")
    assert (ours, plain > 0) == (0, True)
    ours, plain = figures(result.stdout, "refused (429)")
    assert (ours, plain > 0) == (0, True)
    ours, plain = figures(result.stdout, "most in any 1 s")
    assert ours <= 20 < plain
    assert "\x1b" not in result.stdout
    assert apis(seed) == []


def test_a_violation_of_headway_is_an_exit_code(monkeypatch):
    monkeypatch.setattr("headway.cli.demo.throttle", lambda limit: TokenBucket(20, 20).throttle)
    result = CliRunner().invoke(app, ["demo", "--seconds", "1", "--seed", "1"])
    assert result.exit_code == 1, result.output


@pytest.mark.parametrize("after", [0.0, 0.7], ids=["while it starts", "while it runs"])
def test_ctrl_c_ends_it_cleanly(after):
    seed = next(SEEDS)
    with subprocess.Popen(
        [*DEMO, "--seed", str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "workers" in process.stdout.readline()
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=NEVER)
    assert process.returncode == 130, errors
    assert errors == ""
    assert apis(seed) == []


def test_the_apis_end_when_the_demo_is_killed():
    seed = next(SEEDS)
    with subprocess.Popen([*DEMO, "--seed", str(seed)], stdout=subprocess.DEVNULL) as process:
        assert wait_for(2, seed)
        process.kill()
    assert wait_for(0, seed)


def test_an_api_that_goes_away_is_an_error_in_words():
    seed = next(SEEDS)
    with subprocess.Popen(
        [*DEMO, "--seed", str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while "answered" not in process.stdout.readline():
            assert process.poll() is None
        os.kill(apis(seed)[0], signal.SIGKILL)
        output, errors = process.communicate(timeout=NEVER)
    assert process.returncode == 1
    # The log may say before that calls wait for abandoned permits.
    assert errors.splitlines()[-1] == "headway: the simulated API went away"
    assert "Traceback" not in output


def test_on_a_terminal_it_draws_and_gives_the_cursor_back():
    seed = next(SEEDS)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(
        [*DEMO, "--seconds", "1", "--seed", str(seed)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side is closed
                part = b""
            if not part:
                break
            shown += part
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0, text
    assert "╭" in text
    assert "of the provable ceiling" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
