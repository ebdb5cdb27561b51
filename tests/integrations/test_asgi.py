"""The ASGI middleware, called as a server calls it; and around Starlette and FastAPI behind a real uvicorn."""

import asyncio
import json
import re

import httpx
import pytest
from fastapi import FastAPI
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headway import InvalidArgument, Limiter
from headway.integrations.asgi import RateLimit
from headway.integrations.inbound import MAX_LIMITS, Inbound
from headway.testing import ManualClock
from service.serving import serving
from waiting import NEVER

pytestmark = pytest.mark.both_forms
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


def test_a_limit_may_be_a_function_of_the_scope():
    def limit(scope):
        return {"/201": "2/minute", "/202": None}.get(scope["path"], "1/minute")

    app = RateLimit(plain, limit, clock=ManualClock())
    assert [ask(app)[0] for _ in range(2)] == [200, 429]
    assert [ask(app, "/201")[0] for _ in range(3)] == [201, 201, 429]
    assert {ask(app, "/202")[0] for _ in range(9)} == {202}
    assert ask(app, "/203")[0] == 429  # it has the same limit, and so the same ledgers, as the first


def test_a_function_cannot_name_more_limits_than_are_kept():
    counts = iter(range(1, 2000))
    app = RateLimit(plain, lambda scope: f"{next(counts)}/minute", clock=ManualClock())
    assert {ask(app)[0] for _ in range(MAX_LIMITS)} == {200}
    with pytest.raises(InvalidArgument, match="one of at most 1000 different limits"):
        ask(app)


def test_a_cost_above_the_limit_is_refused_and_one_of_0_is_free():
    app = RateLimit(
        plain,
        "10/minute",
        cost=lambda scope: int(scope["query_string"]),
        legacy_headers=True,
        clock=ManualClock(),
    )
    status, headers, body = ask(app, query_string=b"11")
    assert (status, "retry-after" in headers) == (429, False)
    assert json.loads(body)["detail"].startswith("cost=11 is not accepted; give at most 10")
    assert ask(app, query_string=b"10")[0] == 200
    status, headers, _ = ask(app, query_string=b"0")
    assert (status, headers) == (200, {"x-own": "1"})
    with pytest.raises(InvalidArgument, match="cost=-1"):
        ask(app, query_string=b"-1")


def test_the_application_settles_what_a_request_cost():
    async def app(scope, receive, send):
        scope["headway.permit"].settle(2)
        await plain(scope, receive, send)

    limited = RateLimit(app, "10/minute", cost=8, clock=ManualClock())
    assert [ask(limited)[0] for _ in range(3)] == [200, 200, 429]  # 2 and 2, and 6 are left


def test_of_two_middlewares_the_inner_one_tells_its_limit():
    clock = ManualClock()
    app = RateLimit(RateLimit(plain, "5/minute", clock=clock), "100/minute", clock=clock)
    sent = []

    async def main():
        scope = {"type": "http", "path": "/", "client": CLIENT, "headers": []}
        await app(scope, None, keep)

    async def keep(message):
        sent.append(message)

    asyncio.run(main())
    names = [name for name, _ in sent[0]["headers"]]
    assert sorted(names) == [b"ratelimit", b"ratelimit-policy", b"x-own"]
    assert dict(sent[0]["headers"])[b"ratelimit-policy"] == b'"window-0";q=5;w=60'


def test_what_is_around_may_change_the_headers_of_an_answer_without_changing_the_next_one():
    started = {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]}

    async def same(scope, receive, send):
        await send(started)
        await send({"type": "http.response.body", "body": b"ok"})

    limited = RateLimit(same, "2/minute", clock=ManualClock())

    async def around(scope, receive, send):
        async def marking(message):
            if "headers" in message:
                message["headers"].append((b"x-mark", b"1"))
            message["seen"] = True
            await send(message)

        await limited(scope, receive, marking)

    def names():
        sent = []

        async def keep(message):
            sent.append(message)

        scope = {"type": "http", "path": "/", "client": CLIENT, "headers": []}
        asyncio.run(around(scope, None, keep))
        return sent[0]["status"], [name for name, _ in sent[0]["headers"]]

    told = [b"ratelimit", b"ratelimit-policy"]
    assert [names() for _ in range(2)] == [(200, [b"x-own", *told, b"x-mark"])] * 2
    refused = [*told, b"retry-after", b"content-type", b"content-length", b"x-mark"]
    assert [names() for _ in range(3)] == [(429, refused)] * 3
    assert started == {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]}


