"""Applications whose limits are on a server that a test kills or stops: what they answer then, and how soon.

`python tests/integrations/outages.py` prints, for each way in which a server is away and for each middleware, the
worst time of so many answers above `engine_timeout`, in milliseconds (`make bench` states the bar). Two things are no
middleware's. The time for which the asking thread was ready to run while other programs had its core is told beside.
The collector's walk through the modules of six frameworks takes 75 ms, so they are frozen before.
"""

import argparse
import asyncio
import gc
import json
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from wsgiref.util import setup_testing_defaults

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent)]

import flask
import httpx
from django.test import Client, override_settings
from fastapi import Depends, FastAPI

from headway.integrations import asgi, fastapi, wsgi
from headway.integrations.flask import Limiter as FlaskLimiter
from integrations.django_project import PROJECT, VIEWS, plain

# isort: split
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from headway.integrations.django import ratelimit
from headway.integrations.rest_framework import RateThrottle

ANSWERS = {"closed": 503, "open": 200, "local": 200}
"""What a request is answered while the engine is away, by `on_engine_error`."""
MIDDLEWARES = ("asgi", "wsgi", "fastapi", "flask", "django", "rest_framework")


def ask_asgi(app, runner):
    async def main():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
            return (await client.get("/")).status_code

    return runner.run(main())


def build_asgi(runner, options):
    async def hello(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    app = asgi.RateLimit(hello, "1000/hour", ban=("100/hour", 60), **options)
    return lambda: ask_asgi(app, runner)


def build_fastapi(runner, options):
    name = options.pop("name")
    limits = [fastapi.RateLimit(f"{n}000/hour", name=f"{name} {n}", **options) for n in (1, 2, 3)]
    app = FastAPI(dependencies=[Depends(limit) for limit in limits])
    app.get("/")(lambda: "hello")
    return lambda: ask_asgi(app, runner)


def build_wsgi(runner, options):
    def hello(environ, start_response):
        start_response("200 OK", [])
        return [b"hello"]

    app = wsgi.RateLimit(hello, "1000/hour", **options)

    def ask():
        environ, started = {"REMOTE_ADDR": "203.0.113.7"}, []
        setup_testing_defaults(environ)
        body = app(environ, lambda status, headers: started.append(int(status[:3])))
        if hasattr(body, "close"):
            body.close()
        return started[0]

    return ask


def build_flask(runner, options):
    app = flask.Flask("app")
    FlaskLimiter(
        app=app, default_limits=["1000/hour", "2000/hour"], application_limits=["3000/hour"], **options
    )
    app.add_url_rule("/", view_func=lambda: "hello")
    client = app.test_client()
    return lambda: client.get("/").status_code


def build_django(runner, options):
    with override_settings(HEADWAY={"limit": "1000/hour", **options}):
        client = Client()
        client.handler.load_middleware()
    VIEWS[options["name"]] = ratelimit("2000/hour", **options)(plain)
    return lambda: client.get(f"/view/{options['name']}").status_code


def build_rest_framework(runner, options):
    class Hello(APIView):  # type: ignore[misc]
        authentication_classes = ()
        throttle_classes = tuple(
            type(
                f"Throttle{n}", (RateThrottle,), {"limit": f"{n}000/hour", "scope": f"{options['name']} {n}"}
            )
            for n in (1, 2, 3)
        )

        def get(self, request):
            return Response("hello")

    view = Hello.as_view()
    with override_settings(HEADWAY=options):
        view(APIRequestFactory().get("/"))  # a throttle reads the settings at its first request
    return lambda: view(APIRequestFactory().get("/")).status_code


@contextmanager
def applications(url, engine_timeout):
    """For each middleware and each `on_engine_error`, a function that makes a request and gives its status."""
    builders = {name: globals()[f"build_{name}"] for name in MIDDLEWARES}
    with asyncio.Runner() as runner, override_settings(**PROJECT):
        yield {
            (name, how): build(
                runner,
                {
                    "name": f"{name} {how}",
                    "engine": url,
                    "on_engine_error": how,
                    "engine_timeout": engine_timeout,
                },
            )
            for name, build in builders.items()
            for how in ANSWERS
        }


def waited_for_core():
    """Seconds that this thread was ready to run so far, and another one ran instead; 0 where no kernel tells."""
    statistics = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(statistics.read_text().split()[1]) / 1e9 if statistics.exists() else 0.0


def timed(ask):
    before, begin = waited_for_core(), time.perf_counter()
    status = ask()
    took = time.perf_counter() - begin
    return SimpleNamespace(status=status, took=took, waited=waited_for_core() - before)


def main():
    from tests.redis.servers import Server

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine-timeout", type=float, default=0.25)
    parser.add_argument("--answers", type=int, default=20, help="of each middleware, in each way")
    given = parser.parse_args()
    for way in ("stopped", "killed"):
        with Server("valkey") as server, applications(server.url, given.engine_timeout) as apps:
            late: dict[str, float] = {}
            whole: dict[str, float] = {}
            wrong = 0
            for ask in apps.values():
                wrong += ask() != 200
            gc.collect()
            gc.freeze()
            server.stop() if way == "stopped" else server.kill()
            for (name, how), ask in apps.items():
                for _ in range(given.answers):
                    answer = timed(ask)
                    wrong += answer.status != ANSWERS[how]
                    above = answer.took - given.engine_timeout
                    late[name] = max(late.get(name, 0), above - answer.waited)
                    whole[name] = max(whole.get(name, 0), above)
            if way == "stopped":
                server.cont()
            said = {
                "way": way,
                "wrong": wrong,
                "late_ms": {name: 1e3 * worst for name, worst in late.items()},
                "with_waits_for_a_core_ms": {name: 1e3 * worst for name, worst in whole.items()},
            }
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
