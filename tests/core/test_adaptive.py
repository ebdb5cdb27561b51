"""The rate of `Adaptive`: bounds, steps, growth; and that no history brings it to a halt."""

import math
from itertools import pairwise
from typing import Any

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from headway.core.adaptive import LONGEST_HORIZON, MARGIN, SECOND, AdaptiveRate


def drive(rate, seconds, limit, *, start=0, latency=0.0, burst=None, steps=None):
    """Send at the rate for so long; a bucket (by default of a second's calls) decides.

    Returns (accepted, refused, end); `steps` gets the times at which the rate went down.
    """
    burst = limit if burst is None else burst
    now, level, accepted, refused = start, burst, 0, 0
    end = start + round(seconds * SECOND)
    while now < end:
        gap = round(SECOND / rate.value)
        now += gap
        level = min(burst, level + limit * gap / SECOND)
        rate.sent(now)
        answered = now + round(latency * SECOND)
        rate.ended(answered - now)
        if level >= 1:
            level -= 1
            accepted += 1
            rate.accepted(answered)
        else:
            refused += 1
            before = rate.value
            rate.refused(answered)
            if steps is not None and rate.value < before:
                steps.append(now)
    return accepted, refused, now


def test_the_rate_finds_a_limit_and_stays_just_below_it():
    rate = AdaptiveRate(1.0, 1.0, 1000.0)
    _, _, now = drive(rate, 60, 50.0)
    accepted, refused, _ = drive(rate, 120, 50.0, start=now)
    assert accepted / (120 * 50.0) >= 0.95
    assert refused / (accepted + refused) <= 0.01


