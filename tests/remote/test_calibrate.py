"""A floor from measurements: never above a share of the fastest, and safe however a round trip splits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import Remote, calibrate
from headway.core.remote import gap_ns, transit_ns
from headway.errors import InvalidArgument

MS = 10**6
EXACT = Remote(resolution=0, drift_ppm=0, max_transit=2)


@given(
    out=st.integers(0, 500 * MS),
    back=st.integers(0, 500 * MS),
    slower=st.lists(st.integers(0, 10**9), min_size=20, max_size=40),
    keep=st.sampled_from([0, 0.1, 0.5, 0.9]),
)
def test_it_is_safe_for_every_split(out, back, slower, keep):
    """Each way has a floor of its own, and one of the round trips came down to both. Clocks are perfect here."""
    trips = [f"{out + back + extra}ns" if out + back + extra else 0 for extra in [0, *slower]]
    remote = calibrate(trips, keep=keep, remote=EXACT).remote
    per = 10**9
    gap, transit = max(0, gap_ns(per, remote, 0, 0)), transit_ns(remote, 0, 0)
    # Answered at 0, so noted at -back at the latest; the next is sent after the gap and noted out later.
    assert gap + out - -back >= per
    # Abandoned: sent at 0, noted at max_transit at the latest.
    assert transit + gap + out - remote.max_transit_ns >= per


def test_a_split_in_halves_would_not_be_safe():
    """Why all of it is back_latency: an abandoned permit relies on out_latency, which may be next to nothing."""
    remote = Remote(resolution=0, drift_ppm=0, max_transit=2, out_latency=0.05, back_latency=0.05)
    out = 0  # of a round trip of 100 ms, all on the way back
    assert transit_ns(remote, 0, 0) + gap_ns(10**9, remote, 0, 0) + out - remote.max_transit_ns < 10**9


def test_what_is_known_of_the_remote_stays():
    known = Remote(resolution=1, drift_ppm=600, max_transit=30, out_latency=0.3, back_latency=0.4)
    found = calibrate([0.1] * 20, remote=known)
    assert found.remote == Remote(resolution=1, drift_ppm=600, max_transit=30, back_latency=0.05)
    assert (found.count, found.floor) == (20, 0.05)
    assert known.out_latency_ns == 300 * MS


def test_it_explains_itself():
    text = calibrate([0.04] * 19 + [0.03]).explain()
    assert "20 round trips, the fastest 30 ms" in text
    assert "50% of it, 15 ms" in text
    assert "rests 1.0015 s after an answer, instead of 1.01651 s" in text
    assert max(map(len, text.splitlines())) <= 120
    assert "a window of 60 s" in calibrate([0.04] * 20).explain("minute")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([0.1] * 19,), "round_trips"),
        ((["soon"] * 20,), "round_trips"),
        (([0.1] * 20 + [-0.1],), "round_trips"),
        (([0.1] * 20 + [float("nan")],), "round_trips"),
        (([True] * 20,), "round_trips"),
        ((5,), "round_trips=5 is not accepted; give a list of 20 or more, in seconds"),
        (("5",), "round_trips='5' is not accepted; give a list of 20 or more, in seconds"),
        ((None,), "round_trips=None"),
    ],
)
def test_what_is_no_measurement(arguments, named):
    with pytest.raises(InvalidArgument, match=named):
        calibrate(*arguments)


@pytest.mark.parametrize(
    "options", [{"keep": 1}, {"keep": -0.1}, {"keep": float("nan")}, {"keep": True}, {"remote": 1}]
)
def test_what_is_no_option(options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        calibrate([0.1] * 20, **options)


def test_explain_wants_a_window():
    with pytest.raises(InvalidArgument, match="per"):
        calibrate([0.1] * 20).explain(0)


def test_presets_are_what_their_sources_say():
    assert Remote.milliseconds() == Remote(resolution=0.001, drift_ppm=600)
    assert Remote.whole_seconds(max_transit=3) == Remote(resolution=1, drift_ppm=600, max_transit=3)
    assert gap_ns(10**9, Remote.milliseconds(), 1, 250) < gap_ns(10**9, Remote(), 1, 250)
    assert gap_ns(10**9, Remote.whole_seconds(), 1, 250) > 2 * 10**9
