"""Limits that come, change and go: by the API and by the file, with waiters and permits that are out."""

import asyncio
from typing import Any

import pytest
from tests.service.virtual import problem, serve

from headway import Once
from headway.service.config import ConfigError
from headway.service.server import summary

API = '[limits.api]\nlimit = "2/minute"\n'
CALLS = '[limits.calls]\nlimit = "1 concurrent"\n'


async def remaining(peer, name, key=None):
    query = "" if key is None else f"?key={key}"
    return (await peer.get(f"/v1/limits/{name}/status{query}")).json()["status"]["remaining"]


def test_limits_are_listed_and_shown():
    async def test(peer):
        await peer.acquire("api", key="alice")
        await peer.acquire("api", key="alice", cost=2)
        listed = (await peer.get("/v1/limits")).json()["limits"]
        assert [info["name"] for info in listed] == ["api", "calls"]
        assert (await peer.get("/v1/limits/api")).json() == listed[0] == {
            "name": "api",
            "limit": "2/minute",
            "source": "file",
            "ledgers": "api~window",
            "granted": 1,
            "denied": 1,
            "waiting": 0,
            "in_flight": 0,
            "keys": 1,
            "config": {"limit": "2/minute"},
        }  # fmt: skip
        missing = await peer.get("/v1/limits/nothing")
        assert (missing.status_code, problem(missing)) == (404, "unknown-limit")

    serve(API + CALLS, test)


