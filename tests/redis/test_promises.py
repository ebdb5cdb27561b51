"""A reserved permit that another process spends: the slot is its own, moves with pauses, and is worth nothing late."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import pytest

from headway import Bucket, InvalidArgument, Limiter, Spacing
from headway.errors import InvalidUse, PermitExpired, PermitFinished
from headway.limiter.promises import hand_over, lateness, redeem, redeem_async
from waiting import NEVER

pytestmark = pytest.mark.realtime


@pytest.fixture
def make(server, name, connect):
    made = []

    def make(limit, **options):
        engine = connect(f"{server.url}?lease=120")
        made.append(Limiter(limit, name=name, engine=engine, engine_timeout=10, **options))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def reserved(limiter, key=None, cost=1):
    """A permit for later: what is there now is taken first."""
    while not (permit := limiter.reserve(key, cost=cost)).delay:
        pass
    return permit


def test_another_process_spends_it_at_the_promised_time(make, server, name):
    limiter = make("2/s burst 1")
    permit = reserved(limiter)
    slot = time.monotonic() + permit.delay
    script = f"""
import sys, time
from headway import Limiter
from headway.limiter.promises import redeem
limiter = Limiter("2/s burst 1", name={name!r}, engine={server.url!r}, engine_timeout=10)
with redeem(limiter, sys.argv[1]) as permit:
    print(time.monotonic(), permit.delay, limiter.stats().granted)
"""
    command = [sys.executable, "-c", script, hand_over(permit)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=NEVER, check=True).stdout.split()
    assert float(shown[0]) >= slot - 0.001
    assert shown[1:] == ["0.0", "0"]  # it was granted where it was reserved


@pytest.mark.parametrize("limit", ["1/hour burst 1", "1 every 1h"])
def test_a_promise_keeps_its_slot_key_and_cost(make, limit):
    limiter = make(limit)
    permit = reserved(limiter, "alice")
    promise = hand_over(permit)
    again = redeem(limiter, promise)
    assert again.delay == pytest.approx(3600, rel=0.02)
    assert (again.key, again.cost) == ("alice", 1)
    assert lateness(again) == pytest.approx(-again.delay, rel=0.02)
    # Nothing was taken twice, and the next one comes after it.
    assert limiter.reserve("alice").delay == pytest.approx(7200, rel=0.03)


def test_a_task_redeems_as_a_thread_does(make):
    limiter = make("1/hour burst 1")
    promise = hand_over(reserved(limiter))
    assert asyncio.run(redeem_async(limiter, promise)).delay == pytest.approx(3600, rel=0.02)


def test_the_cost_of_a_promise(make):
    limiter = make(Bucket("10/hour", burst=5))
    again = redeem(limiter, hand_over(reserved(limiter, cost=3)))
    assert again.cost == 3
    again.cancel()


def test_a_pause_moves_the_slot(make):
    limiter = make("1/hour burst 1")
    promise = hand_over(reserved(limiter))
    limiter.pause(1800)
    assert redeem(limiter, promise).delay == pytest.approx(3600 + 1800, rel=0.02)


def test_it_is_late_and_then_over(make):
    limiter = make(Spacing(0.2, expire_after="2s"))
    promise = hand_over(reserved(limiter))
    permit = redeem(limiter, promise)
    time.sleep(permit.delay)
    permit = redeem(limiter, promise)  # it was not used before
    assert lateness(permit) > 0
    time.sleep(2)
    with pytest.raises(PermitExpired):
        permit.check()
    with pytest.raises(PermitExpired):
        redeem(limiter, promise)


def test_a_ledger_that_was_lost_owes_nothing(make, server, connect):
    limiter = make("1/hour burst 1", on_ledger_loss="trust")
    promise = hand_over(reserved(limiter))
    server.clean()
    with pytest.raises(PermitExpired):
        redeem(limiter, promise)


def test_a_permit_that_was_handed_over_is_done_with(make):
    permit = reserved(make("1/hour burst 1"))
    hand_over(permit)
    with pytest.raises(PermitFinished):
        hand_over(permit)
    with pytest.raises(PermitFinished):
        permit.cancel()


def test_what_is_no_promise(make, name):
    limiter = make("1/hour burst 1")
    told, key, cost, promised = json.loads(hand_over(reserved(limiter)))
    before = limiter.peek().retry_after
    for wrong in (
        "", "nonsense", "[]", None, json.dumps(["another", key, cost, promised]), json.dumps([told, key, cost, 5]),
        json.dumps([told, key, cost, promised[2:]]), json.dumps([told, key, cost, promised + " inf"]),
        json.dumps([told, key, cost, promised.rsplit(" ", 1)[0] + " nan"]), json.dumps([told, key, 0, promised]),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            redeem(limiter, wrong)  # type: ignore[arg-type]
    assert limiter.peek().retry_after == pytest.approx(before, abs=60)


def test_in_memory_a_promise_stays_where_it_is():
    limiter = Limiter("1/hour burst 1")
    with pytest.raises(InvalidUse):
        hand_over(reserved(limiter))
    with pytest.raises(InvalidUse):
        redeem(limiter, "[]")
