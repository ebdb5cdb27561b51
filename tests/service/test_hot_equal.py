"""The hot calls and the application give the same answers to the same requests, and count the same."""

import asyncio
import itertools
import json
import math
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.wires import request, served

from headway.testing import run

TOKEN = "a-token-that-is-long-enough"
LOW = "another-token-for-reading"
LIMITS = """
[limits.window]
limit = "3/minute"
[limits.calls]
limit = "2 concurrent"
lease = 10
[limits.llm]
limit = { requests = "10/minute", tokens = "1000/minute" }
[limits.both]
limit = "60/minute burst 2; 100/hour"
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
max_keys = 1
[limits.vip]
limit = "1/hour"
overrides = { alice = "100/minute", crew = "unlimited" }
"""
TOKENS = f"""
[tokens.user]
token = "{TOKEN}"
role = "use"
[tokens.reader]
token = "{LOW}"
role = "read"
"""
NAMES = re.findall(r"\[limits\.(\w+)\]", LIMITS)

keys = st.sampled_from([None, "alice", "bob", "crew", "é", "x" * 1025]) | st.just({"tokens": "alice"})
costs = st.sampled_from([1, 1, 1, 2, 5, 0, -1, 1 << 63, 1.5, "1", True]) | st.fixed_dictionaries(
    {}, optional={"tokens": st.sampled_from([1, 100, 2000, 0])}
)


def some(required, **optional):
    return st.fixed_dictionaries(required, optional=optional)


takes = some(
    {"limit": st.sampled_from([*NAMES, *NAMES, "unknown", "", 5])},
    key=keys,
    cost=costs,
    hold=st.booleans(),
    lease=st.sampled_from([None, 0.1, 5, 0, 1e9]),
    wait=st.sampled_from([0, 0, 0, 0.5, 100, -1]),
    id=st.sampled_from(["one", "two", "", "x" * 129]),
    other=st.just(1),
)
ends = some(
    {},
    how=st.sampled_from(["complete", "cancel", "abandon", "settle", "fly"]),
    cost=st.sampled_from([0, 1, 2]) | st.just({"tokens": 5}),
    id=st.sampled_from(["one", "two"]),
)
renewals = some({}, lease=st.sampled_from([1, 20, 0, None]), id=st.just("one"))
texts = st.sampled_from([b"", b"{", b"[]", b"null", b'{"limit": "window"} x', b"\xff", b"[" * 5000])


def bodies(values):
    return values.map(lambda value: json.dumps(value).encode()) | texts


PERMIT = "/v1/permits/PERMIT{}"
paths = st.one_of(
    st.tuples(st.just("/v1/acquire"), bodies(takes)),
    st.tuples(st.just("/v1/acquire"), bodies(takes)),
    st.tuples(st.sampled_from([PERMIT + "/release", "/v1/permits/nope/release"]), bodies(ends)),
    st.tuples(st.sampled_from([PERMIT + "/renew", "/v1/permits/a%20b/renew"]), bodies(renewals)),
    st.tuples(
        st.sampled_from(["/healthz", "/healthz?x=1", "/healthz/", "//healthz", "/v1/acquire?wait=1"]),
        st.just(b""),
    ),
)
usual = st.just(())
headers = st.tuples(
    st.sampled_from(
        [("localhost",), ("localhost",), ("127.0.0.1:80",), ("evil.example",), (), ("localhost", "a")]
    ),
    st.sampled_from(
        [("application/json",)] * 4
        + [("application/json; charset=utf-8",), ("text/plain",), (), ("application/json", "text/plain")]
    ),
    st.sampled_from([(), (), (), ("one",), ("two",), ("",), ("x" * 129,), ("one", "two")]),
    st.sampled_from([()] * 5 + [("http://localhost",), ("https://evil.example",)]),
    st.sampled_from([()] * 5 + [("close",), ("keep-alive",)]),
    st.sampled_from([()] * 9 + [("100-continue",)]),
)
NAMES_OF_HEADERS = ("Host", "Content-Type", "Idempotency-Key", "Origin", "Connection", "Expect")
tokens = st.sampled_from([(f"Bearer {TOKEN}",)] * 4 + [(), (f"Bearer {LOW}",), ("Bearer no",), ("Basic x",)])
requests = st.tuples(
    st.sampled_from(["POST"] * 8 + ["GET", "GET", "HEAD", "PUT"]),
    paths,
    headers,
    tokens,
    st.sampled_from(["1.1"] * 6 + ["1.0"]),
    st.sampled_from([False] * 6 + [True]),
    st.integers(0, 200),
    st.sampled_from([0, 0, 0, 1, 11, 70]),
)


def raw_request(asked, permits, with_tokens):
    method, (path, body), given_headers, token, version, chunked, _, _ = asked
    number = sum(map(len, given_headers))
    path = path.replace("PERMIT{}", permits[number % len(permits)] if permits else "never")
    lines = [
        (name, value)
        for name, values in zip(NAMES_OF_HEADERS, given_headers, strict=True)
        for value in values
    ]
    if with_tokens:
        lines += [("Authorization", value) for value in token]
    if method in ("GET", "HEAD") and not body:
        return request(method, path, None, headers=lines, version=version)
    return request(method, path, body, headers=lines, version=version, chunked=chunked and version == "1.1")


