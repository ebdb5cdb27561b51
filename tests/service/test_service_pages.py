"""What docs/operations.md and docs/security.md say of the service is so."""

import ast
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.service.attacks import figure
from tests.service.processes import served
from tests.service.test_serve import matches
from tests.service.virtual import serve

from headway.once import input as events
from headway.service import answers, bodies, config, messages, protocol, running
from headway.service.api import ENDPOINTS
from headway.service.grpc import server as grpc_server
from headway.service.live import sampler
from waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()


def rows(page, first):
    """The cells of every row of the table whose head begins so."""
    lines = page[page.index(f"| {first}") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


# -- security --------------------------------------------------------------------------------------------

SERVER = config.ServerConfig()
BOUNDS = {
    "seconds for a TLS handshake": running.HANDSHAKE_SECONDS,
    "seconds for a head": protocol.HEAD_SECONDS,
    "bytes of a head": protocol.HEAD_BYTES,
    "seconds for a body": bodies.BODY_SECONDS,
    "bytes of a body": SERVER.max_body,
    "bytes of a body that are read to answer 413": bodies.SKIPPED,
    "bytes around the chunks of a body": protocol.FRAMING_BYTES,
    "requests on one connection that wait for earlier ones": protocol.MAX_PIPELINED,
    "seconds for an answer to be read": protocol.ANSWER_SECONDS,
    "seconds for which an unused connection is kept": running.KEEP_ALIVE,
    "connections": SERVER.max_connections,
    "connections of Envoy proxies": grpc_server.MAX_CONNECTIONS,
    "characters of a key": messages.MAX_KEY,
    "characters of an id": messages.MAX_ID,
    "seconds of a wait": messages.MAX_WAIT,
    "requests of a batch": SERVER.max_batch,
    "keys of a limit": config.DEFAULT_MAX_KEYS,
    "requests that wait": SERVER.max_waiting,
    "permits that clients hold": SERVER.max_permits,
    "limits": SERVER.max_limits,
    "commands that are remembered by their id": answers.MOST,
    "bytes of answers that are remembered": answers.MOST_BYTES,
    "bytes of an event, and of its value": events.LONGEST_EVENT,
    "bytes of a message on a WebSocket": running.uvicorn_config(None).ws_max_size,
    "clients that watch `/v1/live`": sampler.WATCHERS,
}


def test_the_bounds_of_the_page_are_those_of_the_code():
    table = rows(SECURITY, "what | bound")
    assert {name: float(bound) for name, bound, *_ in table} == BOUNDS
    for name, _, _, setting in table:
        if setting:
            key = setting.strip("`")
            assert key in config.SERVER or key in config.LIMIT, name
            assert {**config.LIMIT, **config.SERVER}[key].default == BOUNDS[name]


@pytest.mark.parametrize(
    ("soft", "hard", "most", "besides", "fit", "raised"),
    [
        (1024, 100_000, 20_000, 0, 20_000, 20_256),
        (1024, 4096, 20_000, 0, 3840, 4096),
        (1024, 4096, 20_000, 10_000, 2560, 4096),
        (1024, resource.RLIM_INFINITY, 20_000, 10_000, 20_000, 30_256),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 20_000, 0, 20_000, None),
        (128, 128, 20_000, 0, 64, 128),
        (50_000, 50_000, 20_000, 0, 20_000, None),
    ],
)
def test_connections_fit_the_open_files_that_are_allowed(monkeypatch, soft, hard, most, besides, fit, raised):
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert running.connections_that_fit(most, besides) == fit
    assert asked == ([] if raised is None else [(raised, hard)])


def test_no_answer_has_a_secret_in_it():
    token, engine_secret = "an-admin-token-0123456", "engine-secret-0123456"
    text = f'[limits.api]\nlimit = "5/s"\n[tokens.a]\ntoken = "{token}"\nrole = "admin"\n'

    async def test(peer):
        header = {"Authorization": f"Bearer {token}"}
        peer.service.limits.engine = f"redis://:{engine_secret}@127.0.0.1:1"
        digest = hashlib.sha256(token.encode()).hexdigest()
        for call in ENDPOINTS:
            if call.method == "GET" and call.operation != "readyz":
                reply = await peer.get(call.path.replace("{name}", "api"), **header)
                assert reply.status_code == 200, call.path
                for secret in (token, digest, engine_secret):
                    assert secret not in reply.text
                    assert secret not in str(reply.headers)
        peer.service.limits.engine = "memory://"

    serve(text, test)


