"""Throttles of Django REST framework, in its own test client."""

from types import SimpleNamespace

import pytest
from django.test import override_settings

from integrations.django_project import (  # first: the framework reads settings when it is imported
    PROJECT,
    VIEWS,
)

# isort: split
from rest_framework.response import Response
from rest_framework.test import APIClient, APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from headway import InvalidArgument, InvalidUse, Limiter
from headway.integrations.rest_framework import (
    AnonRateThrottle,
    RateThrottle,
    ScopedRateThrottle,
    UserRateThrottle,
)
from headway.testing import ManualClock

clock = ManualClock()


@pytest.fixture(autouse=True)
def _project():
    with override_settings(**PROJECT, HEADWAY={"clock": clock}):
        yield
    VIEWS.clear()
    clock.advance(3600)


def view_of(*throttles, scope=None):
    class Hello(APIView):  # type: ignore[misc]
        authentication_classes = ()
        throttle_classes = throttles
        throttle_scope = scope

        def get(self, request):
            return Response("ok")

    return Hello.as_view()


def ask(view, user=None, address="203.0.113.7", **meta):
    request = APIRequestFactory().get("/", REMOTE_ADDR=address, **meta)
    if user is not None:
        force_authenticate(request, SimpleNamespace(pk=user, is_authenticated=True, is_active=True))
    return view(request)


def throttle(limit, base=RateThrottle, **names):
    return type("Throttle", (base,), {"limit": limit, "scope": f"{limit} {id(names)}", **names})


def test_a_refusal_says_when_in_the_frameworks_words():
    view = view_of(throttle("2/minute"))
    replies = [ask(view) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[2]["Retry-After"] == "60"
    assert str(replies[2].data["detail"]) == "Request was throttled. Expected available in 60 seconds."


def test_users_and_addresses_are_told_apart():
    view = view_of(throttle("1/minute"))
    assert [ask(view, user).status_code for user in (1, 1, 2, None, None)] == [200, 429, 200, 200, 429]
    assert ask(view, address="198.51.100.9").status_code == 200
    assert ask(view, HTTP_X_FORWARDED_FOR="192.0.2.77").status_code == 429


def test_the_classes_of_the_framework():
    anonymous = view_of(type("Anon", (AnonRateThrottle,), {}))  # 2/minute, of DEFAULT_THROTTLE_RATES
    assert [ask(anonymous).status_code for _ in range(3)] == [200, 200, 429]
    assert [ask(anonymous, 1).status_code for _ in range(3)] == [200] * 3
    users = view_of(type("User", (UserRateThrottle,), {"limit": "1/minute"}))
    assert [ask(users, 1).status_code for _ in range(2)] == [200, 429]
    scoped = type("Scoped", (ScopedRateThrottle,), {})
    first, second, free = view_of(scoped, scope="anon"), view_of(scoped, scope="anon"), view_of(scoped)
    assert [ask(view).status_code for view in (first, second, first, free, free, free)] == [
        200,
        200,
        429,
        200,
        200,
        200,
    ]
    with pytest.raises(
        InvalidArgument, match="scope='none' is not accepted; give one of DEFAULT_THROTTLE_RATES: anon"
    ):
        ask(view_of(scoped, scope="none"))


def test_a_refusal_by_one_throttle_is_not_charged_to_the_others():
    wide, last = Limiter("10/minute", clock=clock), Limiter("20/minute", clock=clock)
    view = view_of(throttle(wide), throttle("1/minute"), throttle(last))
    assert [ask(view).status_code for _ in range(4)] == [200, 429, 429, 429]
    assert (wide.peek("203.0.113.7").remaining, last.peek("203.0.113.7").remaining) == (9, 19)


def test_limits_keys_and_costs_of_a_subclass_see_the_request():
    kind = throttle(
        None,
        get_limit=lambda self, request, view: {"pro": "9/minute", "staff": None}.get(
            request.META.get("PLAN"), "4/minute"
        ),
        get_key=lambda self, request, view: request.META.get("NAME"),
        get_cost=lambda self, request, view: 3,
    )
    view = view_of(kind)
    assert [ask(view, NAME="ann").status_code for _ in range(2)] == [200, 429]
    assert [ask(view, NAME="ann", PLAN="pro").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [ask(view, NAME="ann", PLAN="staff").status_code for _ in range(4)] == [200] * 4
    assert [ask(view).status_code for _ in range(4)] == [200] * 4


def test_with_the_middleware_every_response_tells_how_the_limit_stands():
    VIEWS["api"] = view_of(throttle("2/minute"))
    client = APIClient()
    replies = [client.get("/view/api") for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert [reply["RateLimit"].split(";")[1] for reply in replies] == ["r=1", "r=0", "r=0"]
    assert replies[2]["Retry-After"] == "60"


def test_what_happens_at_once_needs_the_middleware():
    limiter = Limiter("1 concurrent")
    view = view_of(throttle(limiter))
    with pytest.raises(InvalidUse, match="RateLimitMiddleware"):
        ask(view)
    VIEWS["api"] = view
    assert [APIClient().get("/view/api").status_code for _ in range(3)] == [200] * 3
    assert limiter.peek("127.0.0.1").in_flight == 0


@pytest.mark.parametrize(("how", "status"), [("closed", 503), ("open", 200), ("local", 200)])
def test_an_engine_that_is_away_is_what_the_option_says_and_never_a_500(how, status):
    options = {"engine": "redis://127.0.0.1:1", "on_engine_error": how, "engine_timeout": 0.1}
    with override_settings(HEADWAY=options):
        reply = ask(view_of(throttle("30/minute", how=how)))
    assert reply.status_code == status
    if how == "closed":
        assert reply["Retry-After"] == "1"
