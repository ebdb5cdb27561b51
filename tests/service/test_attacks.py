"""Attacks on `headway serve`: each gets a clear answer or is closed, memory is bounded, others are served.

Bodies, keys, tokens, reloads and TLS are in test_serve.py; here is what takes time, memory or connections.
"""

import itertools
import json
import signal

import pytest
from tests.service.attacks import Bystander, Slow, figure, flood, go_on, idle, open_files
from tests.service.processes import Process, body, served

from headway.service.protocol import MAX_PIPELINED
from waiting import NEVER, wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

CONFIG = """
[server]
engine = "memory://"
[limits.api]
limit = "1000000/hour"
[limits.calls]
limit = "1 concurrent"
lease = 600
[gates.orders]
duration = 60
"""
MB = 1_000_000
POST = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
ACQUIRE, SUBMIT = POST.format(path="/v1/acquire"), POST.format(path="/v1/gates/orders/events")
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    with served(tmp_path_factory.mktemp("attacked"), CONFIG) as found:
        found.acquire("api")
        yield found


# -- slow clients ----------------------------------------------------------------------------------------


def test_slow_clients_are_closed_and_others_are_served(process):
    """Slow-loris in all its forms at once: heads, bodies, bodies that no call reads, and answers that are not read."""
    kinds = {
        "silent": ("", b""),
        "head": (ACQUIRE, b"x: y\r\n"),
        "name of a header": (ACQUIRE, b"x"),
        "body": (f"{ACQUIRE}Content-Length: 1000\r\n\r\n", b"{"),
        "body of a gate": (f"{SUBMIT}Content-Length: 1000\r\n\r\n", b"{"),
        "chunks": (f"{ACQUIRE}{CHUNKED}", b"1\r\n{\r\n"),
        "body of a GET": ("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CHUNKED, b"1\r\nx\r\n"),
        "trailers": (f"{ACQUIRE}{CHUNKED}2\r\n{{}}\r\n0\r\n", b"x: y\r\n"),
    }
    with Bystander(process) as others:
        slow = {
            name: [Slow(process, begin.encode(), drip) for _ in range(20)]
            for name, (begin, drip) in kinds.items()
        }
        before = len(others.answers)
        go_on([one for group in slow.values() for one in group])
    assert len(others.answers) > before
    said = {name: {one.said[:12] for one in group} - {b""} for name, group in slow.items()}
    assert said.pop("body of a GET") == {b"HTTP/1.1 200"}, "answered without its body, and closed"
    assert {name for name, found in said.items() if found != {b"HTTP/1.1 408"}} == set()
    assert b"urn:headway:slow-body" in slow["body"][0].said
    assert b"urn:headway:slow-body" in slow["body of a gate"][0].said


PIPELINED = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_clients_that_do_not_read_their_answers_are_closed(process):
    """They pipeline calls and read nothing: what is kept for them is bounded in bytes and in time.

    Half of them have large answers; the other half are calls that the protocol answers by itself, without end.
    """
    size = int(process.client.get("/openapi.json").headers["content-length"])
    assert MAX_PIPELINED * size > 3 * MB, "more than the system keeps for it"
    before = process.memory()
    with Bystander(process):
        greedy = [Slow(process, PIPELINED * MAX_PIPELINED, b"", reads=False) for _ in range(15)]
        greedy += [Slow(process, b"", b"", reads=False) for _ in range(15)]
        wait_until(lambda: figure(process, "headway_connections") >= 30, "they are connected")
        for one in greedy[15:]:
            assert one.stuff(post({"limit": "api"}).encode() * 100) > MB
        grown = process.memory() - before
        assert grown < 30 * MB, f"{grown:,} bytes"
        wait_until(
            lambda: figure(process, "headway_connections") < 5, "they are closed", within=2 * NEVER, every=1
        )
    for one in greedy:
        one.connection.close()


def test_requests_without_end_on_one_connection_are_closed(process):
    """They are pipelined, as fast as they go: no more than some are kept."""
    before = process.memory()
    with Bystander(process):
        greedy = [Slow(process, b"", b"", reads=False) for _ in range(30)]
        for one in greedy:
            one.stuff(PIPELINED * 1000)
        wait_until(lambda: figure(process, "headway_connections") < 30, "they are closed")
    grown = process.memory() - before
    assert grown < 30 * MB, f"{grown:,} bytes"
    for one in greedy:
        one.connection.close()


def test_a_client_that_pipelines_and_reads_gets_every_answer_in_order(process):
    connection = process.connect()
    for number in range(20):
        connection.sendall(
            b"".join(post({"limit": "api", "key": f"{number} {index}"}).encode() for index in range(10))
        )
        connection.sendall(b"GET /v1/limits/api/status?key=last HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        said = b""
        while b'"key":"last"' not in said:
            said += connection.recv(65536)
        assert said.count(b"HTTP/1.1 200 OK") == 11
        assert said.count(b'"granted":true') == 10


def test_a_client_that_leaves_with_requests_pipelined_leaves_the_queue(process):
    held = body(process.acquire("calls"))["permit"]
    leaving = process.connect(post({"limit": "calls", "wait": 600}) + post({"limit": "api"}))
    wait_until(lambda: waiting_for(process, "calls") == 1, "it waits")
    leaving.close()
    wait_until(lambda: waiting_for(process, "calls") == 0, "the server has noticed")
    assert process.client.post(f"/v1/permits/{held}/release", {}).status == 200


# -- large requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "part", "expected"),
    [
        pytest.param(ACQUIRE, b"x: " + b"y" * 1000 + b"\r\n", b"431", id="headers"),
        pytest.param(ACQUIRE + "x: ", b"y" * 10_000, b"431", id="one header"),
        pytest.param("GET /", b"y" * 10_000, b"431", id="the path"),
        pytest.param(
            ACQUIRE + CHUNKED + "2\r\n{}\r\n0\r\n", b"x: " + b"y" * 1000 + b"\r\n", b"431", id="trailers"
        ),
        pytest.param(ACQUIRE + CHUNKED + "2\r\n{}\r\n0\r\nx: ", b"y" * 10_000, b"431", id="one trailer"),
        pytest.param(ACQUIRE + CHUNKED + "2;x=", b"y" * 10_000, b"431", id="the extension of a chunk"),
        pytest.param(ACQUIRE + CHUNKED, b"1000\r\n" + b"y" * 0x1000 + b"\r\n", b"413", id="a body"),
        pytest.param(
            SUBMIT + CHUNKED, b"1000\r\n" + b"y" * 0x1000 + b"\r\n", b"413", id="the body of a gate"
        ),
        pytest.param("", b"\x00\xff" * 5000, b"400", id="no HTTP at all"),
    ],
)
def test_a_request_without_end_is_closed(process, begin, part, expected):
    before = process.memory()
    with Bystander(process, pause=0.01):
        connection = process.connect(begin)
        said = flood(connection, itertools.repeat(part, 200_000_000 // len(part)))
    assert said == b"" or said.startswith(b"HTTP/1.1 " + expected), said[:100]
    grown = process.memory() - before
    assert grown < 30 * MB, f"{grown:,} bytes"


def test_chunks_of_one_byte_are_a_body_as_any_other(process):
    text = json.dumps({"limit": "api", "key": "k" * 900}).encode()
    connection = process.connect(ACQUIRE + CHUNKED)
    connection.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"


# -- connections -----------------------------------------------------------------------------------------

IDLE = 10_000


@pytest.mark.skipif(
    not open_files(IDLE + 1000), reason=f"needs {IDLE + 1000} open files: ulimit -Hn unlimited"
)
def test_10_000_idle_connections_disturb_no_other(process):
    before = process.memory()
    with Bystander(process) as others:
        connections = idle(process, IDLE)
        try:
            seen = len(others.answers)
            wait_until(lambda: len(others.answers) > seen + 3, "others are served beside them")
            grown = process.memory() - before
            assert grown < IDLE * 20_000, f"{grown:,} bytes"
            wait_until(lambda: figure(process, "headway_connections") < 100, "they are closed", every=0.5)
        finally:
            for connection in connections:
                connection.close()


FILES = 128


FEW_FILES = ("sh", "-c", f'ulimit -n {FILES} && exec "$0" "$@"')


def test_where_files_run_out_idle_connections_are_closed_for_new_ones(tmp_path):
    with served(tmp_path, CONFIG.replace("[server]", "[server]\ndrain = 0"), before=FEW_FILES) as process:
        idle_ones = idle(process, 5 * FILES)
        assert process.acquire("api").status == 200
        assert figure(process, "headway_connections") <= FILES // 2
        held = body(process.acquire("calls"))["permit"]
        request = {"limit": "calls", "wait": 600}
        waiting = [process.connect(post(request)) for _ in range(FILES // 2 - 1)]
        wait_until(lambda: waiting_for(process, "calls") == len(waiting), "all wait")
        idle_ones += [process.connect() for _ in range(FILES // 2)]
        # One place is left, which idle ones take from each other: those that wait keep theirs.
        assert waiting_for(process, "calls") == len(waiting)
        waiting.append(process.connect(post(request)))
        assert process.connect().recv(1000).startswith(b"HTTP/1.1 503"), "no connection is idle"
        for connection in idle_ones:
            connection.close()
        waiting.pop().close()
        wait_until(lambda: answers(process), "there is room again")
        process.client.post(f"/v1/permits/{held}/release", {})
        assert waiting[0].recv(12) == b"HTTP/1.1 200"


def post(value):
    text = json.dumps(value)
    return f"{ACQUIRE}Content-Length: {len(text)}\r\n\r\n{text}"


def waiting_for(process, limit):
    return body(process.client.get(f"/v1/limits/{limit}"))["waiting"]


def answers(process):
    try:
        return process.client.get("/healthz").status == 200
    except OSError:
        return False


# -- the end ---------------------------------------------------------------------------------------------


def test_ctrl_c_with_calls_waiting_hands_back_what_is_held(tmp_path):
    text = '[server]\ndrain = 1\n[limits.calls]\nlimit = "2 concurrent"\nlease = 600\nengine_timeout = 20\n'
    with served(tmp_path, text) as process:
        assert [process.acquire("calls").status for _ in range(2)] == [200, 200]
        waiting = [process.connect(post({"limit": "calls", "wait": 600})) for _ in range(50)]
        wait_until(lambda: waiting_for(process, "calls") == len(waiting), "all wait")
        assert process.child.send_signal(signal.SIGINT) is None
        for connection in waiting:
            said = flood(connection, ())
            assert said.startswith(b"HTTP/1.1 503")
            assert b"urn:headway:closing" in said
        assert process.child.wait(NEVER) == 0
        again = Process("--config", str(process.file), folder=tmp_path)
        try:
            # At once: a server that is killed has its permits back only when the engine's lease is over.
            assert [again.acquire("calls").status for _ in range(3)] == [200, 200, 429]
        finally:
            again.end()
