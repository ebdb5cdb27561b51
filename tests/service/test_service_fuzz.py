"""Any body to any call: never a fault of the server, and never an answer that the description does not name."""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.virtual import serving

from headway.service.api import ENDPOINTS
from headway.service.openapi import openapi
from headway.testing import run

CONFIG = """
[limits.api]
limit = "5/minute"
max_keys = 5
[limits.calls]
limit = "2 concurrent"
[limits.llm]
limit = { requests = "10/minute", tokens = "100/minute" }
[limits.free]
unlimited = true
"""

names = st.sampled_from(["api", "calls", "llm", "free", "nothing", "new", "a b", ""])
keys = (
    st.none()
    | st.text(max_size=3)
    | st.dictionaries(st.sampled_from(["tokens", "x"]), st.text(max_size=2), max_size=2)
)
costs = st.integers(-1, 12) | st.dictionaries(
    st.sampled_from(["tokens", "requests", "x"]), st.integers(-1, 120), max_size=2
)
junk: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just([]) | st.just({})
)
members = {
    "limit": names,
    "key": keys,
    "cost": costs,
    "hold": st.booleans(),
    "lease": st.floats(0, 100),
    "wait": st.floats(-1, 100),
    "id": st.sampled_from(["", "a", "b", "c" * 129]),
    "how": st.sampled_from(["complete", "cancel", "abandon", "settle", "x"]),
    "seconds": st.floats(-1, 100),
    "shadow": st.booleans(),
    "unlimited": st.booleans(),
    "max_keys": st.integers(-1, 10),
}
one = st.fixed_dictionaries({}, optional={name: value | junk for name, value in members.items()})
takes = st.fixed_dictionaries(
    {"limit": names}, optional={name: members[name] for name in ("key", "cost", "wait", "hold")}
)
several = st.fixed_dictionaries({"requests": st.lists(takes, min_size=1, max_size=4)})
limits = st.sampled_from(["5/minute", "2 concurrent", "0/s", "x", {"requests": "9/minute"}, None])
bodies = {
    "acquire": takes,
    "acquire_each": several,
    "acquire_all": several,
    "release": st.fixed_dictionaries({"how": members["how"]}, optional={"cost": costs}),
    "renew": st.fixed_dictionaries({}, optional={"lease": st.floats(0.1, 100)}),
    "pause": st.fixed_dictionaries({"seconds": st.floats(0, 10)}, optional={"key": keys}),
    "reset": st.fixed_dictionaries({}, optional={"key": keys}),
    "put_limit": st.fixed_dictionaries(
        {"limit": limits},
        optional={name: members[name] for name in ("shadow", "unlimited", "max_keys", "lease")},
    ),
}


def call_of(endpoint):
    """Mostly bodies that make sense: a union of strategies would be made of junk."""
    good = bodies.get(endpoint.operation, one)
    return st.tuples(
        st.just(endpoint), names, st.sampled_from([good] * 4 + [one, junk]).flatmap(lambda kind: kind)
    )


calls = st.lists(st.sampled_from(ENDPOINTS).flatmap(call_of), min_size=5, max_size=25)


@settings(max_examples=100)
@given(calls)
def test_any_body_gets_a_documented_answer(sequence):
    async def main():
        async with serving(CONFIG) as peer:
            permits = ["nothing"]
            for endpoint, name, body in sequence:
                path = endpoint.path.replace("{name}", name or "x").replace("{id}", permits[-1])
                content = json.dumps(body).encode()
                headers = {"Content-Type": "application/json"}
                request = peer.client.request(endpoint.method, path, content=content, headers=headers)
                reply = await asyncio.wait_for(request, 200)
                documented = openapi()["paths"][endpoint.path][endpoint.method.lower()]["responses"]
                assert str(reply.status_code) in documented, (endpoint.path, body, reply.text)
                assert reply.status_code < 500, (endpoint.path, body, reply.text)
                kind = reply.headers["content-type"].partition(";")[0]
                assert kind in documented[str(reply.status_code)]["content"]
                if kind == "application/problem+json":
                    named = reply.json()["type"].removeprefix("urn:headway:")
                    assert f"{named}: " in documented[str(reply.status_code)]["description"]
                if endpoint.operation == "acquire" and reply.status_code == 200:
                    permits += filter(None, [reply.json()["permit"]])

    run(main())
