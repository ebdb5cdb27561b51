"""The Flask extension: in Flask's test client, and behind a real gunicorn."""

import asyncio
import sys

import httpx
import pytest
from flask import Blueprint, Flask, g, jsonify, request

from headway import InvalidArgument, InvalidLimit, InvalidUse
from headway.integrations.flask import Limiter
from headway.testing import ManualClock
from integrations.processes import served


def build(**options):
    app = Flask("app")
    app.testing = True
    limiter = Limiter(app=app, clock=options.pop("clock", ManualClock()), **options)
    return app, limiter


def route(app, path, view=None, **options):
    def ok():
        return request.args.get("body", "ok"), int(request.args.get("status", 200))

    app.add_url_rule(path, endpoint=path.strip("/") or "root", view_func=view or ok, **options)
    return ok


def statuses(app, count, path="/", **headers):
    client = app.test_client()
    return [client.get(path, headers=headers).status_code for _ in range(count)]


def test_a_request_above_the_limit_is_a_problem_that_says_when():
    app, limiter = build()
    route(app, "/", limiter.limit("2 per minute")(lambda: "ok"))
    replies = [app.test_client().get("/") for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert [reply.headers["RateLimit"].split(";")[1] for reply in replies] == ["r=1", "r=0", "r=0"]
    assert replies[0].headers["RateLimit-Policy"] == '"window-0";q=2;w=60'
    assert replies[2].headers["Retry-After"] == "60"
    assert replies[2].headers["Content-Type"] == "application/problem+json"
    problem = replies[2].get_json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert problem["violated-policies"] == ["window-0"]
    assert len(replies[2].headers.getlist("RateLimit")) == 1


def test_default_limits_are_of_each_view_and_application_limits_of_all():
    app, limiter = build(default_limits=["2/minute"], application_limits=["5/minute"])
    route(app, "/a")
    route(app, "/b")
    route(app, "/own", limiter.limit("4/minute")(lambda: "ok"))
    route(app, "/free", limiter.exempt(lambda: "ok"))
    assert statuses(app, 3, "/a") == [200, 200, 429]
    assert statuses(app, 9, "/free") == [200] * 9
    assert statuses(app, 1, "/b") == [200]
    assert statuses(app, 3, "/own") == [200, 200, 429]  # the fifth of all was the last


def test_a_refusal_is_charged_to_no_limit():
    app, _ = build(default_limits=["1/s"], application_limits=["3/minute"], clock=(clock := ManualClock()))
    route(app, "/")
    assert statuses(app, 5) == [200, 429, 429, 429, 429]
    clock.advance(1)
    assert statuses(app, 1) == [200]
    clock.advance(1)
    assert statuses(app, 1) == [200]
    clock.advance(1)
    assert statuses(app, 1) == [429]


def test_a_view_keeps_the_default_limits_where_it_says_so():
    app, limiter = build(default_limits=["2/minute"])
    route(app, "/", limiter.limit("5/minute", override_defaults=False)(lambda: "ok"))
    assert statuses(app, 3) == [200, 200, 429]


def test_several_limits_of_a_view():
    app, limiter = build(clock=(clock := ManualClock()))
    route(app, "/", limiter.limit("3/minute")(limiter.limit("2/s")(lambda: "ok")))
    assert statuses(app, 3) == [200, 200, 429]
    clock.advance(1)
    assert statuses(app, 2) == [200, 429]


def test_a_shared_limit_is_of_several_views():
    app, limiter = build()
    shared = limiter.shared_limit("2/minute", scope="search")
    route(app, "/a", shared(lambda: "ok"))
    route(app, "/b", shared(lambda: "ok"))
    route(app, "/c", limiter.shared_limit("2/minute", scope=lambda endpoint: endpoint[:1])(lambda: "ok"))
    assert statuses(app, 1, "/a") == [200]
    assert statuses(app, 2, "/b") == [200, 429]
    assert statuses(app, 3, "/c") == [200, 200, 429]


def test_limits_of_a_blueprint_and_of_one_within_it():
    app, limiter = build(default_limits=["9/minute"])
    outer, inner, free = Blueprint("outer", "o"), Blueprint("inner", "i"), Blueprint("free", "f")
    limiter.limit("1/minute")(inner)
    limiter.limit("2/minute")(outer)
    limiter.exempt(free)
    inner.add_url_rule("/in", view_func=lambda: "ok", endpoint="in")
    outer.add_url_rule("/out", view_func=lambda: "ok", endpoint="out")
    outer.add_url_rule("/own", view_func=limiter.limit("3/minute")(lambda: "ok"), endpoint="own")
    free.add_url_rule("/free", view_func=lambda: "ok", endpoint="free")
    outer.register_blueprint(inner)
    app.register_blueprint(outer)
    app.register_blueprint(free)
    assert statuses(app, 2, "/in") == [200, 429]
    assert statuses(app, 3, "/out") == [200, 200, 429]
    assert statuses(app, 4, "/own") == [200, 200, 200, 429]
    assert statuses(app, 12, "/free") == [200] * 12


def test_keys_costs_and_exemptions_see_the_request_and_what_was_found_out_before():
    app, limiter = build()

    @app.before_request
    def user():
        g.user = request.headers.get("X-User")

    view = limiter.limit(
        "4/minute",
        key_func=lambda: g.user,
        cost=lambda: int(request.args.get("cost", 1)),
        exempt_when=lambda: g.user == "root",
    )
    route(app, "/", view(lambda: "ok"))
    assert statuses(app, 3, "/?cost=2", **{"X-User": "ann"}) == [200, 200, 429]
    assert statuses(app, 1, "/?cost=5", **{"X-User": "bob"}) == [429]
    assert statuses(app, 1, "/?cost=4", **{"X-User": "bob"}) == [200]
    assert statuses(app, 9, **{"X-User": "root"}) == [200] * 9


def test_a_limit_may_be_a_function_that_sees_the_request():
    app, limiter = build()
    limits = {"pro": "3/minute", "staff": None}
    view = limiter.limit(lambda: limits.get(request.headers.get("X-Tier", ""), "1/minute"))
    route(app, "/", view(lambda: "ok"))
    assert statuses(app, 2) == [200, 429]
    assert statuses(app, 4, **{"X-Tier": "pro"}) == [200, 200, 200, 429]
    assert statuses(app, 9, **{"X-Tier": "staff"}) == [200] * 9


def test_limits_of_methods_and_by_method():
    app, limiter = build()
    route(app, "/post", limiter.limit("1/minute", methods=["post"])(lambda: "ok"), methods=["GET", "POST"])
    route(app, "/each", limiter.limit("1/minute", per_method=True)(lambda: "ok"), methods=["GET", "POST"])
    client = app.test_client()
    assert [client.post("/post").status_code for _ in range(2)] == [200, 429]
    assert statuses(app, 9, "/post") == [200] * 9
    assert [client.post("/each").status_code for _ in range(2)] == [200, 429]
    assert statuses(app, 2, "/each") == [200, 429]


def test_only_what_deduct_when_says_is_charged():
    app, limiter = build()
    view = limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 401)
    route(app, "/", view(lambda: ("ok", int(request.args.get("status", 200)))))
    assert statuses(app, 9) == [200] * 9
    assert statuses(app, 3, "/?status=401") == [401, 401, 429]


