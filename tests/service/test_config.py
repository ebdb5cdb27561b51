"""The configuration: what a file says, what is said about a wrong one, and what changes from one to the next."""

import dataclasses
import hashlib
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.service.config import (
    LIMIT,
    SERVER,
    Config,
    ConfigError,
    GateConfig,
    LimitConfig,
    ServerConfig,
    TokenConfig,
    parse_config,
)
from headway.service.config_changes import difference

WHOLE = """
[server]
engine = "memory://"
host = "0.0.0.0"
port = 0
drain = "1s"
max_body = 2048

[limits.api]
limit = "100/s; 5 concurrent"
max_keys = 10
lease = "500ms"
max_waiting = 3
overrides = { vip = "1000/s; 50 concurrent", crew = "unlimited" }

[limits.llm]
limit = { requests = "500/minute", tokens = "30000/minute" }
remote = { max_transit = 30, drift_ppm = 600 }
on_engine_error = "open"
engine_timeout = 1
local_share = 0.5
on_ledger_loss = "trust"
max_quarantine = 0
[limits.llm.overrides]
vip = { tokens = "60000/minute" }

[limits.near]
limit = "10/minute"
shadow = true
prefetch = { ttl = 10, min_tokens = 2 }

[limits.free]
unlimited = true

[gates.orders]
duration = "5min"
mode = "strict"

[tokens.billing]
token = "0123456789abcdef"
role = "use"
[tokens.ops]
token_env = "OPS_TOKEN"
role = "admin"
[tokens.screen]
sha256 = "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08"
role = "read"
"""


def read(text, **env):
    return parse_config(text, "headway.toml", env)


def test_a_whole_file_is_read():
    config = read(WHOLE, OPS_TOKEN="a-token-for-operations")
    assert config.server == ServerConfig("memory://", "0.0.0.0", 0, drain=1.0, max_body=2048)
    assert config.limits["api"] == LimitConfig(
        "api",
        "100/s; 5 concurrent",
        max_keys=10,
        lease=0.5,
        max_waiting=3,
        overrides={"vip": "1000/s; 50 concurrent", "crew": None},
    )
    assert config.limits["llm"] == LimitConfig(
        "llm",
        {"requests": "500/minute", "tokens": "30000/minute"},
        remote={"max_transit": 30.0, "drift_ppm": 600.0},
        overrides={"vip": {"tokens": "60000/minute"}},
        on_engine_error="open",
        engine_timeout=1.0,
        local_share=0.5,
        on_ledger_loss="trust",
        max_quarantine=0.0,
    )
    assert config.limits["near"].prefetch == {"ttl": 10.0, "min_tokens": 2}
    assert config.limits["near"].shadow
    assert config.limits["free"] == LimitConfig("free", None, unlimited=True)
    assert config.gates == {"orders": GateConfig("orders", 300.0, "strict")}
    assert [token.role for token in config.tokens.values()] == ["use", "admin", "read"]
    assert config.tokens["ops"].digest == hashlib.sha256(b"a-token-for-operations").digest()
    assert config.tokens["screen"].digest == hashlib.sha256(b"test").digest()


def test_an_empty_file_has_the_defaults():
    assert read("") == Config()
    assert Config().server.engine == "embedded://"
    assert Config().server.host == "127.0.0.1"


def test_defaults_of_tables_and_of_dataclasses_are_the_same():
    assert dataclasses.asdict(ServerConfig()) == {name: field.default for name, field in SERVER.items()}
    plain = LimitConfig("a", None)
    assert {name: getattr(plain, name) for name in LIMIT} == {
        name: field.default for name, field in LIMIT.items()
    }


def test_no_secret_is_shown():
    config = read(WHOLE, OPS_TOKEN="a-token-for-operations")
    shown = repr(config)
    assert "0123456789abcdef" not in shown
    assert "a-token-for-operations" not in shown
    assert config.tokens["billing"].digest.hex() not in shown
    assert "secret" not in repr(read('[server]\nengine = "redis://:secret@db"'))