def test_refusals_of_the_same_limit_follow_its_seconds_and_those_of_others_theirs():
    clock = ManualClock()
    app = RateLimit(
        plain,
        lambda scope: "1/minute" if scope["path"] == "/" else "1/hour",
        legacy_headers=True,
        clock=clock,
    )
    assert [ask(app, path)[0] for path in ("/", "/201")] == [200, 201]
    found = []
    for _ in range(3):
        for path in ("/", "/201"):
            status, headers, body = ask(app, path)
            found.append((status, headers["retry-after"], headers["x-ratelimit-reset"]))
            assert f"retry after {headers['retry-after']} s" in json.loads(body)["detail"]
        clock.advance(0.5)
    seconds = ["60", "3600", "60", "3600", "59", "3599"]
    assert found == [(429, second, second) for second in seconds]
    assert ask(app)[1]["retry-after"] == "59"
    clock.advance(30)
    assert ask(app)[1]["retry-after"] == "29"


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


def test_a_ban_needs_a_key():
    """A client without an address cannot be told from others, and a pause without a key would be for all."""
    app = RateLimit(plain, "1/s", ban=("1/minute", 600), clock=ManualClock())
    assert [ask(app, client=None)[0] for _ in range(9)] == [200, *[429] * 8]
    assert ask(app)[0] == 200


def test_refusals_while_the_engine_is_away_are_not_counted_for_a_ban(monkeypatch):
    """To count them would be to wait for the engine a second time."""
    app = RateLimit(
        plain, "10/hour", ban=("1/hour", 600), name="bans", engine="redis://127.0.0.1:1",
        on_engine_error="local", engine_timeout=0.1,
    )  # fmt: skip
    counter = Limiter("1/hour", on_event=lambda event: pytest.fail("it was asked"))
    monkeypatch.setattr(app._inbound._bans, "_counter", counter)
    assert [ask(app)[0] for _ in range(4)] == [200, 429, 429, 429]


def test_functions_of_a_request_are_called_once():
    calls = []

    def limit(request):
        calls.append(request)
        return "5/minute"

    inbound = Inbound(limit, key=str)
    assert inbound.admit(1).permit is not None
    assert asyncio.run(inbound.admit_async(2)).permit is not None
    assert calls == [1, 2]


def test_what_is_held_during_a_request_is_free_after_it_however_it_ended():
    limiter = Limiter("1 concurrent")

    async def failing(scope, receive, send):
        raise RuntimeError("of the application")

    app = RateLimit(failing, limiter)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="of the application"):
            ask(app)
    assert limiter.peek(CLIENT[0]).in_flight == 0


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


def frames(app, count, scope=()):
    """What a WebSocket that sends so many messages at once is sent, and what its application has received."""
    heard, sent = [], []

    async def echo(scope, receive, send):
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            heard.append(message["text"])
            await send({"type": "websocket.send", "text": message["text"]})
        heard.append(message["code"])
        await send({"type": "websocket.send", "text": "too late"})
        assert (await receive())["type"] == "websocket.disconnect"

    async def main():
        messages = [{"type": "websocket.receive", "text": str(i)} for i in range(count)]

        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message)

        await app(echo)({"type": "websocket", "client": CLIENT, "headers": [], "path": "/"}, receive, send)

    asyncio.run(main())
    return heard, sent


def test_a_websocket_with_too_many_messages_is_closed_where_that_is_wanted():
    heard, sent = frames(
        lambda app: RateLimit(app, "10/minute", messages="2/s", on_excess="close", clock=ManualClock()), 5
    )
    assert heard == ["0", "1", 1008]
    assert sent[-1] == {"type": "websocket.close", "code": 1008, "reason": ""}
    assert [message.get("text") for message in sent] == [None, "0", "1", None]


@pytest.mark.realtime
def test_a_websocket_whose_messages_cannot_be_decided_is_closed():
    messages = Limiter("2/s", name="m", engine="redis://127.0.0.1:1", engine_timeout=0.1)
    heard, sent = frames(lambda app: RateLimit(app, "10/minute", messages=messages), 5)
    assert heard == [1013]
    assert sent[-1] == {"type": "websocket.close", "code": 1013, "reason": ""}


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
        ({"limit": "1/s", "ban": "1/s"}, "ban='1/s' is not accepted; give a limit of refusals, and seconds"),
        ({"limit": "1/s", "key": "ip"}, "key='ip' is not accepted; give a function of the request"),
        ({"limit": "1/s", "on_excess": "drop"}, "on_excess='drop' is not accepted; give 'wait' or 'close'"),
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
def test_websockets_behind_uvicorn():
    app = FastAPI()
    app.add_middleware(RateLimit, limit="2/hour", messages="3/hour", on_excess="close")

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.send_text(await websocket.receive_text())

    with serving(app) as client:
        url = client.url.replace("http", "ws") + "/echo"
        with connect(url, open_timeout=NEVER) as socket:
            for word in "abc":
                socket.send(word)
                assert socket.recv(NEVER) == word
            socket.send("d")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(NEVER)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        with connect(url, open_timeout=NEVER):
            pass
        with pytest.raises(InvalidStatus) as refused, connect(url, open_timeout=NEVER):
            pass
    assert refused.value.response.status_code == 429
    assert 3500 < int(refused.value.response.headers["retry-after"]) <= 3600


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
