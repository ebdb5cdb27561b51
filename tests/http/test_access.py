"""Which client may use a service as its engine; TLS; and commands that make no sense."""

import json
import subprocess

import pytest
from tests.service.processes import served
from tests.service.serving import Client, serving_on

from conftest import needs_program
from headway import EngineUnavailable, Limiter
from waiting import NEVER

pytestmark = pytest.mark.realtime

TOKENS = """
[tokens.ops]
token = "ops-0123456789abcdef"
role = "admin"
[tokens.app]
token = "app-0123456789abcdef"
role = "use"
"""


def limiter_on(uri):
    return Limiter("5/hour", name="access", engine=uri, engine_timeout=NEVER)


def test_a_token_with_the_role_admin_is_needed(tmp_path):
    with serving_on(f"embedded://{tmp_path}/ledgers", TOKENS) as url:
        where = url.removeprefix("http://")
        allowed = limiter_on(f"http://ops-0123456789abcdef@{where}")
        assert allowed.try_acquire()
        allowed.close()
        for token, why in (("", "401"), ("wrong-0123456789abcdef@", "401"), ("app-0123456789abcdef@", "403")):
            refused = limiter_on(f"http://{token}{where}")
            with pytest.raises(EngineUnavailable, match=why) as error:
                refused.try_acquire()
            assert "0123" not in str(error.value)
            refused.close()


def test_a_service_in_memory_says_what_to_start_it_with():
    with serving_on("memory://") as url:
        limiter = limiter_on(url)
        with pytest.raises(EngineUnavailable, match="start it with --engine embedded://"):
            limiter.try_acquire()
        limiter.close()


@needs_program("openssl", install="apt-get install openssl")
def test_tls(tmp_path):
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(["openssl", *words.split(), *names, *files], check=True, capture_output=True)
    pair = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with served(tmp_path, "", "--engine", f"embedded://{tmp_path}/ledgers", *pair) as process:
        trusted = limiter_on(f"{process.url}?ssl_ca_certs={tmp_path}/cert.pem")
        assert trusted.try_acquire()
        with trusted.hold():
            assert trusted.peek().remaining == 3
        trusted.close()
        stranger = limiter_on(process.url)
        with pytest.raises(EngineUnavailable, match="certificate"):
            stranger.try_acquire()
        stranger.close()


BATCH = {
    "session": "0123456789abcdef", "lease": 5 * 10**9, "new": True, "answered": 0, "heard": 0, "forget": [],
    "withdraw": [], "drop": [], "close": [], "commands": [],
}  # fmt: skip


def test_commands_that_make_no_sense_are_refused_one_by_one(tmp_path):
    with serving_on(f"embedded://{tmp_path}/ledgers") as url:
        peer = Client(url)
        commands = [
            [1, "nothing"],
            [2, "acquire", 7, ["k"], [1], 0, None, False, None],
            [
                3,
                "open",
                1,
                "n",
                "t",
                [None],
                [["window", -1, 10, None]],
                10**9,
                "trust",
                None,
                0,
                None,
                False,
            ],
            [4, "peek"],
            [5, "ping"],
            [6, "_limiters"],
            [7, "submit", 1, "a", "b", None],
        ]
        reply = peer.post("/v1/engine", {**BATCH, "commands": commands})
        assert reply.status == 200
        assert [answer[1] for answer in reply.body["answers"]] == ["error"] * 4 + ["ok"] + ["error"] * 2
        assert (
            peer.post("/v1/engine", {**BATCH, "commands": commands}).body["answers"] == reply.body["answers"]
        )


@pytest.mark.parametrize(
    ("batch", "status"),
    [
        ({}, 422),
        ([], 422),
        ({**BATCH, "session": "short"}, 422),
        ({**BATCH, "lease": 1}, 422),
        ({**BATCH, "new": False}, 410),
        ({**BATCH, "commands": 5}, 422),
        ({**BATCH, "commands": [5]}, 422),
        ({**BATCH, "commands": [["x", "ping"]]}, 422),
        ({**BATCH, "forget": None}, 422),
        ({**BATCH, "answered": "many"}, 422),
        (b"{", 400),
    ],
    ids=str,
)
def test_a_batch_that_makes_no_sense_is_refused(service, batch, status):
    raw = batch if isinstance(batch, bytes) else json.dumps(batch).encode()
    assert service.post("/v1/engine", raw).status == status


def test_a_session_that_is_not_known_tells_nothing(service):
    assert service.get("/v1/engine/events?session=unheard-of&after=0").status == 410


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving_on(f"embedded://{tmp_path_factory.mktemp('access')}/ledgers") as url:
        yield Client(url)
