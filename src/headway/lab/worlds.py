"""A world: every number that a simulation needs, drawn from a seed.

Random numbers rarely meet the corners in which limiters break: a tick as wide as the window, floors that exceed it, a
clock at the very edge of its drift, an answer at the last moment of `max_transit`. So each number is drawn from a short
list of extremes first, and only sometimes from the range between. Times hang on the window's length, which itself goes
from a nanosecond to a day.

What the limiter is told (`Remote`, and its clock's resolution and drift) is always *true*, mostly by the narrowest
margin: declared floors are floors, clocks stay within their drift, events arrive within `max_transit` or never.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from headway.core.limits import Window
from headway.core.remote import Remote
from headway.lab.clocks import BILLION, Skewed
from headway.lab.faults import FATES

FAULTS = tuple(FATES)


@dataclass(frozen=True, slots=True)
class World:
    """The numbers of one world. All times are nanoseconds.

    >>> draw(7) == draw(7), draw(7) == draw(8)
    (True, False)
    """

    seed: int
    events: int = 1000
    n: int = 10
    per: int = BILLION
    workers: int = 20
    # the remote's clock
    rr: int = 16_000_000
    re_ppm: int = 250
    remote_rates: tuple[tuple[int, int], ...] = ((0, BILLION),)
    remote_phase: int = 0
    # our clock
    lr: int = 1
    le_ppm: int = 250
    local_rates: tuple[tuple[int, int], ...] = ((0, BILLION),)
    local_phase: int = 0
    # the network: latency floors, what may be added to them, and its distribution ("floor", "even", "edges", "tail")
    out: int = 0
    back: int = 0
    max_transit: int = 10 * BILLION
    out_more: int = 0
    back_more: int = 0
    spread: str = "even"
    # what goes wrong: one fault in so many requests (0: none), and which (`headway.lab.faults`)
    fault_every: int = 0
    faults: tuple[str, ...] = ()
    timeout: int = BILLION
    # sleeps end early or late by up to this
    nap_error: int = 0
    # workers rest between requests; in bursts, all at once
    rest: int = 0
    bursts: bool = False
    restart_every: int = 0
    cost: int = 1
    key: str | None = None
    public: bool = False
    clairvoyant: bool = False

    def remote(self) -> Remote:
        """What the limiter is told of the remote."""
        return Remote(
            resolution=_span(self.rr),
            drift_ppm=self.re_ppm,
            out_latency=_span(self.out),
            back_latency=_span(self.back),
            max_transit=_span(self.max_transit),
        )

    def limit(self) -> Window:
        return Window(self.n, per=f"{self.per}ns", remote=self.remote())

    def remote_clock(self) -> Skewed:
        return Skewed(self.rr, self.remote_phase, self.remote_rates)

    def local_clock(self) -> Skewed:
        return Skewed(self.lr, self.local_phase, self.local_rates)

    def changed(self) -> str:
        """The world as a Python expression, without the defaults: paste it to replay it."""
        own = [f for f in fields(self) if f.name == "seed" or getattr(self, f.name) != f.default]
        return f"World({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in own)})"


def _span(ns: int) -> str | int:
    """Nanoseconds as a duration that is read back exactly."""
    return f"{ns}ns" if ns else 0


def draw(seed: int, events: int = 1000, **fixed: Any) -> World:
    """The world of a seed; `fixed` replaces what was drawn."""
    rng = Random(seed)
    per = rng.choice((1, 1_000, 1_000_000, BILLION, BILLION, 60 * BILLION, 86_400 * BILLION))
    per = fixed.get("per", per if rng.random() < 0.7 else rng.randrange(1, 2 * per + 1))

    def span(*extremes: int) -> int:
        return rng.choice(extremes) if rng.random() < 0.8 else rng.randrange(2 * per + 1)

    n = rng.choice((1, 1, 2, 3, 5, 10, 10, 30, 100)) if rng.random() < 0.96 else rng.randrange(1025, 1300)
    n = fixed.get("n", n)
    # The whole limit, two that just fit or just do not, the smallest above one, and any.
    weights = (n, n // 2 or 1, n // 2 + 1, min(2, n), rng.randrange(1, n + 1))
    cost = fixed.get("cost", rng.choice(weights) if rng.random() < 0.25 else 1)
    world = World(
        seed=seed,
        # Enough of them to use each permit three times where the ledger keeps times on its grid.
        events=max(events, 3 * n // cost if n > 1024 else 0),
        n=n,
        per=per,
        workers=rng.choice((1, n, n + 1, 2 * n, 2 * n, 5 * n)),
        rr=span(0, 1, per // 100, per // 60, per // 4 + 1, per, 2 * per),
        re_ppm=rng.choice((0, 250, 250, 1_000, 100_000, 500_000)),
        lr=max(1, span(1, 1, 1, per // 100, per // 10, per, 2 * per)),
        le_ppm=rng.choice((0, 250, 250, 1_000, 100_000, 500_000)),
        out=span(0, 0, 0, per // 50, per // 2, per, 3 * per),
        back=span(0, 0, 0, per // 50, per // 2, per, 3 * per),
        out_more=span(0, 1, per // 10, per, 5 * per),
        back_more=span(0, 1, per // 10, per, 5 * per),
        spread=rng.choice(("floor", "even", "edges", "edges", "tail")),
        rest=rng.choice((0, 0, 0, 0, 0, per // 3)),
        bursts=rng.random() < 0.15,
        nap_error=rng.choice((0, 0, 1, per // 20, per // 2)),
        restart_every=rng.choice((0, 0, 0, 0, max(20, 3 * n))),
        cost=cost,
        key="key" if rng.random() < 0.25 else None,
        public=rng.random() < 0.02,
    )
    world = replace(world, max_transit=world.out + span(0, 1, per // 2, per, 3 * per, 10 * per))
    world = replace(
        world, timeout=rng.choice((1, world.max_transit // 2, world.max_transit, world.out + world.back + 1))
    )
    if rng.random() < 0.7:
        kinds = tuple(rng.sample(FAULTS, rng.choice((1, 1, 2, 4))))
        world = replace(world, faults=kinds, fault_every=rng.choice((1, 2, 3, 10, 50)))
    world = replace(world, **{name: value for name, value in fixed.items() if name not in ("per", "n")})
    if "local_rates" not in fixed:
        world = with_clocks(world, rng)
    return world


def with_clocks(world: World, rng: Random) -> World:
    """Clocks within the drift of a world: mostly at its edge, sometimes changing."""
    length = max(1, world.events // max(1, world.n) * (world.per + world.rr) // 2)
    return replace(
        world,
        remote_rates=_rates(rng, world.re_ppm, -1, length),
        remote_phase=rng.randrange(max(1, world.rr) * BILLION),
        local_rates=_rates(rng, world.le_ppm, 1, length),
        # Some distance from zero: a ledger's times are positive.
        local_phase=rng.randrange(world.lr * BILLION) + world.lr * BILLION * 1000,
    )


def _rates(rng: Random, ppm: int, worst: int, length: int) -> tuple[tuple[int, int], ...]:
    edge = ppm * 1000
    style = rng.random()
    if style < 0.7:
        return ((0, BILLION + worst * edge),)
    if style < 0.85:
        return ((0, BILLION + rng.randint(-edge, edge)),)
    starts = sorted({0, *(rng.randrange(1, length + 1) for _ in range(3))})
    return tuple((start, BILLION + rng.choice((-edge, 0, edge))) for start in starts)
