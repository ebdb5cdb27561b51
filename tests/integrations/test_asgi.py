"""The ASGI middleware, called as a server calls it; and around Starlette and FastAPI behind a real uvicorn."""

import asyncio
import json
import re

import httpx
import pytest
from fastapi import FastAPI
from starlette.websockets import WebSocket

from headway import InvalidArgument, Limiter
from headway.integrations.asgi import RateLimit
from headway.testing import ManualClock
from service.serving import serving

CLIENT = ("203.0.113.7", 50000)


async def plain(scope, receive, send):
    """An application that answers 200, or what the path says."""
    status = int(scope["path"].strip("/") or 200)
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": b"ok"})


def ask(app, path="/", client=CLIENT, headers=(), kind="http", **more):
    """What a request is answered: its status, its headers, its body."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client, "headers": list(headers), **more}
    asyncio.run(app(scope, receive, send))
    if "status" not in sent[0]:
        return sent[0]
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent[1:])


def test_a_request_above_the_limit_is_a_429_that_says_when():
    app = RateLimit(plain, "2/minute", clock=ManualClock())
    assert [ask(app)[0] for _ in range(3)] == [200, 200, 429]
    status, headers, body = ask(app)
    assert status == 429
    assert headers["retry-after"] == "60"
    assert headers["ratelimit"] == '"window-0";r=0;t=60'
    assert headers["ratelimit-policy"] == '"window-0";q=2;w=60'
    assert headers["content-type"] == "application/problem+json"
    assert int(headers["content-length"]) == len(body)
    problem = json.loads(body)
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert problem["status"] == 429
    assert problem["violated-policies"] == ["window-0"]


def test_every_answer_says_how_the_limit_stands_beside_its_own_headers():
    app = RateLimit(plain, "5/minute", legacy_headers=True, clock=ManualClock())
    _, headers, _ = ask(app)
    assert headers["x-own"] == "1"
    assert headers["ratelimit"].startswith('"window-0";r=4;t=')
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("5", "4")
    assert "retry-after" not in headers


def test_headers_can_be_left_out():
    app = RateLimit(plain, "1/minute", headers=False, clock=ManualClock())
    assert ask(app)[1] == {"x-own": "1"}
    status, headers, _ = ask(app)
    assert status == 429
    assert sorted(headers) == ["content-length", "content-type", "retry-after"]


def test_clients_are_told_apart_by_their_address_and_cannot_lie_about_it():
    app = RateLimit(plain, "1/minute", clock=ManualClock())
    assert ask(app)[0] == 200
    assert ask(app, headers=[(b"x-forwarded-for", b"198.51.100.9")])[0] == 429
    assert ask(app, client=("198.51.100.9", 1))[0] == 200


def test_behind_a_proxy_that_is_trusted_the_client_is_the_one_that_it_names():
    app = RateLimit(plain, "1/minute", trusted=["10.0.0.0/8"], clock=ManualClock())
    forwarded = [(b"x-forwarded-for", b"203.0.113.7")]
    assert ask(app, client=("10.0.0.1", 1), headers=forwarded)[0] == 200
    assert ask(app, client=("10.0.0.2", 1), headers=forwarded)[0] == 429
    assert ask(app, client=("10.0.0.1", 1), headers=[(b"x-forwarded-for", b"203.0.113.8")])[0] == 200


def test_keys_costs_and_exemptions_see_the_scope():
    app = RateLimit(
        plain,
        "10/minute",
        key=lambda scope: dict(scope["headers"]).get(b"x-user", b"").decode(),
        cost=lambda scope: 6 if scope["path"] == "/201" else 1,
        exempt=lambda scope: scope["path"] == "/204",
        clock=ManualClock(),
    )
    ann, bob = [(b"x-user", b"ann")], [(b"x-user", b"bob")]
    assert [ask(app, "/201", headers=ann)[0] for _ in range(2)] == [201, 429]
    assert ask(app, "/201", headers=bob)[0] == 201
    assert {ask(app, "/204", headers=ann)[0] for _ in range(20)} == {204}


def test_tiers_have_limits_of_their_own():
    app = RateLimit(
        plain,
        {"free": "1/minute", "pro": "3/minute", "staff": None},
        tier=lambda scope: {"/201": "pro", "/202": "staff"}.get(scope["path"], "free"),
        clock=ManualClock(),
    )
    assert [ask(app)[0] for _ in range(2)] == [200, 429]
    assert [ask(app, "/201")[0] for _ in range(4)] == [201, 201, 201, 429]
    assert {ask(app, "/202")[0] for _ in range(9)} == {202}


def test_only_what_deduct_when_says_is_charged():
    app = RateLimit(plain, "2/minute", deduct_when=lambda status: status >= 400, clock=ManualClock())
    assert {ask(app)[0] for _ in range(9)} == {200}
    assert [ask(app, "/401")[0] for _ in range(3)] == [401, 401, 429]


def test_a_key_that_goes_on_after_refusals_is_shut_out():
    clock = ManualClock()
    app = RateLimit(plain, "1/s", ban=("3/minute", 600), clock=clock)
    assert [ask(app)[0] for _ in range(4)] == [200, 429, 429, 429]
    clock.advance(1)
    assert ask(app)[0] == 200
    refused = ask(app)
    assert refused[0] == 429
    assert refused[1]["retry-after"] == "600"
    clock.advance(300)
    assert ask(app)[1]["retry-after"] == "300"
    assert ask(app, client=("198.51.100.9", 1))[0] == 200
    clock.advance(300)
    assert ask(app)[0] == 200


def test_what_is_held_during_a_request_is_free_after_it_however_it_ended():
    limiter = Limiter("1 concurrent")

    async def failing(scope, receive, send):
        raise RuntimeError("of the application")

    app = RateLimit(failing, limiter)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="of the application"):
            ask(app)
    assert limiter.peek().remaining == 1


def test_lifespan_is_passed_on():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(RateLimit(app, "1/minute")({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


# -- WebSocket ------------------------------------------------------------------------------------------------


def test_a_websocket_that_is_refused_is_answered_429_where_the_server_can_and_closed_where_not():
    app = RateLimit(plain, "1/minute", clock=ManualClock())
    assert ask(app)[0] == 200
    assert ask(app, kind="websocket") == {"type": "websocket.close", "code": 1008, "reason": ""}
    status, headers, _ = ask(app, kind="websocket", extensions={"websocket.http.response": {}})
    assert (status, headers["retry-after"]) == (429, "60")


def test_messages_of_a_websocket_wait_their_turn():
    clock = ManualClock(autojump=True)
    times = []

    async def app(scope, receive, send):
        while (await receive())["type"] == "websocket.receive":
            times.append(clock.time())

    async def main():
        messages = [{"type": "websocket.receive", "text": "x"}] * 5 + [{"type": "websocket.disconnect"}]

        async def receive():
            return messages.pop(0)

        limited = RateLimit(app, "10/minute", messages="2/s", clock=clock)
        await limited({"type": "websocket", "client": CLIENT, "headers": [], "path": "/"}, receive, None)

    asyncio.run(main())
    assert times == [0, 0, 1, 1, 2]


# -- bad options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"limit": {"a": "1/s"}},
            "tier=None is not accepted; give a function of the request, where `limit` is a mapping",
        ),
        ({"limit": "1/s", "tier": len}, "tier="),
        ({"limit": "1/s", "deduct_when": 200}, "deduct_when=200 is not accepted"),
        ({"limit": "1/s", "ban": ("1/s", 0)}, "ban="),
        ({"limit": "1/s", "trusted": ["everything"]}, "trusted='everything' is not accepted"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        RateLimit(plain, **options)


# -- behind a real server -------------------------------------------------------------------------------------


@pytest.mark.realtime
def test_fastapi_behind_uvicorn():
    app = FastAPI()
    app.add_middleware(RateLimit, limit="3/hour", messages="100/s")

    @app.get("/")
    async def root() -> dict[str, bool]:
        return {"ok": True}

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())

    with serving(app) as client:
        replies = [httpx.get(client.url) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert replies[0].headers["ratelimit"].startswith('"window-0";r=2;t=')
    assert 3590 < int(replies[3].headers["retry-after"]) <= 3600
    assert replies[3].json()["title"] == "Too many requests"


@pytest.mark.realtime
@pytest.mark.parametrize(("how", "status"), [("closed", 503), ("open", 200)])
def test_an_engine_that_is_away_is_what_the_option_says_and_never_a_500(how, status):
    app = RateLimit(
        plain, "3/hour", name="api", engine="redis://127.0.0.1:1", on_engine_error=how, engine_timeout=0.1
    )
    got, headers, _ = ask(app)
    assert got == status
    if how == "closed":
        assert headers["retry-after"] == "1"
