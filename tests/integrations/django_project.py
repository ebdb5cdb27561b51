"""A Django project in one file: what the tests of Django and of REST framework ask."""

from collections.abc import Callable
from typing import Any

import django
from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path

PROJECT = {
    "ROOT_URLCONF": "integrations.django_project",
    "MIDDLEWARE": ["headway.integrations.django.RateLimitMiddleware"],
    "REST_FRAMEWORK": {"DEFAULT_THROTTLE_RATES": {"anon": "2/minute"}},
}
"""The settings of the project. A process has one: a test puts these in the place of those of docs/django.md."""

if not settings.configured:
    settings.configure(
        SECRET_KEY="of the tests",
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
        USE_TZ=True,
    )
    django.setup()

VIEWS: dict[str, Callable[..., Any]] = {}
"""What each path is handled by; a test puts its own here."""


def plain(request):
    if "fail" in request.GET:
        raise RuntimeError("of the view")
    if "stream" in request.GET:
        return StreamingHttpResponse(iter([b"a", b"b"]))
    return HttpResponse("ok", status=int(request.GET.get("status", 200)))


async def plain_async(request):
    return HttpResponse("ok", status=int(request.GET.get("status", 200)))


def named(request, name):
    return VIEWS[name](request)


async def named_async(request, name):
    return await VIEWS[name](request)


urlpatterns = [
    path("", plain),
    path("async", plain_async),
    path("view/<name>", named),
    path("async/<name>", named_async),
]
