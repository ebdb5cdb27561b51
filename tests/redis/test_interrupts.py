# mypy: disable-error-code="union-attr"
"""A signal's handler that raises, at every point of a call: no permit stays out, and the engine goes on.

Python runs the handlers of signals when a function begins and when a call has returned. A trace function raises at the
first such point of a call, then at the second, and so on until the call ends without it. What was granted and has not
reached its caller goes back; a permit of `Concurrency` that was dropped by then is out for a lease at most. (In a
`with limiter:` block of the interpreted form there is a gap, which `tests/limiter/test_signals.py` states.)

Compiled code is not traced, and runs no handlers: there the points are few.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from struct import pack
from typing import Any

import pytest

from headway import Limiter, Remote, Window
from headway.engines.redis.client import requests
from headway.outcome import Outcome
from waiting import NEVER, wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

LEASE = 0.3
INTERPRETED = requests.__file__.endswith(".py")


class TooLong(Exception):
    pass


class Interrupt:
    """Raises at one point of the calls that are traced."""

    def __init__(self, at):
        self.left = at
        self.where = None

    def __call__(self, frame, event, _):
        if "/headway/" not in frame.f_code.co_filename:
            return None
        if event in ("call", "return"):
            self.left -= 1
            if not self.left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name} {event}"
                sys.settrace(None)
                raise TooLong
        return self


def interrupted(call, at):
    """Where the call was interrupted; None if it has fewer points."""
    interrupt = Interrupt(at)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        call()
    except TooLong:
        pass
    finally:
        sys.settrace(before)
    return interrupt.where


def bare(limiter):
    limiter.acquire().complete()


def trying(limiter):
    limiter.try_acquire().complete()


def block(limiter):
    with limiter.hold():
        pass


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """A permit that was dropped warns."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("call", [bare, trying, block])
def test_a_permit_of_concurrency_is_out_for_a_lease_at_most(valkey, name, call):
    options = {"name": name, "engine_timeout": NEVER}
    limiter = Limiter("9 concurrent", engine=f"{valkey.url}?lease={LEASE}", **options)
    watch = Limiter("9 concurrent", engine=f"{valkey.url}?lease={LEASE}&namespace=headway", **options)
    call(limiter)
    points = 0
    while (where := interrupted(lambda: call(limiter), points + 1)) is not None:
        points += 1
        gc.collect(0)
        wait_until(lambda: watch.peek().in_flight == 0, f"the permit, after an interrupt at {where}")
    assert points > (60 if INTERPRETED else 0)
    begun = time.monotonic()
    permit = limiter.acquire()
    time.sleep(3 * LEASE)  # the worker renews it: no interrupt has left a thread that was never started
    permit.check()
    permit.complete()
    assert time.monotonic() - begun < NEVER
    wait_until(
        lambda: not any(ledger.busy for ledger in limiter._shared.ledgers.registry.all_clients()), "no work"
    )


@pytest.mark.parametrize("call", [bare, trying, block])
def test_what_was_granted_and_is_no_permit_yet_goes_back(valkey, name, call):
    """Of a window with a remote it would be out until `max_transit`, which is long: no lease ends it."""
    limit = Window(900, per=1, remote=Remote(max_transit=600))
    limiter = Limiter(limit, name=name, engine=valkey.url, engine_timeout=NEVER)
    watch = Limiter(limit, name=name, engine=f"{valkey.url}?namespace=headway", engine_timeout=NEVER)
    decisions: list[Any] = []

    class Noted:
        """The limiter's ledgers, whose decisions are noted."""

        def __init__(self, ledgers):
            self.ledgers = ledgers

        def __getattr__(self, name):
            return getattr(self.ledgers, name)

        def send(self, command):
            decision = self.ledgers.send(command)
            decisions.append(decision)
            return decision

    def is_out(decision):
        """A permit without an end counts as abandoned, and a block that is interrupted as it ends abandons its own."""
        return decision.owned and (
            decision.ending is None or decision.ending.command[8:16] == pack("<d", Outcome.ABANDON)
        )

    limiter._shared.ledgers = Noted(limiter._shared.ledgers)
    call(limiter)
    points = 0
    while (where := interrupted(lambda: call(limiter), points + 1)) is not None:
        points += 1
        gc.collect(0)
        # A decision that is freed gives itself back: none is kept here for longer than it has to be.
        decisions[:] = filter(is_out, decisions)
        wait_until(lambda: watch.peek().in_flight == len(decisions), f"what was lost at {where}")
    assert points > (60 if INTERPRETED else 0)
