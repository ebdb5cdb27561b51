"""Permits over HTTP, in virtual time: granting, denying, waiting, batches, leases, ends, ids, shadow, bounds."""

import asyncio
import gc
import json

import pytest
from tests.service.virtual import problem, serve

LIMITS = """
[limits.window]
limit = "3/minute"
[limits.calls]
limit = "2 concurrent"
lease = 10
[limits.llm]
limit = { requests = "10/minute", tokens = "1000/minute" }
[limits.bucket]
limit = "60/minute burst 2"
[limits.watched]
limit = "1/minute"
shadow = true
[limits.free]
unlimited = true
[limits.far]
limit = "2/minute"
remote = { max_transit = 5 }
[limits.none]
limit = "0/minute"
[limits.small]
limit = "5/minute"
max_keys = 3
[limits.short]
limit = "1/minute"
max_waiting = 1
"""


def test_a_grant_has_its_status_and_headers():
    async def test(peer):
        reply = await peer.acquire("window", key="alice")
        assert reply.status_code == 200
        found = reply.json()
        assert (found["granted"], found["limit"], found["permit"], found["expires_in"]) == (
            True,
            "window",
            None,
            None,
        )
        status = found["status"]
        assert (status["limit"], status["remaining"], status["retry_after"], status["reset_after"]) == (
            "3/minute",
            2,
            0,
            60,
        )
        assert reply.headers["ratelimit"] == '"window-0";r=2;t=60'
        assert reply.headers["ratelimit-policy"] == '"window-0";q=3;w=60'
        assert reply.headers["x-ratelimit-limit"] == "3"
        assert reply.headers["x-ratelimit-remaining"] == "2"
        assert "retry-after" not in reply.headers

    serve(LIMITS, test)


def test_a_denial_is_a_problem_with_retry_after():
    async def test(peer):
        for _ in range(3):
            assert (await peer.acquire("window")).status_code == 200
        await asyncio.sleep(20)
        reply = await peer.acquire("window")
        assert (reply.status_code, problem(reply)) == (429, "rate-limited")
        assert reply.headers["retry-after"] == "40"
        assert reply.headers["ratelimit"] == '"window-0";r=0;t=40'
        found = reply.json()
        assert (found["granted"], found["reason"], found["retry_after"]) == (False, "limit", 40)
        assert found["limit_status"]["remaining"] == 0
        assert found["detail"] == "window: the limit is used up; retry after 40 s"
        assert (await peer.acquire("window", key="bob")).status_code == 200, "each key has a ledger"

    serve(LIMITS, test)


def test_costs_and_keys_of_metrics():
    async def test(peer):
        reply = await peer.acquire("llm", cost={"tokens": 900}, key={"tokens": "alice"})
        parts = {part["metric"]: part["remaining"] for part in reply.json()["status"]["parts"]}
        assert parts == {"requests": 9, "tokens": 100}
        denied = await peer.acquire("llm", cost={"tokens": 200}, key={"tokens": "alice"})
        assert denied.json()["limit_status"]["metric"] == "tokens"
        assert (await peer.acquire("llm", cost={"tokens": 200}, key={"tokens": "bob"})).status_code == 200
        assert (await peer.acquire("window", cost=3)).json()["status"]["remaining"] == 0

    serve(LIMITS, test)


def test_a_wait_is_granted_in_its_turn_and_at_its_time():
    async def test(peer):
        for _ in range(3):
            await peer.acquire("window")
        order = []

        async def wait(name):
            reply = await peer.acquire("window", wait=200)
            order.append((name, peer.now, reply.status_code, reply.json()["waited"]))

        await asyncio.gather(*(wait(name) for name in range(4)))
        assert order == [(0, 60, 200, 60), (1, 60, 200, 60), (2, 60, 200, 60), (3, 120, 200, 120)]

    serve(LIMITS, test)


def test_a_wait_that_cannot_end_in_time_is_denied_at_once():
    async def test(peer):
        for _ in range(3):
            await peer.acquire("window")
        reply = await peer.acquire("window", wait=59)
        assert (peer.now, reply.json()["reason"], reply.headers["retry-after"]) == (0, "timeout", "60")

    serve(LIMITS, test)


def test_a_wait_for_a_place_ends_when_its_time_is_over():
    async def test(peer):
        first = [(await peer.acquire("calls", lease=100)).json()["permit"] for _ in range(2)]
        reply = await peer.acquire("calls", wait=5)
        assert (peer.now, reply.status_code, reply.json()["reason"]) == (5, 429, "timeout")
        waiting = asyncio.ensure_future(peer.acquire("calls", wait=50))
        await asyncio.sleep(1)
        await peer.release(first[0])
        assert (await waiting).json()["waited"] == 1

    serve(LIMITS, test)


