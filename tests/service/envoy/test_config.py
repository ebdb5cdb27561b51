"""envoyproxy/ratelimit's YAML: what its documentation shows means the same here, and what is wrong is said."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import Bucket, FixedWindow, HeadwayError, Window
from headway.service.envoy.config import InvalidConfig, load_config, read_config
from headway.service.envoy.messages import Entry
from headway.service.envoy.rules import Pattern, ledger_key


def config_of(text, **options):
    return read_config({"limits.yaml": text}, **options)


def found(config, domain, *pairs):
    """(limit, key) of the rule that these entries match, or None."""
    match = config.match(domain, [Entry(*pair) for pair in pairs])
    return None if match is None else (match.rule.limit and str(match.rule.limit), match.key)


# -- the cases of envoyproxy/ratelimit's documentation, with limits of our own -------------------------------------


def test_values_of_one_key_have_limits_of_their_own():
    config = config_of("""
domain: databases
descriptors:
  - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
  - {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 400}}
""")
    assert found(config, "databases", ("database", "users")) == ("500/s", None)
    assert found(config, "databases", ("database", "default")) == ("400/s", None)
    assert found(config, "databases", ("database", "orders")) is None
    assert found(config, "other", ("database", "users")) is None


MESSAGES = """
domain: messages
descriptors:
  - key: kind
    value: marketing
    descriptors:
      - key: number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: number
    rate_limit: {unit: day, requests_per_unit: 100}
"""


def test_a_nested_key_without_a_value_has_a_ledger_for_each_value():
    config = config_of(MESSAGES)
    assert found(config, "messages", ("kind", "marketing"), ("number", "1")) == ("5/day", "1")
    assert found(config, "messages", ("kind", "marketing"), ("number", "2")) == ("5/day", "2")
    assert found(config, "messages", ("number", "1")) == ("100/day", "1")
    assert found(config, "messages", ("kind", "marketing")) is None  # a step on the way, without a limit
    assert found(config, "messages", ("kind", "invoice"), ("number", "1")) is None


def test_a_value_comes_before_the_key_alone():
    config = config_of("""
