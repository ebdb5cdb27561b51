"""A failing seed, reduced and explained.

A world in which the limit was broken has a thousand events and ten peculiarities, and most of them have nothing to do
with the violation. `shrink` removes one after another and keeps the worlds that still fail: fewer events, no faults,
exact clocks, plain requests. `tell` prints what is left: the requests in the window that held too many, each with its
grant, its arrival and its end, by the true time and by both clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headway.lab.audit import Outcome, Verdict
from headway.lab.clocks import BILLION, Skewed
from headway.lab.simulate import run_world
from headway.lab.worlds import World

Run = Callable[[World], Outcome]

STEADY = ((0, BILLION),)
SIMPLER: tuple[dict[str, Any], ...] = (
    {"bursts": False},
    {"rest": 0},
    {"restart_every": 0},
    {"key": None},
    {"public": False},
    {"nap_error": 0},
    {"out_more": 0},
    {"back_more": 0},
    {"spread": "floor"},
    {"re_ppm": 0, "remote_rates": STEADY},
    {"le_ppm": 0, "local_rates": STEADY},
    {"remote_phase": 0},
    {"cost": 1},
)


def shrink(world: World, run: Run = run_world) -> World:
    """The simplest world, by small steps, in which the same limiter still fails."""
    before = None
    while before != world:
        before = world
        for other in _steps(world):
            if run(other).verdict.violations:
                world = other
                break
    return world


def _steps(world: World) -> Iterator[World]:
    for events in (world.events // 2, world.events * 3 // 4, world.events - 1):
        if world.n < events < world.events:
            yield replace(world, events=events)
    for fault in world.faults:
        kept = tuple(kind for kind in world.faults if kind != fault)
        yield replace(world, faults=kept, fault_every=world.fault_every if kept else 0)
    if world.n > 1:
        yield replace(world, n=world.n // 2, workers=min(world.workers, world.n), cost=1)
    for simpler in SIMPLER:
        if any(getattr(world, name) != value for name, value in simpler.items()):
            yield replace(world, **simpler)


def tell(outcome: Outcome) -> str:
    """The requests in the fullest window, as a table, and how to see it again.

    >>> from headway.lab.mutants import MUTANTS, hunt
    >>> number, outcome = hunt(MUTANTS[1], 100)
    >>> small = shrink(outcome.world, MUTANTS[1].run)
    >>> "events in a window that allows" in tell(MUTANTS[1].run(small, trace=True))
    True
    """
    world, verdict = outcome.world, outcome.verdict
    local, remote = world.local_clock(), world.remote_clock()
    arrived = sorted(
        (entry for entry in outcome.log or () if entry[1] is not None), key=lambda entry: entry[1] or 0
    )
    chosen = arrived[verdict.start : verdict.start + verdict.worst // world.cost]
    lines = [
        f"{verdict.worst} events in a window that allows {world.n}, of {world.per} ns by their clock",
        f"{'':>4} {'granted':>22} {'noted':>22} {'ended':>22}   times in ns since the first grant: true (by the clock)",
    ]
    zero = min(entry[0] for entry in chosen)
    for number, (granted, noted, ended, how) in enumerate(chosen, 1):
        assert noted is not None
        columns = [_moment(granted, zero, local), _moment(noted, zero, remote), _moment(ended, zero, local)]
        lines.append(f"{number:>4} {columns[0]:>22} {columns[1]:>22} {columns[2]:>22}   {how}")
    lines.append(f"replay: {world.changed()}")
    return "\n".join(lines)


def _moment(t: int, zero: int, clock: Skewed) -> str:
    unit = 1 if clock.tick else BILLION
    return f"{t - zero} ({(clock.reading(t) - clock.reading(zero)) // unit})"


def summary(verdict: Verdict, world: World) -> str:
    """One line about a world."""
    if verdict.violations:
        return f"seed {world.seed}: {verdict.violations} events too many, {verdict.worst} in a window of {world.n}"
    return f"seed {world.seed}: never more than {world.n}"
