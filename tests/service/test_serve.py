"""`headway serve` as real processes: the lines of the docs, kills, reloads, hostile and slow clients, TLS, its end."""

import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
import typer
from tests.conftest import needs_program
from tests.service.processes import HEADWAY, Process, body, served
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from headway.cli.serve import checked_tls
from headway.cli.serving import check_origins
from waiting import NEVER, SOON, wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

PAGE = (Path(__file__).parent.parent.parent / "docs" / "service.md").read_text()
MEMORY = '[server]\nengine = "memory://"\n'


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands(block):
    """(command, expected output) of every `$ ` line."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def matches(expected, said):
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, said.replace("\r", "").strip(), re.DOTALL)


@needs_program("curl", install="apt-get install curl")
def test_the_lines_of_the_guide_run_as_written(tmp_path):
    """Every command of docs/service.md, in order and in one shell, says what is written below it."""
    tried = [pair for block in blocks("console") for pair in commands(block)]
    assert len(tried) > 15
    with served(tmp_path, blocks("toml")[0], "--engine", "memory://") as process:
        script = "".join(f"{command}\necho; echo '--end--'\n" for command, _ in tried)
        script = script.replace("http://127.0.0.1:8080", process.url)
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        outputs = done.stdout.split("--end--\n")
        for (command, expected), said in zip(tried, outputs, strict=False):
            assert matches(expected, said), f"{command}\nexpected: {expected}\nsaid: {said}"


@needs_program("curl", install="apt-get install curl")
def test_the_lines_of_the_readme_run_as_written(tmp_path):
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    lines = re.findall(r"^\$ (curl .*8080.*)$", readme, re.MULTILINE)
    assert len(lines) == 2
    with served(tmp_path, MEMORY) as process:
        for line in lines:
            script = f"{line} --fail-with-body".replace("http://127.0.0.1:8080", process.url)
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["status"]["remaining"] == 2


def test_the_configurations_of_the_guide_are_read():
    from headway.service.config import parse_config

    text = "\n".join(blocks("toml"))
    assert set(parse_config(text, env={"BILLING_TOKEN": "x" * 16}).limits) == {
        "api",
        "calls",
        "llm",
        "reports",
    }


@needs_program("curl", install="apt-get install curl")
@pytest.mark.parametrize("text", ["", '[limits.api]\nlimit = "5/minute"\n'])
def test_the_lines_that_it_prints_run_as_they_are(tmp_path, text):
    with served(tmp_path, MEMORY + text) as process:
        lines = re.findall(r"^  (curl .*)$", process.output, re.MULTILINE)
        assert len(lines) == (3 if not text else 2)
        for line in lines:
            done = subprocess.run(
                ["bash", "-c", f"{line} --fail-with-body"], capture_output=True, text=True, check=True
            )
            assert json.loads(done.stdout)


# -- kills -----------------------------------------------------------------------------------------------


class Load:
    """Threads that take permits as fast as they can, whatever happens to the server."""

    def __init__(self, process, limit, threads=3):
        self.process = process
        self.granted = self.unknown = self.denied = 0
        self._lock = threading.Lock()
        self._limit = limit
        self.stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        while not self.stopped.is_set():
            try:
                status = self.process.acquire(self._limit).status
            except (OSError, http.client.HTTPException):
                with self._lock:
                    self.unknown += 1
                time.sleep(0.05)
                continue
            with self._lock:
                self.granted += status == 200
                self.denied += status == 429

    def stop(self):
        self.stopped.set()
        for thread in self._threads:
            thread.join(NEVER)


def test_a_server_that_is_killed_under_load_has_forgotten_no_grant(tmp_path):
    text = '[limits.api]\nlimit = "300/hour"\nengine_timeout = 20\n'
    with served(tmp_path, text) as process:
        load = Load(process, "api")
        try:
            wait_until(lambda: load.granted > 60, "grants before the kill")
            assert process.end(signal.SIGKILL) == -signal.SIGKILL
            before = load.granted
            assert before < 300
            again = Process("--config", str(process.file), folder=tmp_path)
            try:
                load.process = again
                wait_until(lambda: load.denied > 3, "the limit is reached again")
                load.stop()
                assert before < load.granted <= 300
                # A grant whose answer was lost in the kill counts too: at most one for each thread.
                assert load.granted >= 300 - 3
                assert body(again.client.get("/v1/limits/api/status"))["status"]["remaining"] == 0
            finally:
                again.end()
        finally:
            load.stop()


def test_of_two_servers_on_one_engine_one_is_killed(tmp_path):
    text = '[limits.api]\nlimit = "1000/hour"\nengine_timeout = 20\n'
    engine = ("--engine", f"embedded://{tmp_path}/shared")
    with served(tmp_path, text, *engine) as first:
        second = Process("--config", str(first.file), *engine, folder=tmp_path)
        loads = [Load(first, "api", threads=2), Load(second, "api", threads=2)]
        try:
            wait_until(lambda: min(load.granted for load in loads) > 20, "grants of both")
            first.end(signal.SIGKILL)
            wait_until(lambda: loads[1].denied > 3, "the limit is reached")
        finally:
            for load in loads:
                load.stop()
            second.end()
        granted = sum(load.granted for load in loads)
        assert 1000 - 2 <= granted <= 1000


def test_the_permits_of_a_server_that_was_killed_come_back(tmp_path):
    text = '[limits.calls]\nlimit = "2 concurrent"\nlease = 600\nengine_timeout = 20\n'
    with served(tmp_path, text) as process:
        ids = [body(process.acquire("calls"))["permit"] for _ in range(2)]
        assert process.acquire("calls").status == 429
        process.end(signal.SIGKILL)
        again = Process("--config", str(process.file), folder=tmp_path)
        try:
            reply = again.acquire("calls", wait=NEVER)
            assert reply.status == 200
            assert again.client.post(f"/v1/permits/{ids[0]}/release", {}).kind == "unknown-permit"
        finally:
            again.end()


# -- waiting ---------------------------------------------------------------------------------------------


def raw(process, text):
    return process.connect(text)


def send_until_closed(connection, parts):
    """Send until the server has closed the connection; whether it has."""
    try:
        for part in parts:
            connection.sendall(part)
    except OSError:
        return True
    return False


def post(path, value):
    text = json.dumps(value)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}"


def waiting(process, limit):
    return body(process.client.get(f"/v1/limits/{limit}"))["waiting"]


def test_a_client_that_disconnects_while_it_waits_leaves_the_queue(tmp_path):
    with served(tmp_path, f'{MEMORY}[limits.calls]\nlimit = "1 concurrent"\nlease = 600\n') as process:
        first = body(process.acquire("calls"))["permit"]
        leaving = raw(process, post("/v1/acquire", {"limit": "calls", "wait": 600}))
        wait_until(lambda: waiting(process, "calls") == 1, "it waits")
        staying = raw(process, post("/v1/acquire", {"limit": "calls", "wait": 600}))
        wait_until(lambda: waiting(process, "calls") == 2, "both wait")
        leaving.close()
        wait_until(lambda: waiting(process, "calls") == 1, "the server has noticed")
        process.client.post(f"/v1/permits/{first}/release", {})
        assert staying.recv(100).startswith(b"HTTP/1.1 200 OK")
        staying.close()


# -- the file --------------------------------------------------------------------------------------------


def test_a_file_that_changes_is_read_again_and_a_bad_one_changes_nothing(tmp_path):
    first = f'{MEMORY}[limits.api]\nlimit = "5/hour"\n'
    with served(tmp_path, first) as process:

        def remaining():
            return body(process.client.get("/v1/limits/api/status"))["status"]["remaining"]

        process.acquire("api")
        process.file.write_text(first.replace("5/hour", "9/hour"))
        process.wait_for("was read again: limits: api changed")
        assert remaining() == 8
        process.file.write_text(first.replace("5/hour", "9/fortnight"))
        process.wait_for(
            r"nothing has changed: .*served.toml: \[limits.api\] limit = '9/fortnight' cannot be read"
        )
        assert remaining() == 8
        process.file.unlink()
        process.wait_for("served.toml cannot be read, and nothing has changed")
        assert remaining() == 8
        process.file.write_text(first.replace("5/hour", "3/hour"))
        wait_until(lambda: remaining() == 2, "the file is there again")
        # It is told after it is done, so a busy machine may be behind with the line of the last change.
        wait_until(lambda: process.output.count("was read again") >= 2, "and that is told")
        said = process.output.count("was read again")
        process.child.send_signal(signal.SIGHUP)
        wait_until(lambda: process.output.count("was read again") > said, "SIGHUP is a reload")
        assert process.output.rstrip().endswith("no changes")


# -- hostile and slow clients ----------------------------------------------------------------------------

TOKENS = '[tokens.app]\ntoken = "app-token-0123456789"\nrole = "use"\n'


def test_large_bodies_and_keys_are_refused_and_others_are_served(tmp_path):
    with served(tmp_path, f'{MEMORY}[limits.api]\nlimit = "5/hour"\n') as process:
        large = process.client.post("/v1/acquire", b"x" * 10_000_000)
        assert (large.status, large.kind) == (413, "body-too-large")
        endless = raw(
            process, "POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        )
        endless.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        assert send_until_closed(endless, [b"10000\r\n" + b"x" * 0x10000 + b"\r\n"] * 1000)
        key = process.acquire("api", key="k" * 1_000_000)
        assert (key.status, key.kind) == (422, "bad-request")
        assert "1024" in key.body["detail"]
        assert process.acquire("api", key="k" * 1_048_577).status == 413
        assert body(process.acquire("api"))["status"]["remaining"] == 4


def test_100_000_unknown_keys_leave_the_memory_bounded(tmp_path):
    text = f'{MEMORY}[limits.api]\nlimit = "5/hour"\nmax_keys = 5000\n'
    with served(tmp_path, text) as process:
        assert process.acquire("api", key="alice").status == 200

        def flood(first):
            for start in range(first, first + 10_000, 500):
                takes = [
                    {"limit": "api", "key": f"{'invented' * 20}{number}"}
                    for number in range(start, start + 500)
                ]
                reply = process.client.post("/v1/acquire/each", {"requests": takes})
                assert reply.status == 200
            return reply

        flood(0)
        before = process.memory()
        for first in range(10_000, 110_000, 10_000):
            last = flood(first)
        grown = process.memory() - before
        assert grown < 20_000_000, f"{grown:,} bytes"
        assert last.body["answers"][0]["problem"]["reason"] == "max_keys"
        assert body(process.client.get("/v1/limits/api"))["keys"] == 5000
        assert process.acquire("api", key="alice").status == 200, "a known key is served"


def test_wrong_tokens_and_roles_that_are_too_low(tmp_path):
    text = f'{MEMORY}[limits.api]\nlimit = "5/hour"\n{TOKENS}'
    with served(tmp_path, text, "--host", "0.0.0.0") as process:
        assert "Authorization: Bearer TOKEN" in process.output
        assert process.acquire("api").status == 401
        post = process.client.post
        assert post("/v1/acquire", {"limit": "api"}, Authorization="Bearer wrong").kind == "no-token"
        good = {"Authorization": "Bearer app-token-0123456789"}
        assert post("/v1/acquire", {"limit": "api"}, **good).status == 200
        low = post("/v1/limits/api/reset", {}, **good)
        assert (low.status, low.kind) == (403, "role-too-low")
        assert process.client.get("/healthz").status == 200
        with pytest.raises(InvalidStatus, match="403"), open_websocket(process):
            pass
        with open_websocket(process, additional_headers=good) as connection:
            assert connection.subprotocol == "v12.stomp"


def open_websocket(process, **options):
    url = f"ws://{process.client.host}:{process.client.port}/stomp"
    return connect(url, subprotocols=[Subprotocol("v12.stomp")], **options)


def test_slow_and_endless_heads_end_and_others_are_served(tmp_path):
    with served(tmp_path, f'{MEMORY}[limits.api]\nlimit = "500/hour"\n') as process:
        head = "POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        silent = raw(process, "")
        slow_head = raw(process, head)
        empty_lines = raw(process, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        said = b""
        while not said.endswith(b'{"status":"ok"}'):
            said += empty_lines.recv(4096)
        empty_lines.sendall(b"\r\n")
        slow_body = raw(process, f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{")
        endless = raw(process, head)
        assert send_until_closed(
            endless, (f"x-{number}: {'y' * 1000}\r\n".encode() for number in range(10_000))
        )
        stop = time.monotonic() + 3
        while time.monotonic() < stop:
            slow_head.sendall(b"x: y\r\n")
            assert process.acquire("api").status == 200
            time.sleep(0.5)
        slow_body.settimeout(SOON)
        assert slow_body.recv(12) == b"HTTP/1.1 408"
        for connection in (silent, slow_head, empty_lines):
            connection.settimeout(SOON)
            assert connection.recv(12) in (b"HTTP/1.1 408", b"")
        assert process.acquire("api").status == 200


def test_a_thousand_idle_connections_disturb_no_other(tmp_path):
    with served(tmp_path, f'{MEMORY}[limits.api]\nlimit = "500/hour"\n') as process:
        idle = [raw(process, "") for _ in range(1000)]
        assert process.acquire("api").status == 200
        for connection in idle:
            connection.close()
        assert process.acquire("api").status == 200


# -- gates -----------------------------------------------------------------------------------------------


def test_gates_are_served_over_http_and_stomp(tmp_path):
    with served(tmp_path, f'{MEMORY}[gates.orders]\nduration = "5min"\n') as process:
        assert process.client.post("/v1/gates/orders/events", {"event": "order 7"}).status == 200
        assert process.client.post("/v1/gates/orders/events", {"event": "order 7"}).status == 409
        with open_websocket(process) as connection:
            connection.send("CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            assert str(connection.recv(NEVER)).startswith("CONNECTED")


# -- TLS and the end -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", *words.split(), *names, *files], check=True, capture_output=True)
    return folder


@needs_program("openssl", install="apt-get install openssl")
def test_tls_and_plain_http_on_its_port(tmp_path, certificate):
    pair = ("--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem"))
    with served(tmp_path, f'{MEMORY}[limits.api]\nlimit = "5/hour"\n', *pair) as process:
        assert process.url.startswith("https://127.0.0.1:")
        port = int(process.url.rpartition(":")[2])
        plain = socket.create_connection(("127.0.0.1", port), timeout=SOON)
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert plain.recv(1000)[:4] != b"HTTP", "it is closed"
        plain.close()
        silent = socket.create_connection(("127.0.0.1", port), timeout=NEVER)  # the loop's own bound is 60 s
        context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=NEVER)
        connection.request("POST", "/v1/acquire", '{"limit": "api"}', {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
        assert silent.recv(1000) == b"", "a handshake that is not begun is closed"
        silent.close()


@needs_program("openssl", install="apt-get install openssl")
def test_a_key_with_a_password_is_refused_and_no_terminal_is_asked(certificate):
    key, locked = certificate / "key.pem", certificate / "locked.pem"
    words = ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes128", "-passout", "pass:secret"]
    subprocess.run(words, check=True, capture_output=True)
    with pytest.raises(typer.BadParameter, match=r"locked.pem has a password; give a key without one"):
        checked_tls(certificate / "cert.pem", locked)
    assert checked_tls(certificate / "cert.pem", key) is not None


@pytest.mark.parametrize(
    "origin", ["ops.example", "ftp://ops.example", "https://", "https://ops.example/page", ""]
)
def test_an_origin_that_no_browser_sends_is_refused(origin):
    check_origins(["https://ops.example", "http://localhost:9000/", "*"])
    with pytest.raises(typer.BadParameter, match="is no origin"):
        check_origins([origin])


def test_sigterm_ends_waits_lets_permits_be_ended_and_exits_with_0(tmp_path):
    text = f'{MEMORY}drain = 30\n[limits.calls]\nlimit = "1 concurrent"\nlease = 600\n'
    with served(tmp_path, text) as process:
        held = body(process.acquire("calls"))["permit"]
        waiter = raw(process, post("/v1/acquire", {"limit": "calls", "wait": 600}))
        wait_until(lambda: waiting(process, "calls") == 1, "it waits")
        begin = time.monotonic()
        process.child.send_signal(signal.SIGTERM)
        said = waiter.recv(4096)
        assert said.startswith(b"HTTP/1.1 503")
        assert b"urn:headway:closing" in said or b"urn:headway:closing" in waiter.recv(4096)
        assert process.acquire("calls").kind == "closing"
        assert process.client.get("/readyz").status == 503
        assert process.client.post(f"/v1/permits/{held}/release", {}).status == 200
        assert process.child.wait(NEVER) == 0
        assert time.monotonic() - begin < 25, "not after the whole time to drain"


def test_a_second_signal_ends_it_at_once(tmp_path):
    text = f'{MEMORY}drain = 600\n[limits.calls]\nlimit = "1 concurrent"\nlease = 600\n'
    with served(tmp_path, text) as process:
        process.acquire("calls")
        process.child.send_signal(signal.SIGINT)
        wait_until(lambda: process.client.get("/readyz").status == 503, "it drains")
        assert process.end(signal.SIGINT) == 0
        assert "Traceback" not in process.output


def test_a_port_that_is_used_and_an_engine_that_is_away(tmp_path):
    def run(*words):
        command = [*HEADWAY, "serve", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=NEVER
        )

    with served(tmp_path, MEMORY) as process:
        port = process.url.rpartition(":")[2]
        done = run("--engine", "memory://", "--port", port)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"headway: cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr
    done = run("--engine", "redis://127.0.0.1:1", "--port", "0")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("headway: engine redis://127.0.0.1:1 is unavailable")
    assert "Traceback" not in done.stderr
