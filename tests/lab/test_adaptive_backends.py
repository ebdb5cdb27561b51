"""Backends with a number of servers: `AdaptiveConcurrency` uses them, and does not queue."""

from functools import partial

from headway.lab.adaptive.backends import CONTENDERS, Backend, Change, Fixed, draw, play, serves

# Steady calls; calls that differ; fewer servers; slower calls.
SEEDS = (2, 5, 6, 29)


def test_each_backend_is_used_without_a_long_queue():
    assert [seed for seed in SEEDS if not serves(play(draw(seed), CONTENDERS["headway"]))] == []


def test_a_fixed_number_uses_its_part_of_the_servers_and_a_higher_one_waits():
    steady = Backend(0, (Change(0.0, 20, 0.05),), 0.0)
    half, double = (play(steady, partial(Fixed, number)) for number in (10, 40))
    assert abs(half.used - 0.5) < 0.01
    assert abs(half.slower - 1.0) < 0.01
    assert abs(double.used - 1.0) < 0.01
    assert abs(double.slower - 2.0) < 0.05


def test_a_backend_that_loses_servers_has_less_capacity():
    shrunk = Backend(0, (Change(0.0, 20, 0.05), Change(65.0, 10, 0.05)), 0.0)
    outcome = play(shrunk, lambda: Fixed(20))
    assert abs(outcome.capacity / (110 * 15e9) - 1) < 0.01
    assert shrunk.state(64.9).servers == 20
    assert shrunk.state(65.0).servers == 10
    assert "10 at once, 50 ms from 65 s on" in str(shrunk)


def test_a_backend_is_the_same_each_time_it_is_played():
    one, other = (play(draw(7), CONTENDERS["Gradient2"]) for _ in range(2))
    assert (one.worked, one.slower) == (other.worked, other.slower)