def test_a_client_that_disconnects_gives_its_place_in_the_queue_back():
    async def test(peer):
        first, second = [(await peer.acquire("calls", lease=500)).json()["permit"] for _ in range(2)]
        body = b'{"limit": "calls", "wait": 100}'
        leaving, disconnect, sent = peer.disconnecting(body)
        await asyncio.sleep(1)
        staying = asyncio.ensure_future(peer.acquire("calls", wait=100))
        await asyncio.sleep(1)
        assert peer.service.limits.find("calls").waiting == 2
        disconnect()
        await leaving
        assert sent[0]["status"] == 499
        await peer.release(first)
        assert (await staying).status_code == 200
        assert peer.now == 2, "not after the one that has gone"
        assert (await peer.acquire("calls")).status_code == 429
        await peer.release(second)
        assert (await peer.acquire("calls")).status_code == 200, "the client that has gone has taken nothing"

    serve(LIMITS, test)


def test_a_permit_whose_client_disconnects_in_the_same_moment_goes_back():
    async def test(peer):
        first, _ = [(await peer.acquire("calls", lease=500)).json()["permit"] for _ in range(2)]
        leaving, disconnect, _ = peer.disconnecting(b'{"limit": "calls", "wait": 100}')
        await asyncio.sleep(1)
        disconnect()
        peer.service.permits.release(first, "complete")
        await leaving
        assert len(peer.service.permits) == 1
        assert (await peer.acquire("calls")).status_code == 200

    serve(LIMITS, test)


def test_a_permit_that_counts_until_its_end_has_an_id_and_a_lease():
    async def test(peer):
        found = (await peer.acquire("calls")).json()
        assert len(found["permit"]) == 22
        assert found["expires_in"] == 10
        assert (await peer.acquire("calls", lease=3)).json()["expires_in"] == 3
        assert (await peer.acquire("calls")).status_code == 429
        await asyncio.sleep(3.1)
        assert (await peer.acquire("calls")).status_code == 200, "the second one was abandoned"
        assert (await peer.acquire("calls")).status_code == 429
        await asyncio.sleep(7)
        assert len(peer.service.permits) == 1, "no request has to come for that"
        late = await peer.release(found["permit"])
        assert (late.status_code, problem(late)) == (410, "permit-expired")

    serve(LIMITS, test)


def test_a_lease_is_renewed():
    async def test(peer):
        id = (await peer.acquire("calls", lease=10)).json()["permit"]
        for _ in range(5):
            await asyncio.sleep(9)
            reply = await peer.post(f"/v1/permits/{id}/renew")
            assert reply.json() == {"permit": id, "expires_in": 10}
        assert (await peer.post(f"/v1/permits/{id}/renew", {"lease": 60})).json()["expires_in"] == 60
        await asyncio.sleep(59)
        assert (await peer.release(id)).json() == {"permit": id, "ended": "complete"}
        for unknown in (id, "nothing"):
            gone = await peer.post(f"/v1/permits/{unknown}/renew")
            assert problem(gone) in ("permit-finished", "unknown-permit")

    serve(LIMITS, test)


def test_every_end_and_the_same_end_again():
    async def test(peer):
        for how in ("complete", "cancel", "abandon", "settle"):
            cost = {"cost": 1} if how == "settle" else {}
            id = (await peer.acquire("calls")).json()["permit"]
            for _ in range(3):
                reply = await peer.release(id, how, **cost)
                assert (reply.status_code, reply.json()) == (200, {"permit": id, "ended": how})
            other = await peer.release(id, "cancel" if how == "complete" else "complete")
            assert (other.status_code, problem(other), other.json()["ended"]) == (409, "permit-finished", how)
        assert problem(await peer.release("AAAAAAAAAAAAAAAAAAAAAA")) == "unknown-permit"
        id = (await peer.acquire("calls")).json()["permit"]
        assert problem(await peer.release(id, "settle")) == "bad-request"
        assert problem(await peer.release(id, "complete", cost=3)) == "bad-request"
        assert problem(await peer.release(id, "settle", cost={"tokens": 3})) == "bad-request"
        assert (await peer.release(id)).status_code == 200, "what was wrong has ended nothing"

    serve(LIMITS, test)