def told(said, permits):
    """An answer, with permits by their number and without what is random."""
    text = said.body.decode()
    for permit in re.findall(r'"permit":"([\w-]+)"', text):
        if permit not in permits:
            permits.append(permit)
    for number, permit in enumerate(permits):
        text = text.replace(permit, f"permit {number}")
    lines = sorted((name, value) for name, value in said.headers if name != "content-length")
    return (
        said.status,
        lines,
        json.loads(text) if "json" in dict(said.headers).get("content-type", "") else text,
    )


async def conversation(sequence, hot, with_tokens):
    """What is said to these requests, one after the other, and what the server counts."""
    heard: list[Any] = []
    permits: list[str] = []
    loop = asyncio.get_running_loop()
    at = loop.time()

    async def until(pause):
        """The next request comes at the same time on both sides, however many turns of the loop this one took."""
        nonlocal at
        at = (at + 0.25 if loop.time() < at + 0.25 else float(math.ceil(loop.time() + 1))) + pause
        come = loop.create_future()
        loop.call_at(at, come.set_result, None)
        await come

    async with served(LIMITS + (TOKENS if with_tokens else ""), hot) as server:
        connection = server.connect()
        # Twice: the second time the head is known to the hot side, unless the request comes in pieces.
        for asked in [asked for asked in sequence for _ in range(2)]:
            if connection.wire.closed:
                connection = server.connect()
            data = raw_request(asked, permits, with_tokens)
            cut = min(asked[6], len(data)) if asked[6] % 2 else len(data)
            head = asked[0] == "HEAD"
            before = len(connection.wire.written)
            connection.send(data[:cut])
            if cut < len(data):
                await asyncio.sleep(0.001)
                connection.send(data[cut:])
            if head:
                # Its answer has a length and no body, which a parser has to be told.
                await asyncio.sleep(1)
                text = b"".join(connection.wire.written[before:])
                heard.append(re.sub(rb"date: .*\r\n", b"", text))
                connection.leave()
                await until(0)
                continue
            found = (await connection.after(1))[-1:]
            heard += [
                (told(said, permits), connection.answers().interim, connection.wire.closed) for said in found
            ]
            connection.leave()
            await until(asked[7])
        connection.leave()
        await asyncio.sleep(0.01)
        return heard, server.service.metrics.text(server.service.limits, server.service.permits)


def without_seconds(figures):
    """Of how long a decision took, the virtual time of two sides differs by the turns of the loop."""
    lines = figures.decode().splitlines()
    return [line for line in lines if "acquire_seconds_sum" not in line and "_created" not in line]


@settings(max_examples=100)
@given(st.lists(requests, min_size=1, max_size=6), st.booleans())
def test_hot_calls_and_the_application_say_the_same(sequence, with_tokens):
    async def main(hot):
        return await conversation(sequence, hot, with_tokens)

    hot, figures = run(main(True))
    plain, plain_figures = run(main(False))
    assert hot == plain
    assert without_seconds(figures) == without_seconds(plain_figures)


def test_the_plain_requests_are_hot_and_the_others_are_not():
    """That the sides are two: which requests the application never sees, and which it does."""

    def of(path, body=b"{}", **more):
        lines = (("Host", "localhost"), ("Content-Type", "application/json"))
        return request("POST", path, body, headers=more.pop("headers", lines), **more)

    hot = [
        of("/v1/acquire", b'{"limit": "window"}'),
        of("/v1/acquire", b'{"limit": "window", "id": "one"}'),
        of("/v1/acquire", b'{"limit": "calls", "hold": true}'),
        of("/v1/acquire", b'{"limit": "none"}'),
        of("/v1/acquire", b'{"limit": "unknown"}'),
        of("/v1/permits/abc/release"),
        of("/v1/permits/abc/renew"),
        of("/v1/permits/abc/renew", None, headers=(("Host", "localhost"),)),
        request("GET", "/healthz", headers=(("Host", "localhost"),)),
        request("GET", "/healthz", headers=(("Host", "localhost"),), version="1.0"),
    ]
    cold = [
        of("/v1/acquire", b'{"limit": "window", "wait": 1}'),
        of("/v1/acquire", b"{"),
        of("/v1/acquire", b'{"limit": "window"}', chunked=True),
        of("/v1/acquire", b'{"limit": "window"}', headers=(("Host", "evil.example"),)),
        of("/v1/acquire/all", b'{"requests": []}'),
        request("GET", "/v1/acquire", headers=(("Host", "localhost"),)),
        request("HEAD", "/healthz", headers=(("Host", "localhost"),)),
    ]

    async def main():
        async with served(LIMITS) as server:
            for expected, data in [*zip(itertools.repeat(0), hot), *zip(itertools.repeat(1), cold)]:
                server.asked.clear()
                connection = server.connect()
                connection.send(data)
                await asyncio.sleep(2)
                assert connection.wire.written, data
                assert len(server.asked) == expected, data
                connection.leave()

    run(main())
