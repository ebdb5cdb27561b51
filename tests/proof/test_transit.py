"""What is never acknowledged: `abandon`, answers slower than `max_transit`, and `start="full"`.

The permit was granted at the true moment `g`; the remote notes the event by `g + max_transit`, or never. The ledger
counts it as completed when our clock shows `reading(g) + transit`, and its permit is usable a gap later (no less than
at that moment, since a gap below zero counts as zero). No completion is seen, so transit and gap are one wait on one
clock: `needed` is the least that is safe, and what the ledger waits is never less.
"""

from __future__ import annotations

from fractions import Fraction

import z3

from proof.model import World, everyday, example, impossible, reals
from proof.timeline import show

a, b, d, g, h = reals("a b d g h")


def bounded(world):
    """The event is noted max_transit after the grant at the latest; the next arrives `out` after its dispatch."""
    return [a <= g + world.transit_max, b >= d + world.out, world.out <= world.transit_max]


def waited(world):
    """What our clock measured between the grant and the next dispatch."""
    return world.local_reading(d, "d") - world.local_reading(g, "g")


def ledger_wait(world):
    gap = world.gap()
    return world.transit() + z3.If(gap >= 0, gap, 0)


def needed(world):
    """The least wait that is safe: one interval, one stretch, one tick."""
    return (world.transit_max + world.D - world.out) * (1 + world.le) + world.lr


def test_abandoned_permits_keep_out_of_the_window():
    """Also those whose answer is slower than max_transit: to the ledger they are the same."""
    world = World()
    together = world.share_a_window(a, b)
    assert impossible(world, *bounded(world), waited(world) >= needed(world), together)
    world = World()
    assert impossible(world, world.out <= world.transit_max, ledger_wait(world) < needed(world))


def test_transit_is_over_only_when_the_event_is_back_latency_old():
    """The step in between: at `d` a completed permit would have been completed, whatever its answer."""
    world = World()
    assert impossible(world, *bounded(world), waited(world) >= world.transit(), a > d - world.back)


def test_a_full_start_counts_everything_as_abandoned_now():
    """A process that crashed at or before the start `g` had been granted its permits at `h`, no later."""
    world = World()
    together = world.share_a_window(a, b)
    before = [h <= g, a <= h + world.transit_max, b >= d + world.out, world.out <= world.transit_max]
    assert impossible(world, *before, waited(world) >= needed(world), together)


def test_a_full_start_counted_as_completed_is_not_safe():
    world = World()
    together = world.share_a_window(a, b)
    ways = [world.out == 0, world.back == 0, world.transit_max == 2]
    lattice = [z3.Real("remote_b") - z3.Real("remote_a") == 0, g == 0]
    found = example(
        world, *bounded(world), waited(world) >= world.gap(), together, *everyday(world), *ways, *lattice
    )
    show(found, 'start="full" counted as completed: a request of the process before arrives after ours')


def test_every_smaller_wait_shares_a_window():
    """At every measured distance below `needed` there is a timeline, built as in `test_gap`."""
    world = World()
    m, eta = reals("m eta")
    rate = 1 + world.le
    room = [world.lr <= m, m < needed(world), eta > 0, rate * eta <= world.lr, rate * eta < needed(world) - m]
    built = [rate * d == m - world.lr, g == -eta, a == g + world.transit_max, b == d + world.out]
    assert impossible(world, world.out <= world.transit_max, *room, *built, b - a >= world.D)


def test_the_ledger_waits_one_tick_longer_than_needed():
    """transit and gap each bring a tick of ours, and one would do: the price of recording completions as one number."""
    world = World()
    assert impossible(world, world.true >= 0, ledger_wait(world) != needed(world) + world.lr)


def test_back_latency_is_needed_on_abandon():
    """Without it in `transit` the gap subtracts a way back that no answer took."""
    world = World()
    together = world.share_a_window(a, b)
    forgetful = world.transit_max * (1 + world.le) + world.lr + world.gap()
    numbers = everyday(world)
    ways = [world.out == 0, world.back == Fraction(1, 2), world.transit_max == 2]
    lattice = [z3.Real("remote_b") - z3.Real("remote_a") == 1, a == 2]
    found = example(world, *bounded(world), waited(world) >= forgetful, together, *numbers, *ways, *lattice)
    show(found, "back_latency forgotten on abandon")


def test_a_time_out_is_no_completion():
    """Counted from the moment of the time-out `c`, the event may be noted after it."""
    world = World()
    (c,) = reals("c")
    together = world.share_a_window(a, b)
    measured = world.local_reading(d, "d") - world.local_reading(c, "c")
    numbers = everyday(world)
    ways = [world.out == 0, world.back == 0, world.transit_max == 2]
    lattice = [z3.Real("remote_b") - z3.Real("remote_a") == 0, g == 0, c == Fraction(1, 2)]
    found = example(world, *bounded(world), measured >= world.gap(), together, *numbers, *ways, *lattice)
    assert found["a"] > found["c"]
    show(found, "a time-out counted as a completion")
