"""The compiled step against the ordinary way: the same bytes, ledgers and figures for every request."""

import asyncio
import hashlib
import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.service.wires import HEALTH, PLAIN, acquire, request, served

from headway._pure import pure_wanted
from headway.service.config import TokenConfig
from headway.testing import run

if pure_wanted():
    pytest.skip("there is no interpreted form of it", allow_module_level=True)

quick = pytest.importorskip(
    "headway.service.quick", reason="needs the compiled form: apt-get install gcc libc6-dev"
)

LIMITS = """
[limits.window]
limit = "3/minute"
[limits.bucket]
limit = "4/s burst 6"
[limits.day]
limit = "5/day aligned"
[limits.month]
limit = "2/month aligned Europe/Berlin"
[limits.huge]
limit = "1000000000000000000/hour"
[limits.tiny]
limit = "2/10us"
[limits.long]
limit = "1/300 days"
[limits.none]
limit = "0/minute"
[limits.free]
unlimited = true
[limits.watched]
limit = "1/minute"
shadow = true
[limits.small]
limit = "5/minute"
max_keys = 2
[limits.one]
limit = { requests = "3/minute" }
[limits.llm]
limit = { requests = "10/minute", tokens = "1000/minute" }
[limits.both]
limit = "60/minute burst 2; 100/hour"
[limits.spaced]
limit = "1 every 2s"
[limits.calls]
limit = "2 concurrent"
[limits.far]
limit = "2/minute"
remote = { max_transit = 5 }
[limits.vip]
limit = "1/hour"
overrides = { alice = "100/minute" }
[limits."711111111111117"]
limit = "2/minute"
[limits.n711112]
limit = "711112/minute"
[limits."911111.5"]
limit = "2/minute"
"""
NAMES = [*re.findall(r"\[limits\.(\w+)\]", LIMITS), "711111111111117", "911111.5", "unknown"]
QUICK = [
    "window",
    "bucket",
    "day",
    "month",
    "huge",
    "tiny",
    "long",
    "none",
    "free",
    "watched",
    "small",
    "one",
]


def take(limit, **more):
    return acquire(json.dumps({"limit": limit, **more}).encode())


def api(method, path, body):
    return request(method, path, json.dumps(body).encode(), headers=PLAIN)


takes = st.builds(
    lambda limit, more: take(limit, **more),
    st.sampled_from([*QUICK, *QUICK, *NAMES]),
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from([None, "a", "a", "b", "c", "alice", "é", {"tokens": "a"}]),
            "cost": st.sampled_from([1, 1, 2, 2, 3, 7, {"tokens": 5}]),
            "hold": st.sampled_from([False, False, True]),
            "lease": st.just(20),
            "id": st.just("one"),
        },
    ),
)
some_name = st.sampled_from(["window", "bucket", "day", "watched", "free", "one"])
changes = st.one_of(
    st.builds(
        lambda name, seconds: api("POST", f"/v1/limits/{name}/pause", {"seconds": seconds}),
        some_name,
        st.sampled_from([0, 30]),
    ),
    st.builds(
        lambda name, key: api("POST", f"/v1/limits/{name}/reset", {"key": key}), some_name, st.just("a")
    ),
    st.builds(
        lambda name, body: api("PUT", f"/v1/limits/{name}", body),
        some_name,
        st.sampled_from(
            [
                {"limit": "5/minute"},
                {"limit": "2/minute", "shadow": True},
                {"limit": "1/s burst 3"},
                {"limit": "2/hour aligned"},
                {"limit": "3 concurrent"},
                {"limit": "3/minute", "overrides": {"a": "1/minute"}},
                {"limit": "3/minute", "max_keys": 1},
                {"limit": {"requests": "2/minute"}},
                {"unlimited": True},
            ]
        ),
    ),
    st.builds(lambda name: request("DELETE", f"/v1/limits/{name}", headers=PLAIN[:1]), some_name),
)
steps = st.lists(
    st.tuples(
        st.one_of(st.lists(takes, min_size=1, max_size=4).map(b"".join), takes, takes, takes, changes),
        st.sampled_from([0.0, 0.0, 0.000_001_234, 0.3, 2.000_000_001, 61.0, 86_400.0]),
    ),
    max_size=25,
)


