"""Any batch to the protocol of the `http://` engine: never a fault of the server, and it goes on for others."""

import secrets
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.processes import served

from headway.service.remote.routes import MEMBERS

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

LEASE = 5_000_000_000
numbers = st.integers(-2, 5) | st.sampled_from([10**6, 10**18, -(10**18), 1e300, float("inf"), 0.5])
texts = st.text(max_size=5) | st.sampled_from(["a", "1/s", "open", "acquire", "release", "peek", "pause"])
leaves: st.SearchStrategy[Any] = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
lists = st.lists(numbers, max_size=3) | values
batches = st.fixed_dictionaries(
    {
        **dict.fromkeys(("answered", "heard"), numbers | values),
        **dict.fromkeys(("forget", "withdraw", "drop", "close"), lists),
        "commands": st.lists(st.tuples(numbers, texts, values, values) | values, max_size=4) | values,
    }
)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    text = '[server]\ndrain = 0\n[limits.api]\nlimit = "1000000/s"\nengine_timeout = 20\n'
    with served(tmp_path_factory.mktemp("fuzzed"), text) as found:
        yield found


def empty(**more):
    session = {"session": secrets.token_hex(16), "new": True, "lease": LEASE, "answered": 0, "heard": 0}
    return {name: [] for name in MEMBERS} | session | more


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(batches, min_size=1, max_size=3))
def test_any_batch_gets_an_answer(process, sequence):
    first = empty()
    for batch in sequence:
        reply = process.client.post("/v1/engine", first | batch)
        assert reply.status < 500, (batch, reply.body)
    assert process.acquire("api").status == 200


def test_a_number_that_no_command_had_does_not_stop_the_server(process):
    first = empty()
    assert process.client.post("/v1/engine", first | {"answered": 10**18}).body["answers"] == []
    again = process.client.post("/v1/engine", first | {"answered": 10**18, "commands": [[7, "peek"]]})
    assert again.kind == "bad-request", "it was answered before"
    assert process.acquire("api").status == 200
