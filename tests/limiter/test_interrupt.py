"""Ctrl-C at any moment, in the compiled form: interpreted, it may come between any two lines, also inside the lock."""

import random
import time

import pytest

import headway
from headway import Limiter


@pytest.mark.realtime
@pytest.mark.filterwarnings("ignore:.*dropped without an end:ResourceWarning")
@pytest.mark.parametrize("limit", ["1 concurrent; 3000/s burst 1", "3000/s burst 1", "1 concurrent"])
def test_ctrl_c_at_any_moment_loses_nothing(ctrl_c, limit):
    limiter = Limiter(limit)
    dice = random.Random(5)
    interrupts = 0
    permit = None

    def work():
        """In a function of its own: Python 3.13 does not catch what comes while a loop jumps back inside a `try`."""
        nonlocal permit
        ctrl_c(dice.uniform(0.00002, 0.001))
        # An interrupt that comes inside a finalizer is lost, as Python has it: then nothing ends this but the clock.
        until = time.monotonic() + 1
        while time.monotonic() < until:
            permit = limiter.acquire()
            permit.complete()

    for _ in range(300 if headway.compiled else 0):
        try:
            work()
        except KeyboardInterrupt:
            interrupts += 1
            if permit is not None and permit.ended is None:
                permit.complete()
        # A place that was lost would hold up everybody after it.
        assert limiter.stats().waiting == 0, f"after {interrupts} interrupts"
    ctrl_c(0)
    assert limiter.peek().in_flight == 0