WRONG = {
    # the file
    "limits = ": "headway.toml is no TOML: Invalid value (at end of document)",
    "[server": "headway.toml is no TOML: ",
    "[limit.api]": "headway.toml: limit is not known; give only the tables envoy, gates, limits, server, "
    "tokens",
    "limits = 5": "headway.toml: limits is no table; give tables such as [limits.name]",
    "server = 5": "headway.toml: [server] is no table; give a table",
    "[limits]\napi = 5": "headway.toml: [limits.api] is no table; give a table",
    # names
    '[limits."a b"]': "headway.toml: [limits] a b has no name that is accepted; give a name of 1 to 128 ",
    '[limits."a\\u001b[2J"]': r"headway.toml: [limits] a\x1b[2J has no name",
    '[limits."é"]': "headway.toml: [limits] é has no name that is accepted",
    # limits
    "[limits.api]": 'headway.toml: [limits.api] has no limit; give limit = "100/s", or unlimited = true',
    '[limits.api]\nlimit = "100/fortnight"': "headway.toml: [limits.api] limit = '100/fortnight' cannot be read at "
    "position 4: ",
    "[limits.api]\nlimit = 100": "headway.toml: [limits.api] limit = 100 is not accepted; give a limit such as",
    "[limits.api]\nlimit = {}": "headway.toml: [limits.api] limit = {} is not accepted; give a limit such as",
    "[limits.api]\nlimit = { tokens = 5 }": "headway.toml: [limits.api] limit = {'tokens': 5} is not accepted; give "
    "a limit as a string for each metric",
    '[limits.api]\nlimit = "1/s"\nlease = -1': "headway.toml: [limits.api] lease = -1 is not accepted; give seconds "
    'from 0.1 to 86400, or a duration such as "250ms"',
    '[limits.api]\nlimit = "1/s"\nengine_timeout = 1.8e299': "[limits.api] engine_timeout = 1.8e+299 is not accepted",
    '[limits.api]\nlimit = "1/s"\nmax_keys = true': "[limits.api] max_keys = True is not accepted; give an integer "
    "from 1 to 100000000",
    '[limits.api]\nlimit = "1/s"\nshadow = "yes"': "[limits.api] shadow = 'yes' is not accepted; give true or false",
    '[limits.api]\nlimit = "1/s"\nlocal_share = 2': "[limits.api] local_share = 2 is not accepted; give a share",
    '[limits.api]\nlimit = "1/s"\non_engine_error = "ajar"': "[limits.api] on_engine_error = 'ajar' is not accepted; "
    "give 'closed' or 'open' or 'local'",
    '[limits.api]\nlimit = "1/s"\nburst = 5': "[limits.api] burst is not known here; give only limit, unlimited",
    '[limits.api]\nlimit = "1/s"\nprefetch = 5': "[limits.api] prefetch = 5 is not accepted; give true, false, or a "
    "table with predict_window, min_tokens, ttl",
    '[limits.api]\nlimit = "1/s"\nprefetch = { ttl = 0 }': "[limits.api] prefetch = {'ttl': 0} is not accepted; give "
    "seconds from 0.3 to 3600",
    '[limits.api]\nlimit = "1/s"\nremote = { drift = 1 }': "[limits.api] remote = {'drift': 1} is not accepted; give "
    "only resolution, drift_ppm",
    '[limits.api]\nlimit = "1/s"\nremote = { drift_ppm = -1 }': "give parts per million, from 0 to below 1000000 as "
    "drift_ppm",
    '[limits.api]\nlimit = "5 concurrent"\nremote = true': "[limits.api] remote = True is not accepted; give it with "
    "a Window",
    '[limits.api]\nlimit = "1/s"\nunlimited = true': "[limits.api] limit = '1/s' means nothing beside unlimited",
    "[limits.api]\nunlimited = true\nshadow = true": "[limits.api] shadow = True means nothing beside unlimited",
    '[limits.api]\nlimit = "1/s"\noverrides = 5': "[limits.api] overrides = 5 is not accepted; give a table of keys",
    '[limits.api]\nlimit = "1/s"\noverrides = { vip = 5 }': "[limits.api] overrides = {'vip': 5} is not accepted",
    '[limits.api]\nlimit = "1/s"\noverrides = { vip = "5 concurrent" }': "[limits.api.overrides] vip = "
    "'5 concurrent' is not accepted; give limits of the same kinds as '1/s'",
    '[limits.api]\nlimit = { a = "1/s" }\noverrides = { vip = "unlimited" }': "[limits.api.overrides] vip = "
    "'unlimited' is not accepted; give limits: with metrics no key is exempt",
    # gates
    "[gates.orders]": 'headway.toml: [gates.orders] has no duration; give duration = "5min"',
    '[gates.orders]\nduration = "soon"': "[gates.orders] duration = 'soon' cannot be read at position 0",
    "[gates.orders]\nduration = -1": "[gates.orders] duration = -1 is not accepted; give a duration above 0",
    '[gates.orders]\nduration = 1\nmode = "loose"': "mode = 'loose' is not accepted; give 'only' or 'strict'",
    # tokens
    "[tokens.a]": "headway.toml: [tokens.a] has no role; give role = one of read, use, admin",
    '[tokens.a]\nrole = "root"': "[tokens.a] role = 'root' is not accepted; give 'read' or 'use' or 'admin'",
    '[tokens.a]\nrole = "use"': '[tokens.a] has no token; give one of token = "..."',
    '[tokens.a]\nrole = "use"\ntoken = "0123456789abcdef"\ntoken_env = "X"': "[tokens.a] has token and token_env; ",
    '[tokens.a]\nrole = "use"\ntoken = "hunter2"': "[tokens.a] token = ... is not accepted; give a token of 16 or more",
    '[tokens.a]\nrole = "use"\ntoken = "0123456789 abcdef"': "[tokens.a] token = ... is not accepted",
    '[tokens.a]\nrole = "use"\ntoken = 5': "[tokens.a] token = ... is not accepted; give a string",
    '[tokens.a]\nrole = "use"\nsha256 = "abc"': "[tokens.a] sha256 = ... is not accepted; give 64 hex digits",
    '[tokens.a]\nrole = "use"\ntoken_env = "NOT_SET"': "[tokens.a] token_env = 'NOT_SET' is not set; give a variable",
    '[tokens.a]\nrole = "use"\ntoken_env = "SHORT"': "[tokens.a] token_env = 'SHORT' is not accepted; give a token of",
    '[tokens.a]\nrole = "use"\ntoken = "0123456789abcdef"\n[tokens.b]\nrole = "read"\ntoken = "0123456789abcdef"': (
        "[tokens.b] is the same token as [tokens.a]; give a token of its own"
    ),
    # the server
    "[server]\nport = 70000": "headway.toml: [server] port = 70000 is not accepted; give an integer from 0 to 65535",
    '[server]\nengine = "postgres://:secret@db"': "[server] engine = ... names no engine (postgres://db); give one of",
    "[server]\nengine = 5": "[server] engine = ... is not accepted; give the URI of an engine",
    '[server]\nhost = ""': "[server] host = '' is not accepted; give a string that is not empty",
    '[server]\nmax_limits = 1\n[limits.a]\nlimit="1/s"\n[limits.b]\nlimit="1/s"': (
        "headway.toml: [limits] has 2 tables; give at most 1 limits, or a higher [server] max_limits"
    ),
}

