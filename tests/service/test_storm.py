"""Servers that are killed under load, for a short time; `python -m tests.service.storm` is the longer one."""

import doctest

import pytest
from tests.redis.conftest import _wheel  # noqa: F401 - a fixture
from tests.service import storm
from tests.service.storm import Grant, fullest_window, most_held

pytestmark = [pytest.mark.realtime, pytest.mark.slow]


@pytest.mark.usefixtures("_wheel")
@pytest.mark.parametrize("place", storm.PLACES_TO_RUN)
def test_no_limit_is_broken_and_no_grant_forgotten(place):
    with storm.PLACES_TO_RUN[place]() as (folder, engine, count):
        outcome = storm.storm(folder, engine, count, seconds=4, seed=11)
    assert outcome.kills
    assert min(outcome.grants.values()) > 0


def test_a_limit_that_is_broken_is_noticed():
    """31 within a second, one of them by a server that had forgotten the others."""
    even = [Grant(number / 30, number / 30 + 0.01) for number in range(60)]
    assert fullest_window(even, 1.0) == 30
    assert fullest_window([*even, Grant(0.5, 0.51)], 1.0) == 31
    held = [Grant(0.0, 0.1, 1.0)] * 3
    assert most_held([*held, Grant(0.9, 1.0, 2.0)]) == 3
    assert most_held([*held, Grant(0.8, 0.9, 2.0)]) == 4
    assert doctest.testmod(storm).failed == 0
