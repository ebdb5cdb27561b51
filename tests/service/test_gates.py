"""Gates over plain HTTP, on a real server: answers, every problem, and what a retry gets."""

import asyncio
import json
import re
import socket
import time
from pathlib import Path

import pytest
from tests.service.serving import serving

from headway import Once
from headway.service import service_app
from headway.service.bodies import MAX_BODY, SKIPPED
from headway.service.problems import TYPES
from waiting import NEVER

EVENTS = "/v1/gates/orders/events"


@pytest.fixture(scope="module")
def client():
    gates = {
        "orders": Once("5min"),
        "alarms": Once("1h", "strict"),
        "small": Once("1h", max_pending=1),
        "short": Once("5min", retention=0),
    }
    with serving(service_app(gates)) as client:
        client.gates = gates
        yield client


def test_an_event_is_accepted_once(client):
    first = client.post(EVENTS, {"event": "order 1", "id": "a", "value": "2 pizzas"})
    assert first.status == 200
    assert first.body["accepted"] is True
    assert (first.body["gate"], first.body["id"], first.body["conflict"]) == ("orders", "a", None)
    repeat = client.post(EVENTS, {"event": "order 1", "id": "b"})
    assert (repeat.status, repeat.kind) == (409, "repeated-event")
    assert (repeat.body["accepted"], repeat.body["conflict"], repeat.body["due"]) == (False, "a", None)
    assert repeat.body["detail"] == "the event was rejected: it repeats the event with id 'a'"


def test_a_retry_with_the_same_id_gets_the_same_answer(client):
    for event, id in (("order 2", "c"), ("order 2", "d")):
        said = {"event": event, "id": id}
        first, again = client.post(EVENTS, said), client.post(EVENTS, said)
        assert (first.status, first.body) == (again.status, again.body)


def test_without_an_id_a_new_one_is_made(client):
    reply = client.post(EVENTS, {"event": "order 3", "id": None, "value": None})
    assert reply.status == 200
    assert client.get(f"{EVENTS}/{reply.body['id']}").body["status"] == "PUBLISHED"


def test_what_became_of_a_submission(client):
    client.post(EVENTS, {"event": "order 4", "id": "a/b c?"})
    client.post(EVENTS, {"event": "order 4", "id": "repeat"})
    found = client.get(f"{EVENTS}/a/b%20c%3F")
    assert (found.status, found.body) == (200, {"gate": "orders", "id": "a/b c?", "status": "PUBLISHED"})
    assert client.get(f"{EVENTS}/repeat").body["status"] == "REJECTED"
    assert client.get(f"{EVENTS}/unknown").kind == "unknown-event"
    assert client.get(f"{EVENTS}/{'x' * 1025}").kind == "bad-request"


def test_a_snapshot_says_what_is_pending(client):
    at = client.gates["alarms"].snapshot().clock
    client.post("/v1/gates/alarms/events", {"event": "disk full", "id": "e", "value": "98 %"})
    found = client.get("/v1/gates/alarms")
    assert found.status == 200
    (pending,) = found.body.pop("pending")
    assert found.body["began"] <= pending["time"] <= found.body["time"] <= time.time() + 5
    assert {name: found.body[name] for name in ("gate", "mode", "duration", "clock")} == {
        "gate": "alarms", "mode": "strict", "duration": 3600.0, "clock": at + 1,
    }  # fmt: skip
    assert pending["due"] == pytest.approx(pending["time"] + 3600)
    assert (pending["id"], pending["event"], pending["value"], pending["clock"]) == (
        "e",
        "disk full",
        "98 %",
        at + 1,
    )


