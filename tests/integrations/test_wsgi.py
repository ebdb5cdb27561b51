"""The WSGI middleware, called under wsgiref's validator; around Flask; and behind a real gunicorn."""

import json
import sys
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import flask
import httpx
import pytest

from headway import InvalidArgument, Limiter
from headway.integrations.wsgi import RateLimit
from headway.testing import ManualClock
from integrations.processes import served


def plain(environ, start_response):
    """An application that answers 200, or what the path says."""
    status = environ["PATH_INFO"].strip("/") or "200"
    start_response(f"{status} Some Reason", [("X-Own", "1"), ("Content-Type", "text/plain")])
    return [b"ok"]


def ask(app, path="/", address="203.0.113.7", method="GET", **more):
    """What a request is answered: its status, its headers, its body."""
    started = []
    environ = {
        "REMOTE_ADDR": address,
        "PATH_INFO": path,
        "REQUEST_METHOD": method,
        "QUERY_STRING": "",
        "SCRIPT_NAME": "",
        **more,
    }
    setup_testing_defaults(environ)

    def start_response(status, headers, error=None):
        started.append((status, dict(headers)))
        return lambda data: None

    response = validator(app)(environ, start_response)
    try:
        body = b"".join(response)
    finally:
        response.close()  # type: ignore[attr-defined]
    status, headers = started[-1]
    return int(status[:3]), headers, body


