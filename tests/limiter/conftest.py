"""Shared by the tests of the limiter."""

import signal

import pytest


@pytest.fixture
def ctrl_c():
    """`ctrl_c(seconds)` presses it that much later, in this thread; 0 takes it back."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
