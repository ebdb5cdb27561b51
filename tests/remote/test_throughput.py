"""What errors cost, in virtual time: "10/s" against a remote, `max_transit=2`, every call takes 0.1 s.

A permit goes round: it is out until its call ends, then rests for the gap. n permits, each going round in a mean time
of `cycle`, make n / cycle calls a second.

    an answer                        out for the latency:  latency + gap
    an answer that displeases        the same, as it proves that the call was noted
    a time-out                       out for the transit:  transit + gap, however soon the caller gave up

So with a share p of time-outs

    cycle(p)            =  (1 - p) * (latency + gap) + p * (transit + gap)
    throughput over none =  cycle(0) / cycle(p)  =  (latency + gap) / (latency + gap + p * (transit - latency))

which for these figures is 1.12 / (1.12 + 0.1 * 1.9), about 0.855.
"""

import asyncio
import contextlib
import json
import random

import pytest

from headway import Limiter, Remote, throttle
from headway.core.remote import gap_ns, transit_ns
from headway.testing import ManualClock, run

COUNT, LATENCY, SHARE, LONG = 10, 0.1, 0.1, 900
REMOTE = Remote(max_transit=2)

# It is right to warn: 0.1 s of latency at "10/s" leaves 90 % of the rate.
pytestmark = pytest.mark.filterwarnings("ignore:answers take:RuntimeWarning")


def fates():
    """Whether a call fails: one of every ten does, chosen by chance."""
    chance = random.Random(1)
    while True:
        bad = chance.randrange(round(1 / SHARE))
        yield from (number == bad for number in range(round(1 / SHARE)))


def throughput(fault, give_up=LATENCY):
    """Calls a second in a long saturation; one in ten raises `fault`, if there is one."""
    calls = 0
    fails = fates()
    clock = ManualClock(autojump=True, drift_ppm=250.0)
    limiter = Limiter(f"{COUNT}/s", remote=REMOTE, clock=clock)

    @throttle(limiter, timeout=None)
    async def call():
        nonlocal calls
        calls += 1
        if fault is not None and next(fails):
            await asyncio.sleep(give_up)
            raise fault
        await asyncio.sleep(LATENCY)

    async def work():
        while True:
            with contextlib.suppress(TimeoutError, json.JSONDecodeError):
                await call()

    async def main():
        workers = [asyncio.create_task(work()) for _ in range(3 * COUNT)]
        await asyncio.sleep(LONG)
        for worker in workers:
            worker.cancel()
        ends = await asyncio.gather(*workers, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}

    run(main(), clock=clock)
    return calls / LONG


GAP = gap_ns(10**9, REMOTE, 1, 250.0) / 1e9
TRANSIT = transit_ns(REMOTE, 1, 250.0) / 1e9


@pytest.fixture(scope="module")
def undisturbed():
    return throughput(None)


def test_without_errors_it_is_the_ceiling(undisturbed):
    assert undisturbed == pytest.approx(COUNT / (GAP + LATENCY), rel=0.002)


def test_parse_errors_cost_nothing(undisturbed):
    assert throughput(json.JSONDecodeError("no", "", 0)) / undisturbed >= 0.99


@pytest.mark.parametrize("give_up", [0.0, LATENCY, 1.5, 5.0], ids=lambda after: f"after {after} s")
@pytest.mark.filterwarnings("ignore:.*were abandoned:RuntimeWarning")
def test_time_outs_cost_what_the_formula_says(undisturbed, give_up):
    expected = (LATENCY + GAP) / (LATENCY + GAP + SHARE * (TRANSIT - LATENCY))
    assert expected == pytest.approx(0.855, abs=0.001)
    assert throughput(TimeoutError(), give_up=give_up) / undisturbed == pytest.approx(expected, rel=0.01)


def test_time_outs_are_warned_about():
    with pytest.warns(RuntimeWarning, match="were abandoned"):
        throughput(TimeoutError())