SECRET = "0123456789abcdef"
WITH_A_SECRET = (
    f'[token.a]\ntoken = "{SECRET}"\nrole = "use"',
    f'[tokens]\nbilling = "{SECRET}"',
    f'[tokens.a]\ntokn = "{SECRET}"\nrole = "use"',
    f'[tokens."a b"]\ntoken = "{SECRET}"\nrole = "use"',
    f'[[tokens]]\ntoken = "{SECRET}"\nrole = "use"',
    f'[tokens.a]\ntoken = ["{SECRET}"]\nrole = "use"',
    f'[server]\nengin = "redis://:{SECRET}@db"',
    f'[servr]\nengine = "redis://:{SECRET}@db"',
    f'server = "redis://:{SECRET}@db"',
)


@pytest.mark.parametrize("text", WITH_A_SECRET)
def test_a_secret_under_a_wrong_name_or_in_a_wrong_place_is_not_shown(text):
    with pytest.raises(ConfigError) as error:
        read(text)
    assert SECRET not in str(error.value)
    assert SECRET not in error.value.value


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_named_with_what_is_accepted(text):
    with pytest.raises(ConfigError) as error:
        read(text, SHORT="short")
    message = str(error.value)
    assert WRONG[text] in message
    assert message.startswith("headway.toml")
    assert "\n" not in message
    assert not any(secret in message for secret in ("hunter2", "0123456789", ":secret"))


