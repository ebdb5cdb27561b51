"""`headway pace` as a shell sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PACE = [sys.executable, "-m", "headway.cli", "pace"]


def pace(*words, lines=""):
    return subprocess.run([*PACE, *words], input=lines.encode(), capture_output=True, timeout=60, check=False)


@pytest.mark.realtime
def test_every_line_passes_once_in_order_at_the_rate():
    lines = "".join(f"line {n}\n" for n in range(100)) + "\nno end \xe4"
    start = time.monotonic()
    done = pace("500/s", lines=lines)
    assert (done.returncode, done.stdout, done.stderr) == (0, lines.encode(), b"")
    assert time.monotonic() - start > 102 / 500


def test_empty_input():
    assert pace("5/s").returncode == 0


@pytest.mark.parametrize("words", [["0/s"], ["5/fortnight"], ["5/s", "--ratio", "0.5"], ["5,halt"]])
def test_bad_rates_are_explained(words):
    done = pace(*words)
    assert done.returncode == 2
    assert b"accepted" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error():
    command = f"yes | '{sys.executable}' -m headway.cli pace 2000/s | head -3"
    done = subprocess.run(
        ["bash", "-c", command + "; exit ${PIPESTATUS[1]}"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"y\n" * 3, b"")


def test_a_command_for_each_line():
    done = pace("1000/s", "--jobs", "4", "--", "echo", "<{}>", lines="a\nb c\n\n$d\n")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [b"<$d>", b"<a>", b"<b c>"]


def test_commands_that_fail_are_told():
    assert pace("1000/s", "--", "false", lines="a\n").returncode == 123
    done = pace("1000/s", "--", "no-such-program", lines="a\n")
    assert done.returncode == 123
    assert b"no-such-program" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs signals of POSIX")
def test_interrupted():
    child = subprocess.Popen(
        [*PACE, "20/s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"x\n" * 1000)
    child.stdin.flush()
    assert child.stdout.readline() == b"x\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert said == b""
