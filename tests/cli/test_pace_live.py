"""The live line of `headway pace`, on a terminal: a real one, as far as a program can tell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal of POSIX", allow_module_level=True)

import fcntl
import pty
import select
import struct
import termios

from waiting import NEVER

PACE = [sys.executable, "-m", "headway.cli", "pace"]
TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
FIGURES = r"([\d,]+) lines?  ([\d,.]+)/s  backlog ([\d.,]+ \w+)  scheduling delay ([\d.,]+ \w+)"


class Terminal:
    """A program whose stderr, and Ctrl-C, is a terminal; stdin is a pipe, and so is stdout if not all is `here`."""

    def __init__(self, *words, term="xterm", here=False, columns=100):
        self.screen, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        hidden = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
        self.program = subprocess.Popen(
            [sys.executable, "-c", TAKE, *PACE, *words],
            0,
            stdin=subprocess.PIPE,
            stdout=side if here else subprocess.PIPE,
            stderr=side,
            env={name: value for name, value in os.environ.items() if name not in hidden} | {"TERM": term},
            start_new_session=True,
        )
        os.close(side)
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.kill()
        self.program.wait()
        for pipe in (self.program.stdin, self.program.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self.screen)

    def look(self, seconds, until=None):
        """What was drawn in so many seconds, or until something is seen."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not (until and re.search(until, self.shown)):
            if not select.select([self.screen], [], [], left)[0]:
                break
            try:
                self.shown += os.read(self.screen, 1 << 16).decode()
            except OSError:  # what Linux says when the other side is closed
                break
        return self.shown


def test_rate_backlog_and_delay_are_shown():
    with Terminal("50/s") as terminal:
        terminal.program.stdin.write(b"x\n" * 1000)  # 20 s of work: on a busy machine few screens are drawn
        shown = terminal.look(20, r"\d lines  [45]\d\.\d/s  backlog .*delay [\d.,]+ \w+")
        full = [line for line in re.findall(FIGURES, shown) if float(line[1]) >= 40]
        done, rate, backlog, delay = full[0]
        assert int(done) <= 1000
        assert float(rate) <= 60
        assert backlog.split()[1] in {"s", "ms", "us", "ns"}
        assert delay.split()[1] in {"s", "ms", "us", "ns"}


def test_it_is_one_line_that_is_gone_at_the_end():
    with Terminal("50/s") as terminal:
        terminal.program.stdin.write(b"x\n" * 30)
        terminal.program.stdin.close()
        assert terminal.program.stdout.read() == b"x\n" * 30, "the lines alone, and all of them"
        shown = terminal.look(10)
        assert terminal.program.wait(NEVER) == 0
    # Drawn again in the same place: each time the cursor goes to the beginning and the line is erased.
    assert shown.count("scheduling delay") >= 2
    assert shown.count("\r\x1b[2K") == shown.count("scheduling delay") - 1
    assert shown.endswith("\r\x1b[1A\x1b[2K"), "erased"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "and the cursor is back"


def test_a_stall_of_the_input_is_backlog():
    with Terminal("100/s") as terminal:
        terminal.program.stdin.write(b"x\n")
        terminal.look(20, "1 line ")
        time.sleep(1.5)
        terminal.program.stdin.write(b"x\n")
        shown = terminal.look(20, r"2 lines .* delay 1\.\d+ s")
        assert re.search(r"2 lines .* backlog [1-9]\.?\d* s  scheduling delay 1\.\d+ s", shown)


def test_ctrl_c_on_the_keyboard():
    with Terminal("20/s") as terminal:
        terminal.program.stdin.write(b"x\n" * 1000)
        terminal.look(20, "[1-9] lines?")
        os.write(terminal.screen, b"\x03")
        assert terminal.program.wait(NEVER) == 130
        shown = terminal.look(5, r"interrupted after \d+ lines?\r\n")
        passed = len(terminal.program.stdout.read().splitlines())
        assert f"headway: interrupted after {passed} line" in shown
        assert "Traceback" not in shown
        assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_dumb_terminal_shows_nothing():
    with Terminal("200/s", term="dumb") as terminal:
        terminal.program.stdin.write(b"x\n" * 100)
        terminal.program.stdin.close()
        assert terminal.program.stdout.read() == b"x\n" * 100
        assert terminal.look(5) == ""


def test_lines_that_appear_on_the_same_terminal_are_not_torn():
    with Terminal("100/s", here=True) as terminal:
        terminal.program.stdin.write(b"x\n" * 50)
        terminal.program.stdin.close()
        assert terminal.look(20) == "x\r\n" * 50


def test_a_narrow_terminal_has_one_line_too():
    with Terminal("50/s", columns=30) as terminal:
        terminal.program.stdin.write(b"x\n" * 30)
        terminal.program.stdin.close()
        shown = terminal.look(20, r"30 lines  \d.*\r\n")
    assert "\u2026" in shown, "it is cut, not wrapped"
    assert "\x1b[1A" not in shown.rpartition("30 lines")[0]


@pytest.mark.parametrize("jobs", ["1", "4"])
def test_commands(jobs):
    with Terminal("100/s", "--jobs", jobs, "--", "sh", "-c", "echo out {}") as terminal:
        terminal.program.stdin.write(b"".join(b"%d\n" % n for n in range(50)))
        terminal.program.stdin.close()
        out = terminal.program.stdout.read()
        assert sorted(out.split(b"\n")) == sorted([*(b"out %d" % n for n in range(50)), b""])
        assert terminal.program.wait(NEVER) == 0
        assert "lines" in terminal.look(5)
