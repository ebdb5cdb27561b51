"""The API of the demo judges as strictly as it says; otherwise "no violations" would mean nothing."""

import time

import pytest

from headway.lab.demo.api import SLOW_PPM, TICK_NS, CoarseClock, Meter

SECOND = 10**9


def test_n_pass_and_one_more_is_a_violation():
    meter = Meter(3, SECOND)
    assert [meter.judge(0) for _ in range(3)] == [0, 0, 0]
    assert meter.judge(0) > 0
    assert (meter.report.accepted, meter.report.violations, meter.report.most_in_window) == (3, 1, 4)


def test_both_ends_of_the_window_count():
    meter = Meter(1, SECOND)
    assert meter.judge(0) == 0
    assert meter.judge(SECOND) > 0
    meter = Meter(1, SECOND)
    assert meter.judge(0) == 0
    assert meter.judge(SECOND + 1) == 0


def test_a_violation_closes_the_api_for_a_quarter_of_the_window():
    meter = Meter(1, SECOND)
    meter.judge(0)
    assert meter.judge(SECOND) == SECOND // 4
    assert meter.judge(SECOND + 100) == SECOND // 4 - 100
    assert meter.judge(SECOND + SECOND // 4) == 0
    assert (meter.report.violations, meter.report.refused) == (1, 2)


def test_what_is_refused_does_not_count_against_the_limit():
    meter = Meter(2, SECOND)
    for now in (0, 1, 2, 3, 4):
        meter.judge(now)
    assert meter.look(SECOND).in_window == 2
    assert meter.look(SECOND + 2).in_window == 0


def test_its_clock_is_coarse_and_slow():
    clock = CoarseClock(0)
    start, shown = time.monotonic_ns(), clock.now()
    assert shown % TICK_NS == 0
    clock._start_ns += 10_000 * SECOND
    moved = clock.now() - shown
    true = 10_000 * SECOND + time.monotonic_ns() - start
    assert moved == pytest.approx(true * (1 - SLOW_PPM / 1e6), abs=3 * TICK_NS)
    assert moved < true