def test_changes_after_a_clock_value_come_in_pages(client):
    at = client.gates["orders"].snapshot().clock
    for number in range(3):
        client.post(EVENTS, {"event": f"page {number}"})
    seen: list[int] = []
    sizes: list[int] = []
    more = True
    while more:
        reply = client.get(f"/v1/gates/orders/changes?since={seen[-1] if seen else at}&limit=4")
        seen += [change["clock"] for change in reply.body["changes"]]
        sizes.append(len(reply.body["changes"]))
        more = reply.body["more"]
        assert reply.body["clock"] == seen[-1]
    assert seen == list(range(at + 1, at + 7))
    assert sizes == [4, 2]
    last = reply.body["changes"][-1]
    assert (last["status"], last["event"]) == ("PUBLISHED", "page 2")
    assert client.get("/v1/gates/orders/changes").body["changes"][0]["clock"] == 1


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("since=999999", "changes-gone"),
        ("since=-1", "bad-request"),
        ("since=soon", "bad-request"),
        (f"since={2**53}", "bad-request"),
        ("since=٣", "bad-request"),
        ("limit=0", "bad-request"),
    ],
)
def test_changes_that_cannot_be_told(client, query, kind):
    reply = client.get(f"/v1/gates/orders/changes?{query.replace('٣', '%D9%A3')}")
    assert reply.kind == kind
    if kind == "changes-gone":
        assert reply.status == 410
        assert reply.body["since"] == 999999


def test_all_gates_are_listed(client):
    assert client.get("/v1/gates").body["gates"][:2] == [
        {"gate": "orders", "mode": "only", "duration": 300.0},
        {"gate": "alarms", "mode": "strict", "duration": 3600.0},
    ]


# -- problems -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        (b"{", "bad-json", "the body is no JSON"),
        (b"", "bad-json", "the body is no JSON"),
        (b"\xff", "bad-json", "the body is no JSON"),
        (b"[" * 200_000, "bad-json", "the body is no JSON"),
        (b'{"event": ' + b"1" * 5000 + b"}", "bad-json", "the body is no JSON"),
        (b"[]", "bad-json", 'but no object: give one, such as {"event": "..."}'),
        ({}, "bad-request", 'the member "event" is missing'),
        ({"event": 7}, "bad-request", "event=7 is not accepted; give a str"),
        ({"event": None}, "bad-request", "event=None is not accepted"),
        ({"event": "x" * 65537}, "bad-request", "at most 65536 bytes"),
        ({"event": "x", "value": "x" * 65537}, "bad-request", "at most 65536 bytes"),
        ({"event": "x", "value": 1}, "bad-request", "value=1 is not accepted"),
        ({"event": "x", "id": "x" * 1025}, "bad-request", "at most 1024 bytes"),
        ({"event": "x", "id": ""}, "bad-request", "not empty"),
        ({"event": "x", "id": 5}, "bad-request", "id=5 is not accepted"),
        ({"event": "\ud800"}, "bad-request", "a lone surrogate"),
        ({"event": "x", "evnt": 1}, "bad-request", "unknown member 'evnt'; accepted: event, id, value"),
        ({"event": "x", "y" * 1000: 1}, "bad-request", "unknown member 'yyyy"),
    ],
)  # fmt: skip
def test_a_bad_submit_is_told_and_changes_nothing(client, body, kind, detail):
    before = client.gates["orders"].snapshot().clock
    reply = client.post(EVENTS, body)
    assert reply.kind == kind
    assert detail in reply.body["detail"]
    assert len(reply.body["detail"]) < 500
    assert client.gates["orders"].snapshot().clock == before


def test_the_longest_event_with_every_character_escaped_fits(client):
    body = {"event": "\x01" * 65536, "value": "\x02" * 65536, "id": "\x03" * 1024}
    assert client.post(EVENTS, body).status == 200