def facts_of(server):
    """What the server counted and keeps."""
    service = server.service
    figures = service.metrics.text(service.limits, service.permits).decode().splitlines()
    limits = {}
    for served_limit in service.limits:
        limiter, keys = served_limit.limiter, served_limit.keys
        store = None if limiter is None else limiter._store
        limits[served_limit.name] = (
            (served_limit.granted, served_limit.denied, len(keys), keys.latest, keys.used_without_key),
            store and (store.counts.granted, store.counts.denied),
            store
            and [
                {key: keyed.peek(key).state() for key in (None, *keyed.ledgers)}
                for keyed in store.keyed_ledgers
            ],
        )
    return [line for line in figures if "_created" not in line], limits, server.state.total_requests


async def conversation(trace, quickly, text=LIMITS, **options):
    """What is said to this, what is kept then, and how much of it was answered in the compiled step."""
    async with served(text, **options) as server:
        decisions = server.hot.quick
        if not quickly:
            server.hot.quick = None
        connection = server.connect()
        said = []
        for data, pause in trace:
            # Twice, on two connections: the second time the head is known.
            for _ in range(2):
                before = len(connection.wire.written)
                connection.send(data)
                await asyncio.sleep(0.001)
                said.append(b"".join(connection.wire.written[before:]))
                if connection.wire.closed:
                    connection = server.connect()
            await asyncio.sleep(pause)
        found = re.sub(rb'"permit":"[\w-]+"', b'"permit":"-"', b"\n".join(said))
        facts = facts_of(server)
        connection.leave()
        return found, facts, decisions.requests


def compared(trace, text=LIMITS):
    """Both ways; the number of requests that were answered in the compiled step."""
    first, first_facts, count = run(conversation(trace, True, text))
    second, second_facts, none = run(conversation(trace, False, text))
    assert none == 0
    for one, other in zip(first.split(b"\n"), second.split(b"\n"), strict=True):
        assert one == other
    assert first_facts == second_facts
    return count


@settings(max_examples=100)
@given(trace=steps)
def test_the_compiled_step_answers_counts_and_takes_as_the_ordinary_way_does(trace):
    compared(trace)


@settings(max_examples=60)
@given(
    count=st.sampled_from([1, 2, 3, 999, 10**15, 10**17]),
    per=st.integers(1, 10**13) | st.integers(10**12, 3 * 10**13),
    pauses=st.lists(st.floats(0, 1e6) | st.floats(0, 1e-4) | st.integers(0, 100), min_size=3, max_size=6),
    burst=st.sampled_from(["", " burst 2"]),
)
@example(count=1, per=10**6, pauses=[0.5, 0.25, 0.1], burst="")
@example(count=1, per=3, pauses=[0, 0.000_001, 0.1], burst="")
def test_every_time_and_number_is_written_as_the_ordinary_way_writes_it(count, per, pauses, burst):
    asked = take("any", key="a")  # alone at first, so that its head is known
    trace = [(asked, 0), *((asked * 3, pause) for pause in pauses)]
    assert compared(trace, f'[limits.any]\nlimit = "{count}/{per}us{burst}"\n') >= len(pauses)


@pytest.mark.parametrize("limit", QUICK)
@pytest.mark.parametrize("more", [{}, {"key": "a"}, {"key": "a", "cost": 2}, {"cost": 5}, {"lease": 5}])
def test_grants_and_denials_are_the_same(limit, more):
    count = compared(
        [(take(limit, **more), pause) for pause in [0, 0, 0, 0, 0.3, 59.7, 0, 0, 86_400, 0, 0, 0]]
    )
    assert count >= 20 or more.get("cost", 1) > 1, "nearly all, when the head is known"


def test_a_key_that_there_is_no_room_for_is_denied_as_ever():
    keys = ["a", "b", "c", "a", "c", None, "d"]
    assert compared([(take("small", key=key), 30 * (key == "d")) for key in keys * 2]) >= 8


def of(server, data, *others):
    """How many of these requests are answered in the compiled step, when the head of the first is known."""
    connection = server.connect()
    connection.send(data)
    data = b"".join((data, *others))
    before = server.hot.quick.requests
    connection.send(data)
    connection.leave()
    return server.hot.quick.requests - before


def serve(test, text=LIMITS):
    async def main():
        async with served(text) as server:
            await test(server)

    run(main())