HOSTILE = [
    "'); redis.call('FLUSHALL') --",
    '"]]..redis.call("FLUSHALL")..[["',
    "*",
    "{other}",
    "a:b:c",
    "../../etc/passwd",
    "\r\nSET x 1\r\n",
    "\x00",
    "\u202e\U0001f600",
    "{{7*7}}${7*7}%s%n",
    "k" * messages.MAX_KEY,
]


@pytest.mark.realtime
@pytest.mark.slow
def test_a_hostile_key_is_a_key_as_any_other(tmp_path):
    """On an engine with scripts: each is a ledger of its own, and nothing else happens to the others."""
    with served(tmp_path, '[limits.api]\nlimit = "2/hour"\nengine_timeout = 20\n') as process:
        for _ in range(2):
            for key in ("quiet", *HOSTILE):
                assert process.acquire("api", key=key).status == 200, key
        for key in ("quiet", *HOSTILE):
            reply = process.acquire("api", key=key)
            assert (reply.status, reply.body["reason"]) == (429, "limit"), key
            assert not any("\r" in value or "\n" in value for value in reply.headers.values())
        assert figure(process, 'headway_keys{limit="api"}'.replace("{", r"\{")) == len(HOSTILE) + 1


# -- operations ------------------------------------------------------------------------------------------


def test_the_figures_of_the_page_are_those_of_the_server():
    named = {
        re.findall(r"`(\w+)", row[0])[0].removesuffix("_total") for row in rows(OPERATIONS, "figure | says")
    }

    async def test(peer):
        await peer.acquire("api")
        await peer.acquire("api")
        there = set(re.findall(r"^# TYPE (\w+) ", (await peer.get("/metrics")).text, re.MULTILINE))
        assert {name.removesuffix("_total").removesuffix("_created") for name in there} == named

    serve('[limits.api]\nlimit = "1/minute"', test)
    for name in re.findall(r"headway_\w+", OPERATIONS):
        assert name.removesuffix("_total") in named


def test_the_figures_of_the_guide_are_those_of_the_page():
    guide = (ROOT / "docs" / "service.md").read_text()
    for name in re.findall(r"`(headway_\w+)", guide):
        assert name in OPERATIONS


@pytest.mark.parametrize("row", rows(OPERATIONS, "what happens"), ids=lambda row: row[0])
def test_every_failure_is_shown_by_a_test(row):
    path, _, name = row[3].strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_commands_of_the_page_run_as_written():
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", OPERATIONS, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for command, expected in blocks:
        words = command.replace("headway", f"{sys.executable} -m headway.cli", 1)
        done = subprocess.run(
            ["bash", "-c", words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "80"},
        )
        assert done.returncode == 0, done.stderr
        assert matches(expected.strip(), done.stdout), done.stdout


@pytest.mark.realtime
@pytest.mark.slow
def test_the_memory_of_the_page_is_not_too_little(tmp_path):
    """Each row is measured with some thousands; idle connections are in test_attacks.py."""
    stated = {
        row[0].partition(",")[0]: int(row[1].replace(",", "")) for row in rows(OPERATIONS, "what | bytes")
    }
    text = '[server]\nengine = "memory://"\ndrain = 0\n[limits.api]\nlimit = "5/hour"\n[limits.calls]\n'
    text += 'limit = "100000 concurrent"\n[limits.one]\nlimit = "1 concurrent"\n[limits.many]\nlimit = "9999/hour"\n'
    with served(tmp_path, text) as process:

        def each(takes):
            for start in range(0, len(takes), 1000):
                reply = process.client.post("/v1/acquire/each", {"requests": takes[start : start + 1000]})
                assert all(answer["granted"] for answer in reply.body["answers"])

        def wait(number):
            body = json.dumps({"limit": "one", "wait": 600})
            head = "POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            for _ in range(number):
                process.connect(f"{head}Content-Length: {len(body)}\r\n\r\n{body}")
            wait_until(lambda: process.client.get("/v1/limits/one").body["waiting"] >= number, "they wait")

        def remember(number):
            for index in range(number):
                assert process.acquire("many", id=f"{number} {index}").status == 200

        makers = {
            "key": lambda number: each(
                [{"limit": "api", "key": f"{number} {index}"} for index in range(number)]
            ),
            "permit that a client holds": lambda number: each([{"limit": "calls"}] * number),
            "request that waits": wait,
            "answer that is remembered by its id": remember,
        }
        assert process.acquire("one").status == 200
        for name, make in makers.items():
            many = {"request that waits": 300, "answer that is remembered by its id": 2000}.get(name, 5000)
            make(many // 5)  # what is made once, and rests of what was there before
            before = process.memory()
            make(many)
            grown = process.memory() - before
            assert grown < stated[name] * many + 3_000_000, f"{name}: {grown / many:,.0f} bytes"