def test_hold_keeps_a_permit_for_its_end():
    async def test(peer):
        found = (await peer.acquire("window", hold=True)).json()
        assert found["status"]["in_flight"] == 1, "a window counts it until its end"
        await peer.release(found["permit"], "cancel")
        assert (await peer.get("/v1/limits/window/status")).json()["status"]["remaining"] == 3
        id = (await peer.acquire("llm", hold=True, cost={"tokens": 900})).json()["permit"]
        await peer.release(id, "settle", cost={"tokens": 100})
        status = (await peer.get("/v1/limits/llm/status")).json()["status"]
        assert {part["metric"]: part["remaining"] for part in status["parts"]} == {
            "requests": 9,
            "tokens": 900,
        }
        id = (await peer.acquire("bucket", hold=True, cost=2)).json()["permit"]
        assert (await peer.acquire("bucket")).status_code == 429
        await peer.release(id, "cancel")
        assert (await peer.acquire("bucket")).status_code == 200

    serve(LIMITS, test)


def test_a_remote_window_counts_until_the_answer_and_abandons_what_vanished():
    async def test(peer):
        first = (await peer.acquire("far")).json()
        assert first["permit"]
        await peer.acquire("far", lease=4)
        await asyncio.sleep(3)
        assert (await peer.release(first["permit"])).status_code == 200
        for until, expected in ((62, [429]), (64, [200, 429]), (66, [200, 429])):
            await asyncio.sleep(until - peer.now)
            assert [(await peer.acquire("far")).status_code for _ in expected] == expected, until

    serve(LIMITS.replace("max_transit = 5", "max_transit = 5, resolution = 0, drift_ppm = 0"), test)


# -- batches ---------------------------------------------------------------------------------------------


def test_each_of_a_batch_is_decided_by_itself():
    async def test(peer):
        takes = [{"limit": "window", "cost": 2}] * 2 + [
            {"limit": "calls"},
            {"limit": "nothing"},
            {"limit": "window"},
        ]
        reply = await peer.post("/v1/acquire/each", {"requests": takes})
        found = reply.json()["answers"]
        assert [answer["granted"] for answer in found] == [True, False, True, False, True]
        assert found[1]["problem"]["type"] == "urn:headway:rate-limited"
        assert found[1]["problem"]["retry_after"] == 60
        assert found[2]["grant"]["permit"]
        assert found[3]["problem"]["type"] == "urn:headway:unknown-limit"

    serve(LIMITS, test)


def test_of_a_batch_that_is_all_or_nothing_a_denial_consumes_nothing():
    async def test(peer):
        wanted = [{"limit": "window"}, {"limit": "calls"}, {"limit": "bucket", "cost": 2}]
        reply = await peer.post("/v1/acquire/all", {"requests": wanted})
        assert [grant["limit"] for grant in reply.json()["permits"]] == ["window", "calls", "bucket"]
        denied = await peer.post("/v1/acquire/all", {"requests": wanted})
        assert (denied.status_code, denied.json()["limit"], denied.json()["index"]) == (429, "bucket", 2)
        assert int(denied.headers["retry-after"]) >= 1
        remaining = [
            (await peer.get(f"/v1/limits/{name}/status")).json()["status"]["remaining"]
            for name in ("window", "calls")
        ]
        assert remaining == [2, 1]
        granted = {info["name"]: info["granted"] for info in (await peer.get("/v1/limits")).json()["limits"]}
        assert (granted["window"], granted["calls"]) == (1, 1)

    serve(LIMITS, test)


def test_a_batch_whose_client_disconnects_gives_everything_back():
    async def test(peer):
        body = json.dumps(
            {
                "requests": [
                    {"limit": "calls", "wait": 50},
                    {"limit": "calls"},
                    {"limit": "calls", "wait": 100},
                ]
            }
        )
        leaving, disconnect, _ = peer.disconnecting(body.encode(), "/v1/acquire/each")
        await asyncio.sleep(1)
        assert len(peer.service.permits) == 2
        disconnect()
        await leaving
        assert len(peer.service.permits) == 0
        assert (await peer.get("/v1/limits/calls/status")).json()["status"]["remaining"] == 2
        assert peer.service.limits.find("calls").waiting == 0

    serve(LIMITS, test)


# -- ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["body", "header"])
def test_a_command_with_an_id_is_applied_once(place):
    async def test(peer):
        body, headers = {"limit": "calls"}, {}
        if place == "body":
            body["id"] = "a1"
        else:
            headers["Idempotency-Key"] = "a1"
        first = await peer.post("/v1/acquire", body, **headers)
        again = await peer.post("/v1/acquire", body, **headers)
        assert first.json() == again.json()
        assert first.headers["ratelimit"] == again.headers["ratelimit"]
        assert len(peer.service.permits) == 1
        other = await peer.post("/v1/acquire", {**body, "key": "bob"}, **headers)
        assert (other.status_code, problem(other)) == (409, "command-id-reused")
        await asyncio.sleep(601)
        assert (await peer.post("/v1/acquire", body, **headers)).json()["permit"] != first.json()["permit"]

    serve(LIMITS, test)


