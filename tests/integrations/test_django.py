"""Django's middleware and decorator: in Django's test clients, and behind a real gunicorn and a real uvicorn."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.http import Http404, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.utils.decorators import method_decorator
from django.views import View

from headway import InvalidArgument, Limiter
from headway.integrations.django import ratelimit
from headway.testing import ManualClock
from integrations.django_project import PROJECT, VIEWS, plain, plain_async
from integrations.processes import served

CLIENTS: list[Any] = []


@pytest.fixture
def project():
    """The project's own settings, with these of the limits."""
    kept = []

    def configured(**options):
        options.setdefault("clock", ManualClock())
        kept.append(override_settings(**PROJECT, HEADWAY=options))
        kept[-1].enable()
        CLIENTS[:] = (
            Client(),
            AsyncClient(),
        )  # whose handlers load the middleware when the first request comes

    yield configured
    for override in reversed(kept):
        override.disable()
    VIEWS.clear()


def statuses(count, path="/", **headers):
    return [CLIENTS[0].get(path, headers=headers).status_code for _ in range(count)]


def async_statuses(count, path="/async", **headers):
    async def main():
        return [(await CLIENTS[1].get(path, headers=headers)).status_code for _ in range(count)]

    return asyncio.run(main())


# -- the middleware -------------------------------------------------------------------------------------------


