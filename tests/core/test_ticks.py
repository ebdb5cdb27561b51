"""Rules in ticks: the same algorithm on another clock, never early, exact in the numbers that a script has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.strategies import COMMANDS, KINDS, ns, traced
from core.test_bucket import assert_promise
from core.traces import Player, look, rule_of
from headway.core.ledger import EXACT, FOREVER, Rule
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.notation import parse_limit
from headway.core.remote import Remote, gap_ns, transit_ns
from headway.core.rules import check_exact, rules_of
from headway.errors import InvalidLimit

US = 1_000
S = 10**9

FIELDS = {
    "window": ("gap", "transit", "grid", "out_grid"),
    "bucket": ("whole", "part", "parts", "room", "room_part"),
    "spacing": ("interval", "allowance", "step", "max_reserved", "strict"),
    "fixed_window": (),
    "concurrency": ("lease",),
}


def numbers(rule: Rule) -> dict[str, int]:
    names = ("capacity", "held", "promises", "spaced", "uses_wall_clock", *FIELDS[rule.limit.kind])
    return {name: getattr(rule, name) for name in names}


def slower(limit: Limit, times: int) -> Limit:
    """The same limit with every span so many times as long."""
    match limit:
        case Window():
            far = limit.remote and Remote(
                resolution=ns(limit.remote.resolution_ns * times),
                drift_ppm=limit.remote.drift_ppm,
                out_latency=ns(limit.remote.out_latency_ns * times),
                back_latency=ns(limit.remote.back_latency_ns * times),
                max_transit=ns(limit.remote.max_transit_ns * times),
            )
            return Window(limit.count, per=ns(limit.per_ns * times), remote=far)
        case Bucket():
            return Bucket((limit.count, ns(limit.per_ns * times)), burst=limit.burst)
        case Spacing():
            late = ns((limit.expire_after_ns or 0) * times)
            most, strict = limit.max_reserved, limit.strict
            return Spacing(ns(limit.interval_ns * times), max_reserved=most, expire_after=late, strict=strict)
        case FixedWindow():
            return FixedWindow(limit.count, per=ns(limit.per_ns * times), tz=limit.tz)
        case _:
            return limit


@pytest.mark.parametrize("kind", KINDS)
@settings(traced)
@given(st.data())
def test_a_thousand_times_slower_in_ticks_of_a_thousand_is_the_same(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    lease = data.draw(st.integers(0, 20))
    fine, coarse = rule_of(limit, 1, lease), rule_of(slower(limit, US), US, lease * US)
    assert numbers(fine) == numbers(coarse)
    commands = data.draw(COMMANDS)
    one, other = (
        Player(fine.open(), unit).play(commands),
        Player(coarse.open(), unit).play(commands),
    )
    assert one.log == other.log
    assert look(one) == look(other)
    assert one.ledger.state() == other.ledger.state()


@settings(traced)
@given(st.integers(1, 10**7), st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 1000))
def test_a_gap_and_a_transit_are_rounded_up(per, transit, lease, drift) -> None:
    far = Remote(resolution="16us", max_transit=ns(transit), back_latency="700ns")
    limit = Window(5000, per=ns(per), remote=far)
    rule: Any = rules_of(limit, US, drift, US, lease)[0]
    for span, exact in (
        (rule.gap, gap_ns(per, far, US, drift)),
        (rule.transit, transit_ns(far, US, drift, lease)),
    ):
        assert (span - 1) * US < exact <= span * US
    assert transit_ns(far, US, drift, lease) >= lease + transit_ns(far, US, drift)
    plain: Any = rules_of(Window(5, per=ns(per), remote=False), US, drift, US, lease)[0]
    assert (plain.gap, plain.transit, plain.grid, plain.out_grid) == (-(-per // US), 0, 1, 1)
    usual: Any = rules_of(Window(5, per=ns(per)), US, drift, US, lease)[0]
    strict: Any = rules_of(Window(5, per=ns(per), remote=True), US, drift, US, lease)[0]
    assert usual.numbers() == (*strict.numbers()[:4], 2, plain.gap)


@settings(traced)
@given(st.integers(1, 10**5), st.integers(0, 10**5), st.integers(0, 10**5))
def test_other_spans_are_rounded_up_too(interval, late, lease) -> None:
    rule = rule_of(Spacing(ns(interval), expire_after=ns(late)), US)
    assert (rule.interval, rule.allowance) == (-(-interval // US), -(-late // US))
    assert rule.step == rule.interval + rule.allowance
    assert rule_of(Spacing(ns(interval), expire_after=ns(late), strict=False), US).step == rule.interval
    assert rule_of(Concurrency(3), US, lease).lease == -(-lease // US)


@settings(traced)
@given(st.sampled_from(["7ns", "999ns", "1500ns", "2us", "1s", "day", "month"]), st.integers(0, 10**16))
def test_windows_of_the_calendar_follow_each_other_without_a_gap(per, now) -> None:
    limit = FixedWindow(3, per=per, tz="Europe/Berlin")
    rule = rule_of(limit, US)
    start, end = rule.window_of(now)
    assert start <= now < end
    assert rule.window_of(start) == (start, end) == rule.window_of(end - 1)
    assert rule.window_of(end)[0] == end
    if per in ("1s", "day", "month"):
        assert (start * US, end * US) == limit.window_of(now * US)


ODD_RATES = st.one_of(
    st.sampled_from([(3, "s"), (7, "us"), (1, "3ns"), (7, "3us"), (999, "ms"), (1001, "ms")]),
    st.tuples(st.integers(1, 50), st.integers(1, 20_000).map(ns)),
)


@settings(traced, max_examples=400)
@given(ODD_RATES, st.sampled_from([1, 2, 3, 5, 400]), COMMANDS)
def test_a_bucket_keeps_its_promise_in_ticks_at_odd_rates(rate, burst, commands) -> None:
    limit = Bucket(rate, burst=burst)
    rule = rule_of(limit, US)
    assert (rule.whole * rule.parts + rule.part) * limit.count * US == limit.per_ns * rule.parts
    unit = max(1, limit.per_ns // limit.count // US // 4)
    assert_promise(limit, Player(rule.open(), unit).play(commands).grants, US)


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_three_per_second_do_not_drift_in_microseconds(burst) -> None:
    ledger = rule_of(Bucket("3/s", burst=burst), US).open()
    now = 0
    for grant in range(10_000):
        now += ledger.wait(now, 1)
        ledger.take(now, 1)
        assert now == max(0, -(-(grant + 1 - burst) * 10**6 // 3))


def test_limits_of_several_parts_are_all_in_ticks() -> None:
    limit = parse_limit("10/s; 5/s burst 2; 1 every 6s; 5 concurrent")
    rules: Any = rules_of(limit, US, 1000, US, 30 * S)
    window, bucket, spacing, concurrency = rules
    assert (window.bare_gap, bucket.whole, spacing.step, concurrency.lease) == (
        10**6,
        200_000,
        6 * 10**6,
        30 * 10**6,
    )
    assert {rule.tick_ns for rule in rules} == {US}
    assert window.horizon == EXACT
    assert rule_of(Window(1, per=1)).horizon == FOREVER


LONGEST = EXACT * US  # in ns; it is 142 years

TOO_LARGE = [
    (Window(EXACT + 1, per=1), Window(EXACT, per=1)),
    (Window(1, per=ns(LONGEST + 1), remote=False), Window(1, per=ns(LONGEST), remote=False)),
    (
        Window(1, per=ns(LONGEST // 2), remote=Remote(max_transit=ns(LONGEST // 2))),
        Window(1, per=1, remote=Remote()),
    ),
    (Bucket((1, 1), burst=EXACT // 10**6), Bucket((1, 1), burst=EXACT // 10**6 - 10**4)),
    (Bucket((1, "us"), burst=EXACT // 2 + 1), Bucket((1, "us"), burst=EXACT // 2)),
    (Bucket((7, "us"), burst=EXACT // 7), Bucket((7, "us"), burst=EXACT // 7 - 1)),
    (Bucket((10**9 + 7, 1), burst=10**7), Bucket((10**9 + 7, 1), burst=10**6)),
    (Spacing(1, max_reserved=EXACT // 10**6), Spacing(1, max_reserved=EXACT // 10**6 - 1)),
    (FixedWindow(EXACT + 1, per="day"), FixedWindow(EXACT, per="day")),
    (FixedWindow(1, per=ns(LONGEST + 1)), FixedWindow(1, per=ns(LONGEST))),
    (Concurrency(EXACT + 1), Concurrency(EXACT)),
]


@pytest.mark.parametrize(("large", "fits"), TOO_LARGE)
def test_what_a_double_cannot_hold_is_refused(large, fits) -> None:
    check_exact([rule_of(fits, US)])
    with pytest.raises(InvalidLimit, match=r"exceeds 2\*\*52; accepted: "):
        check_exact([rule_of(fits, US), rule_of(large, US)])


def test_a_lease_may_be_too_long_for_a_double() -> None:
    check_exact([rule_of(Concurrency(1), US, LONGEST)])
    with pytest.raises(InvalidLimit, match="the lease in ticks of 1000 ns exceeds"):
        check_exact([rule_of(Concurrency(1), US, LONGEST + 1)])


def test_a_rate_that_63_bits_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(InvalidLimit, match="in ticks of 1000 ns"):
        rule_of(Bucket((2**61 + 1, 1)), US)
