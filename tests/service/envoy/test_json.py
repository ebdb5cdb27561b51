"""`POST /json`: envoyproxy/ratelimit's form of the same call."""

import asyncio
import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import EngineUnavailable
from headway.service.envoy.json_call import answer_json, read_request, write_response
from headway.service.envoy.messages import (
    Descriptor,
    DescriptorStatus,
    Entry,
    LimitOverride,
    MalformedMessage,
    RateLimitResponse,
    Unit,
)
from service.envoy.asking import service_of

USERS = "  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1, name: users}}"


def post(service, body):
    status, answer = asyncio.run(
        answer_json(service, body if isinstance(body, bytes) else json.dumps(body).encode())
    )
    return status, json.loads(answer)


def asked(**fields):
    return {"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "a"}], **fields}]}


def test_200_within_the_limit_and_429_over_it():
    service = service_of(USERS)
    status, answer = post(service, asked())
    assert status == 200
    found = answer["statuses"][0]
    assert found.pop("durationUntilReset").startswith("59.") or "60s"
    limit = {"requestsPerUnit": 1, "unit": "MINUTE", "name": "users"}
    assert (answer["overallCode"], found) == ("OK", {"code": "OK", "currentLimit": limit})
    status, answer = post(service, asked())
    assert (status, answer["overallCode"], answer["statuses"][0]["code"]) == (429, "OVER_LIMIT", "OVER_LIMIT")


def test_names_and_numbers_are_read_in_both_forms():
    expected = Descriptor((Entry("user", "a"),), LimitOverride(5, Unit.HOUR), 7, True)
    camel = asked(limit={"requestsPerUnit": 5, "unit": "HOUR"}, hitsAddend="7", isNegativeHits=True)
    snake = asked(limit={"requests_per_unit": 5, "unit": 3}, hits_addend=7, is_negative_hits=True)
    for body in (camel, snake):
        assert read_request(json.dumps(body).encode()).descriptors == (expected,)
    assert read_request(b'{"domain": "d", "hitsAddend": 3}').hits_addend == 3


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "the request is an object"),
        (b'{"domain": 5}', "domain is a string"),
        (b'{"domain": ""}', "the domain is empty"),
        (b'{"domain": "\\ud800"}', "surrogate"),
        ({"domain": "d", "descriptors": {}}, "descriptors is a list"),
        (
            {"domain": "d", "descriptorz": []},
            "no field 'descriptorz'; it has domain, descriptors, hitsAddend",
        ),
        (asked(hitsAddend=-1), "hitsAddend is a whole number"),
        (asked(hitsAddend=True), "hitsAddend is a whole number"),
        (asked(hitsAddend="1.5"), "hitsAddend is a whole number"),
        (asked(hitsAddend=2**64), "hitsAddend is a whole number"),
        (asked(isNegativeHits=1), "true or false"),
        (asked(limit={"unit": "FORTNIGHT"}), "'FORTNIGHT' is no unit; the units are UNKNOWN, SECOND"),
        (asked(limit={"requestsPerUnit": 1}), "which is no unit"),
        ({"domain": "d" * 20_000, "descriptors": []}, "20000 bytes"),
        (b" " * 300_000, "a body of 300000 bytes"),
    ],
)
def test_what_is_wrong_is_said(body, problem):
    service = service_of(USERS)
    with pytest.raises(MalformedMessage, match=re.escape(problem)):
        post(service, body)
    assert service.stats.malformed == 1


def test_an_engine_that_does_not_answer_is_said():
    service = service_of(USERS, engine="redis://127.0.0.1:1/0", engine_timeout=0.05)
    with pytest.raises(EngineUnavailable):
        post(service, asked())
    assert service.stats.engine_errors == 1


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0s"), (10**9, "1s"), (1_500_000_000, "1.500s"), (1_000_001_000, "1.000001s"), (5, "0.000000005s")],
)
def test_durations_are_written_as_protobuf_does(ns, text):
    answer = json.loads(write_response(RateLimitResponse(1, (DescriptorStatus(1, None, 0, ns),))))
    assert answer["statuses"][0]["durationUntilReset"] == text


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["domain", "descriptors", "entries", "key", "value", "limit", "unit", "hitsAddend"]
            ),
            inner,
        )
    ),
    max_leaves=10,
)


@given(values)
def test_any_json_is_a_request_or_malformed(value):
    with contextlib.suppress(MalformedMessage):
        read_request(json.dumps(value).encode())