def test_a_request_above_the_limit_is_a_problem_that_says_when(project):
    project(limit="2/minute")
    client = CLIENTS[0]
    replies = [client.get("/") for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert [reply["RateLimit"].split(";")[1] for reply in replies] == ["r=1", "r=0", "r=0"]
    assert replies[0]["RateLimit-Policy"] == '"window-0";q=2;w=60'
    assert "Retry-After" not in replies[0]
    assert replies[2]["Retry-After"] == "60"
    assert replies[2]["Content-Type"] == "application/problem+json"
    problem = replies[2].json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert problem["violated-policies"] == ["window-0"]


@pytest.mark.parametrize("path", ["/", "/async"])
def test_sync_and_async_views_under_sync_and_async_handlers(project, path):
    project(limit="2/minute")
    assert statuses(3, path) == [200, 200, 429]
    project(limit="2/minute")
    assert async_statuses(3, path) == [200, 200, 429]


def of_plan(request):
    return request.headers.get("X-Plan", "free")


def test_keys_tiers_costs_and_exemptions_see_the_request_also_by_their_paths(project):
    project(
        limit={"free": "2/minute", "pro": "10/minute", "staff": None},
        tier=f"{__name__}.of_plan",
        key="header:X-User",
        cost=lambda request: int(request.GET.get("cost", 1)),
        exempt=lambda request: request.path == "/async",
    )
    assert statuses(3, **{"X-User": "ann"}) == [200, 200, 429]
    assert statuses(1, **{"X-User": "bob"}) == [200]
    assert statuses(3, "/?cost=5", **{"X-User": "ann", "X-Plan": "pro"}) == [200, 200, 429]
    assert statuses(5, **{"X-User": "ann", "X-Plan": "staff"}) == [200] * 5
    assert statuses(5, "/async", **{"X-User": "ann"}) == [200] * 5


def test_users_and_addresses(project):
    def ask(limited, user=None, address="203.0.113.7", **meta):
        request = RequestFactory().get("/", REMOTE_ADDR=address, **meta)
        request.user = SimpleNamespace(pk=user, is_authenticated=user is not None)
        return limited(request).status_code

    project(trusted=["10.0.0.0/8"])
    either = ratelimit("1/minute", key="user_or_ip")(plain)
    assert [ask(either, 1), ask(either, 1), ask(either, 2), ask(either), ask(either)] == [
        200,
        429,
        200,
        200,
        429,
    ]
    by_ip = ratelimit("1/minute")(plain)
    assert [ask(by_ip, 1), ask(by_ip, 2)] == [200, 429]
    assert ask(by_ip, HTTP_X_FORWARDED_FOR="192.0.2.1") == 429
    assert ask(by_ip, address="10.0.0.1", HTTP_X_FORWARDED_FOR="192.0.2.1") == 200
    by_user = ratelimit("1/minute", key="user")(plain)
    assert [ask(by_user, 7), ask(by_user, 8), ask(by_user, 7)] == [200, 200, 429]


def test_only_what_deduct_when_says_is_charged(project):
    project(limit="2/minute", deduct_when=lambda response: response.status_code == 401)
    assert statuses(5) == [200] * 5
    assert statuses(3, "/?status=401") == [401, 401, 429]


def test_a_seat_is_free_when_the_response_was_sent_however_it_ended(project):
    limiter = Limiter("1 concurrent")
    project(limit=limiter)
    client = Client(raise_request_exception=False)
    assert [client.get("/?fail=1").status_code for _ in range(3)] == [500] * 3
    stream = client.get("/?stream=1")
    assert limiter.peek("127.0.0.1").in_flight == 1
    assert b"".join(stream.streaming_content) == b"ab"
    stream.close()
    assert limiter.peek("127.0.0.1").in_flight == 0
    assert statuses(3) == [200] * 3


def test_without_a_limit_of_its_own_it_tells_of_those_of_views(project):
    project(legacy_headers=True)
    VIEWS["search"] = ratelimit("5/minute")(plain)
    reply = Client().get("/view/search")
    assert (reply["X-RateLimit-Limit"], reply["X-RateLimit-Remaining"]) == ("5", "4")
    assert "RateLimit" not in Client().get("/")


# -- the decorator --------------------------------------------------------------------------------------------


def test_a_decorated_view_has_a_limit_and_a_group_of_views_shares_one(project):
    project()
    VIEWS.update(
        own=ratelimit("1/minute")(plain),
        first=ratelimit("2/minute", group="both")(plain),
        second=ratelimit("2/minute", group="both")(plain),
    )
    assert statuses(2, "/view/own") == [200, 429]
    assert statuses(1, "/view/first") == [200]
    assert statuses(2, "/view/second") == [200, 429]


def test_async_views(project):
    project()
    VIEWS["search"] = ratelimit("1/minute")(plain_async)
    assert async_statuses(2, "/async/search") == [200, 429]
    project()
    VIEWS["search"] = ratelimit("1/minute")(plain_async)
    assert statuses(2, "/async/search") == [200, 429]


def test_classes(project):
    project()

    class Base(View):  # type: ignore[misc]
        def get(self, request):
            return HttpResponse(f"{request.limited}")

    @method_decorator(ratelimit("1/minute"), name="dispatch")
    class First(Base): ...

    @method_decorator(ratelimit("1/minute"), name="dispatch")
    class Second(Base):
        async def get(self, request):
            return HttpResponse("ok")

    VIEWS.update(first=First.as_view(), second=Second.as_view())
    assert statuses(2, "/view/first") == [200, 429]
    assert statuses(2, "/async/second") == [200, 429]


def test_limits_of_methods(project):
    project()
    VIEWS["login"] = ratelimit("1/minute", method="post")(plain)
    client = CLIENTS[0]
    assert [client.post("/view/login").status_code for _ in range(2)] == [200, 429]
    assert statuses(5, "/view/login") == [200] * 5


def test_a_view_may_answer_itself(project):
    project(limit="3/minute")

    def view(request):
        return HttpResponse("slow down" if request.limited else "ok")

    VIEWS["search"] = ratelimit("1/minute", block=False)(view)
    client = CLIENTS[0]
    assert [client.get("/view/search").content for _ in range(2)] == [b"ok", b"slow down"]
    assert statuses(2, "/view/search") == [
        200,
        429,
    ]  # they were handled, so the limit of the project counts them


def test_a_limit_may_be_a_function_of_the_request(project):
    project()
    VIEWS["search"] = ratelimit(
        lambda request: {"pro": "2/minute", "staff": None}.get(of_plan(request), "1/minute")
    )(plain)
    assert statuses(2, "/view/search") == [200, 429]
    assert statuses(3, "/view/search", **{"X-Plan": "pro"}) == [200, 200, 429]
    assert statuses(5, "/view/search", **{"X-Plan": "staff"}) == [200] * 5


def test_a_refusal_by_a_view_is_not_charged_to_the_project(project):
    limiter = Limiter("10/minute", clock=ManualClock())
    project(limit=limiter)
    VIEWS["search"] = ratelimit("1/minute", clock=ManualClock())(plain)
    assert statuses(5, "/view/search") == [200, 429, 429, 429, 429]
    assert limiter.peek("127.0.0.1").remaining == 9


def test_a_view_that_raises_is_charged_by_its_response(project):
    def missing(request):
        raise Http404

    project(limit=None)
    VIEWS["missing"] = ratelimit("1/minute", deduct_when=lambda response: response.status_code != 404)(
        missing
    )
    assert statuses(3, "/view/missing") == [404] * 3
    VIEWS["missing"] = ratelimit("1/minute", deduct_when=lambda response: response.status_code == 404)(
        missing
    )
    assert statuses(2, "/view/missing") == [404, 429]


def test_bad_options_are_refused(project):
    project(key="shoe size")
    with pytest.raises(InvalidArgument, match="key='shoe size' is not accepted; give 'ip', 'user'"):
        ratelimit("1/minute")(plain)(RequestFactory().get("/"))


@pytest.mark.parametrize(("how", "status"), [("closed", 503), ("open", 200), ("local", 200)])
def test_an_engine_that_is_away_is_what_the_option_says_and_never_a_500(project, how, status):
    project(
        limit="30/hour", engine="redis://127.0.0.1:1", on_engine_error=how, engine_timeout=0.1, clock=None
    )
    VIEWS["search"] = ratelimit("50/minute")(plain)
    for replies in (statuses(1, "/view/search"), async_statuses(1, "/view/search")):
        assert replies == [status]


# -- behind real servers --------------------------------------------------------------------------------------

PROGRAM = """
import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(
    SECRET_KEY="of the test", ALLOWED_HOSTS=["*"], ROOT_URLCONF="program", USE_TZ=True,
    MIDDLEWARE=["headway.integrations.django.RateLimitMiddleware"], HEADWAY={"limit": "3/hour"},
)

async def hello(request):
    return HttpResponse("hello")

urlpatterns = [path("", hello)]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
"""


@pytest.mark.realtime
@pytest.mark.parametrize(
    "command",
    [
        ["gunicorn", "--bind=127.0.0.1:{port}", "--threads=4", "program:wsgi"],
        ["uvicorn", "--host=127.0.0.1", "--port={port}", "program:asgi"],
    ],
    ids=["gunicorn", "uvicorn"],
)
def test_behind_a_server(tmp_path, command):
    (tmp_path / "program.py").write_text(PROGRAM)
    with served([sys.executable, "-m", *command], tmp_path) as url:
        replies = [httpx.get(url, timeout=30) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["ratelimit"].split(";")[1] for reply in replies] == ["r=2", "r=1", "r=0", "r=0"]
    assert replies[3].json()["title"] == "Too many requests"