def test_a_content_type_that_a_page_could_send_without_asking_is_refused(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert client.post(EVENTS, {"event": "x"}, kind).kind == "not-json"
    assert client.post(EVENTS, {"event": "typed"}, "Application/JSON; charset=utf-8").status == 200


def test_a_body_is_bounded_whatever_was_announced(client):
    reply = client.post(EVENTS, b" " * (MAX_BODY + 1))
    assert (reply.status, reply.kind) == (413, "body-too-large")
    assert "connection" not in reply.headers
    # In chunks of unknown number, and never ended; and announced, but never sent.
    with socket.create_connection(("127.0.0.1", client.port), NEVER) as connection:
        head = f"POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for _ in range(SKIPPED // 65536):
            connection.sendall(chunk)
        connection.sendall(b"1\r\n \r\n")
        assert b"connection: close" in answer(connection)
    with socket.create_connection(("127.0.0.1", client.port), NEVER) as connection:
        connection.sendall(f"{head}Content-Length: {SKIPPED + 1}\r\n\r\n".encode())
        assert b"connection: close" in answer(connection)


def answer(connection):
    """All that comes until the connection is closed."""
    said = b""
    while part := connection.recv(1 << 16):
        said += part
    assert said.startswith(b"HTTP/1.1 413")
    return said


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("DELETE", "/v1/gates/orders", 405),
        ("GET", "/v1/gates/orders/events", 405),
        ("GET", "/stomp", 426),
    ],
)
def test_other_paths_and_methods_are_problems_too(client, method, path, status):
    reply = client.request(method, path)
    assert reply.status == status
    assert reply.kind == "about:blank"
    assert reply.body["detail"].startswith(f"{method} {path}: ")


@pytest.mark.parametrize("path", ["", "/events", "/events/a", "/changes"])
def test_an_unknown_gate(client, path):
    asked = "/v1/gates/nope" + path
    reply = client.post(asked, {"event": "x"}) if path == "/events" else client.get(asked)
    assert (reply.status, reply.kind) == (404, "unknown-gate")
    assert reply.body["detail"] == "there is no gate 'nope' here"


def test_an_id_that_belongs_to_another_event(client):
    client.post(EVENTS, {"event": "order 5", "id": "mine"})
    reply = client.post(EVENTS, {"event": "order 6", "id": "mine"})
    assert (reply.status, reply.kind) == (409, "id-reused")
    assert (reply.body["event"], reply.body["id"]) == ("order 5", "mine")
    assert "accepted" not in reply.body


def test_a_full_gate_says_when_to_come_back(client):
    events = "/v1/gates/small/events"
    assert client.post(events, {"event": "one"}).status == 200
    reply = client.post(events, {"event": "two"})
    assert (reply.status, reply.kind) == (503, "gate-full")
    assert 3500 < int(reply.headers["retry-after"]) <= 3600
    assert reply.body["max_pending"] == 1


def test_an_engine_that_is_away_says_to_come_back():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    gate = Once("5min", name="orders", engine=f"redis://127.0.0.1:{port}")
    with serving(service_app({"orders": gate})) as client:
        for reply in (client.post(EVENTS, {"event": "x"}), client.get("/v1/gates/orders")):
            assert (reply.status, reply.kind) == (503, "engine-unavailable")
            assert reply.headers["retry-after"] == "1"
            assert str(port) not in reply.body["detail"]  # where the engine is, is not for clients


def test_a_gate_that_was_closed_says_to_come_back():
    gate = Once("5min")
    with serving(service_app({"orders": gate})) as client:
        gate.close()
        reply = client.post(EVENTS, {"event": "x"})
        assert (reply.status, reply.kind) == (503, "closing")


def test_a_fault_is_told_without_its_secrets(capfd):
    class Broken(Once):
        async def snapshot_async(self):
            raise RuntimeError("secret")

    with serving(service_app({"orders": Broken("5min")})) as client:
        reply = client.get("/v1/gates/orders")
    assert (reply.status, reply.kind) == (500, "failed")
    assert "secret" not in json.dumps(reply.body)
    assert "secret" in capfd.readouterr().err


def test_every_title_belongs_to_one_type():
    assert len({title for _, title in TYPES.values()}) == len(TYPES)