def test_copies_that_are_under_way_at_once_are_one_command():
    async def test(peer):
        for _ in range(3):
            await peer.acquire("window")
        copies = [asyncio.ensure_future(peer.acquire("window", wait=100, id="a")) for _ in range(5)]
        replies = await asyncio.gather(*copies)
        assert {reply.text for reply in replies} == {replies[0].text}
        assert (await peer.get("/v1/limits/window/status")).json()["status"]["remaining"] == 2

    serve(LIMITS, test)


def test_the_copy_of_a_command_whose_client_has_gone_takes_its_place():
    async def test(peer):
        held = (await peer.acquire("calls", cost=2, lease=500)).json()["permit"]
        body = b'{"limit":"calls","wait":100,"id":"a"}'
        leaving, disconnect, _ = peer.disconnecting(body)
        await asyncio.sleep(1)
        headers = {"Content-Type": "application/json"}
        copy = asyncio.ensure_future(peer.client.post("/v1/acquire", content=body, headers=headers))
        await asyncio.sleep(1)
        disconnect()
        await leaving
        await asyncio.sleep(1)
        await peer.release(held)
        assert (await copy).status_code == 200
        assert len(peer.service.permits) == 1

    serve(LIMITS, test)


def test_the_answer_to_a_client_that_has_gone_is_kept_under_its_id():
    async def test(peer):
        held = (await peer.acquire("calls", cost=2, lease=500)).json()["permit"]
        body = b'{"limit":"calls","wait":100,"id":"a"}'
        leaving, disconnect, _ = peer.disconnecting(body)
        await asyncio.sleep(1)
        peer.service.permits.release(held, "complete")
        disconnect()
        await leaving
        assert len(peer.service.permits) == 1
        reply = await peer.client.post(
            "/v1/acquire", content=body, headers={"Content-Type": "application/json"}
        )
        assert reply.json()["permit"] in peer.service.permits._held
        assert len(peer.service.permits) == 1

    serve(LIMITS, test)


def test_a_denial_is_not_remembered_since_it_changed_nothing():
    async def test(peer):
        await peer.acquire("window", cost=3)
        assert (await peer.acquire("window", id="a")).status_code == 429
        await asyncio.sleep(61)
        assert (await peer.acquire("window", id="a")).status_code == 200

    serve(LIMITS, test)


# -- other limits ----------------------------------------------------------------------------------------


def test_a_shadow_decides_and_tells_and_never_denies():
    async def test(peer):
        first = await peer.acquire("watched", wait=100)
        second = await peer.acquire("watched", wait=100)
        assert (first.json()["would_deny"], second.json()["would_deny"], peer.now) == (None, "limit", 0)
        assert second.status_code == 200
        assert second.json()["status"]["retry_after"] == 60
        text = (await peer.get("/metrics")).text
        assert 'headway_shadow_denied_total{limit="watched"} 1.0' in text
        assert 'headway_denied_total{limit="watched",reason="limit"} 0.0' in text

    serve(LIMITS, test)


def test_an_unlimited_limit_grants_everything():
    async def test(peer):
        for _ in range(100):
            reply = await peer.acquire("free", cost=1000)
            assert (reply.status_code, reply.json()["status"]) == (200, None)
        assert (await peer.get("/v1/limits/free/status")).json()["status"] is None
        assert problem(await peer.post("/v1/limits/free/pause", {"seconds": 5})) == "not-limited"
        assert problem(await peer.post("/v1/limits/free/reset")) == "not-limited"

    serve(LIMITS, test)


def test_a_limit_of_nothing_says_that_it_never_grants():
    async def test(peer):
        reply = await peer.acquire("none", wait=5)
        assert (reply.status_code, reply.json()["reason"], reply.json()["retry_after"]) == (
            429,
            "never",
            None,
        )
        assert "retry-after" not in reply.headers

    serve(LIMITS, test)


# -- bounds ----------------------------------------------------------------------------------------------


def test_keys_are_bounded_until_their_ledgers_are_forgotten():
    async def test(peer):
        for name in "abc":
            assert (await peer.acquire("small", key=name)).status_code == 200
        reply = await peer.acquire("small", key="d")
        assert (reply.status_code, reply.json()["reason"]) == (429, "max_keys")
        assert reply.headers["retry-after"] == "60"
        assert (await peer.acquire("small", key="a")).status_code == 200, "a known key goes on"
        assert (await peer.acquire("small")).status_code == 200
        await asyncio.sleep(60.5)
        assert (await peer.acquire("small", key="d")).status_code == 200
        assert len(peer.service.limits.find("small").keys) == 1

    serve(LIMITS, test)


