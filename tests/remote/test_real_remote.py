"""200 tasks and 32 threads on one limiter, against an API in another process that counts by its own clock."""

import subprocess
import sys

import pytest

from headway.lab.demo.soak import TASKS, THREADS, soak

pytestmark = pytest.mark.realtime


def test_not_one_429():
    result = soak(4, count=100, seed=3)
    assert (TASKS, THREADS) == (200, 32)
    assert (result.refused, result.report.refused, result.report.violations) == (0, 0, 0), result
    assert result.report.accepted == result.calls
    assert 0 < result.by_threads < result.calls
    assert result.report.most_in_window <= 100
    assert result.use > 0.8, result  # 0.99 and more on a machine that is not busy


def test_the_api_would_have_told():
    """The same API, told to allow fewer than the limiter thinks, answers 429: the test above can fail."""
    result = soak(1.5, count=100, allowed=90, seed=3)
    assert result.refused > 0
    assert result.report.violations > 0


def test_the_command():
    command = [sys.executable, "-m", "headway.lab.demo.soak", "--seconds", "0.3", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "200 tasks and 32 threads, 100/s, seed 1" in done.stdout
    assert "answered 429:         0" in done.stdout
    assert "use of the ceiling:" in done.stdout
