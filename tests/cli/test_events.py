"""`headway events serve` and `submit`: real processes on loopback."""

import http.client
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.cli.serving import HEADWAY, Process, Served, headway
from typer.testing import CliRunner

from headway import Once
from headway.cli.app import app
from headway.cli.events import greeting, read_gate
from waiting import NEVER


@pytest.fixture(scope="module")
def served():
    with Served("orders=5min", "alarms=1h,strict") as served:
        yield served


def run(*words, **options):
    """A command that ends, in this process."""
    return CliRunner().invoke(app, ["events", *words], **options)


# -- serve ----------------------------------------------------------------------------------------------------


def test_what_is_printed_can_be_tried_as_it_stands():
    """The lines of the greeting run in a shell."""
    with Served("webhooks=5min", "alarms=1min,strict") as served:
        assert "headway: 2 gates on memory://; Ctrl-C ends it" in served.said
        assert "webhooks  lets through the first of equal events within 5 min" in served.said
        assert "alarms    lets through an event that is not repeated within 1 minute" in served.said
        (submit,) = re.findall("headway (events submit .*)", served.said)
        done = subprocess.run(
            shlex.join(HEADWAY) + " " + submit, shell=True, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        (curl,) = re.findall("curl .*", served.said)
        said = subprocess.run(f"{curl} -sS", shell=True, capture_output=True, text=True, check=True).stdout
        assert json.loads(said)["type"] == "urn:headway:repeated-event"
        (watch,) = re.findall("headway (events watch .*)", served.said)
        assert watch == f"events watch webhooks --url {served.url}"


def test_the_greeting_leaves_out_what_is_the_default():
    said = greeting("http://127.0.0.1:8080", "memory://", {"a": Once("5min")})
    assert "--url" not in said


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_gracefully(how, tmp_path):
    with Served("alarms=1h,strict", engine=f"embedded://{tmp_path}/engine") as served:
        assert served.submit("alarms", "disk full", "--id", "a").exit_code == 0
        assert served.end(how) == 0
        assert served.complained == ""
        assert served.said.endswith("headway: ended; events that are pending are kept\n")
    with Served("alarms=1h,strict", engine=f"embedded://{tmp_path}/engine") as served:
        again = served.submit("alarms", "disk full", "--id", "a")
        assert (again.exit_code, again.stderr) == (0, "")
        assert "repeats the one with id a" in served.submit("alarms", "disk full", "--id", "b").stdout


def test_a_port_that_is_in_use(served):
    done = run("serve", "--gate", "a=1s", "--engine", "memory://", "--port", str(served.port))
    assert done.exit_code == 2
    assert done.stderr == (
        f"headway: cannot listen on 127.0.0.1 port {served.port}: Address already in use; "
        "give another one with --port, or 0 for any that is free\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_greeting_that_cannot_be_written_ends_it():
    line = shlex.join([*HEADWAY, "events", "serve", "--gate", "a=1s", "--engine", "memory://", "--port", "0"])
    done = subprocess.run(
        ["bash", "-c", f"{line} > /dev/full"], capture_output=True, text=True, timeout=NEVER, check=False
    )
    assert (done.returncode, done.stderr) == (1, "headway: <stdout>: No space left on device\n")


def test_pages_of_another_origin_may_be_allowed():
    with Served("a=1s", options=["--origin", "https://ops.example"]) as served:
        for origin, status in (("https://ops.example", 200), ("https://evil.example", 403)):
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=NEVER)
            connection.request("GET", "/v1/gates", headers={"Origin": origin})
            assert connection.getresponse().status == status
            connection.close()


def test_an_address_of_another_machine():
    done = run(
        "serve", "--gate", "a=1s", "--engine", "memory://", "--host", "192.0.2.1", "--port", "0", "--insecure"
    )
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "headway: cannot listen on 192.0.2.1 port 0: Cannot assign requested address\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.com"])
def test_an_address_that_others_can_reach_needs_a_word(host):
    done = run("serve", "--gate", "a=1s", "--engine", "memory://", "--host", host)
    assert done.exit_code == 2
    assert "there are no tokens; --insecure allows it" in done.stderr
    assert host in done.stderr


