"""`headway top` on a terminal: it lives, it survives its server, and Ctrl-C leaves everything clean."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from headway import Limiter
from waiting import NEVER

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal of POSIX", allow_module_level=True)

import fcntl
import pty
import struct
import termios

SHOW_CURSOR = "\x1b[?25h"


class Screen:
    """A terminal of 100 columns with `headway top`, or another command, on it."""

    def __init__(self, *words, command=("top",)):
        self.screen, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 100, 0, 0))
        hidden = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
        env = {name: value for name, value in os.environ.items() if name not in hidden} | {"TERM": "xterm"}
        program = [sys.executable, "-m", "headway.cli", *command, *words]
        self.program = subprocess.Popen(program, stdin=side, stdout=side, stderr=side, env=env)
        os.close(side)
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.kill()
        self.program.wait()
        os.close(self.screen)

    def until(self, pattern, seconds=15):
        """Read on until something is seen, and forget what was seen before."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown, re.DOTALL)):
            left = end - time.monotonic()
            assert select.select([self.screen], [], [], max(0, left))[0], self.shown
            try:
                self.shown += os.read(self.screen, 1 << 16).decode()
            except OSError:
                raise AssertionError(self.shown) from None
        self.shown = self.shown[found.end() :]

    def leave(self):
        """Press Ctrl-C; the exit code, and the rest of what was drawn."""
        self.program.send_signal(signal.SIGINT)
        code = self.program.wait(NEVER)
        while select.select([self.screen], [], [], 0.1)[0]:
            try:
                self.shown += os.read(self.screen, 1 << 16).decode()
            except OSError:
                break
        return code, self.shown


def test_it_lives_and_ctrl_c_leaves_a_clean_terminal(valkey):
    limiter = Limiter("5/minute", name="api", engine=valkey.url)
    limiter.acquire("alice")
    with Screen(valkey.url, "--interval", "0.1") as screen:
        screen.until("[^0-9]1 ledger[^s]")
        screen.until("api +alice +5/minute +4/5")
        limiter.acquire("alice")
        screen.until("api +alice +5/minute +3/5")
        Limiter("1 every 60s", name="later", engine=valkey.url).acquire()
        screen.until("later +Spacing[(]60, expire_after=")
        code, rest = screen.leave()
        assert code == 0
        assert SHOW_CURSOR in rest
        assert "Traceback" not in rest
        assert "Aborted" not in rest


def test_a_hostile_key_does_not_reach_the_terminal(valkey):
    limiter = Limiter("5/minute", name="api", engine=valkey.url)
    for hostile in (
        "\x1b]52;c;aGk=\x07",
        "\x1b[7mfake",
        "\r\n\x9b7m\u202e",
        "[red]x[/red]",
        "long " + "x" * 300,
    ):
        limiter.acquire(hostile)
    with Screen(valkey.url, "--interval", "0.1", "--filter", "api*") as screen:
        screen.until("52;c;aGk=.*4/5.*4/5")
        screen.until("[^0-9]5 ledgers")
        screen.until("[^0-9]5 ledgers")
        code, rest = screen.leave()
    assert code == 0
    for raw in ("\x1b]52", "\x07", "\x1b[7m", "\x9b", "\u202e"):
        assert raw not in rest
    assert "[red]" in rest


def test_a_long_key_has_no_line_of_its_own_on_a_terminal(valkey):
    Limiter("5/minute", name="api", engine=valkey.url).acquire("x" + "\u2800" * 300 + "api  root  5/minute")
    with Screen(valkey.url, "--once") as screen:
        screen.until("4/5")
        screen.program.wait(10)
        assert "root" not in screen.shown


@pytest.mark.parametrize("words", [["top"], ["inspect"], ["reset", "--yes"]])
def test_ctrl_c_while_a_server_does_not_answer(words):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        name = [] if words[0] == "top" else ["api"]
        program = subprocess.Popen(
            [sys.executable, "-m", "headway.cli", words[0], url, *name, *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        connection, _ = silent.accept()
        program.send_signal(signal.SIGINT)
        out, said = program.communicate(timeout=30)
        connection.close()
    assert (program.returncode, out, said) == (130, b"", b"")


def test_it_waits_for_a_server_that_went_away(make_server):
    server = make_server()
    Limiter("5/minute", name="api", engine=server.url).acquire()
    with Screen(server.url, "--interval", "0.1") as screen:
        screen.until("api .*4/5")
        server.kill()
        screen.until("refused|closed|reset")
        server.restart()
        screen.until("no ledgers")
        assert screen.leave()[0] == 0
