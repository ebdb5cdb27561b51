"""The adversary bites: every mutant is found, and what is found can be told."""

from __future__ import annotations

import pytest

from headway.lab import draw, run_world, shrink, tell
from headway.lab.mutants import FLOORS_BEYOND, MUTANTS, hunt

WORLDS = 250
"""So many worlds of 300 events are enough for each mutant, wherever the seeds begin; the docs say so too."""

every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


def found_by(mutant):
    found = hunt(mutant, WORLDS)
    assert found is not None
    return found[1]


def test_there_are_eight():
    assert len({mutant.name for mutant in MUTANTS}) == 8


@every_mutant
@pytest.mark.parametrize("first", [0, 10_000, 20_000])
def test_found_within_the_stated_number_of_worlds(mutant, first):
    found = hunt(mutant, WORLDS, first)
    assert found is not None, f"{mutant.name}: not found in {WORLDS} worlds from seed {first}"


@every_mutant
def test_the_limiter_itself_passes_where_its_mutant_fails(mutant):
    outcome = found_by(mutant)
    assert run_world(outcome.world).verdict.violations == 0


@every_mutant
def test_what_was_found_is_told(mutant):
    outcome = found_by(mutant)
    small = shrink(outcome.world, mutant.run)
    told = mutant.run(small, trace=True)
    assert told.verdict.violations > 0
    assert small.events <= outcome.world.events
    lines = tell(told).splitlines()
    assert "in a window that allows" in lines[0]
    assert lines[-1].startswith("replay: World(seed=")
    assert small.cost > 1 or len(lines) >= 3 + small.n + 1


def test_the_right_formula_is_safe_in_clairvoyant_worlds():
    for seed in range(200):
        assert run_world(draw(seed, 300, **FLOORS_BEYOND)).verdict.violations == 0
