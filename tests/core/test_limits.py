# mypy: disable-error-code="attr-defined"
"""Limits are values, cannot be built wrong, and know their calendar."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.limits import (
    AllOf,
    Bucket,
    Concurrency,
    FixedWindow,
    Limit,
    Spacing,
    Window,
    as_limit,
)
from headway.core.remote import Remote
from headway.errors import InvalidLimit, RateLimited

S = 10**9
HOUR = 3600 * S

BAD_COUNTS: list[Any] = [-1, 1.5, True, None, "5", float("nan"), float("inf"), 2**62 + 1, [], 5j]
BAD_SPANS: list[Any] = [0, -1, -0.5, True, None, float("nan"), float("inf"), [], "", "5", 1e-10, 1e10]
BAD_SPANS += ["fortnight", timedelta(0), timedelta(seconds=-1), timedelta.max, "60s x", "-1s"]


@pytest.mark.parametrize("value", BAD_COUNTS)
def test_bad_counts(value: Any) -> None:
    builds: list[Callable[[], Limit]] = [
        lambda: Window(value, per=60),
        lambda: Bucket((value, 1)),
        lambda: Bucket("1/s", burst=value),
        lambda: FixedWindow(value, per="day"),
        lambda: Concurrency(value),
        lambda: Spacing(1, max_reserved=value),
    ]
    for build in builds:
        with pytest.raises(InvalidLimit) as caught:
            build()
        assert "an integer from" in caught.value.accepted


@pytest.mark.parametrize("value", BAD_SPANS)
def test_bad_durations(value: Any) -> None:
    for build in (
        lambda: Window(1, per=value),
        lambda: Bucket((1, value)),
        lambda: FixedWindow(1, per=value),
        lambda: Spacing(value),
    ):
        with pytest.raises(InvalidLimit) as caught:
            build()
        assert caught.value.accepted


def test_what_is_no_limit_is_not_called_one() -> None:
    for build in (
        lambda: Window(1, per="5 minuts"),
        lambda: Bucket((1, "5 minuts")),
        lambda: FixedWindow(1, per="5 minuts"),
        lambda: Spacing(6, expire_after="5 minuts"),
    ):
        with pytest.raises(InvalidLimit, match=r"^invalid duration '5 minuts', position 2: unknown unit"):
            build()
    with pytest.raises(InvalidLimit, match=r"^invalid rate '5/minuts', position 2"):
        Bucket("5/minuts")


@pytest.mark.parametrize(
    ("value", "ns"),
    [(60, 60 * S), (0.1, S // 10), (1e-9, 1), (timedelta(milliseconds=5), 5_000_000), ("250ms", S // 4)],
)
def test_durations_become_exact_nanoseconds(value: Any, ns: int) -> None:
    assert Window(1, per=value).per_ns == ns
    assert Spacing(value).interval_ns == ns


def test_window_months_and_other_mistakes() -> None:
    with pytest.raises(InvalidLimit, match="a month is no fixed duration"):
        Window(1, per="month")
    with pytest.raises(InvalidLimit, match="a Remote"):
        Window(1, per=1, remote=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="drift_ppm"):
        Window(1, per=10**9, remote=Remote(drift_ppm=999_999.999))
    with pytest.raises(InvalidLimit, match="at least one"):
        AllOf()
    with pytest.raises(InvalidLimit, match="True or False"):
        Spacing(1, strict=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="an argument of its own"):
        Bucket("1/s burst 5")
    with pytest.raises(InvalidLimit, match="100/s"):
        Bucket(5)  # type: ignore[arg-type]


def test_a_window_says_when_its_permits_count() -> None:
    windows = [Window(5, per=1, remote=remote) for remote in (None, False, True, Remote(max_transit=3))]
    assert [window.remote for window in windows] == [None, False, Remote(), Remote(max_transit=3)]
    assert len(set(windows)) == 4
    assert windows[0] == as_limit("5/s") != windows[1]
    assert windows[2] == Window(5, per=1, remote=Remote())
    assert [eval(repr(window)) for window in windows] == windows
    assert [window.share(0.4).remote for window in windows] == [window.remote for window in windows]


def test_bucket_arithmetic_fits_63_bits() -> None:
    assert Bucket((2**31, 1), burst=2**31).capacity == 2**31
    with pytest.raises(InvalidLimit, match="a smaller burst or a higher rate"):
        Bucket("1/day", burst=10**6)
    with pytest.raises(InvalidLimit, match="a rounder count"):
        Bucket((2**61 + 1, 1), burst=4)
    assert Bucket((2**61 // S * S, 1), burst=4).burst == 4  # the same size, and a multiple of the nanoseconds


@given(st.integers(0, 2**62), st.integers(1, 2**62), st.integers(1, 2**62))
def test_every_bucket_that_is_built_fits(count: int, per_ns: int, burst: int) -> None:
    try:
        bucket = Bucket((count, f"{per_ns}ns"), burst=burst)
    except InvalidLimit:
        assert burst * max(count, per_ns // count + 1) > 2**62
    else:
        assert not bucket.count or burst * bucket.per_ns <= bucket.count * 2**62


def test_capacity_and_kind() -> None:
    limits = [Window(7, per=1), Bucket("9/s", burst=4), Bucket("0/s", burst=4), Spacing(1)]
    limits += [FixedWindow(8, per="day"), Concurrency(0)]
    assert [limit.capacity for limit in limits] == [7, 4, 0, 1, 8, 0]
    assert AllOf("7/s", "5 concurrent").capacity == 5
    kinds = {limit.kind for limit in (*limits, AllOf("1/s"))}
    assert kinds == {"window", "bucket", "spacing", "fixed_window", "concurrency", "all_of"}
    with pytest.raises(TypeError):
        Limit()  # type: ignore[abstract]


VALUES: list[Limit] = [
    Window(100, per=60),
    Window(100, per=60, remote=Remote()),
    Window(3, per=0.25, remote=Remote(resolution=0.001, drift_ppm=0.5)),
    Bucket("100/s", burst=20),
    Spacing(6),
    Spacing(6, max_reserved=0, expire_after=0.06, strict=False),
    FixedWindow(5, per="day", tz="Europe/Berlin"),
    FixedWindow(5, per="month"),
    Concurrency(5),
    AllOf("10/s"),
    AllOf("10/s", "5 concurrent"),
]


@pytest.mark.parametrize("limit", VALUES, ids=str)
def test_values(limit: Limit) -> None:
    again = eval(repr(limit))
    assert again == limit == pickle.loads(pickle.dumps(limit))
    assert hash(again) == hash(limit)
    assert sum(limit == other for other in VALUES) == 1
    assert not hasattr(limit, "__dict__")
    with pytest.raises(AttributeError):
        setattr(limit, fields(limit)[0].name, 1)  # type: ignore[arg-type]


def test_all_of_is_flat_and_keeps_its_order() -> None:
    assert AllOf("1/s", AllOf("2/s", AllOf("3/s"))).limits == tuple(Window(n, per=1) for n in (1, 2, 3))


def ns(moment: datetime) -> int:
    return int(moment.timestamp()) * S


def local(*parts: int, tz: str = "Europe/Berlin") -> int:
    return ns(datetime(*parts, tzinfo=ZoneInfo(tz)))  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("day", "hours"), [(date(2024, 3, 31), 23), (date(2024, 10, 27), 25), (date(2024, 6, 1), 24)]
)
def test_days_where_clocks_change(day: date, hours: int) -> None:
    start = local(day.year, day.month, day.day)
    daily = FixedWindow(1, per="day", tz="Europe/Berlin")
    for moment in (start, start + 1, start + hours * HOUR - 1):
        assert daily.window_of(moment) == (start, start + hours * HOUR)
    assert daily.window_of(start - 1)[1] == start


def test_part_of_a_day_is_cut_at_midnight() -> None:
    midnight = local(2024, 3, 31)
    limit = FixedWindow(1, per="3h", tz="Europe/Berlin")
    assert limit.window_of(midnight + 22 * HOUR) == (midnight + 21 * HOUR, midnight + 23 * HOUR)
    assert limit.window_of(midnight + 23 * HOUR)[0] == midnight + 23 * HOUR


def test_weeks_begin_on_monday_and_months_on_the_first() -> None:
    wednesday = local(2024, 10, 30, 12)
    week = FixedWindow(1, per="week", tz="Europe/Berlin").window_of(wednesday)
    assert week == (local(2024, 10, 28), local(2024, 11, 4))
    month = FixedWindow(1, per="month", tz="Europe/Berlin")
    assert month.window_of(wednesday) == (local(2024, 10, 1), local(2024, 11, 1))
    assert month.window_of(local(2024, 2, 29)) == (local(2024, 2, 1), local(2024, 3, 1))
    assert month.window_of(local(2024, 12, 31, 23)) == (local(2024, 12, 1), local(2025, 1, 1))


def test_what_fits_no_day_counts_from_the_epoch() -> None:
    moment = ns(datetime(2024, 5, 5, tzinfo=UTC)) + 17
    start, end = FixedWindow(1, per="5h", tz="Europe/Berlin").window_of(moment)
    assert start % (5 * HOUR) == 0
    assert end == start + 5 * HOUR


ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "America/Sao_Paulo", "America/Havana", "Pacific/Apia"]
PERIODS = ["day", "2d", "week", "month", "3h", "90min", "5h", "250ms", "7ns"]


@given(st.integers(-(10**18), 4 * 10**18), st.sampled_from(ZONES), st.sampled_from(PERIODS))
def test_windows_tile_time(wall: int, zone: str, per: str) -> None:
    limit = FixedWindow(1, per=per, tz=zone)
    start, end = limit.window_of(wall)
    assert start <= wall < end
    assert limit.window_of(start) == limit.window_of(end - 1) == (start, end)
    assert limit.window_of(end)[0] == end
    assert limit.window_of(start - 1)[1] == start


def test_midnight_twice_or_never() -> None:
    # St. John's set its clocks back at 00:01 on 7 November 2010, Apia left out 30 December 2011.
    for zone, around in (("America/St_Johns", (2010, 11, 7)), ("Pacific/Apia", (2011, 12, 30))):
        limit = FixedWindow(1, per="day", tz=zone)
        middle = ns(datetime(*around, tzinfo=UTC))
        for minute in range(-36 * 60, 36 * 60):
            start, end = limit.window_of(middle + minute * 60 * S)
            assert start <= middle + minute * 60 * S < end
            assert end - start in (24 * HOUR, 25 * HOUR)


@pytest.mark.parametrize("tz", ["Europe/Berln", "europe", "Europe", "../etc/passwd", "", None, 2, "Mars/X"])
def test_unknown_zones(tz: Any) -> None:
    with pytest.raises(InvalidLimit, match="pip install tzdata"):
        FixedWindow(1, per="day", tz=tz)


def test_reads_well_in_an_error() -> None:
    text = str(RateLimited(0.25, limit=Window(100, per=60), key="u1"))
    assert text == "rate limited: 100/minute for key 'u1'; retry in 0.25 s"
