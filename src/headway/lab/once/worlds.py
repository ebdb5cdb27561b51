"""Seeded worlds in which everything goes wrong that can go wrong with a gate.

Messages are lost, repeated, delayed and overtaken; processes are killed and replaced; the server restarts, fails over
to a replica that lacks its last lines, loses everything, and its clock is set. Its clock ticks coarsely in half of the
worlds, so that events come exactly `duration` apart. A world ends with a calm part, in which every event has to end and
every copy has to arrive.

What is promised depends on what happened (`docs/once.md`): the law holds for every gate from its beginning to its
end, and what a failover loses is lost, but never without a key frame for the subscribers that saw it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

from headway.core.once import OnceRule
from headway.lab.clocks import BILLION, Skewed
from headway.lab.once.audit import broken
from headway.lab.once.town import Parts, Town
from headway.testing import ManualClock, run

MILLISECOND = 1_000_000
REAL = Parts()


@dataclass(frozen=True, slots=True)
class World:
    """The numbers of one world; times are nanoseconds.

    >>> draw(7) == draw(7), draw(7) == draw(8)
    (True, False)
    """

    seed: int
    strict: bool = True
    duration: int = BILLION
    retention: int = 60 * BILLION
    max_pending: int = 1000
    processes: int = 3
    followers: int = 2
    near: bool = False  # one more in the server's own process
    kinds: int = 4  # of events
    rest: int = BILLION // 4  # between two submissions of a process
    rough: int = 20 * BILLION  # how long things go wrong
    one_way: int = 5 * MILLISECOND
    longest: int = BILLION
    lost: float = 0.1
    timeout: int = BILLION // 4
    drift_ppm: int = 250
    tick: int = 1000  # of the server's clock
    looks: bool = True  # whether processes look when an event is due
    silent: bool = False  # whether nothing looks for a long time at the end
    killed: float = 0.5
    restarts: int = 0
    failovers: int = 0
    losses: int = 0
    cuts: int = 0
    steps: tuple[int, ...] = field(default=())  # what the server's clock is set by

    @property
    def kept(self) -> int:
        return max(self.duration, self.retention)

    def rule(self) -> OnceRule:
        return OnceRule(self.duration, self.strict, self.max_pending, self.retention)

    def server_clock(self) -> Skewed:
        edge = self.drift_ppm * 1000
        return Skewed(self.tick, 10**6 * BILLION, ((0, BILLION + (-edge, 0, edge)[self.seed % 3]),))

    def changed(self) -> str:
        """The world as a Python expression, without the defaults: paste it to replay it."""
        own = [f for f in fields(self) if f.name == "seed" or getattr(self, f.name) != f.default]
        return f"World({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in own)})"


def draw(seed: int, **fixed: Any) -> World:
    """The world of a seed; `fixed` replaces what was drawn."""
    rng = Random(seed)
    duration = rng.choice((100, 1000, 3000)) * MILLISECOND
    failovers = rng.choice((0, 0, 1, 3))
    world = World(
        seed=seed,
        strict=rng.random() < 0.65,
        duration=duration,
        retention=rng.choice((0, 2 * duration, 60 * BILLION, 60 * BILLION)),
        max_pending=rng.choice((1, 2, 1000, 1000)),
        processes=rng.choice((1, 2, 4, 8)),
        followers=rng.choice((1, 2, 3)),
        near=failovers == 0 and rng.random() < 0.5,
        kinds=rng.choice((1, 2, 5, 20)),
        rest=int(duration * rng.choice((0.2, 0.7, 2.0))),
        rough=duration * rng.choice((10, 25, 50)),
        one_way=(one_way := rng.choice((1, duration // 50, duration // 5))),
        longest=rng.choice((duration, 5 * duration)),
        lost=rng.choice((0.0, 0.05, 0.2)),
        timeout=5 * one_way + rng.choice((duration // 50, duration // 2)),
        drift_ppm=rng.choice((0, 250, 50_000)),
        tick=rng.choice((1000, duration // 4)),
        looks=rng.random() < 0.7,
        silent=rng.random() < 0.3,
        killed=rng.choice((0.0, 0.5, 1.0)),
        restarts=rng.choice((0, 1, 3)),
        failovers=failovers,
        losses=rng.choice((0, 0, 1)),
        cuts=rng.choice((0, 2, 5)),
        # The clock of a replica that goes on is not behind: `headway.once.subscription`.
        steps=()
        if failovers
        else rng.choice(((), (), (-duration,), (duration, 10 * duration), (7 * MILLISECOND,))),
    )
    return replace(world, **fixed)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in a world; `wrong` says where the law was broken."""

    world: World
    wrong: tuple[str, ...]
    steps: int
    lines: int
    compared: int  # states of copies
    key_frames: int
    kills: int
    lost_lines: int
    unavailable: int


def run_world(world: World, parts: Parts = REAL) -> Outcome:
    """Run a world and audit it.

    >>> run_world(draw(1)).wrong
    ()
    """
    true = ManualClock(autojump=True)
    town = Town(world, true, parts)
    run(town.main(), clock=true)
    server = town.server
    histories = (*server.ended, server.history())
    for history in histories:
        for problem in broken(world.rule(), history, ended=history is histories[-1]):
            town.fault(problem)
    town.audit_answers()
    return Outcome(
        world,
        tuple(town.wrong),
        sum(len(history.steps) for history in histories),
        sum(len(history.lines) for history in histories),
        sum(follower.compared for follower in town.followers),
        sum(follower.key_frames for follower in town.followers),
        town.kills,
        town.lost_lines,
        town.unavailable,
    )