def test_a_limit_is_put_and_deleted():
    async def test(peer):
        made = await peer.put("/v1/limits/new", {"limit": "5/minute", "overrides": {"vip": "9/minute"}})
        assert (made.status_code, made.json()["source"]) == (201, "api")
        assert made.json()["config"] == {"limit": "5/minute", "overrides": {"vip": "9/minute"}}
        assert [await remaining(peer, "new"), await remaining(peer, "new", "vip")] == [5, 9]
        again = await peer.put("/v1/limits/new", {"limit": "7/minute"})
        assert again.status_code == 200
        assert await remaining(peer, "new", "vip") == 7, "it is all that the limit is"
        assert (await peer.delete("/v1/limits/new")).json() == {"limit": "new", "done": True}
        assert problem(await peer.delete("/v1/limits/new")) == "unknown-limit"
        assert problem(await peer.acquire("new")) == "unknown-limit"

    serve("", test)


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("new", {}, "[limits.new] has no limit"),
        ("new", {"limit": "5/fortnight"}, "[limits.new] limit = '5/fortnight' cannot be read at position 2"),
        (
            "new",
            {"limit": "1/s", "max_keys": 0},
            "[limits.new] max_keys = 0 is not accepted; give an integer from 1",
        ),
        ("new", {"limit": "1/s", "on_engine_error": "open"}, "[limits.new] is not accepted on memory://"),
        ("a b", {"limit": "1/s"}, "a name has 1 to 128"),
        ("x" * 129, {"limit": "1/s"}, "a name has 1 to 128"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(name, body, message):
    async def test(peer):
        reply = await peer.put(f"/v1/limits/{name}", body)
        assert (reply.status_code, problem(reply)) == (422, "bad-limit")
        assert message in reply.json()["detail"]
        assert [served.name for served in peer.service.limits] == ["api"]

    serve(API, test)


def test_unknown_members_and_types_of_a_limit_are_refused():
    async def test(peer):
        wrong: list[Any] = [{"limit": "1/s", "burst": 3}, {"limit": 5}, {"limit": "1/s", "shadow": "yes"}, []]
        for body in wrong:
            reply = await peer.put("/v1/limits/new", body)
            assert (reply.status_code, problem(reply)) == (422, "bad-request")

    serve("", test)


def test_limits_are_bounded():
    async def test(peer):
        reply = await peer.put("/v1/limits/c", {"limit": "1/s"})
        assert (reply.status_code, problem(reply)) == (409, "too-many-limits")
        assert (await peer.put("/v1/limits/api", {"limit": "9/minute"})).status_code == 200

    serve(f"[server]\nmax_limits = 2\n{API}{CALLS}", test)


def test_another_number_keeps_what_was_used_and_those_that_wait():
    async def test(peer):
        await peer.acquire("api", cost=2)
        waiting = asyncio.ensure_future(peer.acquire("api", wait=100))
        await asyncio.sleep(1)
        await peer.put("/v1/limits/api", {"limit": "3/minute"})
        reply = await waiting
        assert (peer.now, reply.status_code) == (1, 200)
        assert await remaining(peer, "api") == 0

    serve(API, test)


def test_another_option_keeps_what_was_used_and_those_that_wait():
    async def test(peer):
        await peer.acquire("api", cost=2)
        waiting = [asyncio.ensure_future(peer.acquire("api", wait=100)) for _ in range(2)]
        await asyncio.sleep(10)
        reply = await peer.put("/v1/limits/api", {"limit": "2/minute", "max_waiting": 5, "shadow": False})
        assert reply.status_code == 200
        assert await remaining(peer, "api") == 0, "the ledgers are the same"
        await asyncio.sleep(1)
        assert peer.service.limits.find("api").waiting == 2
        found = await asyncio.gather(*waiting)
        assert [(reply.status_code, reply.json()["waited"]) for reply in found] == [(200, 60), (200, 60)]

    serve(API, test)


def test_another_kind_begins_with_ledgers_of_its_own():
    async def test(peer):
        held = (await peer.acquire("calls")).json()["permit"]
        waiting = asyncio.ensure_future(peer.acquire("calls", wait=100))
        await asyncio.sleep(1)
        reply = await peer.put("/v1/limits/calls", {"limit": "2/minute"})
        assert reply.json()["ledgers"] == "calls~window"
        assert (await waiting).json()["status"]["limit"] == "2/minute"
        assert (await peer.release(held)).status_code == 200, "a permit of before can still be ended"
        assert await remaining(peer, "calls") == 1

    serve(CALLS, test)


def test_a_limit_that_becomes_unlimited_and_limited_again():
    async def test(peer):
        await peer.acquire("api", cost=2)
        waiting = asyncio.ensure_future(peer.acquire("api", wait=100))
        await asyncio.sleep(1)
        await peer.put("/v1/limits/api", {"unlimited": True})
        assert (await waiting).status_code == 200
        assert (await peer.acquire("api", cost=100)).status_code == 200
        await peer.put("/v1/limits/api", {"limit": "2/minute"})
        assert (await peer.acquire("api")).status_code == 200

    serve(API, test)


def test_a_wait_for_a_limit_that_is_deleted_ends():
    async def test(peer):
        held = (await peer.acquire("calls")).json()["permit"]
        waiting = asyncio.ensure_future(peer.acquire("calls", wait=100))
        await asyncio.sleep(1)
        await peer.delete("/v1/limits/calls")
        reply = await waiting
        assert (peer.now, problem(reply)) == (1, "unknown-limit")
        assert (await peer.release(held)).status_code == 200

    serve(CALLS, test)


def test_a_pause_and_its_end():
    async def test(peer):
        assert (await peer.post("/v1/limits/api/pause", {"seconds": 30})).json() == {
            "limit": "api",
            "done": True,
        }
        reply = await peer.acquire("api", key="alice")
        assert (reply.json()["reason"], reply.headers["retry-after"]) == ("paused", "30")
        await peer.post("/v1/limits/api/pause", {"seconds": 0})
        assert (await peer.acquire("api", key="alice")).status_code == 200
        await peer.post("/v1/limits/api/pause", {"seconds": 30, "key": "bob"})
        assert (await peer.acquire("api", key="bob")).status_code == 429
        assert (await peer.acquire("api", key="alice")).status_code == 200
        for wrong in ({"seconds": -1}, {"seconds": "x"}, {}):
            assert problem(await peer.post("/v1/limits/api/pause", wrong)) == "bad-request"
        assert problem(await peer.post("/v1/limits/nothing/pause", {"seconds": 1})) == "unknown-limit"

    serve(API, test)


def test_a_pause_with_an_id_is_not_prolonged_by_its_copy():
    async def test(peer):
        await peer.post("/v1/limits/api/pause", {"seconds": 30, "id": "p"})
        await asyncio.sleep(20)
        await peer.post("/v1/limits/api/pause", {"seconds": 30, "id": "p"})
        assert (await peer.acquire("api")).headers["retry-after"] == "10"

    serve(API, test)


def test_a_key_starts_anew():
    async def test(peer):
        for key in (None, "alice"):
            await peer.acquire("api", key=key, cost=2)
        await peer.post("/v1/limits/api/reset", {"key": "alice"})
        assert [await remaining(peer, "api"), await remaining(peer, "api", "alice")] == [0, 2]
        assert (await peer.client.post("/v1/limits/api/reset")).status_code == 200, "without a body"
        assert await remaining(peer, "api") == 2

    serve(API, test)


def test_looking_consumes_nothing_and_has_headers():
    async def test(peer):
        for _ in range(5):
            reply = await peer.get("/v1/limits/api/status?key=alice")
            assert reply.json()["status"]["remaining"] == 2
            assert reply.headers["ratelimit"].startswith('"window-0";r=2')
        long = await peer.get(f"/v1/limits/api/status?key={'k' * 1025}")
        assert problem(long) == "bad-request"

    serve(API, test)


# -- the file --------------------------------------------------------------------------------------------


def test_a_reload_makes_the_changes_of_the_file():
    async def test(peer):
        await peer.acquire("api")
        after = (
            API.replace("2/minute", "5/minute")
            + '[limits.new]\nlimit = "1/s"\n[gates.orders]\nduration = 60\n'
        )
        found = await peer.service.reload(after, {})
        assert summary(found) == "limits: new added, calls removed, api changed; gates: orders added"
        assert await remaining(peer, "api") == 4
        assert problem(await peer.acquire("calls")) == "unknown-limit"
        assert (await peer.acquire("new")).status_code == 200
        assert (await peer.post("/v1/gates/orders/events", {"event": "a"})).json()["accepted"]
        await peer.service.reload(after.replace("[gates.orders]\nduration = 60\n", ""), {})
        assert problem(await peer.post("/v1/gates/orders/events", {"event": "a"})) == "unknown-gate"

    serve(API + CALLS, test)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (
            '[limits.api]\nlimit = "9/minute"\n[limits.bad]\nlimit = "x"',
            "[limits.bad] limit = 'x' cannot be read",
        ),
        (
            '[limits.api]\nlimit = "9/minute"\n[limits.bad]\nlimit="1/s"\non_engine_error="open"',
            "[limits.bad] is not",
        ),
        (
            '[limits.api]\nlimit = "9/minute"\n[gates.orders]\nduration = 61',
            "[gates.orders] cannot change while",
        ),
        ("[limits.api", "is no TOML"),
    ],
)
def test_a_bad_file_changes_nothing(after, message):
    async def test(peer):
        with pytest.raises(ConfigError) as error:
            await peer.service.reload(after, {})
        assert message in str(error.value)
        assert str(error.value).startswith("headway.toml")
        assert await remaining(peer, "api") == 2
        assert [served.name for served in peer.service.limits] == ["api"]
        assert list(peer.service.gates) == ["orders"]
        assert 'headway_config_reloads_total{result="failed"} 1.0' in (await peer.get("/metrics")).text
        await peer.service.reload(API.replace("2/minute", "3/minute") + "[gates.orders]\nduration = 60", {})
        assert await remaining(peer, "api") == 3

    serve(API + "[gates.orders]\nduration = 60\n", test)