def test_with_that_word_it_listens_there():
    with Served("a=1s", options=["--host", "0.0.0.0", "--insecure"]) as served:
        assert served.url.startswith("http://127.0.0.1:")
        assert served.submit("a", "x").exit_code == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_loopback_of_ipv6():
    with Served("a=1s", options=["--host", "::1"]) as served:
        assert served.url.startswith("http://[::1]:")
        assert served.submit("a", "x").exit_code == 0


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("orders", "'orders': give NAME=DURATION or NAME=DURATION,strict, such as webhooks=5min"),
        ("orders=", "give NAME=DURATION"),
        ("=5min", "'' is no name for a gate: use a-z, 0-9 and . _ : -"),
        ("a/b=5min", "'a/b' is no name for a gate"),
        ("a=5min,stric", "the mode is 'stric', and may be 'strict' or 'only'"),
        ("a=5 minits", "unknown unit"),
        ("a=0s", "the duration is 0"),
        ("a=5", "a unit is missing"),
    ],
)
def test_a_gate_that_is_written_wrong(gate, message):
    done = run("serve", "--gate", gate)
    assert done.exit_code == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert message in said
    assert "Invalid value for '--gate'" in said


def test_a_gate_that_is_given_twice():
    done = run("serve", "--gate", "a=1s", "--gate", "a=2s")
    assert done.exit_code == 2
    assert "'a' is given twice" in done.stderr


def test_no_gate_at_all():
    done = run("serve")
    assert done.exit_code == 2
    assert "Missing option '--gate'" in done.stderr


def test_an_engine_that_is_none_and_one_that_is_away():
    done = run("serve", "--gate", "a=1s", "--engine", "sqlite://x")
    assert done.exit_code == 2
    assert "engine='sqlite://x' is not accepted" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    done = run("serve", "--gate", "a=1s", "--engine", f"redis://127.0.0.1:{port}")
    assert done.exit_code == 3
    assert f"engine redis://127.0.0.1:{port} is unavailable" in done.stderr


def test_a_gate_that_is_kept_with_another_duration(tmp_path):
    engine = f"embedded://{tmp_path}/engine"
    gate = Once("5min", name="orders", engine=engine, engine_timeout=5)
    gate.submit("x")
    done = run("serve", "--gate", "orders=6min", "--engine", engine, "--port", "0")
    assert done.exit_code == 2
    assert done.stderr.startswith("headway: 'orders' is kept as ")


