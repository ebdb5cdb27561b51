"""The gap: exact, rounded up, and monotone in everything it depends on."""

from __future__ import annotations

import pickle
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.remote import Remote, gap_ns, transit_ns
from headway.errors import InvalidArgument

NS = st.integers(0, 10**15)
PPM = st.integers(0, 999_999)
PARTS = ("per", "resolution", "drift", "out", "back", "local_resolution", "local_drift")
INPUTS = st.fixed_dictionaries(
    {name: PPM if "drift" in name else NS.filter(bool) if name == "per" else NS for name in PARTS}
)


def remote_of(v: dict[str, int]) -> Remote:
    return Remote(
        resolution=f"{v['resolution']}ns" if v["resolution"] else 0,
        drift_ppm=v["drift"],
        out_latency=f"{v['out']}ns" if v["out"] else 0,
        back_latency=f"{v['back']}ns" if v["back"] else 0,
    )


def gap_of(v: dict[str, int]) -> int:
    return gap_ns(v["per"], remote_of(v), v["local_resolution"], v["local_drift"])


def exact_gap(v: dict[str, int]) -> Fraction:
    re, le = Fraction(v["drift"], 10**6), Fraction(v["local_drift"], 10**6)
    true = Fraction(v["per"] + v["resolution"]) / (1 - re) - v["out"] - v["back"]
    return true * (1 + le if true >= 0 else 1 - le) + v["local_resolution"]


@given(INPUTS)
def test_rounds_up_and_by_less_than_one(v: dict[str, int]) -> None:
    assert 0 <= gap_of(v) - exact_gap(v) < 1


@given(INPUTS, st.sampled_from(PARTS), st.integers(1, 10**12))
def test_monotone(v: dict[str, int], name: str, more: int) -> None:
    top = 999_999 if "drift" in name else 10**16
    larger = v | {name: min(v[name] + more, top)}
    if name in ("out", "back"):
        assert gap_of(larger) <= gap_of(v)
    else:
        assert gap_of(larger) >= gap_of(v)


def test_perfect_clocks_need_the_window_alone() -> None:
    assert gap_ns(10**9, Remote(resolution=0, drift_ppm=0), 0, 0) == 10**9


def test_both_cases_meet_at_zero_and_differ_below() -> None:
    floor = Remote(resolution=0, drift_ppm=0, out_latency=0.5, back_latency=0.5)
    assert gap_ns(10**9, floor, 7, 250) == 7
    longer = Remote(resolution=0, drift_ppm=0, out_latency=1, back_latency=1)
    assert (
        gap_ns(10**9, longer, 0, 1000) == -999_000_000
    )  # the first case would say -1_001_000_000: too early


@given(NS, NS, NS, PPM)
def test_transit(transit: int, back: int, tick: int, ppm: int) -> None:
    remote = Remote(max_transit=timedelta(microseconds=transit), back_latency=timedelta(microseconds=back))
    exact = (transit + back) * 1000 * (1 + Fraction(ppm, 10**6)) + tick
    assert 0 <= transit_ns(remote, tick, ppm) - exact < 1


def test_decimals_are_taken_as_written() -> None:
    assert Remote(resolution=0.1).resolution_ns == 100_000_000
    assert gap_ns(10**10, Remote(resolution=0, drift_ppm=0), 0, 0.1) == 10**10 + 1000


def test_defaults() -> None:
    r = Remote()
    assert (r.resolution_ns, r.drift_ppm, r.max_transit_ns) == (16_000_000, 250, 10 * 10**9)
    assert r.out_latency_ns == r.back_latency_ns == 0
    assert repr(r) == "Remote()"


@given(NS, st.one_of(PPM, st.floats(0, 999_999)), NS)
def test_value_object(tick: int, ppm: float, transit: int) -> None:
    remote = Remote(resolution=tick / 10**9, drift_ppm=ppm, max_transit=timedelta(microseconds=transit))
    again = eval(repr(remote), {"Remote": Remote})
    assert again == remote == pickle.loads(pickle.dumps(remote))
    assert hash(again) == hash(remote)


def test_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        Remote().drift_ppm = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Remote(0.016)  # type: ignore[call-arg]


BAD_SPAN: list[Any] = [
    -1,
    -0.5,
    float("nan"),
    float("inf"),
    True,
    None,
    [],
    timedelta(seconds=-1),
    1e12,
    "soon",
]
BAD_PPM: list[Any] = [-1, 10**6, 1e6, float("nan"), float("inf"), True, None, "250"]


@pytest.mark.parametrize("name", ["resolution", "out_latency", "back_latency", "max_transit"])
@pytest.mark.parametrize("value", BAD_SPAN)
def test_bad_spans(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Remote(**{name: value})
    assert caught.value.argument == name
    assert caught.value.accepted


@pytest.mark.parametrize("value", BAD_PPM)
def test_bad_drift(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="drift_ppm"):
        Remote(drift_ppm=value)
    with pytest.raises(InvalidArgument, match="local_drift_ppm"):
        gap_ns(10**9, Remote(), 1, value)
