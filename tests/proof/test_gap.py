"""The gap of `Window` is safe for all parameters, no smaller one is, and the seed's formula is not.

`c` is the true moment of a completion and `d` of the dispatch that re-uses its permit; the remote noted the first
event at `a` and notes the second at `b`. The ledger guarantees `reading(d) - reading(c) >= gap`. That each permit's
events keep out of each other's windows is enough for all n: of n + 1 events in one window, two used the same permit.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import z3

from headway.core.limits import Window
from headway.core.remote import Remote, gap_ns, transit_ns
from headway.core.window import WindowRule
from proof.model import World, everyday, example, impossible, reals
from proof.timeline import show

a, b, c, d = reals("a b c d")


def way(world):
    """An event is noted `back` before we hear of it at the latest, and `out` after its dispatch at the earliest."""
    return [a <= c - world.back, b >= d + world.out]


def waited(world):
    """What our clock measured between the completion and the next dispatch."""
    return world.local_reading(d, "d") - world.local_reading(c, "c")


@pytest.mark.parametrize("sign", ["floors shorter than the window", "floors longer than the window"])
@pytest.mark.parametrize(("remote", "local"), [(True, True), (True, False), (False, True)])
def test_two_events_a_gap_apart_never_share_a_window(sign, remote, local):
    world = World(ticking_remote=remote, ticking_local=local)
    case = world.true >= 0 if "shorter" in sign else world.true < 0
    together = world.share_a_window(a, b)
    assert impossible(world, case, *way(world), waited(world) >= world.gap(), together)


def test_two_clocks_without_ticks_need_half_open_windows():
    world = World(ticking_remote=False, ticking_local=False)
    together = world.share_a_window(a, b, strict=False)
    assert impossible(world, *way(world), waited(world) >= world.gap(), together)
    world = World(ticking_remote=False, ticking_local=False)
    together = world.share_a_window(a, b)
    found = example(world, *way(world), waited(world) >= world.gap(), together)
    assert found["remote_b"] - found["remote_a"] == found["w"]


def test_one_case_formula_is_unsafe_where_floors_exceed_the_window():
    world = World()
    together = world.share_a_window(a, b)
    claims = [*way(world), waited(world) >= world.one_case_gap(), together]
    lattice = [z3.Real("remote_b") - z3.Real("remote_a") == 1, a == 0]
    ways = [world.out == 2, world.back == 2]
    found = example(world, *claims, *everyday(world, le=Fraction(1, 10), lr=Fraction(1, 64)), *ways, *lattice)
    assert found["remote_b"] - found["remote_a"] <= found["w"]
    show(found, "the one-case formula, with latency floors longer than the window")


def test_one_case_formula_is_safe_elsewhere():
    world = World()
    together = world.share_a_window(a, b)
    claims = [world.true >= 0, *way(world), waited(world) >= world.one_case_gap(), together]
    assert impossible(world, *claims)


def test_a_ledger_that_sees_completions_hides_the_slip():
    """A real ledger learns of a completion when it happens, so d >= c, and then a negative gap is none at all."""
    world = World()
    together = world.share_a_window(a, b)
    assert impossible(world, world.true < 0, *way(world), d >= c, together)


@pytest.mark.parametrize("sign", ["floors shorter than the window", "floors longer than the window"])
def test_every_smaller_distance_shares_a_window(sign):
    """For *all* parameters and every measured distance m < gap: a timeline, built by hand and checked by z3.

    Our clock runs as wrong as it may; `c` lies a moment (eta) before the end of its pulse, which is true time 0, and
    `d` at the start of its own; both ways take their floors; the remote's clock runs slow, and `a` is at the start of
    its pulse. The first pulse outside of a's window then begins D after `a`, so `b` is in the window if it is earlier.
    (w is taken to be a whole number of the remote's ticks; between two of them the next lower one is what counts.)
    """
    world = World()
    m, eta, rate = reals("m eta rate")
    shorter = "shorter" in sign
    case = [world.true < 0, rate == 1 - world.le]
    if shorter:
        case = [world.true >= 0, m >= world.lr, rate == 1 + world.le]
    room = [eta > 0, rate * eta <= world.lr, rate * eta < world.gap() - m]
    built = [rate * d == m - world.lr, c == -eta, a == c - world.back, b == d + world.out]
    assert impossible(world, *case, m < world.gap(), *room, *built, b - a >= world.D)
    # There is such an eta: each of its upper bounds is positive.
    assert impossible(world, *case, m < world.gap(), z3.Or(world.lr <= 0, world.gap() - m <= 0, rate <= 0))


def test_a_distance_below_one_tick_shares_a_window():
    """What is left: m = 0, the dispatch in the very pulse of the completion."""
    world = World()
    built = [c == d, a == c - world.back, b == d + world.out]
    assert impossible(world, world.true > 0, *built, b - a >= world.D)


def test_a_smaller_gap_as_a_timeline():
    """The gap is 0.977125...; our clock ticks in ms, and 0.977 is what it shows one tick too early."""
    world = World()
    together = world.share_a_window(a, b)
    lattice = [waited(world) == Fraction(977, 1000), z3.Real("remote_b") - z3.Real("remote_a") == 1, a == 0]
    ways = [world.out == Fraction(1, 50), world.back == Fraction(1, 50)]
    found = example(world, *way(world), together, *everyday(world), *ways, *lattice)
    assert found["b"] - found["a"] < (1 + Fraction(1, 64)) / (1 - Fraction(1, 4000))
    show(found, "a gap that is one tick (1 ms) too short")


def draw(random_):
    def span(*choices):
        return random_.choice([0, *choices, random_.randrange(1, 10**10)])

    remote = Remote(
        resolution=Fraction(span(1, 16_000_000), 10**9).__float__(),
        drift_ppm=random_.choice([0, 1, 250, 250_000, 999_999]),
        out_latency=span(10**8) / 1e9,
        back_latency=span(10**9) / 1e9,
        max_transit=span(10**10) / 1e9,
    )
    return span(1, 10**9) or 1, remote, span(1, 15_600_000), random_.choice([0, 3, 250, 500_000])


def test_the_code_computes_what_was_proved():
    """`gap_ns`, `transit_ns` and `WindowRule` are the proved formulas, rounded up (and not below 0)."""
    random_ = random.Random(3)
    for _ in range(2_000):
        per, remote, lr, ppm = draw(random_)
        re, le = Fraction(remote.drift_ppm, 10**6), Fraction(ppm, 10**6)
        true = (per + remote.resolution_ns) / (1 - re) - remote.out_latency_ns - remote.back_latency_ns
        gap = true * (1 + le if true >= 0 else 1 - le) + lr
        transit = (remote.max_transit_ns + remote.back_latency_ns) * (1 + le) + lr
        assert gap_ns(per, remote, lr, ppm) == math.ceil(gap)
        assert transit_ns(remote, lr, ppm) == math.ceil(transit)
        rule = WindowRule(Window(1, per=per / 10**9, remote=remote), lr, ppm)
        assert (rule.gap, rule.transit) == (max(0, math.ceil(gap)), math.ceil(transit))