def test_the_default_engine_works(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    words = ["events", "serve", "--gate", "a=1h", "--port", "0"]
    with Process(*words, XDG_STATE_HOME=str(tmp_path)) as process:
        process.until("curl")
        assert (tmp_path / "headway" / "events").stat().st_mode & 0o777 == 0o700
        assert process.end() == 0


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "websockets"])
def test_without_the_extra_it_says_what_to_install(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; "
        "sys.argv = ['headway', 'events', 'serve', '--gate', 'a=1s']; from headway.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"headway events serve: this needs {missing}: pip install 'headway[server]'\n"


# -- submit ---------------------------------------------------------------------------------------------------


def test_a_submit_is_answered_in_words_and_by_the_exit_code(served):
    first = served.submit("orders", "order 1", "--id", "a", "--value", "2 pizzas")
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout == "accepted: 'order 1', id a; it is published\n"
    repeat = served.submit("orders", "order 1", "--id", "b")
    assert (repeat.exit_code, repeat.stderr) == (1, "")
    assert repeat.stdout == "rejected: 'order 1', id b, repeats the one with id a\n"
    assert served.submit("orders", "order 1", "--id", "a").exit_code == 0
    strict = served.submit("alarms", "fan stuck", "--id", "c")
    assert strict.stdout == "accepted: 'fan stuck', id c; it is published in 1 hour, unless it is repeated\n"


def test_events_of_the_input_are_submitted_line_by_line(served):
    done = served.submit("orders", "-", input="line 1\r\nline 2\n\nline 1\nlast")
    assert done.exit_code == 1
    assert [line.partition(",")[0] for line in done.stdout.splitlines()] == [
        "accepted: 'line 1'",
        "accepted: 'line 2'",
        "rejected: 'line 1'",
        "accepted: last",
    ]
    assert served.submit("orders", "-", input="").exit_code == 0


def test_a_line_that_is_no_utf8(served):
    done = served.submit("orders", "-", input=b"good\n\xff\nnever\n")
    assert done.exit_code == 2
    assert done.stdout.startswith("accepted: good")
    assert done.stderr == "headway: line 2 is no UTF-8: not submitted\n"
    assert served.submit("orders", "never").exit_code == 0


def test_what_a_terminal_would_obey_is_escaped(served):
    said = served.submit("orders", "\x1b[2J\u202e", "--id", "\x07").stdout
    assert said == "accepted: '\\x1b[2J\\u202e', id '\\x07'; it is published\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nope", "x"], 2, "headway: there is no gate 'nope' here\n"),
        (["a/b", "x"], 2, "headway: POST /v1/gates/a/b/events: not found\n"),
        (["orders", "x" * 65537], 2, "headway: event='xxxx"),
        (["orders", "x", "--id", ""], 2, "headway: id='' is not accepted; give a str that is not empty"),
        (["orders", "x", "--url", "ftp://x"], 2, "headway: url='ftp://x' is not accepted; give a URL of the service"),
        (["orders", "x", "--url", "http://me:secret@x"], 2, "headway: url='...' is not accepted"),
    ],
)  # fmt: skip
def test_errors_of_a_submit(served, words, code, message):
    done = served.submit(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(message)


def test_an_id_of_another_event(served):
    served.submit("orders", "one", "--id", "same")
    done = served.submit("orders", "two", "--id", "same")
    assert done.exit_code == 2
    assert done.stderr.startswith("headway: id 'same' was submitted with event 'one' before")


def test_several_events_have_no_common_id(served):
    done = served.submit("orders", "-", "--id", "x")
    assert done.exit_code == 2
    assert "several events cannot have one id" in done.stderr


def test_a_server_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    done = run("submit", "orders", "x", "--url", url)
    assert (done.exit_code, done.stderr) == (3, f"headway: {url} is unavailable: Connection refused\n")


def test_ctrl_c_while_a_server_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Process("events", "submit", "orders", "x", "--url", url) as process:
            connection, _ = silent.accept()
            assert process.end(signal.SIGINT) == 130
            connection.close()
        assert (process.said, process.complained) == ("", "")


class Forgetful(BaseHTTPRequestHandler):
    """Reads a request and closes the connection, the first times; then it answers what it was asked."""

    ids: ClassVar[list[str]] = []

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.ids.append(asked["id"])
        self.close_connection = True
        if len(self.ids) == 3:
            said = json.dumps({"accepted": True, "id": asked["id"], "mode": "only"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    def log_message(self, *_):
        pass


def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_id():
    Forgetful.ids.clear()
    with HTTPServer(("127.0.0.1", 0), Forgetful) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = run("submit", "orders", "x", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert (done.exit_code, done.stderr) == (0, "")
    assert len(Forgetful.ids) == 3
    assert len(set(Forgetful.ids)) == 1
    assert Forgetful.ids[0]


def test_many_submits_at_once_of_one_event_accept_one(served):
    words = ["events", "submit", "orders", "crowd", "--url", served.url]
    with ThreadPoolExecutor(4) as crowd:
        found = list(crowd.map(lambda _: headway(*words).returncode, range(4)))
    assert sorted(found) == [0, 1, 1, 1]


def test_submit_needs_no_extra():
    names = ("starlette", "uvicorn", "websockets", "redis", "hiredis")
    code = (
        f"import sys; sys.modules |= dict.fromkeys({names!r}); "
        "sys.argv = ['headway', 'events', 'submit', 'a', 'x', '--url', 'http://127.0.0.1:1']\n"
        "from headway.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        3,
        "headway: http://127.0.0.1:1 is unavailable: Connection refused\n",
    )


def test_a_gate_is_read_as_it_is_written():
    assert read_gate("a.b:c-d_9=1min,only") == ("a.b:c-d_9", "1min", "only")


def test_no_descriptor_of_the_terminal_is_needed(served):
    """A closed input matters only where it is read."""
    line = shlex.join([*HEADWAY, "events", "submit", "orders", "closed", "--url", served.url])
    assert subprocess.run(["bash", "-c", f"{line} <&-"], capture_output=True, check=False).returncode == 0
    done = subprocess.run(
        ["bash", "-c", f"{line.replace('closed', '-')} <&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "headway: there is no input: stdin is closed\n")