def test_waiting_requests_are_bounded_by_limit_and_by_server():
    async def test(peer):
        await peer.acquire("window", cost=3)
        await peer.acquire("short")
        waiting = [asyncio.ensure_future(peer.acquire("short", wait=300))]
        await asyncio.sleep(1)
        reply = await peer.acquire("short", wait=300)
        assert (reply.status_code, reply.json()["reason"]) == (429, "max_waiting")
        waiting += [asyncio.ensure_future(peer.acquire("window", wait=100))]
        await asyncio.sleep(1)
        full = await peer.acquire("window", wait=100)
        assert (full.status_code, problem(full), full.headers["retry-after"]) == (
            503,
            "too-many-waiting",
            "1",
        )
        assert (await peer.acquire("window")).status_code == 429, "without a wait it is decided"
        assert {reply.status_code for reply in await asyncio.gather(*waiting)} == {200}

    serve(f"[server]\nmax_waiting = 2\n{LIMITS}", test)


def test_permits_that_are_out_are_bounded():
    async def test(peer):
        id = (await peer.acquire("calls")).json()["permit"]
        full = await peer.acquire("calls")
        assert (full.status_code, problem(full)) == (503, "too-many-permits")
        assert (await peer.acquire("window")).status_code == 200
        await peer.release(id)
        assert (await peer.get("/v1/limits/calls/status")).json()["status"]["in_flight"] == 0
        assert (await peer.acquire("calls")).status_code == 200

    serve(f"[server]\nmax_permits = 1\n{LIMITS}", test)


def test_batches_are_bounded():
    async def test(peer):
        for path in ("each", "all"):
            reply = await peer.post(f"/v1/acquire/{path}", {"requests": [{"limit": "free"}] * 3})
            assert (reply.status_code, problem(reply)) == (422, "bad-request")
            empty = await peer.post(f"/v1/acquire/{path}", {"requests": []})
            assert empty.status_code == 422

    serve(f"[server]\nmax_batch = 2\n{LIMITS}", test)


WRONG = {
    "{": "bad-json",
    "[]": "bad-request",
    "\xff": "bad-json",
    "[" * 100_000: "bad-request",
    '{"limit": "window", "key": "\\ud800"}': "bad-json",
    "{}": "bad-request",
    '{"limit": 5}': "bad-request",
    '{"limit": "window", "keys": "a"}': "bad-request",
    '{"limit": "window", "cost": 0}': "bad-request",
    '{"limit": "window", "cost": 1.5}': "bad-request",
    '{"limit": "window", "cost": 4}': "bad-request",
    '{"limit": "window", "cost": 99999999999999999999}': "bad-request",
    '{"limit": "window", "cost": {"tokens": 1}}': "bad-request",
    '{"limit": "llm", "cost": 5}': "bad-request",
    '{"limit": "llm", "key": {"host": "a"}}': "bad-request",
    '{"limit": "window", "wait": -1}': "bad-request",
    '{"limit": "window", "wait": 1e400}': "bad-request",
    '{"limit": "window", "wait": 3601}': "bad-request",
    '{"limit": "window", "lease": 0}': "bad-request",
    '{"limit": "window", "id": ""}': "bad-request",
    '{"limit": "window", "key": "%s"}' % ("k" * 1025): "bad-request",
    '{"limit": "nothing"}': "unknown-limit",
    '{"limit": "window", "id": "%s"}' % ("i" * 129): "bad-request",
}


@pytest.mark.parametrize("body", WRONG, ids=lambda body: body[:60])
def test_a_wrong_request_is_named(body):
    async def test(peer):
        headers = {"Content-Type": "application/json"}
        content = body.encode("latin-1")
        reply = await peer.client.post("/v1/acquire", content=content, headers=headers)
        assert problem(reply) == WRONG[body]
        assert reply.status_code in (400, 404, 422)
        assert (await peer.get("/v1/limits/window/status")).json()["status"]["remaining"] == 3

    serve(LIMITS, test)


def test_nothing_is_left_when_permits_have_ended(recwarn):
    async def test(peer):
        for _ in range(50):
            id = (await peer.acquire("calls")).json()["permit"]
            await peer.release(id)
        gc.collect()

    serve(LIMITS, test)
    assert not recwarn.list
