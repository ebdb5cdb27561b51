"""Limits of FastAPI's routes, as dependencies: in its own test client, and behind a real uvicorn."""

from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from headway import InvalidUse, Limiter, Permit
from headway.integrations.fastapi import RateLimit, Refused, install
from headway.testing import ManualClock
from integrations.asgi_client import ask, statuses
from service.serving import serving
from waiting import NEVER


def of_user(request: Request) -> str | None:
    return request.headers.get("x-user")


def limited(*limits: RateLimit, **options: Any) -> FastAPI:
    """An application with one route, which answers what its query says."""
    app = FastAPI(**options)

    @app.get("/", dependencies=[Depends(limit) for limit in limits])
    async def root(status: int = 200) -> dict[str, int]:
        if status != 200:
            raise HTTPException(status)
        return {"status": status}

    return app


def test_a_request_above_the_limit_is_a_problem_that_says_when():
    app = limited(RateLimit("2/minute", clock=ManualClock()))
    replies = [ask(app) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert [reply.headers["ratelimit"].split(";")[1] for reply in replies] == ["r=1", "r=0", "r=0"]
    assert replies[0].headers["ratelimit-policy"] == '"window-0";q=2;w=60'
    assert "retry-after" not in replies[0].headers
    assert replies[2].headers["retry-after"] == "60"
    assert replies[2].headers["content-type"] == "application/problem+json"
    problem = replies[2].json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert problem["violated-policies"] == ["window-0"]
    assert len(replies[2].headers.get_list("ratelimit")) == 1


def test_each_route_has_its_limit_and_one_object_is_shared():
    clock = ManualClock()
    both = RateLimit("3/minute", clock=clock)
    app = FastAPI()
    for path in ("/a", "/b"):
        app.get(path, dependencies=[Depends(both)])(lambda: "ok")
    app.get("/c", dependencies=[Depends(RateLimit("1/minute", clock=clock))])(lambda: "ok")
    app.get("/d")(lambda: "ok")
    assert statuses(app, 2, "/a") == [200, 200]
    assert statuses(app, 2, "/b") == [200, 429]
    assert statuses(app, 2, "/c") == [200, 429]
    assert statuses(app, 9, "/d") == [200] * 9


def test_of_several_limits_each_holds_and_a_refusal_is_charged_to_none():
    clock = ManualClock()
    wide, narrow = Limiter("10/minute", clock=clock), Limiter("2/s", clock=clock)
    app = limited(RateLimit(wide, key=of_user), RateLimit(narrow, key=of_user))
    replies = [ask(app, **{"x-user": "ann"}) for _ in range(5)]
    assert [reply.status_code for reply in replies] == [200, 200, 429, 429, 429]
    assert replies[0].headers["ratelimit-policy"] == '"window-0";q=2;w=1'  # of which less is left
    assert wide.peek("ann").remaining == 8
    clock.advance(1)
    assert statuses(app, 3, **{"x-user": "ann"}) == [200, 200, 429]


def test_limits_of_a_router_and_of_the_application():
    clock = ManualClock()
    router = APIRouter(prefix="/admin", dependencies=[Depends(RateLimit("2/minute", clock=clock))])
    router.get("/x")(lambda: "ok")
    router.get("/y")(lambda: "ok")
    app = FastAPI(dependencies=[Depends(RateLimit("4/minute", clock=clock))])
    app.include_router(router)
    app.get("/")(lambda: "ok")
    assert statuses(app, 1, "/admin/x") == [200]
    assert statuses(app, 2, "/admin/y") == [200, 429]
    assert statuses(app, 3, "/") == [200, 200, 429]


def test_keys_tiers_costs_and_exemptions_see_the_request():
    app = limited(
        RateLimit(
            {"free": "2/minute", "pro": "10/minute"},
            tier=lambda request: request.headers.get("x-tier", "free"),
            key=of_user,
            cost=lambda request: int(request.query_params.get("cost", 1)),
            exempt=lambda request: request.headers.get("x-user") == "root",
            clock=ManualClock(),
        )
    )
    assert statuses(app, 3, **{"x-user": "ann"}) == [200, 200, 429]
    assert statuses(app, 1, **{"x-user": "bob"}) == [200]
    assert statuses(app, 3, "/?cost=5", **{"x-user": "ann", "x-tier": "pro"}) == [200, 200, 429]
    assert statuses(app, 9, **{"x-user": "root"}) == [200] * 9


def test_the_value_of_the_dependency_is_the_permit():
    limit = RateLimit("10/minute", cost=8, clock=ManualClock())
    app = FastAPI()

    @app.get("/")
    async def root(permit: Annotated[Permit, Depends(limit)]) -> int:
        permit.settle(2)
        return 2

    assert statuses(app, 3) == [200, 200, 429]


def test_a_seat_is_free_after_the_response_however_it_ended():
    limiter = Limiter("1 concurrent")
    app = limited(RateLimit(limiter, key=of_user))
    assert statuses(app, 3, "/?status=418", **{"x-user": "ann"}) == [418] * 3
    assert limiter.peek("ann").in_flight == 0

    @app.get("/broken", dependencies=[Depends(RateLimit(limiter, key=of_user))])
    async def broken() -> None:
        raise RuntimeError("of the application")

    with pytest.raises(RuntimeError, match="of the application"):
        ask(app, "/broken", **{"x-user": "ann"})
    assert limiter.peek("ann").in_flight == 0


def test_deduct_when_sees_the_status_where_responses_are_seen():
    app = limited(RateLimit("1/minute", deduct_when=lambda status: status >= 400, clock=ManualClock()))
    with pytest.raises(InvalidUse, match=r"install\(app\)"):
        ask(app)

    app = limited(RateLimit("1/minute", deduct_when=lambda status: status >= 400, clock=ManualClock()))
    install(app)
    assert statuses(app, 9) == [200] * 9
    assert statuses(app, 2, "/?status=401") == [401, 429]

    app = limited(RateLimit("1/minute", deduct_when=lambda status: status < 400, clock=ManualClock()))
    install(app)
    assert statuses(app, 9, "/?status=401") == [401] * 9
    assert statuses(app, 2) == [200, 429]


def test_installed_every_response_says_how_the_limit_stands():
    def build() -> FastAPI:
        limit = RateLimit("9/minute", legacy_headers=True, clock=ManualClock())
        app = limited(limit)
        app.get("/own", dependencies=[Depends(limit)])(lambda: JSONResponse([1]))
        return app

    assert "ratelimit" not in ask(build(), "/own").headers  # FastAPI does not touch what a function returns
    app = build()
    install(app)
    replies = [ask(app, path) for path in ("/own", "/", "/?status=418")]
    assert [reply.status_code for reply in replies] == [200, 200, 418]
    assert [reply.headers.get_list("x-ratelimit-remaining") for reply in replies] == [["8"], ["7"], ["6"]]


def test_installed_a_seat_is_free_after_the_response_however_it_ended():
    limiter = Limiter("1 concurrent")
    app = limited(RateLimit(limiter, key=of_user))
    install(app)
    assert statuses(app, 3, "/?status=418", **{"x-user": "ann"}) == [418] * 3
    assert statuses(app, 3, **{"x-user": "ann"}) == [200] * 3
    assert limiter.peek("ann").in_flight == 0


def test_an_application_may_answer_in_its_own_way():
    app = limited(RateLimit("0/minute", clock=ManualClock()))

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"slow": "down"}, 420, dict(error.headers or {}))

    assert (ask(app).status_code, ask(app).json()) == (420, {"slow": "down"})

    app = limited(RateLimit("0/minute", clock=ManualClock()))

    @app.exception_handler(StarletteHTTPException)
    async def plain(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code)

    assert ask(app).status_code == 429
    assert list(ask(app).json()) == ["error"]