def test_a_view_settles_what_it_cost():
    app, limiter = build()

    @limiter.limit("10/minute", cost=8)
    def view():
        limiter.permits[0].settle(2)
        return "ok"

    route(app, "/", view)
    assert statuses(app, 3) == [200, 200, 429]


def test_a_seat_is_free_after_the_response_however_it_ended():
    app, limiter = build()
    app.testing = False

    @limiter.limit("1 concurrent")
    def view():
        if "fail" in request.args:
            raise RuntimeError("of the application")
        return "ok"

    route(app, "/", view)
    assert statuses(app, 3, "/?fail=1") == [500] * 3
    assert statuses(app, 3) == [200] * 3


def test_async_views_are_limited(monkeypatch):
    app, limiter = build()
    monkeypatch.setattr(app, "async_to_sync", lambda view: lambda *args: asyncio.run(view(*args)))

    @limiter.limit("1/minute")
    async def view():
        return "ok"

    route(app, "/", view)
    assert statuses(app, 2) == [200, 429]


def test_an_errorhandler_answers_instead_and_a_message_is_the_detail():
    app, limiter = build()
    route(app, "/", limiter.limit("0/minute", error_message=lambda: "not so fast")(lambda: "ok"))
    assert app.test_client().get("/").get_json()["detail"] == "not so fast"
    app, limiter = build()
    route(app, "/", limiter.limit("0/minute", error_message="not so fast")(lambda: "ok"))

    @app.errorhandler(429)
    def too_many(error):
        return jsonify(said=error.description), 420

    assert app.test_client().get("/").get_json() == {"said": "not so fast"}
    assert statuses(app, 1) == [420]


