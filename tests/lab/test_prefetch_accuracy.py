"""How close prefetching comes to a server's limit: with the traffic of the original's tests, and beyond."""

import subprocess
import sys
from bisect import bisect_left

import pytest

from headway.lab.prefetch.accuracy import CASES, DELAY, Case, play, run
from headway.lab.prefetch.clients import SECOND
from headway.lab.prefetch.servers import FixedWindowServer

# What the original's own tests allow it to be away from the limit or the demand, in percent; the order is that of the
# cases. The refilling server there loses fractions of a token, so only what does not depend on that is compared.
PUBLISHED = {
    ("fixed", 1200, 1): (0.0, 0.6, 0.15),
    ("fixed", 20, 1): (17, 8, 24),
    ("fixed", 1200, 2): (0.01, 1, 0.18),
    ("fixed", 20, 2): (29, 25, 25),
    ("refilling", 1200, 1): (0.0, 0.0, None),
    ("refilling", 1200, 2): (0.01, 0.0, None),
}


def name(case):
    return str(case).replace(" ", "_")


def of_original(case):
    return len(case.demands) > 1 or case.demand in (1100, 18)


def test_there_are_the_cases_of_the_original_and_more():
    assert len([case for case in CASES if of_original(case)]) == 24
    assert len(CASES) == 40


@pytest.mark.parametrize("case", [case for case in CASES if of_original(case)], ids=name)
def test_the_original_is_what_was_published(case):
    allowed = PUBLISHED.get((case.server, case.limit, case.clients), (None,) * 3)[len(case.demands) - 1]
    if allowed is None:
        return
    score = play(case, "original")
    expected = min(score.requests, case.limit * case.windows)
    assert abs(score.passed - expected) / expected * 100 <= allowed + 0.01


def most_in_a_window(happened, window):
    """Of the windows that a fixed-window server has counted by."""
    times = happened.times
    return max(
        bisect_left(times, begin + window) - bisect_left(times, begin) for begin, _ in happened.server.windows
    )


@pytest.mark.parametrize("case", CASES, ids=name)
def test_an_optimist_is_as_close_as_the_original_and_never_above_103_percent(case):
    mine, original = play(case, "optimistic").percent, play(case, "original").percent
    assert mine <= 103
    if abs(100 - mine) > abs(100 - original):
        # A window of this server begins with a request. A client that asked a little later in the stretch before has
        # more of a window's permits left for this one. It is not above the limit if no window is.
        assert 100 < mine < 100.3
        assert most_in_a_window(run(case, "optimistic"), case.window_ns) <= case.limit


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_strict_client_is_never_above_the_limit(case):
    happened = run(case, "strict")
    times, limit, window = happened.times, case.limit, case.window_ns
    if isinstance(happened.server, FixedWindowServer):
        for begin, granted in happened.server.windows:
            spent = bisect_left(times, begin + window) - bisect_left(times, begin)
            assert spent <= granted <= limit
    else:
        # Whenever an interval of length d begins: a permit is valid for a window, so what is spent in it was granted
        # within d + window, in which the server grants limit + limit * (d + window) / window at most.
        lowest = 0
        for i, time in enumerate(times):
            lowest = min(lowest, i * window - time * limit)
            assert (i + 1) * window - time * limit - lowest <= 2 * limit * window
        assert len(times) * window <= limit * window + times[-1] * limit


def most_in_any(times, window):
    return max(bisect_left(times, time + window) - i for i, time in enumerate(times))


@pytest.mark.parametrize(
    ("server", "client"), [("fixed", "optimistic"), ("refilling", "optimistic"), ("refilling", "strict")]
)
def test_a_thousand_a_second_pass_nearly_all_of_nine_hundred(server, client):
    """From the first answer on, for a minute. A strict client of a fixed window of a second is without permits for a
    round trip of each, and passes 80 %."""
    happened = run(Case(server, 1000, SECOND, 1, (900,), windows=60, tick_ns=1000), client)
    demand = happened.requests - 180
    passed = len(happened.times) - bisect_left(happened.times, DELAY)
    assert happened.requests == 54_000
    assert passed >= 0.995 * demand
    assert happened.calls <= 150


@pytest.mark.parametrize("server", ["fixed", "refilling"])
def test_a_limit_of_zero_passes_nothing(server):
    case = Case(server, 0, SECOND, 1, (20,))
    assert run(case, "strict").times == []
    assert len(run(case, "optimistic").times) <= 10, "once, on the first fetch"
    assert len(run(case._replace(demands=(200,), windows=100), "optimistic").times) <= 10


def test_ten_in_ten_seconds_are_ten_in_any_ten_seconds():
    times = run(Case("fixed", 10, 10 * SECOND, 1, (1000,)), "strict").times
    assert most_in_any(times, 10 * SECOND) == 10
    assert len(times) == 100


def test_an_optimist_owes_what_it_passes_above_the_limit_to_the_next_window():
    times = run(Case("fixed", 10, 10 * SECOND, 1, (1000,)), "optimistic").times
    assert len(times) <= 110
    assert most_in_any(times, 10 * SECOND) <= 20


def table(*words):
    return subprocess.run(
        [sys.executable, "-m", "headway.lab.prefetch", *words], capture_output=True, text=True, check=False
    )


def test_the_module_prints_the_table():
    lines = table("20/s, 1 client, demand 18").stdout.splitlines()
    assert "strict" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["fixed", "refilling"]
    for line, case in zip(lines[1:], ("fixed", "refilling"), strict=True):
        strict = play(Case(case, 20, SECOND, 1, (18,)), "strict")
        assert f"{strict.percent:.1f}%" in line


def test_the_module_says_what_a_case_is_called():
    refused = table("30/s")
    assert refused.returncode == 2
    assert "no case has '30/s' in its name; one is 'fixed" in refused.stderr
