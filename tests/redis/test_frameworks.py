"""The programs of docs/fleet.md, "In your framework", under the real Celery, RQ and gunicorn.

Their text is taken from the page, so that what is documented is what runs. Changed are hosts, for the servers of the
test, and limits, because a minute is too long to watch; a change that finds nothing to change fails. `partner`, which
the examples call, stands for the remote: it notes when a call arrives, by a clock that headway does not use.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.redis.programs import Program
from tests.redis.servers import HOST, free_port
from tests.redis.workers import most_in_any

from headway import Limiter
from waiting import NEVER, wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"
PATIENT = "engine_timeout=5"  # where an example does without an engine that is late: the cores are shared with others
ORDERS = range(20)  # as many as the page sends

PARTNER = """
import os, time

def post(order):
    with open({arrivals!r}, "a") as arrivals:
        arrivals.write(f"{{time.monotonic_ns()}} {{os.getpid()}} {{order}}\\n")
    time.sleep(0.05)
"""


class Arrival(NamedTuple):
    """A call of the remote: when, by which process, for what."""

    at: float
    process: int
    order: int


class Example:
    """One program of the page, written to a folder with its changes."""

    def __init__(self, name, folder, changes):
        pattern = rf"^\*\*{name}\b.*?^```python no-run\n(.*?)^```"
        found = re.search(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        assert found, f"no {name} in {PAGE}"
        text = found[1]
        for documented, changed in changes.items():
            assert documented in text, f"{documented} is not there any more"
            text = text.replace(documented, changed)
        # "# app.py, run with: gunicorn app:app" begins a file.
        _, *parts = re.split(r"^# (\w+\.py)(?:, run with: (.*))?$", text, flags=re.MULTILINE)
        for file, code in zip(parts[::3], parts[2::3], strict=True):
            (folder / file).write_text(code)
        self.folder = folder
        self.command = shlex.split(parts[1])
        self.arrivals_file = folder / "arrivals"
        (folder / "partner.py").write_text(PARTNER.format(arrivals=str(self.arrivals_file)))
        self._programs: list[Program] = []

    def run(self, *options):
        """Start it as the page says, with more options."""
        self._programs.append(Program([*self.command, *options], self.folder))
        return self._programs[-1]

    def run_file(self, file):
        subprocess.run([sys.executable, file], cwd=self.folder, check=True, timeout=NEVER)

    def arrivals(self):
        if not self.arrivals_file.exists():
            return []
        lines = [line.split() for line in self.arrivals_file.read_text().splitlines()]
        return sorted(Arrival(int(ns) / 1e9, int(process), int(order)) for ns, process, order in lines)

    def end(self):
        with contextlib.ExitStack() as stack:  # all of them, also if one does not end well
            for program in self._programs:
                stack.callback(program.end)


@pytest.fixture
def example(tmp_path):
    """example(name, changes): a program of the page; whatever it started ends with the test."""
    with contextlib.ExitStack() as stack:

        def make(name, changes):
            made = Example(name, tmp_path, changes)
            stack.callback(made.end)
            return made

        yield make


def assert_kept(arrivals, most, window):
    """Every order arrived once, and no window saw more than the limit."""
    assert sorted(arrival.order for arrival in arrivals) == list(ORDERS)
    assert most_in_any(window, [arrival.at for arrival in arrivals]) <= most


# Celery

CELERY = ("--pool", "prefork", "--loglevel", "INFO", "--without-gossip", "--without-mingle")


@pytest.mark.parametrize("engine", ["good", "stopped for a while"])
def test_celery(example, valkey, make_server, engine):
    """A job that is denied or gets no answer comes back: no order is lost, and none is sent twice."""
    server = make_server()
    changes = {"redis://db/1": f"{valkey.url[:-1]}1", "redis://db/0": server.url, "100/minute": "5 per 500ms"}
    shop = example("Celery", changes)
    worker = shop.run(*CELERY)
    shop.run_file("orders.py")
    worker.wait_until(shop.arrivals, "the first order")
    if engine != "good":
        server.stop()
        worker.wait_until(lambda: "Retry in 1s" in worker.log, "a task that misses the engine")
        server.cont()
    worker.wait_until(lambda: len(shop.arrivals()) >= len(ORDERS), "all orders")
    arrivals = shop.arrivals()
    assert_kept(arrivals, 5, 0.5)
    assert len({arrival.process for arrival in arrivals}) > 1
    assert worker.process.pid not in {arrival.process for arrival in arrivals}
    assert "Traceback" not in worker.log


# RQ


def test_rq(example, valkey):
    shop = example("RQ", {"redis://db/0": valkey.url, '"100/minute"': f'"4 per 500ms", {PATIENT}'})
    shop.run_file("orders.py")
    workers = [shop.run("--burst") for _ in range(2)]
    for worker in workers:
        worker.wait_until(lambda worker=worker: worker.process.poll() == 0, "an empty queue")
    arrivals = shop.arrivals()
    assert_kept(arrivals, 4, 0.5)
    assert len({arrival.process for arrival in arrivals}) == len(ORDERS)  # a child for each
    limiter = Limiter("4 per 500ms", name="tasks:send", engine=valkey.url, remote=True)
    # Long before the permits of dead holders would come back (max_transit is 10 s): each said that it had ended.
    wait_until(lambda: limiter.peek().in_flight == 0, "every end")


# gunicorn


class Site:
    """The documented login page behind gunicorn."""

    def __init__(self, app):
        self.port = free_port()
        self._requests = app.folder / "requests"
        log = ("--access-logfile", str(self._requests), "--access-logformat", "%(p)s")
        # Its control socket would lie in the home directory of the user that runs the tests.
        self.program = app.run("--bind", f"{HOST}:{self.port}", "--no-control-socket", *log)
        self.program.wait_until(self._answers, "an answer")

    def _answers(self):
        with contextlib.suppress(ConnectionError):
            return self.login("probe")[0] == 200
        return False

    def login(self, user):
        """(status, headers, body)."""
        with contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=15)) as connection:
            connection.request("POST", f"/login/{user}")
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())

    def login_in_the_end(self, user):
        """Come back as often as it takes, when the page says so; when the last try was sent, and answered."""
        while True:
            sent = time.monotonic()
            status, headers, _ = self.login(user)
            if status == 200:
                return sent, time.monotonic()
            time.sleep(int(headers["Retry-After"]))

    def many(self, users, login=None):
        with ThreadPoolExecutor(12) as pool:
            return list(pool.map(login or self.login, users))

    def workers(self):
        """The ids of the workers that have answered."""
        return set(self._requests.read_text().split())


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no preload"])
def test_gunicorn(example, valkey, preload):
    app = example("gunicorn", {"redis://db/0": valkey.url, '"5/minute"': f'"5/minute", {PATIENT}'})
    assert "--preload" in app.command
    if not preload:
        app.command.remove("--preload")
    site = Site(app)
    site.program.wait_until(lambda: site.many(["x"] * 8) and len(site.workers()) > 1, "a second worker")

    answers = site.many(["alice"] * 24)
    assert sorted(status for status, _, _ in answers) == [200] * 5 + [429] * 19
    for status, headers, body in answers:
        assert body == ({"ok": True} if status == 200 else {"error": "slow down"})
        if status == 429:
            assert 0 < int(headers["Retry-After"]) <= 61
            assert headers["RateLimit-Policy"] == '"window-0";q=5;w=60'
            assert headers["RateLimit"].startswith('"window-0";r=0;t=')
            assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("5", "0")
    assert site.login("bob")[0] == 200

    valkey.kill()
    assert {status for status, _, _ in site.many(["alice"] * 8)} == {200}  # on_engine_error="open"


def test_gunicorn_as_time_goes_by(example, valkey):
    """A grant lies between question and answer: six of them, all within a second, would be one too many."""
    app = example("gunicorn", {"redis://db/0": valkey.url, '"5/minute"': f'"5/s", {PATIENT}'})
    site = Site(app)
    logins = site.many(["alice"] * 12, site.login_in_the_end)
    for begin, _ in logins:
        assert sum(begin <= sent and answered < begin + 1 for sent, answered in logins) <= 5