def test_a_gate_that_was_another_one_before_is_named_and_nothing_changes():
    async def test(peer):
        kept = Once(5, name="kept")
        await kept.submit_async("pizza")
        gates = "[gates.fresh]\nduration = 60\n[gates.kept]\nduration = 60\n"
        with pytest.raises(
            ConfigError, match=r"\[gates.kept\] cannot be opened: 'kept' is kept as 'only 5s'"
        ):
            await peer.service.reload('[limits.api]\nlimit = "9/minute"\n' + gates, {})
        assert await remaining(peer, "api") == 2
        assert peer.service.gates == {}
        kept.close()

    serve(API, test)


def test_a_limit_is_not_changed_where_the_next_one_is_wrong():
    """Also where it gets another limiter, which governs as soon as it is there."""

    async def test(peer):
        after = '[limits.api]\nlimit = "9/minute"\nmax_waiting = 5\n[limits.calls]\nlimit = "1 concurrent"\n'
        with pytest.raises(ConfigError, match=r"\[limits.calls\] is not accepted on memory://"):
            await peer.service.reload(after + "local_share = 0.5", {})
        assert await remaining(peer, "api") == 2
        await peer.service.reload(after, {})
        assert await remaining(peer, "api") == 9

    serve(API + CALLS, test)


def test_the_newest_word_counts_between_the_file_and_the_api():
    async def test(peer):
        await peer.put("/v1/limits/api", {"limit": "9/minute"})
        await peer.put("/v1/limits/own", {"limit": "1/s"})
        await peer.service.reload(API + CALLS, {})
        assert await remaining(peer, "api") == 9, "the file has said nothing new about it"
        assert (await peer.get("/v1/limits/own")).json()["source"] == "api"
        await peer.service.reload(API.replace("2/minute", "3/minute"), {})
        assert await remaining(peer, "api") == 3
        assert (await peer.get("/v1/limits/api")).json()["source"] == "file"
        assert "own" in peer.service.limits

    serve(API, test)


def test_when_the_server_ends_waits_are_over_and_permits_may_be_ended():
    async def test(peer):
        held = (await peer.acquire("calls")).json()["permit"]
        waiting = asyncio.ensure_future(peer.acquire("calls", wait=100))
        await asyncio.sleep(1)
        ending = asyncio.ensure_future(peer.service.drain(60))
        reply = await waiting
        assert (reply.status_code, problem(reply), reply.headers["retry-after"]) == (503, "closing", "1")
        assert problem(await peer.acquire("api")) == "closing"
        assert (await peer.get("/readyz")).status_code == 503
        assert (await peer.get("/healthz")).status_code == 200
        assert not ending.done()
        assert (await peer.release(held)).status_code == 200
        await ending
        assert peer.now == 1

    serve(API + CALLS, test)


def test_permits_that_no_client_ends_are_abandoned_in_the_end(caplog):
    async def test(peer):
        await peer.acquire("calls")
        await peer.service.drain(5)
        assert peer.now == 5
        await peer.service.close()
        assert len(peer.service.permits) == 0

    serve(CALLS, test)
    assert "permits that were still out when the server ended: 1" in caplog.text
