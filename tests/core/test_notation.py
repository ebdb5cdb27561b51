"""Strings in, limits out; and for everything else an error that points at the place."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Limit, Spacing, Window, as_limit
from headway.core.notation import parse_limit
from headway.core.remote import Remote
from headway.errors import InvalidLimit

COUNT = st.integers(0, 2**62)
NS = st.one_of(
    st.integers(1, 2**62),
    st.builds(
        lambda n, unit: n * unit,
        st.integers(1, 100),
        st.sampled_from([1, 10**3, 10**6, 10**9, 60 * 10**9, 3600 * 10**9, 86400 * 10**9, 604800 * 10**9]),
    ),
)
PER = NS.map(lambda ns: f"{ns}ns")
ZONE = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Etc/GMT+1"])
SINGLE = st.one_of(
    st.builds(lambda n, per: Window(n, per=per), COUNT, PER),
    st.builds(
        lambda n, per, b: Bucket((n, per), burst=b),
        st.integers(0, 10**9),
        st.integers(1, 10**15).map("{}ns".format),
        st.integers(1, 1000),
    ),
    st.integers(1, 2**55).map(lambda ns: Spacing(f"{ns}ns")),
    st.builds(
        lambda n, per, tz: FixedWindow(n, per=per, tz=tz), COUNT, st.one_of(PER, st.just("month")), ZONE
    ),
    COUNT.map(Concurrency),
)
LIMIT: st.SearchStrategy[Limit] = st.one_of(
    SINGLE, st.lists(SINGLE, min_size=2, max_size=4).map(lambda limits: AllOf(*limits))
)


@given(LIMIT)
def test_str_reads_back(limit: Limit) -> None:
    again = parse_limit(str(limit))
    assert again == limit
    assert hash(again) == hash(limit)
    assert str(again) == str(limit)
    if "/" not in str(limit).partition("aligned")[2]:  # the name of a zone keeps its case
        assert as_limit(str(limit).upper()) == limit


NAMES = {c.__name__: c for c in (AllOf, Bucket, Concurrency, FixedWindow, Spacing, Window)}


@given(LIMIT)
def test_repr_evaluates_and_pickles(limit: Limit) -> None:
    assert eval(repr(limit), dict(NAMES)) == limit
    assert pickle.loads(pickle.dumps(limit)) == limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("100/minute", Window(100, per=60)),
        ("100 per 60s", Window(100, per=60)),
        ("100per60 S", Window(100, per=60)),
        ("  100 /  Minutes ", Window(100, per=60)),
        ("1/6s", Window(1, per=6)),
        ("3/250ms", Window(3, per=0.25)),
        ("100 per 1.5s", Window(100, per=1.5)),
        ("100 per 0.000000001 s", Window(100, per=1e-9)),
        ("1_000_000/day", Window(1_000_000, per=86400)),
        ("0/s", Window(0, per=1)),
        ("7/2 weeks", Window(7, per=14 * 86400)),
        ("100/s burst 20", Bucket("100/s", burst=20)),
        ("90 PER MIN BURST 5", Bucket((90, 60), burst=5)),
        ("1 every 6s", Spacing(6)),
        ("1 every minute", Spacing("minute")),
        ("10000/day aligned", FixedWindow(10000, per="day")),
        ("10000/month aligned", FixedWindow(10000, per="month")),
        ("10000/1 month aligned utc", FixedWindow(10000, per="month")),
        ("5/3h aligned Europe/Berlin", FixedWindow(5, per="3h", tz="Europe/Berlin")),
        ("5 concurrent", Concurrency(5)),
        ("5concurrent", Concurrency(5)),
        (
            "10/s;500/minute ; 5 concurrent",
            AllOf(Window(10, per=1), Window(500, per=60), Concurrency(5)),
        ),
        ("5/day aligned Europe/Berlin; 1/s", AllOf(FixedWindow(5, per="day", tz="Europe/Berlin"), "1/s")),
    ],
)
def test_reads(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("names", ["s sec second seconds secs", "m min mins minute minutes", "h hour hours"])
def test_units_have_several_names(names: str) -> None:
    assert len({parse_limit(f"1/{name}") for name in names.split()}) == 1


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "whole number"),
        ("   ", 3, "whole number"),
        ("5", 1, "concurrent"),
        ("-1/s", 0, "whole number"),
        ("nan/s", 0, "whole number"),
        ("1.5/s", 0, "no decimals"),
        ("1e6/s", 1, "every"),
        ("_1/s", 0, "whole number"),
        ("1__0/s", 1, "per"),
        ("1/0s", 2, "duration is 0"),
        ("1/-5s", 2, "a duration"),
        ("1/", 2, "a duration"),
        ("1/60", 4, "unit is missing"),
        ("1/5.s", 4, "digits after"),
        ("1/0.5ns", 2, "finer than a nanosecond"),
        ("1/fortnight", 2, "unknown unit 'fortnight'"),
        ("5/minuts", 2, "did you mean 'minutes'"),
        ("5/10 milliseconds", 5, "did you mean 'ms'"),
        ("5/hr", 2, "did you mean 'h'"),
        ("5/month", 2, "a month is no fixed duration"),
        ("5/month burst 2", 2, "a month is no fixed duration"),
        ("5/2 months aligned", 2, "only one month"),
        ("1 every month", 8, "a month is no fixed duration"),
        ("2 every 6s", 0, "write 1 every 3s"),
        ("5 concurent", 2, "did you mean 'concurrent'"),
        ("5/s brust 3", 4, "did you mean 'burst'"),
        ("5/s 3", 4, "burst"),
        ("5/s burst", 9, "whole number"),
        ("5/s burst 0", 10, "admits nothing"),
        ("5/s burst 3 aligned", 12, "; and another"),
        ("5/day aligned Europe/Berln", 14, "did you mean 'Europe/Berlin'"),
        ("5/day aligned Mars/Olympus", 14, "tzdata"),
        ("10/s;", 5, "whole number"),
        (";10/s", 0, "whole number"),
        ("10/s, 5/m", 4, "limits are joined by ;"),
        ("5 concurrent, 5/m", 12, "limits are joined by ;"),
        ("10,000/day", 2, "a comma in a number"),
        ("10/s; 5/fortnight", 8, "unknown unit"),
        (f"{2**62 + 1}/s", 0, "too large"),
        ("9" * 5000 + "/s", 0, "too large"),
        ("1/" + "9" * 5000 + "s", 2, "too long"),
        ("1/1000 weeks; 1/10000 weeks", 16, "146 years"),
        ("1/week burst 999999999999", 0, "smaller burst"),
        ("1 every 5000 weeks", 0, "max_reserved"),
        ("٣/s", 0, "whole number"),
    ],
)
def test_refuses(text: str, position: int, says: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        parse_limit(text)
    error = caught.value
    assert (error.text, error.position) == (text, position)
    assert error.accepted
    assert says in str(error)
    lines = str(error).splitlines()
    assert lines[2] == " " * (4 + position) + "^"
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.text, again.position) == (str(error), text, position)


@given(st.text(alphabet="0123456789_./; persvyburtalignedcomhUTCk-\t", max_size=30))
def test_anything_is_read_or_refused(text: str) -> None:
    refused: InvalidLimit | None = None
    try:
        limit = parse_limit(text)
    except InvalidLimit as error:
        refused = error
    if refused is None:
        assert parse_limit(str(limit)) == limit
    else:
        assert refused.text == text
        assert refused.position is not None
        assert 0 <= refused.position <= len(text)
        assert refused.accepted


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("1.5/s", "write 3/2s"),
        ("0.5 per minute", "write 1/2min"),
        ("2.25/s burst 3", "write 9/4s"),
        ("0.1/s", "write 1/10s"),
        ("5.0/s", "write 5/s"),
        ("1.5 concurrent", "a whole number"),
        ("1.5/fortnight", "such as 3/2s for 1.5/s"),
        ("1.5/month aligned", "such as 3/2s for 1.5/s"),
        ("1.", "such as 3/2s for 1.5/s"),
    ],
)
def test_a_count_with_decimals_is_told_what_to_write(text: str, instead: str) -> None:
    with pytest.raises(InvalidLimit, match="a count has no decimals") as caught:
        parse_limit(text)
    assert (caught.value.position, instead in str(caught.value)) == (0, True)


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (["10/s", "500/minute"], '"10/s; 500/minute", or AllOf("10/s", "500/minute")'),
        (("10/s", Concurrency(5)), '"10/s; 5 concurrent", or AllOf("10/s", "5 concurrent")'),
        ([], 'AllOf("10/s", "5 concurrent")'),
        ([5, None], 'AllOf("10/s", "5 concurrent")'),
    ],
)
def test_a_list_is_told_how_limits_are_joined(value: object, instead: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        as_limit(value)  # type: ignore[arg-type]
    assert instead in str(caught.value)


@pytest.mark.parametrize("value", [5, None, b"1/s"])
def test_only_strings(value: object) -> None:
    with pytest.raises(InvalidLimit, match="a string such as"):
        as_limit(value)  # type: ignore[arg-type]


PLAIN = st.one_of(
    LIMIT,
    st.builds(
        lambda most, strict: Spacing(6, max_reserved=most, strict=strict), st.integers(99, 101), st.booleans()
    ),
    SINGLE.map(AllOf),
)
ANY = st.one_of(PLAIN, st.lists(PLAIN, min_size=1, max_size=3).map(lambda limits: AllOf(*limits)))


@given(ANY)
def test_str_reads_back_or_is_python(limit: Limit) -> None:
    """What the notation cannot say is shown as Python, and never as something that reads back as another limit."""
    if str(limit) == repr(limit):
        with pytest.raises(InvalidLimit):
            parse_limit(str(limit))
        assert eval(str(limit), dict(NAMES)) == limit
    else:
        assert parse_limit(str(limit)) == limit


@given(COUNT, st.integers(1, 2**40).map("{}ns".format))
def test_str_leaves_the_remote_out(count: int, per: str) -> None:
    """`headway explain` and `parse_limit` read what a limiter shows of its limit."""
    limit = Window(count, per=per, remote=Remote(max_transit=3))
    assert parse_limit(str(limit)) == Window(count, per=per)
    assert "Remote(max_transit=3)" in repr(limit)
