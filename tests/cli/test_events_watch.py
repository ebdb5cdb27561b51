"""`headway events watch`: lines for a pipe, a picture for a terminal, and what a lost server costs: nothing."""

import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.cli.serving import Process, Served
from tests.cli.test_top_live import SHOW_CURSOR, Screen
from typer.testing import CliRunner

from headway import Once
from headway.cli.app import app
from waiting import NEVER, wait_until


def watching(served, gate):
    return Process("events", "watch", gate, "--url", served.url)


def clocks(process):
    """The clock values of the changes that were printed."""
    return [int(clock) for clock in re.findall(r"^\S+Z  (\d+)  [SPI][A-Z]+ED ", process.said, re.MULTILINE)]


def heard(process):
    """Connected: that is told on stderr."""
    wait_until(lambda: "pending" in process.complained, "the first key frame")


def test_changes_are_lines_and_the_rest_is_on_stderr():
    with Served("alarms=1s,strict") as served:
        served.submit("alarms", "before", "--id", "x")
        with watching(served, "alarms") as process:
            heard(process)
            served.submit("alarms", "disk \x1b[2Jfull", "--id", "a", "--value", "98 %\n")
            process.until("PUBLISHED    'disk")
            served.submit("alarms", "fan", "--id", "b")
            served.submit("alarms", "fan", "--id", "c")
            process.until("INVALIDATED")
            assert process.end() == 0
    assert re.fullmatch(
        "headway: gate alarms, strict, 1 s: clock (1, 1|2, 0) pending\n",
        process.complained.replace("1 second", "1 s"),
    )
    time = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  \d+  "
    assert re.search(
        time + r"SUBMITTED    'disk \\x1b\[2Jfull'  '98 %\\n'  \(id a\)$", process.said, re.MULTILINE
    )
    assert re.search(time + r"INVALIDATED  fan  \(id b\)$", process.said, re.MULTILINE)
    found = clocks(process)
    assert found == list(range(found[0], found[0] + len(found)))


def test_nothing_is_left_out_when_the_server_is_killed_and_comes_back(tmp_path):
    engine = f"embedded://{tmp_path}/engine"
    gate = Once("1h", "strict", name="alarms", engine=engine, engine_timeout=5)
    with Served("alarms=1h,strict", engine=engine) as served:
        port = served.port
        with watching(served, "alarms") as process:
            heard(process)
            gate.submit("one")
            process.until("one")
            served.end(signal.SIGKILL)
            for number in range(5):
                gate.submit(f"while it was away {number}")
            with Served("alarms=1h,strict", engine=engine, port=port) as again:
                gate.submit("last")
                process.until("last")
                assert again.end() == 0
                assert process.end() == 0
    assert clocks(process) == [1, 2, 3, 4, 5, 6, 7]
    first, lost, back, *ended = process.complained.splitlines()
    assert first == "headway: gate alarms, strict, 1 hour: clock 0, 0 pending"
    assert lost.startswith("headway: connection lost: ")
    assert lost.endswith("; trying again")
    assert back == "headway: connected again"
    assert len(ended) <= 1  # the second server has ended too


def test_a_gate_that_was_lost_is_told():
    with Served("alarms=1h,strict") as served:
        served.submit("alarms", "forgotten")
        with watching(served, "alarms") as process:
            process.until("PENDING      forgotten")
            served.end(signal.SIGKILL)
            with Served("alarms=1h,strict", port=served.port) as again:
                again.submit("alarms", "new")
                process.until(" new ")
                assert process.end() == 0
    assert "headway: some changes were missed, and are not kept any more\n" in process.complained


def test_an_unknown_gate_and_a_server_that_is_not_there():
    with Served("alarms=1h") as served:
        done = run("nope", "--url", served.url)
        assert (done.exit_code, done.stderr) == (2, "headway: there is no gate 'nope'; gates: alarms\n")
        url, code = served.url, served.end()
    assert code == 0
    done = run("alarms", "--url", url)
    assert (done.exit_code, done.stderr) == (3, f"headway: {url} is unavailable: Connection refused\n")
    assert run("alarms", "--url", "redis://x").exit_code == 2


def run(*words):
    return CliRunner().invoke(app, ["events", "watch", *words])


def test_a_server_that_is_another_one():
    class Other(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = run("alarms", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert done.exit_code == 3
    assert "the server answered 404 instead of opening a WebSocket" in done.stderr


def test_without_the_extra_it_says_what_to_install():
    code = (
        "import sys; sys.modules['websockets'] = None; "
        "sys.argv = ['headway', 'events', 'watch', 'a']; from headway.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "headway events watch: this needs websockets: pip install 'headway[server]'\n",
    )


def test_a_reader_that_leaves_ends_it():
    with Served("orders=1h") as served:
        served.submit("orders", "first")
        line = f"{sys.executable} -m headway.cli events watch orders --url {served.url} | head -1"
        with Process(program=["bash", "-c", line]) as process:
            for number in range(50):
                served.submit("orders", f"order {number}")
                if process.program.poll() is not None:
                    break
            assert process.program.wait(NEVER) == 0
            process.end()
        assert "Traceback" not in process.complained


# -- on a terminal --------------------------------------------------------------------------------------------


def test_the_picture_counts_down_and_ctrl_c_leaves_a_clean_terminal():
    with (
        Served("alarms=5s,strict") as served,
        Screen("alarms", "--url", served.url, command=("events", "watch")) as screen,
    ):
        screen.until("nothing is pending")
        served.submit("alarms", "disk \x1b[7m full", "--id", "a")
        screen.until(r"clock 1, 1 pending")
        screen.until(r"[1-5]\.\d s.*'disk \\x1b\[7m full'")
        screen.until(r"[0-3]\.\d s.*'disk")
        screen.until(r"PUBLISHED.*'disk")
        screen.until(r"clock 2, 0 pending")
        code, rest = screen.leave()
    assert code == 0
    assert SHOW_CURSOR in rest
    assert "Traceback" not in rest
    assert "\x1b[7m" not in rest


def test_the_picture_says_that_the_server_is_gone_and_goes_on_when_it_is_back(tmp_path):
    engine = f"embedded://{tmp_path}/engine"
    with (
        Served("alarms=1h,strict", engine=engine) as served,
        Screen("alarms", "--url", served.url, command=("events", "watch")) as screen,
    ):
        served.submit("alarms", "disk full")
        screen.until("1 pending.*59:.*'disk full'")
        port = served.port
        assert served.end() == 0
        screen.until("connection lost: .*; what is shown is of clock 1")
        with Served("alarms=1h,strict", engine=engine, port=port) as again:
            again.submit("alarms", "fan stuck")
            screen.until("2 pending.*'fan stuck'")
            code, rest = screen.leave()
    assert code == 0
    assert "Traceback" not in rest


def test_many_pending_events_do_not_leave_the_terminal():
    with (
        Served("alarms=1h,strict") as served,
        Screen("alarms", "--url", served.url, command=("events", "watch")) as screen,
    ):
        screen.until("nothing is pending")
        served.submit("alarms", "-", input="".join(f"event {number} {'x' * 200}\n" for number in range(60)))
        screen.until("clock 60, 60 pending")
        screen.until("and .. more.*clock 60, 60 pending")
        picture = screen.shown
        screen.until("clock 60, 60 pending")
        assert screen.leave()[0] == 0
    assert "\x1b[20A" not in picture


@pytest.mark.parametrize("word", ["serve", "submit", "watch"])
def test_help_shows_an_example(word):
    said = CliRunner().invoke(app, ["events", word, "--help"]).output
    assert f"headway events {word} " in said
