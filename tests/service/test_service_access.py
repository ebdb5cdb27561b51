"""Tokens, roles, names of the host, figures, health and the description."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from tests.service.virtual import problem, serve

from headway.service import gate_calls, messages
from headway.service.api import ENDPOINTS
from headway.service.config import LIMIT, Config, ConfigError, parse_config
from headway.service.console import POLICY, page_files
from headway.service.gates import gate_routes
from headway.service.openapi import CALLS as CALLS_DESCRIBED
from headway.service.openapi import openapi, problems_of
from headway.service.problems import TYPES
from headway.service.service import check_exposure

TOKENS = {"read": "reading-token-0123", "use": "using-token-0123456", "admin": "admin-token-0123456"}
CONFIG = '[limits.api]\nlimit = "100/minute"\n[gates.orders]\nduration = 60\n' + "".join(
    f'[tokens.{role}]\ntoken = "{token}"\nrole = "{role}"\n' for role, token in TOKENS.items()
)
ROLES = ("read", "use", "admin")

CALLS = [
    ("GET", "/v1/limits", None, "read"),
    ("GET", "/v1/limits/api", None, "read"),
    ("GET", "/v1/limits/api/status", None, "read"),
    ("GET", "/metrics", None, "read"),
    ("GET", "/v1/live", None, "read"),
    ("GET", "/v1/gates", None, "read"),
    ("GET", "/nothing", None, "read"),
    ("POST", "/v1/acquire", {"limit": "api"}, "use"),
    ("POST", "/v1/acquire/each", {"requests": [{"limit": "api"}]}, "use"),
    ("POST", "/v1/acquire/all", {"requests": [{"limit": "api"}]}, "use"),
    ("POST", "/v1/permits/x/release", {}, "use"),
    ("POST", "/v1/permits/x/renew", {}, "use"),
    ("POST", "/v1/gates/orders/events", {"event": "a"}, "use"),
    ("POST", "/v1/limits/api/pause", {"seconds": 0}, "admin"),
    ("POST", "/v1/limits/api/reset", {}, "admin"),
    ("PUT", "/v1/limits/new", {"limit": "1/s"}, "admin"),
    ("DELETE", "/v1/limits/new", None, "admin"),
]


@pytest.mark.parametrize(("method", "path", "body", "needed"), CALLS)
def test_a_call_needs_its_role(method, path, body, needed):
    async def test(peer):
        async def call(authorization):
            headers = {} if authorization is None else {"Authorization": authorization}
            return await peer.client.request(method, path, json=body, headers=headers)

        for nothing in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Basic dXNlcjpwYXNz",
            "Bearer wrong-token-0123456",
            "Bearer \xff",
        ):
            reply = await call(nothing if nothing is None else nothing.encode("latin-1"))
            assert (reply.status_code, problem(reply)) == (401, "no-token")
            assert reply.headers["www-authenticate"] == 'Bearer realm="headway"'
        for role in ROLES:
            reply = await call(f"bearer {TOKENS[role]}")
            if ROLES.index(role) < ROLES.index(needed):
                assert (reply.status_code, problem(reply)) == (403, "role-too-low")
                assert (reply.json()["role"], reply.json()["needed"]) == (role, needed)
            else:
                assert reply.status_code not in (401, 403)

    serve(CONFIG, test)


def test_every_call_of_the_table_is_tested_for_its_role():
    tested = {(method, path) for method, path, _, _ in CALLS}
    for endpoint in ENDPOINTS:
        if endpoint.role is not None:
            path = endpoint.path.replace("{name}", "api").replace("{id}", "x")
            found = (endpoint.method, path) in tested or (
                endpoint.method,
                path.replace("api", "new"),
            ) in tested
            assert found, f"{endpoint.method} {path}"


def test_health_and_description_need_no_token():
    async def test(peer):
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await peer.get(path)).status_code == 200

    serve(CONFIG, test)


def test_the_files_of_the_console_need_no_token_and_nothing_beside_them_is_served():
    async def test(peer):
        for name in page_files():
            reply = await peer.get("/" if name == "index.html" else f"/console/{name}")
            assert reply.status_code == 200
            assert reply.content == page_files()[name]
            assert reply.headers["content-security-policy"] == POLICY
            assert reply.headers["x-content-type-options"] == "nosniff"
        for path in ("/console/__init__.py", "/console/", "/console/..%2fapi.py", "/console/index.html"):
            assert (await peer.get(path)).status_code in (401, 404)
            authorized = await peer.get(path, Authorization=f"Bearer {TOKENS['admin']}")
            assert authorized.status_code in (404, 405)

    serve(CONFIG, test)


def test_ids_belong_to_their_token():
    async def test(peer):
        replies = [
            await peer.post(
                "/v1/acquire", {"limit": "api", "hold": True, "id": "a"}, Authorization=f"Bearer {token}"
            )
            for token in (TOKENS["use"], TOKENS["admin"])
        ]
        assert replies[0].json()["permit"] != replies[1].json()["permit"]

    serve(CONFIG, test)


def test_tokens_follow_the_file():
    async def test(peer):
        header = {"Authorization": f"Bearer {TOKENS['use']}"}
        assert (await peer.get("/v1/limits", **header)).status_code == 200
        await peer.service.reload(CONFIG.replace(TOKENS["use"], "another-token-0123456"), {})
        assert (await peer.get("/v1/limits", **header)).status_code == 401
        header = {"Authorization": "Bearer another-token-0123456"}
        assert (await peer.get("/v1/limits", **header)).status_code == 200

    serve(CONFIG, test)


def test_a_websocket_is_closed_when_its_token_is_taken_out_of_the_file():
    connect = b"CONNECT\naccept-version:1.2\nhost:a\n\n\x00"

    async def test(peer):
        sockets = {}
        for role in ("use", "admin"):
            scope = {
                "type": "websocket",
                "path": "/stomp",
                "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKENS[role]}".encode())],
                "subprotocols": ["v12.stomp"],
                "query_string": b"",
                "scheme": "ws",
                "server": ("localhost", 80),
                "client": ("127.0.0.1", 1),
            }
            said: list[dict[str, Any]] = []
            heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

            async def send(message, said=said, heard=heard):
                said.append(message)
                if message["type"] == "websocket.close":  # which a server tells the application, too
                    heard.put_nowait({"type": "websocket.disconnect", "code": message["code"]})

            heard.put_nowait({"type": "websocket.connect"})
            heard.put_nowait({"type": "websocket.receive", "bytes": connect})
            sockets[role] = said, heard, asyncio.ensure_future(peer.app(scope, heard.get, send))
        await asyncio.sleep(1)
        text = CONFIG.replace(TOKENS["use"], "another-token-0123456")
        await peer.service.reload(text, {})
        await asyncio.sleep(1)
        said, _, task = sockets["use"]
        assert [message["type"] for message in said] == [
            "websocket.accept",
            "websocket.send",
            "websocket.close",
        ]
        assert said[-1]["code"] == 1008
        await task
        said, heard, task = sockets["admin"]
        assert [message["type"] for message in said] == ["websocket.accept", "websocket.send"]
        heard.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await task
        assert not peer.service.tokens.on_change

    serve(CONFIG, test)


def test_without_tokens_only_loopback_is_served():
    check_exposure(Config(), "127.0.0.1", False)
    check_exposure(Config(), "::1", False)
    check_exposure(Config(), "0.0.0.0", True)
    check_exposure(parse_config(CONFIG), "0.0.0.0", False)
    with pytest.raises(
        ConfigError, match=r"\[server\] host = '0.0.0.0' is open to other machines, and there are no"
    ):
        check_exposure(Config(), "0.0.0.0", False)


def test_a_reload_that_removes_all_tokens_is_refused_where_other_machines_reach_it():
    async def test(peer):
        with pytest.raises(ConfigError, match="there are no tokens"):
            await peer.service.reload('[limits.api]\nlimit = "1/s"', {})
        assert (await peer.get("/v1/limits")).status_code == 401

    serve(CONFIG, test, host="0.0.0.0")


def test_other_names_and_other_pages_are_refused():
    async def test(peer):
        assert problem(await peer.get("/v1/limits", Host="evil.example")) == "wrong-host"
        assert (
            problem(await peer.post("/v1/acquire", {"limit": "api"}, Origin="https://evil.example"))
            == "wrong-origin"
        )
        form = await peer.client.post("/v1/acquire", data={"limit": "api"})
        assert (form.status_code, problem(form)) == (415, "not-json")

    serve('[limits.api]\nlimit = "1/s"', test)


# -- figures ---------------------------------------------------------------------------------------------


def test_figures_are_by_limit_and_never_by_key():
    async def test(peer):
        for key in ("alice", "bob", "alice"):
            await peer.acquire("api", key=key)
        await peer.acquire("calls")
        await peer.acquire("calls")
        reply = await peer.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain")
        for line in (
            'headway_granted_total{limit="api"} 2.0',
            'headway_denied_total{limit="api",reason="limit"} 1.0',
            'headway_permits{limit="calls"} 1.0',
            'headway_waiting{limit="calls"} 0.0',
            'headway_keys{limit="api"} 2.0',
            'headway_acquire_seconds_count{limit="api"} 3.0',
            'headway_requests_total{path="/v1/acquire",status="200"} 3.0',
            'headway_requests_total{path="/v1/acquire",status="429"} 2.0',
            "headway_engine_up 1.0",
        ):
            assert line in reply.text
        assert "alice" not in reply.text

    serve('[limits.api]\nlimit = "1/minute"\n[limits.calls]\nlimit = "1 concurrent"', test)


def test_refusals_and_gates_are_counted_and_invented_paths_make_no_figure():
    async def test(peer):
        low = {"Authorization": f"Bearer {TOKENS['read']}"}
        admin = {"Authorization": f"Bearer {TOKENS['admin']}"}
        await peer.post("/v1/acquire", {"limit": "api"})
        await peer.post("/v1/acquire", {"limit": "api"}, **low)
        await peer.post("/v1/acquire", {"limit": "api"}, **admin)
        await peer.get("/v1/limits/api/status", Host="evil.example")
        await peer.post("/v1/gates/orders/events", {"event": "pizza"}, **admin)
        await peer.post("/json", {}, **admin)
        for path in ("/invented-1", "/v1/invented-2", "/"):
            await peer.get(path, **admin)
        text = (await peer.get("/metrics", **admin)).text
        for path, status in (
            ("/v1/acquire", 401),
            ("/v1/acquire", 403),
            ("/v1/acquire", 200),
            ("/v1/limits/{name}/status", 421),
            ("/v1/gates/{gate}/events", 200),
            ("/json", 404),
            ("/", 200),
        ):
            assert f'headway_requests_total{{path="{path}",status="{status}"}} 1.0' in text
        assert 'headway_requests_total{path="other",status="404"} 2.0' in text
        assert "invented" not in text

    serve(CONFIG, test)


def test_what_is_alerted_on_is_there_before_it_happens():
    """A count that appears as 1 has not increased: an alert would miss the first time."""

    async def test(peer):
        text = (await peer.get("/metrics")).text
        for line in (
            'headway_granted_total{limit="api"} 0.0',
            'headway_denied_total{limit="api",reason="max_keys"} 0.0',
            'headway_denied_total{limit="api",reason="quarantine"} 0.0',
            'headway_config_reloads_total{result="failed"} 0.0',
        ):
            assert line in text

    serve('[limits.api]\nlimit = "1/minute"', test)


def test_names_that_are_put_and_deleted_without_end_leave_no_figures_without_end(monkeypatch):
    monkeypatch.setattr("headway.service.metrics.MOST_GONE", 3)

    async def test(peer):
        for number in range(10):
            await peer.put(f"/v1/limits/passing-{number}", {"limit": "1/s"})
            await peer.acquire(f"passing-{number}")
            await peer.delete(f"/v1/limits/passing-{number}")
        await peer.acquire("api")
        text = (await peer.get("/metrics")).text
        found = [
            number for number in range(10) if f'headway_granted_total{{limit="passing-{number}"}}' in text
        ]
        assert found == [7, 8, 9]
        assert 'headway_granted_total{limit="api"} 1.0' in text

    serve('[limits.api]\nlimit = "1/minute"', test)


def test_an_invented_limit_makes_no_figure():
    async def test(peer):
        for number in range(10):
            await peer.acquire(f"invented-{number}")
            await peer.get(f"/v1/limits/invented-{number}/status")
        assert "invented" not in (await peer.get("/metrics")).text

    serve("", test)


# -- the description -------------------------------------------------------------------------------------


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_the_description_is_whole():
    async def test(peer):
        reply = await peer.get("/openapi.json")
        found = reply.json()
        assert found == json.loads(json.dumps(openapi()))
        assert found["openapi"] == "3.1.0"
        names = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
        assert set(references(found)) <= names
        for endpoint in CALLS_DESCRIBED:
            operation = found["paths"][endpoint.path][endpoint.method.lower()]
            assert {str(TYPES[kind][0]) for kind in problems_of(endpoint)} < set(operation["responses"])
            assert ("requestBody" in operation) == (endpoint.body is not None)
        assert len(
            {operation["operationId"] for path in found["paths"].values() for operation in path.values()}
        ) == len(CALLS_DESCRIBED)

    serve("", test)


def test_a_limit_of_the_api_has_the_keys_of_the_file():
    assert set(messages.LimitBody.__struct_fields__) == set(LIMIT)
    schema = openapi()["components"]["schemas"]["LimitBody"]
    assert set(schema["properties"]) == set(LIMIT)
    assert schema["additionalProperties"] is False


def test_the_calls_of_gates_are_described_as_they_are_answered():
    routes = {
        (route.path.replace(":path", ""), *((route.methods or set()) - {"HEAD"})) for route in gate_routes({})
    }
    assert routes == {(call.path, call.method) for call in gate_calls.GATE_CALLS}

    async def test(peer):
        first = await peer.post("/v1/gates/alarms/events", {"event": "a", "id": "1", "value": "x"})
        repeat = await peer.post("/v1/gates/alarms/events", {"event": "a", "id": "2"})
        await peer.post("/v1/gates/alarms/events", {"event": "b"})
        replies = {
            gate_calls.GateList: await peer.get("/v1/gates"),
            gate_calls.KeyFrame: await peer.get("/v1/gates/alarms"),
            gate_calls.SubmissionAnswer: first,
            gate_calls.EventStatusAnswer: await peer.get("/v1/gates/alarms/events/1"),
            gate_calls.ChangesAnswer: await peer.get("/v1/gates/alarms/changes?since=0"),
        }
        for kind, reply in replies.items():
            assert reply.status_code == 200
            strict = msgspec.defstruct("Strict", [], bases=(kind,), forbid_unknown_fields=True)
            msgspec.json.decode(reply.content, type=strict)
            assert set(kind.__struct_fields__) == set(reply.json())
        for part, where in ((gate_calls.PendingEvent, "pending"), (gate_calls.ChangeLine, "changes")):
            line = (replies[gate_calls.KeyFrame if where == "pending" else gate_calls.ChangesAnswer]).json()[
                where
            ][0]
            assert set(line) == set(part.__struct_fields__)
        assert set(gate_calls.SubmissionAnswer.__struct_fields__) < set(repeat.json())
        statuses = {(await peer.get(f"/v1/gates/alarms/events/{id}")).json()["status"] for id in "12"}
        assert statuses == {"INVALIDATED", "REJECTED"}

    serve('[gates.alarms]\nduration = 60\nmode = "strict"', test)


def test_answers_are_as_the_description_says():
    async def test(peer):
        await peer.acquire("api")
        grant = await peer.acquire("api", hold=True)
        denied = await peer.acquire("api")
        info = await peer.get("/v1/limits/api")
        status = await peer.get("/v1/limits/api/status")
        for reply, kind in (
            (grant, messages.Grant),
            (denied, messages.Denial),
            (info, messages.LimitInfo),
            (status, messages.StatusAnswer),
        ):
            msgspec.json.decode(reply.content, type=kind)
            assert set(kind.__struct_fields__) == set(reply.json()), kind

    serve('[limits.api]\nlimit = "2/minute"', test)