def test_the_429_is_in_the_openapi_document():
    router = APIRouter(prefix="/admin", dependencies=[Depends(RateLimit("2/minute"))])
    router.post("/x")(lambda: "ok")
    app = limited(RateLimit("2/minute"))
    app.include_router(router)
    app.get("/free")(lambda: "ok")

    def inner(permit: Annotated[Permit, Depends(RateLimit("1/s"))]) -> Permit:
        return permit

    @app.get("/deep")
    def deep(permit: Annotated[Permit, Depends(inner)]) -> None: ...

    install(app)
    paths = app.openapi()["paths"]
    assert "429" in paths["/"]["get"]["responses"]
    assert "429" in paths["/admin/x"]["post"]["responses"]
    assert "429" in paths["/deep"]["get"]["responses"]
    assert "429" not in paths["/free"]["get"]["responses"]
    assert "application/problem+json" in paths["/"]["get"]["responses"]["429"]["content"]
    assert ask(app, "/openapi.json").json()["paths"] == paths


@pytest.mark.parametrize(("how", "status"), [("closed", 503), ("open", 200), ("local", 200)])
def test_an_engine_that_is_away_is_what_the_option_says_and_never_a_500(how, status):
    limit = RateLimit(
        "30/hour", name="api", engine="redis://127.0.0.1:1", on_engine_error=how, engine_timeout=0.1
    )
    reply = ask(limited(limit, RateLimit("100/hour")))
    assert reply.status_code == status
    if how == "closed":
        assert reply.headers["retry-after"] == "1"
        assert reply.json()["title"] == "Temporarily unavailable"


@pytest.mark.realtime
def test_behind_uvicorn():
    app = limited(RateLimit("3/hour"))

    @app.websocket("/echo", dependencies=[Depends(RateLimit("1/hour"))])
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())

    with serving(app) as client:
        replies = [httpx.get(client.url, timeout=NEVER) for _ in range(4)]
        url = client.url.replace("http", "ws") + "/echo"
        with connect(url, open_timeout=NEVER) as socket:
            socket.send("hello")
            assert socket.recv(NEVER) == "hello"
        with pytest.raises(InvalidStatus) as refused, connect(url, open_timeout=NEVER):
            pass
    assert refused.value.response.status_code == 403  # what a server makes of a close before the handshake
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["ratelimit"].split(";")[1] for reply in replies] == ["r=2", "r=1", "r=0", "r=0"]
    assert replies[3].json()["title"] == "Too many requests"
