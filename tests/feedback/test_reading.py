"""`read` is total, and bounded; what it says does not depend on how headers are written."""

import json
import string
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedback.test_corpus import CASES, NOW
from headway import InvalidArgument, feedback
from headway.feedback import fields, values
from headway.feedback.reading import fold

NAMES = st.sampled_from(
    sorted(
        {name for case in CASES for name, _ in case.values[2]}
        | {"ratelimit", "age", "x-ratelimit-reset-after"}
    )
)
GARBAGE = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=string.digits + string.punctuation + ' ="smhTZGNUinf', max_size=40),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(sorted({value for case in CASES for _, value in case.values[2]})),
)
MEMBERS = (
    "error", "details", "@type", "retryDelay", "retry_after", "extensions", "cost", "message", "errors",
    "throttleStatus", "currentlyAvailable", "restoreRate", "maximumAvailable", "requestedQueryCost",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | GARBAGE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(MEMBERS) | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BODIES = st.none() | JSON.map(json.dumps) | JSON | st.binary(max_size=60) | GARBAGE
PROFILES = st.none() | st.sampled_from(feedback.profiles())
STATUSES = st.integers() | st.sampled_from([200, 400, 403, 420, 429, 430, 503, 529])


@settings(max_examples=600)
@given(STATUSES, st.dictionaries(NAMES, GARBAGE, max_size=8), BODIES, PROFILES, st.floats(0, 4e9))
@example(429, {"Retry-After": "9" * 400}, None, None, 0.0)
@example(429, {}, "[" * 60_000, "google", 0.0)
@example(200, {"X-RateLimit-Reset": "1" + "0" * 30, "Date": "x"}, None, None, 0.0)
def test_whatever_a_server_sends_nothing_is_raised_and_no_wait_is_too_long(
    status, headers, body, profile, now
):
    said = feedback.read(status, headers, body, profile=profile, now=now, max_wait=100)
    if said is None:
        return
    assert said.wait is None or 0 <= said.wait <= 100
    for limit in said.limits:
        for value in limit[1:5]:
            assert value is None or 0 <= value <= values.MOST
        assert limit.window is None or limit.window > 0


@given(
    st.lists(st.tuples(st.binary(max_size=20) | st.text(max_size=20) | st.none() | st.integers(), GARBAGE))
)
def test_headers_of_any_kind_are_folded(pairs):
    assert {type(part) for pair in fold(pairs).items() for part in pair} <= {str}


def heard(*answer, now=NOW, **options):
    """What was said, where something was."""
    said = feedback.read(*answer, now=now, **options)
    assert said is not None
    return said


def test_headers_may_be_bytes_pairs_or_a_mapping_and_are_told_by_any_case():
    said = heard(429, {"Retry-After": "30"})
    assert feedback.read(429, [(b"retry-after", b"30")], now=NOW) == said
    assert feedback.read(429, {"RETRY-AFTER": 30}, now=NOW) == said
    odd: list[Any] = [("Retry-After", "30"), "odd", (1, 2, 3)]
    assert feedback.read(429, odd, now=NOW) == said


def test_a_body_may_be_text_bytes_or_parsed():
    body = {"retry_after": 2.5}
    for form in (body, json.dumps(body), json.dumps(body).encode(), bytearray(json.dumps(body).encode())):
        assert heard(429, {}, form).wait == 2.5


@given(st.integers(0, 10**6), st.integers(0, 3 * 10**9))
def test_a_moment_counts_by_the_clock_of_the_server_whatever_ours_says(left, ours):
    headers = {
        "Date": "Thu, 01 Jan 2026 00:00:00 GMT",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": str(int(NOW) + left),
    }
    said = heard(429, headers, now=ours, max_wait=10**7)
    assert said.wait == (left or None)


def test_a_header_that_is_too_long_is_left_out():
    assert feedback.read(200, {"RateLimit": '"a";r=1, ' * 2000}, now=NOW) is None
    many = {f"x-ratelimit-remaining-{number}": "1" for number in range(10_000)}
    assert len(heard(200, many).limits) <= 40


def test_a_wait_is_bounded():
    assert heard(429, {"Retry-After": "86400"}).wait == feedback.MAX_WAIT == 3600
    assert heard(429, {"Retry-After": "86400"}, max_wait=86400).wait == 86400


@pytest.mark.parametrize("bad", ["GitHub", "nope", 5])
def test_a_profile_that_there_is_not_is_refused_with_those_that_there_are(bad):
    with pytest.raises(
        InvalidArgument, match=f"profile={bad!r} is not accepted; give None or one of: airtable, "
    ):
        feedback.read(200, {}, profile=bad, now=NOW)


def test_a_bound_below_zero_is_refused():
    with pytest.raises(InvalidArgument, match="max_wait=-1 is not accepted; give seconds from 0 up"):
        feedback.read(429, {}, now=NOW, max_wait=-1)


@pytest.mark.parametrize(
    ("host", "profile"),
    [
        ("api.openai.com", "openai"),
        ("API.OpenAI.com:443", "openai"),
        ("user@api.github.com.", "github"),
        ("mine.openai.azure.com", "azure_openai"),
        ("dynamodb.eu-west-1.amazonaws.com", "aws"),
        ("generativelanguage.googleapis.com", "google"),
        ("evilapi.github.com", None),
        ("api.github.com.evil.example", None),
        ("127.0.0.1", None),
        ("", None),
    ],
)
def test_a_host_names_its_profile(host, profile):
    assert feedback.profile_of(host) == profile


# -- structured fields ----------------------------------------------------------------------------------------

BARE = st.one_of(
    st.integers(-999_999_999_999_999, 999_999_999_999_999).map(lambda value: (str(value), float(value))),
    st.text(alphabet=[chr(code) for code in range(32, 127)], max_size=10).map(
        lambda value: ('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"', value)
    ),
    st.booleans().map(lambda value: (f"?{int(value)}", value)),
    st.sampled_from([("abc", "abc"), ("*a/b:c", "*a/b:c"), (":aGk=:", b"aGk=")]),
)
KEYS = st.text(alphabet="abcxyz*", min_size=1, max_size=3)


@given(st.lists(st.tuples(BARE, st.dictionaries(KEYS, BARE, max_size=3)), min_size=1, max_size=4))
def test_a_list_that_was_written_is_read(items):
    text = ", ".join(
        bare[0] + "".join(f"; {key}={value[0]}" for key, value in parameters.items())
        for bare, parameters in items
    )
    expected = [
        (bare[1], {key: value[1] for key, value in parameters.items()}) for bare, parameters in items
    ]  # fmt: skip
    assert fields.read_list(text) == expected


@pytest.mark.parametrize(
    "text",
    ['"a', "a,", "a;;b", "a;B=1", "1.", "1.2345", "é", '"a"b', ",a", "a b", ":a", "?2", "=1", "a;=1", "--1"],
)
def test_a_malformed_list_is_none_at_all(text):
    assert fields.read_list(text) is None


def test_a_dictionary_is_read():
    assert fields.read_dictionary('a=1;x, b, c="d"') == {
        "a": (1.0, {"x": True}),
        "b": (True, {}),
        "c": ("d", {}),
    }
    assert fields.read_dictionary("a=1, =2") is None
