"""The adversary finds nothing: thousands of worlds, every window audited, not one too many."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest

from headway.core.remote import Remote, gap_ns, transit_ns
from headway.lab import World, audit, draw, run_world, shrink, tell
from headway.lab.clocks import BILLION, Skewed
from headway.lab.faults import FATES
from headway.lab.tasks import run_tasks

CHUNK = 300


@pytest.mark.parametrize("first", range(0, 7 * CHUNK, CHUNK))
def test_no_world_breaks_the_promise(first):
    for seed in range(first, first + CHUNK):
        outcome = run_world(draw(seed, events=400))
        if outcome.verdict.violations:
            small = shrink(outcome.world)
            pytest.fail(f"seed {seed}\n{tell(run_world(small, trace=True))}")


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_tasks_that_are_cancelled_at_any_await(first):
    cancelled = 0
    for seed in range(first, first + 20):
        world = draw(seed, events=80)
        verdict, crew = run_tasks(world)
        cancelled += crew.cancelled
        assert verdict.violations == 0, world.changed()
    assert cancelled > 100


def test_the_draw_reaches_the_corners():
    worlds = [draw(seed) for seed in range(2_000)]
    assert {fault for world in worlds for fault in world.faults} == set(FATES)
    corners = {
        "a tick as wide as the window": lambda w: w.rr >= w.per,
        "our tick as wide as the window": lambda w: w.lr >= w.per,
        "floors beyond the window": lambda w: w.out + w.back > (w.per + w.rr) * 10**6 // (10**6 - w.re_ppm),
        "a clock without ticks": lambda w: w.rr == 0,
        "honest clocks": lambda w: w.re_ppm == w.le_ppm == 0,
        "clocks at the edge": lambda w: w.local_rates == ((0, BILLION + 1000 * w.le_ppm),) and w.le_ppm > 0,
        "clocks that change": lambda w: len(w.remote_rates) > 1,
        "no time to spare": lambda w: w.max_transit == w.out,
        "restarts in flight": lambda w: w.restart_every and w.max_transit > w.per,
        "the ledger's grid": lambda w: w.n > 1024,
        "one permit": lambda w: w.n == 1,
        "weights": lambda w: w.cost > 1,
        "keys": lambda w: w.key,
        "early and late sleeps": lambda w: w.nap_error,
        "bursts": lambda w: w.bursts,
        "by public promises only": lambda w: w.public,
    }
    missing = [name for name, is_there in corners.items() if not any(map(is_there, worlds))]
    assert not missing


def test_hard_worlds_are_not_rare():
    """Worlds with weights, keys and long ledgers are the slow ones; to leave them out is the easy way to be fast."""
    worlds = [draw(seed) for seed in range(2_000)]
    least = {
        "weights": (0.15, lambda w: w.cost > 1),
        "all permits at once": (0.03, lambda w: w.cost == w.n > 1),
        "keys": (0.2, lambda w: w.key),
        "bursts": (0.12, lambda w: w.bursts),
        "the ledger's grid": (0.03, lambda w: w.n > 1024),
        "weights on the grid": (0.005, lambda w: w.n > 1024 and w.cost > 1),
        "restarts": (0.15, lambda w: w.restart_every),
        "faults": (0.6, lambda w: w.fault_every),
    }
    shares = {name: sum(map(bool, map(is_one, worlds))) / len(worlds) for name, (_, is_one) in least.items()}
    assert {name: share for name, share in shares.items() if share < least[name][0]} == {}


def test_a_seed_is_a_world():
    first, again = (run_world(draw(5, events=200), trace=True) for _ in range(2))
    assert first.log == again.log
    # A world that is pasted from a report runs the same.
    pasted = eval(first.world.changed(), {"World": World})
    assert run_world(pasted, trace=True).log == first.log
    assert run_world(first.world).verdict == first.verdict


def test_the_ceiling_is_reached():
    """With nothing in the way, nearly every permit is used again as soon as it may be."""
    for latency in (0, 50_000_000):
        world = World(
            seed=1,
            events=5_000,
            n=10,
            workers=40,
            local_phase=10**12,
            back=0,
            back_more=latency,
            spread="edges",
        )
        assert 0.995 <= run_world(world).share <= 1


def throughput(**faults):
    """Requests per second of a saturated 10/s with answers after 50 ms, and the share of faults that it had."""
    spans: dict[str, Any] = {
        "max_transit": 2 * BILLION,
        "back": 0,
        "out_more": 0,
        "back_more": 50_000_000,
        "spread": "edges",
    }
    world = World(seed=1, events=10_000, workers=40, local_phase=10**12, timeout=BILLION, **spans, **faults)
    outcome = run_world(world, trace=True)
    assert outcome.verdict.violations == 0
    log = outcome.log or []
    share = sum(entry[3] != "completed" for entry in log) / len(log)
    return (len(log) - 10) / (outcome.elapsed / 1e9), share


def test_parse_errors_cost_nothing_and_time_outs_what_the_formula_says():
    usual, _ = throughput()
    parsed, share = throughput(faults=("parse",), fault_every=10)
    assert 0.09 < share < 0.11
    assert parsed / usual >= 0.99
    timed_out, share = throughput(faults=("mute",), fault_every=10)
    assert 0.09 < share < 0.11
    # A permit is out for 25 ms on average, or for a whole transit, and then cools for a gap.
    remote = Remote(max_transit=2)
    gap, transit = gap_ns(BILLION, remote, 1, 250) / 1e9, transit_ns(remote, 1, 250) / 1e9
    formula = 10 / (gap + (1 - share) * 0.025 + share * transit)
    assert timed_out == pytest.approx(formula, rel=0.01)


def test_clocks_keep_the_bound_of_the_proof():
    rng = Random(2)
    for seed in range(200):
        world = draw(seed)
        for clock, ppm in ((world.local_clock(), world.le_ppm), (world.remote_clock(), world.re_ppm)):
            if not clock.tick:
                continue
            one, other = sorted(rng.randrange(1, 10**6) * clock.tick + clock.reading(0) for _ in range(2))
            true, measured = clock.when(other) - clock.when(one), other - one
            # A pulse starts within the nanosecond before `when`.
            error = Fraction(ppm, 10**6)
            assert (1 - error) * (true - 1) <= measured <= (1 + error) * (true + 1)


def test_when_is_the_first_moment_of_a_reading():
    clock = Skewed(
        tick=7, phase=3 * BILLION, rates=((0, 900_000_000), (1_000, 1_100_000_000), (5_000, 10**9))
    )
    for reading in range(7, 9_000, 7):
        t = clock.when(reading)
        assert clock.reading(t) >= reading
        assert t == 0 or clock.reading(t - 1) < reading


def test_many_readings_are_the_single_ones():
    rng = Random(3)
    for seed in range(200):
        world = draw(seed)
        times = sorted(rng.randrange(10 * world.per * world.events) for _ in range(50))
        for clock in (world.local_clock(), world.remote_clock()):
            assert clock.readings(times) == [clock.reading(t) for t in times]


def test_the_audit_looks_at_every_window():
    rng = Random(4)
    for _ in range(1_000):
        n = rng.randrange(1, 6)
        world = World(
            seed=0, n=n, per=rng.randrange(1, 40), rr=rng.choice((0, 1, 5)), cost=rng.randrange(1, n + 1)
        )
        arrivals = [rng.randrange(200) for _ in range(rng.randrange(12))]
        verdict = audit(world, arrivals)
        clock = world.remote_clock()
        span = world.per * (1 if world.rr else BILLION)
        readings = sorted(map(clock.reading, arrivals))
        assert verdict.readings == tuple(readings)
        counts = [
            sum(world.cost for reading in readings if start <= reading <= start + span) for start in readings
        ]
        assert (verdict.violations > 0) == any(count > world.n for count in counts)
        # Of the arrivals that share a full window with it, the last is one too many.
        ends = [sum(end - span <= reading for reading in readings[:i]) for i, end in enumerate(readings)]
        assert verdict.violations == sum((others + 1) * world.cost > world.n for others in ends)
        if verdict.violations:
            assert verdict.worst == max(counts)
            first = readings[verdict.start]
            assert (
                sum(world.cost for reading in readings if first <= reading <= first + span) >= verdict.worst
            )