# -- hosts and origins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "[::1]:8080", "LOCALHOST"])
def test_names_of_loopback_are_taken(client, host):
    assert client.get("/v1/gates", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8080", "a b", "[", "localhost@evil.example"]
)
def test_another_name_is_refused(client, host):
    reply = client.get("/v1/gates", Host=host)
    assert (reply.status, reply.kind) == (421, "wrong-host")


@pytest.mark.parametrize("origin", ["http://localhost:9000", "http://127.0.0.1", "https://[::1]:1"])
def test_a_page_on_this_machine_may_use_it(client, origin):
    assert client.get("/v1/gates", Origin=origin).status == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "http://localhost.evil.example", "http://["]
)
def test_a_page_from_elsewhere_may_not(client, origin):
    reply = client.get("/v1/gates", Origin=origin)
    assert (reply.status, reply.kind) == (403, "wrong-origin")


def test_a_page_of_an_allowed_origin_may_call_and_read_the_answer():
    """A browser asks before it sends JSON or a token, and gives the page only what it may read."""
    asking = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serving(service_app({"orders": Once("5min")}, origins=["https://ops.example"])) as client:
        page = {"Origin": "https://ops.example"}
        asked = client.request("OPTIONS", EVENTS, headers={**page, **asking})
        assert asked.status == 204
        assert asked.headers["access-control-allow-origin"] == "https://ops.example"
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "Authorization, Content-Type" in asked.headers["access-control-allow-headers"]
        for reply in (client.post(EVENTS, {"event": "x"}, **page), client.get("/nothing", **page)):
            assert reply.headers["access-control-allow-origin"] == "https://ops.example"
            assert "Retry-After" in reply.headers["access-control-expose-headers"]
            assert reply.headers["vary"] == "Origin"
        for other in ({"Origin": "https://evil.example"}, {"Origin": "http://localhost:9000"}, {}):
            reply = client.request("OPTIONS", EVENTS, headers={**other, **asking})
            assert reply.status in (403, 405)
            assert "access-control-allow-origin" not in reply.headers


def test_an_origin_may_be_allowed_by_name():
    app = service_app({}, origins=["https://ops.example/"])
    with serving(app) as client:
        assert client.get("/v1/gates", Origin="https://OPS.example").status == 200
        assert client.get("/v1/gates", Origin="https://ops.example.evil").status == 403


def test_a_server_for_others_takes_any_name_and_its_own_pages():
    with serving(service_app({}, host="0.0.0.0")) as client:
        assert client.get("/v1/gates", Host="ops.example:80", Origin="http://ops.example:80").status == 200
        assert client.get("/v1/gates", Host="ops.example", Origin="http://localhost").status == 403


# -- with others ----------------------------------------------------------------------------------------------


def test_a_hundred_submits_at_once_of_one_event_accept_one():
    httpx = pytest.importorskip("httpx")

    async def crowd(url):
        async with httpx.AsyncClient(base_url=url, timeout=NEVER) as http:
            return await asyncio.gather(*(http.post(EVENTS, json={"event": "once"}) for _ in range(100)))

    with serving(service_app({"orders": Once("5min")})) as client:
        found = [reply.status_code for reply in asyncio.run(crowd(client.url))]
    assert sorted(found) == [200] + [409] * 99


def test_a_gate_that_other_terms_were_kept_under(tmp_path):
    engine = f"embedded://{tmp_path}"
    kept = Once("5min", name="orders", engine=engine, engine_timeout=5)
    kept.submit("x")
    other = Once("6min", name="orders", engine=engine, engine_timeout=5)
    with serving(service_app({"orders": other})) as client:
        reply = client.post(EVENTS, {"event": "x"})
        assert (reply.status, reply.kind) == (500, "misconfigured")


def test_every_type_of_problem_is_on_the_page():
    docs = Path(__file__).parent.parent.parent / "docs"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in ("events.md", "service.md"))
    rows = dict(re.findall(r"^\| `urn:headway:([a-z-]+)` \| (\d+) \|", page, re.MULTILINE))
    assert rows == {kind: str(status) for kind, (status, _) in TYPES.items()}
