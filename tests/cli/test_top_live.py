"""`headway top` on a terminal: it lives, it survives its server, and Ctrl-C leaves everything clean."""

from __future__ import annotations

import os
import re
import select
import signal
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
    """A terminal of 100 columns with `headway top` on it."""

    def __init__(self, *words):
        self.screen, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 100, 0, 0))
        hidden = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
        env = {name: value for name, value in os.environ.items() if name not in hidden} | {"TERM": "xterm"}
        command = [sys.executable, "-m", "headway.cli", "top", *words]
        self.program = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=env)
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
        screen.until("later +1 every minute")
        code, rest = screen.leave()
        assert code == 0
        assert SHOW_CURSOR in rest
        assert "Traceback" not in rest
        assert "Aborted" not in rest


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