def test_the_usual_requests_are_answered_in_the_compiled_step_and_others_are_not():
    async def test(server):
        for limit in QUICK:
            for _ in range(3):
                assert of(server, take(limit)) == 1, limit
        assert of(server, *[take("window", key="b")] * 5) == 5
        assert of(server, take("window", key="b"), HEALTH, take("window", key="b")) == 1
        for name in (
            "llm",
            "both",
            "spaced",
            "calls",
            "far",
            "vip",
            "unknown",
            "711111111111117",
            "911111.5",
        ):
            assert of(server, take(name)) == 0, name
        for more in ({"hold": True}, {"wait": 1}, {"id": "one"}, {"cost": 9}, {"key": {"requests": "a"}}):
            assert of(server, take("window", **more)) == 0, more
        for data in (acquire(b"{"), acquire(b"[]"), acquire(b'{"limit": "window", "other": 1}')):
            assert of(server, data) == 0, data
        for lines in (
            (("Host", "evil.example"), PLAIN[1]),
            (PLAIN[0], ("Content-Type", "text/plain")),
            (*PLAIN, ("Idempotency-Key", "one")),
            (*PLAIN, ("Origin", "http://localhost")),
            (*PLAIN, ("Connection", "close")),
        ):
            data = request("POST", "/v1/acquire", b'{"limit": "window"}', headers=lines)
            assert of(server, data) == 0, lines

    serve(test)


def test_waiters_a_pause_and_the_end_are_left_to_the_ordinary_way():
    async def test(server):
        limiter = server.service.limits.find("window").limiter
        assert of(server, take("window", key="x"))
        limiter.pause(5, key="y")
        assert not of(server, take("window", key="x"))
        limiter.pause(0, key="y")
        assert of(server, take("window", key="x"))
        for _ in range(3):
            limiter.try_acquire("busy")
        waiting = asyncio.ensure_future(limiter.acquire_async("busy"))
        await asyncio.sleep(0)
        assert not of(server, take("window", key="x"))
        await waiting
        assert of(server, take("window", key="x"))
        server.service.decider.end_waits()
        assert not of(server, take("window", key="x"))

    serve(test)


def test_tokens_are_looked_at_again_when_they_change():
    async def test(server):
        data = take("free")
        assert of(server, data)
        token = digest("a-token-that-is-long-enough")
        server.service.tokens.replace({"user": TokenConfig("user", token, "use")})
        assert not of(server, data)
        lines = (*PLAIN, ("Authorization", "Bearer a-token-that-is-long-enough"))
        good = request("POST", "/v1/acquire", b'{"limit": "free"}', headers=lines)
        assert of(server, good)
        for other in ("a-token-that-is-long-enougi", "another"):
            lines = (*PLAIN, ("Authorization", f"Bearer {other}"))
            assert not of(server, request("POST", "/v1/acquire", b'{"limit": "free"}', headers=lines))
        server.service.tokens.replace({"user": TokenConfig("user", token, "read")})
        assert not of(server, good), "its role may only look"
        server.service.tokens.replace({"other": TokenConfig("other", digest("another"), "use")})
        assert not of(server, good)
        server.service.tokens.replace({})
        assert of(server, good)

    serve(test)


def digest(token):
    return hashlib.sha256(token.encode()).digest()


def test_what_is_kept_is_bounded():
    async def test(server):
        connection = server.connect()
        connection.send(take("bucket", key="first "))
        bodies = 3 * quick.MOST_BODIES
        for start in range(0, bodies, 100):
            keys = (f"{number:06}" for number in range(start, start + 100))
            connection.send(b"".join(take("bucket", key=key) for key in keys))
            connection.wire.written.clear()
        assert server.hot.quick.requests == bodies
        heads, kept = server.hot.quick.kept
        assert (heads, kept <= 2 * quick.MOST_BODIES) == (1, True)
        long = take("bucket", key="x" * quick.LONGEST_BODY)
        assert of(server, long)
        assert server.hot.quick.kept[1] == kept
        for number in range(2 * quick.MOST_HEADS):
            lines = (*PLAIN, ("X-Number", str(number)))
            of(server, request("POST", "/v1/acquire", b'{"limit": "free"}', headers=lines))
        assert server.hot.quick.kept[0] <= quick.MOST_HEADS

    serve(test)


def test_a_fault_is_answered_and_the_others_too(monkeypatch, caplog):
    async def test(server):
        connection = server.connect()
        for _ in range(2):
            connection.send(take("none"))
        monkeypatch.setattr(server.service.metrics, "of", lambda name: 1 / 0)
        connection.send(take("none") + take("long") + take("none"))
        assert [answer.status for answer in await connection.after(5)] == [429, 429, 429, 500, 429]
        assert server.hot.quick.requests == 4

    serve(test)
    assert "division by zero" in caplog.text
