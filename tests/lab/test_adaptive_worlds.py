"""Worlds with hidden limits: `Adaptive` meets its bars, and does better than AWS's algorithm in the same worlds."""

import pytest

from headway.core.adaptive import SECOND, AdaptiveRate
from headway.lab.adaptive.__main__ import OWN, summary
from headway.lab.adaptive.informed import Informed, meets, within_reach
from headway.lab.adaptive.opponents import CONTENDERS, AwsAdaptive
from headway.lab.adaptive.worlds import HiddenBucket, HiddenWindow, Step, World, draw, play

# One world of each kind and number of clients; `python -m headway.lab.adaptive worlds` plays many.
SEEDS = (18, 1, 8, 3, 25, 29)


@pytest.fixture(scope="module")
def rows():
    return [{name: play(draw(seed), make) for name, make in CONTENDERS.items()} for seed in SEEDS]


def mean(numbers):
    return sum(numbers) / len(numbers)


def test_each_world_meets_the_bar(rows):
    assert [row[OWN].world.seed for row in rows if not meets(row[OWN])] == []


def test_it_is_refused_less_than_aws_in_every_world(rows):
    assert all(row[OWN].refusals < row["AWS"].refusals for row in rows)


def test_it_uses_more_than_aws_on_the_whole(rows):
    assert mean([row[OWN].used for row in rows]) > mean([row["AWS"].used for row in rows])


def test_the_summary_names_every_contender(rows):
    text = "\n".join(summary(rows))
    assert all(name in text for name in CONTENDERS)
    assert "6 of 6 worlds" in text


def test_a_world_is_the_same_each_time_it_is_played():
    world = draw(3)
    one, other = (play(world, CONTENDERS["headway"]) for _ in range(2))
    assert (one.accepted, one.refused) == (other.accepted, other.refused)


def test_hidden_limits_admit_what_they_say():
    steady = World(0, "window", 10.0, 2.0, 5.0, 1, 0.1, (Step(10.0, 0.5),), 100)
    window = HiddenWindow(steady)
    assert sum(window.admits(n) for n in range(100)) == 20
    assert not window.admits(2 * SECOND - 1)
    assert window.admits(2 * SECOND)
    assert sum(window.admits(20 * SECOND + n) for n in range(100)) == 10  # the limit was halved at 10 s
    bucket = HiddenBucket(steady)
    assert sum(bucket.admits(n) for n in range(100)) == 5
    assert sum(bucket.admits(SECOND + n * SECOND // 20) for n in range(20)) == 5 + 10 - 1
    assert steady.admitted() == 40 * 5.0
    uneven = World(0, "window", 10.9, 1.0, 5.0, 1, 0.1, (), 100)
    window = HiddenWindow(uneven)
    assert sum(window.admits(n) for n in range(100)) == 10
    assert uneven.admitted() == 40 * 10  # a window counts whole calls


def test_a_wide_world_changes_more_strongly_and_has_slower_clients():
    narrow, wide = ([draw(seed, name) for seed in range(200)] for name in ("narrow", "wide"))
    assert all(0.25 <= step.factor <= 4 for world in narrow for step in world.steps)
    assert any(step.factor < 0.25 for world in wide for step in world.steps)
    assert any(step.factor > 4 for world in wide for step in world.steps)
    slowest = [min(world.allowed(at) for at in range(360)) / world.clients for world in wide]
    assert 0.4 < min(slowest) < 0.6
    assert {str(world) for world in narrow} != {str(world) for world in wide}


def test_a_world_can_be_beyond_a_client_that_knows_its_limit():
    # A bucket of one call refuses each that is early; arrivals vary by up to 0.1 s, and 8 calls are due in a second.
    strict = World(1, "bucket", 8.0, 1.0, 1.0, 1, 0.5, (), 120)
    assert not within_reach(strict)
    assert within_reach(World(1, "bucket", 8.0, 1.0, 8.0, 1, 0.5, (), 120))


def test_an_informed_client_sends_its_part_of_the_limit_of_the_moment():
    world = World(1, "window", 40.0, 1.0, 1.0, 4, 0.05, (Step(90.0, 0.5),), 120)
    client = Informed(world, 0.9)
    assert client.value == pytest.approx(9.0)
    client.sent(90 * SECOND)
    assert client.value == pytest.approx(4.5)


def test_aws_steps_down_to_seven_tenths_and_climbs_back_to_the_last_maximum():
    aws = AwsAdaptive(10.0)
    for n in range(400):
        aws.sent(n * SECOND // 20)
    aws.refused(20 * SECOND)
    assert aws.value == pytest.approx(0.7 * aws.last_max)
    for n in range(400, 430):
        aws.sent(n * SECOND // 20)
    aws.accepted(20 * SECOND + round(aws.window * SECOND))
    assert aws.value == pytest.approx(aws.last_max)


def test_a_client_at_its_bounds_stays_there():
    world = World(1, "bucket", 50.0, 1.0, 50.0, 1, 0.05, (), 70)
    score = play(world, lambda start: AdaptiveRate(start, 1.0, 20.0))
    assert score.refused == 0
    assert score.accepted == pytest.approx(10 * 20, abs=2)