def test_after_a_refusal_the_rate_is_what_was_accepted_less_a_margin():
    rate = AdaptiveRate(100.0, 1.0, 1000.0)
    for call in range(50):
        rate.sent(call * SECOND // 100)
        rate.accepted(call * SECOND // 100)
    sends = rate.value * rate.used
    rate.refused(SECOND // 2)
    # 50 of 51 answers and six more count as accepted
    assert rate.ceiling is not None
    assert 95 < sends < 105
    assert math.isclose(rate.ceiling, sends * 56 / 57, rel_tol=1e-9)
    assert math.isclose(rate.value, rate.ceiling * (1 - MARGIN), rel_tol=1e-9)


def stepped_down(accepted):
    """A rate of about 100/s, with 30 calls accepted, that is refused at the first second; a call takes 0.2 s."""
    rate = AdaptiveRate(100.0, 1.0, 1000.0)
    rate.ended(SECOND // 5)
    for call in range(accepted):
        rate.sent(call * SECOND // 100)
        rate.accepted(call * SECOND // 100)
    before = rate.value * rate.used
    rate.refused(SECOND)
    return rate, before


def test_refusals_of_calls_that_were_on_their_way_are_one_step_from_the_old_rate():
    rate, before = stepped_down(30)
    first = rate.value
    for later in range(1, 25):
        # 0.24 s; a call takes 0.2 s, and a quarter is added
        rate.refused(SECOND + later * SECOND // 100)
    # six answers count as accepted, whatever comes; 25 of 25 were refused
    assert math.isclose(rate.value, before * 6 / 31 * (1 - MARGIN), rel_tol=1e-9)
    stepped = rate.value
    rate.refused(SECOND + 26 * SECOND // 100)
    assert rate.value < stepped < first


def test_a_single_refusal_among_the_answers_on_their_way_changes_nothing():
    rate, before = stepped_down(30)
    first = rate.value
    for later in range(1, 25):
        rate.accepted(SECOND + later * SECOND // 1000)
    rate.refused(SECOND + 25 * SECOND // 1000)
    assert rate.value >= min(first, before * 30 / 32 * (1 - MARGIN))
    assert rate.value > 0.85 * before


def test_after_a_full_window_the_rate_is_what_the_window_had_on_the_whole():
    """A window of 10 s that is halved is full for 5 s; then 5 s of the old rate are in it, which is half of it."""
    rate = AdaptiveRate(1.0, 0.5, 1000.0)
    taken: list[int] = []
    late: list[Any] = []
    limit, now = 200, 0
    while now < 150 * SECOND:
        gap = round(SECOND / rate.value)
        now += gap
        rate.sent(now)
        rate.ended(0)
        taken = [at for at in taken if at > now - 10 * SECOND]
        if len(taken) < (limit if now < 100 * SECOND else limit // 2):
            taken.append(now)
            rate.accepted(now)
        else:
            rate.refused(now)
            late.append(now)
    full = [at for at in late if 100 * SECOND <= at < 106 * SECOND]
    again = [at for at in late if at >= 106 * SECOND]
    assert len(full) < 20
    assert len(again) < 10  # the window did not become full again and again
    assert 8 <= rate.value <= 11


def test_growth_is_slow_near_the_ceiling_and_faster_far_from_it():
    rate = AdaptiveRate(50.0, 1.0, 10_000.0)
    _, _, now = drive(rate, 60, 50.0)
    assert 45 < rate.value < 55
    values, end = [], now + 90 * SECOND
    while now < end and rate.value < 150:
        _, _, now = drive(rate, 0.5, 10_000.0, start=now)
        values.append(rate.value)
    ceiling = rate.ceiling
    assert ceiling is not None
    gains = [after - before for before, after in pairwise(values)]
    near = [gain for gain, value in zip(gains, values, strict=False) if abs(value - ceiling) < 2]
    far = [gain for gain, value in zip(gains, values, strict=False) if value > 1.5 * ceiling]
    assert values[-1] >= 150
    assert max(near) < min(far)


def test_a_stable_remote_is_probed_more_and_more_rarely():
    rate = AdaptiveRate(1.0, 1.0, 1000.0)
    steps: list[int] = []
    drive(rate, 120, 100.0, burst=3.0, steps=steps)
    between = [after - before for before, after in pairwise(steps)]
    assert min(between[-3:]) >= 8 * SECOND
    assert rate.stable >= 3
    assert min(between[:3]) < 5 * SECOND


def test_the_rate_does_not_grow_while_it_is_not_used():
    rate = AdaptiveRate(100.0, 1.0, 1000.0)
    for call in range(1000):  # 10/s of 100/s
        rate.sent(call * SECOND // 10)
        rate.accepted(call * SECOND // 10)
    assert rate.value < 300  # it grew until the first calls had shown how little is used
    settled = rate.value
    for call in range(1000, 5000):
        rate.sent(call * SECOND // 10)
        rate.accepted(call * SECOND // 10)
    assert rate.value == settled
    rate.refused(500 * SECOND)
    assert rate.value < settled / 2


def test_a_remote_that_serves_nothing_is_left_nearly_alone_and_found_again():
    rate = AdaptiveRate(1.0, 1.0, 1000.0)
    _, _, now = drive(rate, 60, 100.0)
    _, refused, now = drive(rate, 60, 0.0, start=now)
    assert refused < 60 + 60  # about one in a second, and what it took to come down
    assert rate.value == 1.0
    _, _, now = drive(rate, 30, 100.0, start=now)
    accepted, _, _ = drive(rate, 30, 100.0, start=now)
    assert accepted > 0.85 * 30 * 100


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "accepted", "refused", "ended", "cycle"]),
        st.one_of(st.integers(0, 10**9), st.integers(0, 10**14), st.just(-(10**9))),
    ),
    max_size=200,
)


@settings(max_examples=300)
@given(EVENTS, st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.booleans())
@example([("accepted", 0), ("sent", 2_047 * SECOND), ("accepted", SECOND)], 1.0, 0.001, 0.001, False)
def test_no_history_leaves_the_bounds_or_breaks_a_number(events, start, one, other, rebound):
    least, most = min(one, other), max(one, other)
    rate = AdaptiveRate(start, least, most)
    now = 0
    for what, step in events:
        now = max(0, now + step)
        if what == "ended":
            rate.ended(step)
        elif what == "cycle":
            rate.sent(now)
            rate.accepted(now)
        else:
            getattr(rate, what)(now)
        assert rate.least <= rate.value <= rate.most
        numbers = [getattr(rate, name) for name in AdaptiveRate.__slots__]
        assert all(math.isfinite(number) for number in numbers if number is not None)
        assert 0 <= rate.used <= 1
        assert rate.horizon <= LONGEST_HORIZON
        assert rate.ceiling is None or least <= rate.ceiling <= most
    if rebound:
        rate.bounded(least * 2, most * 2)
        assert least * 2 <= rate.value <= most * 2


OUTAGE = [("refused", 10 * SECOND)] * 40


# A failure is not shrunk: an example plays five minutes, and hypothesis would try hundreds of them.
@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate], deadline=None)
@given(EVENTS, st.floats(0.5, 5.0), st.floats(20.0, 120.0))
# Exactly at the ceiling, where the curve is flat.
@example([("sent", 0), ("refused", -SECOND), ("accepted", 1), ("sent", 942_857_142)], 2.0, 20.0)
# Nothing was accepted for so long that a long window is the best guess, at the lowest rate there is.
@example([("cycle", SECOND), *OUTAGE[:3], ("cycle", SECOND)], 0.6, 120.0)
@example([("cycle", SECOND), *OUTAGE, ("cycle", SECOND), *OUTAGE[:2], ("cycle", SECOND)], 0.6, 120.0)
def test_no_history_keeps_it_from_finding_the_limit(events, least, limit):
    """There is no stuck state: whatever happened, after five minutes of a steady remote most of its limit is used.

    How much of it is used on the whole is measured in `headway.lab.adaptive`; histories that hypothesis thinks out are
    worse than those of any world.
    """
    rate = AdaptiveRate(least, least, 1000.0)
    now = 0
    for what, step in events:
        now = max(0, now + min(step, 10**10))
        if what == "ended":
            rate.ended(min(max(step, 0), 2 * SECOND))
        elif what == "cycle":
            rate.sent(now)
            rate.accepted(now)
        else:
            getattr(rate, what)(now)
    _, _, now = drive(rate, 300, limit, start=now, latency=0.05)
    accepted, refused, _ = drive(rate, 30, limit, start=now, latency=0.05)
    assert accepted >= 0.85 * 30 * limit
    assert refused <= 0.1 * (accepted + refused)


@settings(max_examples=100)
@given(EVENTS)
def test_an_accepted_call_never_lowers_the_rate_and_a_refused_one_never_raises_it(events):
    rate = AdaptiveRate(10.0, 1.0, 100.0)
    now = 0
    for what, step in events:
        now = max(0, now + step)
        before = rate.value
        if what == "ended":
            rate.ended(step)
            continue
        if what in ("sent", "cycle"):
            rate.sent(now)
            assert rate.value == before
        if what in ("accepted", "cycle"):
            rate.accepted(now)
            assert rate.value >= before * (1 - 1e-9)
        elif what == "refused":
            rate.refused(now)
            assert rate.value <= before