def test_request_filters_and_enabled():
    app, limiter = build(default_limits=["0/minute"])
    limiter.request_filter(lambda: "X-Internal" in request.headers)
    route(app, "/")
    assert statuses(app, 1) == [429]
    assert statuses(app, 1, **{"X-Internal": "1"}) == [200]
    limiter.enabled = False
    assert statuses(app, 1) == [200]


def test_the_client_is_its_address_and_files_are_not_limited():
    app, _ = build(default_limits=["1/minute"], application_limits=["2/minute"], trusted=["10.0.0.0/8"])
    route(app, "/")

    def ask(address, **headers):
        return app.test_client().get("/", environ_base={"REMOTE_ADDR": address}, headers=headers).status_code

    assert [ask("203.0.113.7"), ask("203.0.113.7"), ask("203.0.113.8")] == [200, 429, 200]
    assert ask("203.0.113.7", **{"X-Forwarded-For": "192.0.2.1"}) == 429
    assert ask("10.0.0.1", **{"X-Forwarded-For": "192.0.2.1"}) == 200
    assert statuses(app, 9, "/static/none.css") == [404] * 9
    assert statuses(app, 3, "/nothing/here") == [404, 404, 429]  # application limits are of these too


def test_each_application_of_a_limiter_has_ledgers_of_its_own():
    limiter = Limiter(default_limits=["1/minute"], clock=ManualClock())
    for _ in range(2):
        app = Flask("app")
        limiter.init_app(app)
        route(app, "/")
        assert statuses(app, 2) == [200, 429]


def test_a_ban_shuts_a_key_out():
    app, _ = build(default_limits=["1/s"], ban=("2/minute", 600), clock=(clock := ManualClock()))
    route(app, "/")
    assert statuses(app, 4) == [200, 429, 429, 429]
    assert app.test_client().get("/").headers["Retry-After"] == "600"
    clock.advance(600)
    assert statuses(app, 1) == [200]


def test_bad_use_is_refused():
    with pytest.raises(InvalidLimit):
        Limiter().limit("often")
    with pytest.raises(InvalidArgument, match=r"limit=5 is not accepted"):
        Limiter().limit(5)  # type: ignore[arg-type]
    app = Flask("app")
    app.testing = True
    for options, hint in (({"storage_uri": "redis://db"}, "'engine'"), ({"tmeout": 1}, "'timeout'")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument .*; did you mean {hint}"):
            Limiter(app=app, default_limits=["1/minute"], **options)
    route(app, "/", Limiter().limit("1/minute")(lambda: "ok"))
    with pytest.raises(InvalidUse, match=r"limiter.init_app\(app\)"):
        statuses(app, 1)


@pytest.mark.parametrize(("how", "status"), [("closed", 503), ("open", 200), ("local", 200)])
def test_an_engine_that_is_away_is_what_the_option_says_and_never_a_500(how, status):
    app = Flask("app")
    Limiter(
        app=app, default_limits=["30/hour", "50/hour"], application_limits=["100/hour"], name="api",
        engine="redis://127.0.0.1:1", on_engine_error=how, engine_timeout=0.1,
    )  # fmt: skip
    route(app, "/")
    reply = app.test_client().get("/")
    assert reply.status_code == status
    if how == "closed":
        assert reply.headers["Retry-After"] == "1"
        assert reply.get_json()["title"] == "Temporarily unavailable"


PROGRAM = """
from flask import Flask
from headway.integrations.flask import Limiter

app = Flask("program")
limiter = Limiter(app=app, default_limits=["3 per hour"])

@app.get("/")
def root():
    return "hello"
"""


@pytest.mark.realtime
def test_behind_gunicorn(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gunicorn", "--bind=127.0.0.1:{port}", "--threads=4", "program:app"]
    with served(command, tmp_path) as url:
        replies = [httpx.get(url, timeout=30) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["ratelimit"].split(";")[1] for reply in replies] == ["r=2", "r=1", "r=0", "r=0"]