domain: edge
descriptors:
  - {key: address, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
""")
    assert found(config, "edge", ("address", "50.0.0.1")) == ("10/s", "50.0.0.1")
    assert found(config, "edge", ("address", "50.0.0.5")) == ("0/s", None)


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("rate_limit: {unit: second, requests_per_unit: 300}", None),
        ("descriptors: [{key: subkey, rate_limit: {unit: second, requests_per_unit: 300}}]", ("300/s", "x")),
    ],
)
def test_a_descriptor_matches_at_its_own_depth_only(below, expected):
    config = config_of(f"{{domain: depth, descriptors: [{{key: key, value: value, {below}}}]}}")
    assert found(config, "depth", ("key", "value"), ("subkey", "x")) == expected


def test_a_more_specific_step_that_leads_nowhere_is_not_taken_back():
    config = config_of("""
domain: steps
descriptors:
  - {key: a, value: one, descriptors: [{key: b, value: x, limit: 1/s}]}
  - {key: a, descriptors: [{key: b, limit: 2/s}]}
""")
    assert found(config, "steps", ("a", "one"), ("b", "y")) is None
    assert found(config, "steps", ("a", "two"), ("b", "y")) == ("2/s", "two|y")


def test_unlimited_and_shadow_and_replaces_are_read():
    config = config_of("""
domain: inner
descriptors:
  - {key: ldap, rate_limit: {unlimited: true}}
  - key: service
    descriptors:
      - {key: user, value: a, rate_limit: {requests_per_unit: 10, unit: second, name: own}, shadow_mode: true}
      - key: user
        value: b
        rate_limit: {requests_per_unit: 20, unit: SECOND, replaces: [{name: own}, {name: other}]}
""")
    ldap, a, b = config.rules()
    assert (ldap.limit, a.shadow, a.name, b.shadow, b.replaces) == (
        None,
        True,
        "own",
        False,
        {"own", "other"},
    )
    assert found(config, "inner", ("ldap", "x")) == (None, "x")


def test_the_example_of_its_repository_is_read():
    config = config_of("""
---
domain: rl
descriptors:
  - key: source
    value: proxy
    descriptors:
      - {key: destination, value: mock, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: foo
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors:
      - {key: bar, rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: bar, value: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
      - {key: baz, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: bay, rate_limit: {unlimited: true}}
      - {key: baz, value: shady, rate_limit: {unit: minute, requests_per_unit: 1}, shadow_mode: true}
  - {key: qux, rate_limit: {unlimited: true}}
""")
    foo = ("foo", "1")
    assert found(config, "rl", ("source", "proxy"), ("destination", "mock")) == ("1/minute", None)
    assert found(config, "rl", foo) == ("2/minute", "1")
    assert found(config, "rl", foo, ("bar", "x")) == ("3/minute", "1|x")
    assert found(config, "rl", foo, ("bar", "banned")) == ("0/minute", "1")
    assert found(config, "rl", foo, ("baz", "shady")) == ("1/minute", "1")
    assert found(config, "rl", foo, ("bay", "x")) == (None, "1|x")
    assert len(config.rules()) == 8


# -- wildcards and names of figures --------------------------------------------------------------------------------

WILD = """
domain: wild
descriptors:
  - {key: path, value: /a/one, limit: 1/s}
  - {key: path, value: /a/*, limit: 2/s}
  - {key: path, value: /a/b*, limit: 3/s}
  - {key: path, limit: 4/s}
  - {key: file, value: files/*, share_threshold: true, limit: 5/s}
  - {key: mid, value: x*y*z, limit: 6/s}
  - key: route
    value: api/*
    share_threshold: true
    descriptors:
      - {key: method, value_to_metric: true, limit: 7/s}
  - {key: user, value: u*, value_to_metric: true, limit: 8/s}
  - key: tenant
    descriptors:
      - {key: user, detailed_metric: true, limit: 9/s}
"""


@pytest.mark.parametrize(
    ("pairs", "limit", "key", "metric"),
    [
        ([("path", "/a/one")], "1/s", None, ("path_/a/one",)),
        ([("path", "/a/two")], "2/s", "/a/two", ("path_/a/*",)),
        ([("path", "/a/bee")], "2/s", "/a/bee", ("path_/a/*",)),  # the first of the file
        ([("path", "/a/")], "2/s", "/a/", ("path_/a/*",)),
        ([("path", "/c")], "4/s", "/c", ("path",)),
        ([("file", "files/1")], "5/s", None, ("file_files/*",)),
        ([("mid", "x1y2z")], "6/s", "x1y2z", ("mid_x*y*z",)),
        ([("route", "api/1"), ("method", "GET")], "7/s", "GET", ("route_api/*", "method_GET")),
        ([("user", "u1")], "8/s", "u1", ("user_u1",)),
        ([("tenant", "t"), ("user", "a")], "9/s", "t|a", ("tenant_t", "user_a")),
        ([("path", "")], "4/s", "", ("path",)),
    ],
)
def test_wildcards_and_the_names_of_figures(pairs, limit, key, metric):
    match = config_of(WILD).match("wild", [Entry(*pair) for pair in pairs])
    assert (str(match.rule.limit), match.key, match.metric) == (limit, key, ("wild", *metric))


@pytest.mark.parametrize("value", ["xyz ", "xzy", "yz", "xy", "x1z", ""])
def test_a_wildcard_matches_the_whole_value(value):
    assert found(config_of(WILD), "wild", ("mid", value)) is None


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_a_pattern_matches_as_a_regular_expression_does(text, value):
    if "*" in text:
        expected = re.fullmatch(".*".join(map(re.escape, text.split("*"))), value) is not None
        assert Pattern(text).matches(value) == expected


@pytest.mark.parametrize(
    ("values", "others"),
    [(("a\\", "b|c"), ("a|b\\", "c")), (("a|b", "c"), ("a", "b|c")), (("", "a"), ("a", ""))],
)
def test_values_that_look_alike_when_joined_have_ledgers_of_their_own(values, others):
    assert ledger_key(values) != ledger_key(others)


@given(st.lists(st.text("a|\\", max_size=3), min_size=2, max_size=4), st.data())
def test_other_values_have_another_ledger(values, data):
    size = len(values)
    others = data.draw(st.lists(st.text("a|\\", max_size=3), min_size=size, max_size=size))
    assert (ledger_key(values) == ledger_key(others)) == (values == others)


def test_a_key_with_an_underscore_is_not_another_key_with_a_value():
    config = config_of("{domain: d, descriptors: [{key: a_b, limit: 1/s}, {key: a, value: b, limit: 2/s}]}")
    assert found(config, "d", ("a_b", "x")) == ("1/s", "x")
    assert found(config, "d", ("a", "b")) == ("2/s", None)


# -- kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "window", "fixed"),
    [
        ("second", "1s", "5/s aligned"),
        ("Minute", "60s", "5/minute aligned"),
        ("HOUR", "3600s", "5/hour aligned"),
        ("day", "86400s", "5/day aligned"),
        ("week", "7 days", "5/week aligned"),
        ("month", "30 days", "5/month aligned"),
        ("year", "365 days", "5/365days aligned"),
    ],
)
def test_a_unit_is_a_window_or_by_choice_a_period_of_the_calendar(unit, window, fixed):
    text = f"{{domain: d, descriptors: [{{key: k, rate_limit: {{unit: {unit}, requests_per_unit: 5}}}}]}}"
    (rule,) = config_of(text).rules()
    assert rule.limit == Window(5, per=window, remote=False)
    (rule,) = config_of(text, fixed=True).rules()
    assert isinstance(rule.limit, FixedWindow)
    assert str(rule.limit).replace(" aligned", "").startswith("5/")


def test_a_limit_string_takes_the_place_of_rate_limit():
    config = config_of("""
domain: d
descriptors:
  - {key: a, limit: "100/s burst 20", overdraft: true}
  - {key: b, rate_limit: {limit: 5/10s, name: slow, replaces: [{name: fast}]}}
""")
    a, b = config.rules()
    assert (a.limit, a.overdraft, b.overdraft) == (Bucket("100/s", burst=20), True, False)
    assert (str(b.limit), b.name, b.replaces) == ("5/10s", "slow", {"fast"})


def test_values_are_texts_as_they_are_written():
    config = config_of("""
domain: 7
descriptors:
  - {key: code, value: 010, limit: 1/s}
  - {key: code, value: yes, limit: 2/s}
  - {key: code, value: 1.50, limit: 3/s}
  - {key: 404, value: null, limit: 4/s}
  - &base {key: x, limit: 5/s}
  - {<<: *base, key: y}
""")
    assert found(config, "7", ("code", "010")) == ("1/s", None)
    assert found(config, "7", ("code", "yes")) == ("2/s", None)
    assert found(config, "7", ("code", "1.50")) == ("3/s", None)
    assert found(config, "7", ("404", "a")) == ("4/s", "a")
    assert found(config, "7", ("y", "1")) == ("5/s", "1")


# -- what is wrong -------------------------------------------------------------------------------------------------


def one(fields):
    return f"{{domain: shop, descriptors: [{{key: user, value: bob, {fields}}}]}}"


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("", "", "it is empty"),
        ("[1, 2]", "", "is no mapping; accepted: a mapping with domain, descriptors"),
        ("descriptors: []", "", "domain is missing"),
        ("{domain: a, descriptorz: []}", "", "'descriptorz' is not known here; did you mean 'descriptors'"),
        ("{domain: shop, descriptors: 5}", "shop", "descriptors: '5' is no list"),
        ("{domain: shop, descriptors: [a]}", "shop.descriptors[0]", "'a' is no mapping"),
        ("{domain: shop, descriptors: [{value: a}]}", "shop.descriptors[0]", "without a key"),
        ("{domain: shop, descriptors: [{key: [a]}]}", "shop.descriptors[0]", r"key: \['a'\] is no text"),
        ("{domain: shop, descriptors: [{? [a] : b}]}", "", "unhashable|is not known"),
        (one("ratelimit: {}"), "shop.descriptors[0]", "did you mean 'rate_limit'"),
        (
            one("rate_limit: {unit: mintue}"),
            "shop.user_bob: rate_limit",
            "'mintue' is no unit; did you mean 'minute'",
        ),
        (
            one("rate_limit: {requests_per_unit: 5}"),
            "shop.user_bob: rate_limit",
            "unit is missing; accepted: second",
        ),
        (one("rate_limit: {unit: day}"), "shop.user_bob: rate_limit", "requests_per_unit is missing"),
        (
            one("rate_limit: {unit: day, requests_per_unit: -1}"),
            "shop.user_bob: rate_limit",
            "'-1' is no such number",
        ),
        (
            one("rate_limit: {unit: day, requests_per_unit: 4294967296}"),
            "shop.user_bob: rate_limit",
            "no such number",
        ),
        (
            one("rate_limit: {unit: day, unlimited: true}"),
            "shop.user_bob: rate_limit",
            "unlimited, and a limit",
        ),
        (one("rate_limit: {unlimited: maybe}"), "shop.user_bob: rate_limit", "accepted: true or false"),
        (
            one("rate_limit: {unit: day, requests_per_unit: 1, burst: 5}"),
            "shop.user_bob: rate_limit",
            "'burst'",
        ),
        (one("rate_limit: {unlimited: true}, limit: 5/s"), "shop.user_bob", "both rate_limit and limit"),
        (one("limit: 5/fortnight"), "shop.user_bob", "unknown unit 'fortnight'"),
        (
            one('limit: "5/s; 3 concurrent"'),
            "shop.user_bob",
            "is not told of that; accepted: limits per time",
        ),
        (one("share_threshold: true, limit: 5/s"), "shop.user_bob", r"without a \* in the value"),
        (
            one("rate_limit: {limit: 1/s, replaces: [{}]}"),
            "shop.user_bob: rate_limit.replaces",
            "without a name",
        ),
        (
            one("rate_limit: {limit: 1/s, name: a, replaces: [{name: a}]}"),
            "shop.user_bob: rate_limit.replaces",
            "which is itself",
        ),
        (one("limit: 1/s, limit: 2/s"), "", "'limit' is there twice"),
        ("{domain: shop, descriptors: [{key: a}, {key: a}]}", "shop.a", "the descriptor is there twice"),
        ("{domain: shop, descriptors: [{key: a, value: b}, {key: a, value: b}]}", "shop.a_b", "there twice"),
        ("{domain: shop}\n---\n{domain: shop}", "shop", "the domain is there twice"),
        ("{domain: shop, descriptors: &a [{key: x, descriptors: *a}]}", "shop", "too many descriptors"),
        ("domain: [", "", "accepted: YAML"),
        ("[" * 5000, "", "nested too deeply|accepted: YAML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, path, message):
    with pytest.raises(InvalidConfig, match=message) as caught:
        config_of(text)
    error = caught.value
    assert (error.file, error.path) == ("limits.yaml", path)
    assert str(error).startswith("limits.yaml")
    assert isinstance(error, HeadwayError)


@given(st.text(max_size=60) | st.text("{}[]:,-&*#'\"| \ndomainkey", max_size=60))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(InvalidConfig):
        config_of(text)


# -- files ---------------------------------------------------------------------------------------------------------


def test_files_and_directories_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("{domain: a, descriptors: [{key: k, limit: 1/s}]}")
    (tmp_path / "b.yml").write_text("{domain: b, descriptors: [{key: k, limit: 2/s}]}")
    (tmp_path / "notes.txt").write_text("{")
    assert [str(rule.limit) for rule in load_config([tmp_path]).rules()] == ["1/s", "2/s"]
    assert [str(rule.limit) for rule in load_config([tmp_path / "b.yml"]).rules()] == ["2/s"]


def test_a_domain_in_two_files_is_refused_or_merged(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(f"{{domain: d, descriptors: [{{key: {name}, limit: 1/s}}]}}")
    with pytest.raises(InvalidConfig, match="the domain is there twice") as caught:
        load_config([tmp_path])
    assert caught.value.file == str(tmp_path / "b.yaml")
    assert len(load_config([tmp_path], merge=True).rules()) == 2
    (tmp_path / "c.yaml").write_text("{domain: d, descriptors: [{key: a, limit: 1/s}]}")
    with pytest.raises(InvalidConfig, match="the descriptor is there twice"):
        load_config([tmp_path], merge=True)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    file = tmp_path / "limits.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig, match="it cannot be read") as caught:
        load_config([file])
    assert caught.value.file == str(file)


def test_an_empty_directory_is_no_configuration(tmp_path):
    with pytest.raises(InvalidConfig, match=r"there is no \.yaml file; accepted: a file of YAML"):
        load_config([tmp_path])