def test_every_key_of_a_limit_has_a_wrong_value_that_is_refused():
    for key in LIMIT:
        text = f"[limits.api]\n{key} = 1979-05-27"
        with pytest.raises(ConfigError, match=rf"\[limits.api\] {key} = datetime"):
            read(text)


# -- differences -----------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "d"])
limits = st.builds(
    LimitConfig,
    name=st.just(""),
    limit=st.sampled_from(["1/s", "2/s", "5 concurrent"]),
    shadow=st.booleans(),
    lease=st.sampled_from([1.0, 60.0]),
)
tokens = st.builds(
    TokenConfig, name=st.just(""), digest=st.binary(max_size=2), role=st.sampled_from(["read", "use"])
)
gates = st.builds(GateConfig, name=st.just(""), duration=st.sampled_from([1.0, 2.0]))


def named(kind):
    tables = st.dictionaries(names, kind)
    return tables.map(
        lambda found: {key: dataclasses.replace(value, name=key) for key, value in found.items()}
    )


servers = st.builds(ServerConfig, port=st.sampled_from([0, 1]), host=st.sampled_from(["a", "b"]))
configs = st.builds(Config, server=servers, limits=named(limits), gates=named(gates), tokens=named(tokens))


def apply(before, changes):
    after = {item.name: item for item in changes.added}
    for old, new in changes.changed:
        assert before[old.name] == old
        after[new.name] = new
    gone = {item.name for item in changes.removed}
    return {name: item for name, item in {**before, **after}.items() if name not in gone}


@given(configs, configs)
def test_a_difference_leads_from_one_configuration_to_the_other(before, after):
    found = difference(before, after)
    assert apply(before.limits, found.limits) == after.limits
    assert apply(before.gates, found.gates) == after.gates
    assert apply(before.tokens, found.tokens) == after.tokens
    changed = {key: getattr(after.server, key) for key in found.server}
    assert dataclasses.replace(before.server, **changed) == after.server
    assert bool(found) == (before != after)


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(own)}" for key, own in value.items()) + " }"
    return str(value)


@given(named(limits))
def test_the_table_of_a_limit_reads_back(found):
    text = "".join(
        f"[limits.{limit.name}]\n"
        + "".join(f"{key} = {toml(value)}\n" for key, value in limit.table().items())
        for limit in found.values()
    )
    assert read(text).limits == found


@given(st.text())
def test_any_text_is_read_or_refused_with_a_message(text):
    try:
        read(text)
    except ConfigError as error:
        assert str(error).startswith("headway.toml")  # noqa: PT017 - both ends are fine


KEYS = [*LIMIT, "limits", "burst"]
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    plain, lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=2), max_leaves=4
)


@given(
    st.dictionaries(st.sampled_from(KEYS), anything | st.sampled_from(["1/s", "5 concurrent"]), max_size=4)
)
def test_any_table_of_a_limit_is_read_or_refused(table):
    from headway.service.config import read_limit
    from headway.service.config_values import Place

    try:
        found = read_limit("api", table, Place("headway.toml", "limits.api"))
    except ConfigError as error:
        assert "[limits.api" in str(error)  # noqa: PT017 - both ends are fine
    else:
        assert found.unlimited or found.limit


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("1/s", "5/minute", True),
        ("1/s", "1/s burst 3", False),
        ("1/s; 5 concurrent", "5/s; 6 concurrent", True),
        ("1/s; 5 concurrent", "5 concurrent; 1/s", False),
        ("1/s", {"requests": "1/s"}, False),
        ({"a": "1/s", "b": "1/s"}, {"a": "2/s", "b": "2/s"}, True),
    ],
)
def test_ledgers_are_named_by_their_kinds(before, after, same):
    assert (LimitConfig("api", before).ledgers == LimitConfig("api", after).ledgers) == same


def test_the_example_at_the_top_of_the_file_is_read():
    from headway.service import config

    doc = "".join(line[4:] + "\n" for line in (config.__doc__ or "").splitlines() if line.startswith("    "))
    lines = [line.partition("  ")[0] for line in doc.splitlines()]
    text = "\n".join(lines)
    assert tomllib.loads(text)["limits"]["reports"]["shadow"]
    assert set(read(text, BILLING_TOKEN="0123456789abcdef").limits) == {"api", "reports"}