def test_a_request_above_the_limit_is_a_429_that_says_when():
    app = RateLimit(plain, "2/minute", clock=ManualClock())
    assert [ask(app)[0] for _ in range(3)] == [200, 200, 429]
    status, headers, body = ask(app)
    assert status == 429
    assert headers["Retry-After"] == "60"
    assert headers["RateLimit"] == '"window-0";r=0;t=60'
    assert headers["RateLimit-Policy"] == '"window-0";q=2;w=60'
    assert headers["Content-Type"] == "application/problem+json"
    assert int(headers["Content-Length"]) == len(body)
    assert json.loads(body)["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"


def test_a_head_request_is_refused_without_a_body():
    app = RateLimit(plain, "1/minute", clock=ManualClock())
    assert ask(app)[0] == 200
    status, headers, body = ask(app, method="HEAD")
    assert (status, body) == (429, b"")
    assert int(headers["Content-Length"]) > 0


def test_every_answer_says_how_the_limit_stands_beside_its_own_headers():
    app = RateLimit(plain, "5/minute", legacy_headers=True, clock=ManualClock())
    _, headers, body = ask(app)
    assert (headers["X-Own"], body) == ("1", b"ok")
    assert headers["RateLimit"].startswith('"window-0";r=4;t=')
    assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("5", "4")


def test_keys_costs_exemptions_tiers_and_addresses_see_the_environment():
    app = RateLimit(
        plain,
        {"free": "2/minute", "pro": "10/minute", "staff": None},
        tier=lambda environ: environ.get("HTTP_X_TIER", "free"),
        cost=lambda environ: 2 if environ["PATH_INFO"] == "/201" else 1,
        exempt=lambda environ: environ["PATH_INFO"] == "/206",
        trusted=["10.0.0.0/8"],
        clock=ManualClock(),
    )
    assert [ask(app, "/201")[0] for _ in range(2)] == [201, 429]
    assert ask(app, "/201", address="198.51.100.9")[0] == 201
    assert ask(app, address="198.51.100.9", HTTP_X_FORWARDED_FOR="192.0.2.1")[0] == 429
    assert ask(app, "/201", address="10.0.0.1", HTTP_X_FORWARDED_FOR="203.0.113.7")[0] == 429
    assert ask(app, "/201", address="10.0.0.1", HTTP_X_FORWARDED_FOR="192.0.2.1")[0] == 201
    assert [ask(app, "/201", HTTP_X_TIER="pro")[0] for _ in range(6)] == [201] * 5 + [429]
    assert {ask(app, "/206")[0] for _ in range(9)} == {206}
    assert {ask(app, HTTP_X_TIER="staff")[0] for _ in range(9)} == {200}


def test_only_what_deduct_when_says_is_charged():
    app = RateLimit(plain, "2/minute", deduct_when=lambda status: status >= 400, clock=ManualClock())
    assert {ask(app)[0] for _ in range(9)} == {200}
    assert [ask(app, "/401")[0] for _ in range(3)] == [401, 401, 429]


def test_the_application_settles_what_a_request_cost():
    def app(environ, start_response):
        environ["headway.permit"].settle(2)
        return plain(environ, start_response)

    limited = RateLimit(app, "10/minute", cost=8, clock=ManualClock())
    assert [ask(limited)[0] for _ in range(3)] == [200, 200, 429]  # 2 and 2, and 6 are left


def test_a_key_that_goes_on_after_refusals_is_shut_out():
    clock = ManualClock()
    app = RateLimit(plain, "1/s", ban=("3/minute", 600), clock=clock)
    assert [ask(app)[0] for _ in range(5)] == [200, 429, 429, 429, 429]
    assert ask(app)[1]["Retry-After"] == "600"
    clock.advance(300)
    assert ask(app)[1]["Retry-After"] == "300"
    assert ask(app, address="198.51.100.9")[0] == 200
    clock.advance(300)
    assert ask(app)[0] == 200


def test_a_seat_is_held_until_the_body_was_sent_and_is_free_however_it_ended():
    limiter = Limiter("1 concurrent")
    seen = []

    def streaming(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        seen.append(limiter.peek("203.0.113.7").in_flight)
        for _ in range(2):
            yield b"x"
            seen.append(limiter.peek("203.0.113.7").in_flight)

    def failing(environ, start_response):
        raise RuntimeError("of the application")

    assert ask(RateLimit(streaming, limiter))[2] == b"xx"
    assert seen == [1, 1, 1]
    assert limiter.peek("203.0.113.7").in_flight == 0
    with pytest.raises(RuntimeError, match="of the application"):
        ask(RateLimit(failing, limiter))
    assert limiter.peek("203.0.113.7").in_flight == 0


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(
        InvalidArgument, match="deduct_when=200 is not accepted; give a function of the response"
    ):
        RateLimit(plain, "1/s", deduct_when=200)  # type: ignore[arg-type]


@pytest.mark.parametrize(("how", "status"), [("closed", 503), ("open", 200), ("local", 200)])
def test_an_engine_that_is_away_is_what_the_option_says_and_never_a_500(how, status):
    app = RateLimit(
        plain, "30/hour", name="api", engine="redis://127.0.0.1:1", on_engine_error=how, engine_timeout=0.1
    )
    got, headers, _ = ask(app)
    assert got == status
    assert headers.get("Retry-After") == ("1" if how == "closed" else None)


def test_around_flask():
    app = flask.Flask("app")
    app.add_url_rule("/", view_func=lambda: "hello")
    app.wsgi_app = RateLimit(app.wsgi_app, "2/minute", clock=ManualClock())  # type: ignore[method-assign]
    client = app.test_client()
    replies = [client.get("/") for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[0].headers["RateLimit"].startswith('"window-0";r=1;')
    assert replies[2].get_json()["title"] == "Too many requests"


PROGRAM = """
from headway.integrations.wsgi import RateLimit

def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"hello"

app = RateLimit(hello, "3/hour")
"""


@pytest.mark.realtime
def test_behind_gunicorn(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gunicorn", "--bind=127.0.0.1:{port}", "--threads=4", "program:app"]
    with served(command, tmp_path) as url:
        replies = [httpx.get(url, timeout=30) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["ratelimit"].split(";")[1] for reply in replies] == ["r=2", "r=1", "r=0", "r=0"]
    assert 3500 < int(replies[3].headers["retry-after"]) <= 3600
