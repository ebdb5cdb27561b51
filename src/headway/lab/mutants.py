"""Limiters with one fault each: the adversary has to find them all.

A simulation that finds nothing proves little unless it is known to find faults that are there. Each mutant is the real
ledger with one line changed, as a likely mistake would change it. They are built by overriding, so they run in the
compiled form as well as in the interpreted one.

The one-case formula needs an explanation. It errs where the gap is negative. headway's ledger learns of a completion
when it happens and takes a negative gap as none, which hides the mistake (`tests/proof` shows that nothing can go wrong
then). So this mutant runs in *clairvoyant* worlds, in which completions are known in advance and permits come back
`-gap` before them. There the right formula is safe, and the seed's is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from headway.clock import Clock
from headway.core.ledger import Ledger, Rule
from headway.core.limits import Limit, Window
from headway.core.remote import Remote
from headway.core.window import WindowLedger, WindowRule
from headway.lab.audit import Outcome
from headway.lab.clocks import BILLION, LocalClock
from headway.lab.simulate import Simulation, run_world
from headway.lab.worlds import World, draw
from headway.limiter.limiter import Limiter


class ShortGap(WindowLedger):
    """The gap one tick of our clock short: the tick was forgotten."""

    tick = 1

    def complete(self, now: int, cost: int, mark: int) -> None:
        super().complete(max(mark, now - self.tick), cost, mark)


class AtDispatch(WindowLedger):
    """Completion recorded at dispatch."""

    def take(self, at: int, cost: int) -> int:
        mark = super().take(at, cost)
        super().complete(at, cost, mark)
        return mark


class MintOnCancel(WindowLedger):
    """What is cancelled comes back twice."""

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        super().cancel(now, cost, mark, tally)
        limit = self.rule.limit
        assert isinstance(limit, Window)
        more = Window(self.rule.capacity + cost, per=f"{limit.per_ns}ns", remote=limit.remote)
        self.reconfigure(WindowRule(more, *self.told), now)

    told: tuple[int, float] = (1, 0)


class NoRecheck(WindowLedger):
    """After its sleep a waiter takes the permit without checking that the time has come."""

    asked_at: int | None = None

    def wait(self, now: int, cost: int) -> int:
        if self.asked_at is not None and now > self.asked_at:
            return 0
        wait = super().wait(now, cost)
        if wait and self.asked_at is None:
            self.asked_at = now
        return wait

    def take(self, at: int, cost: int) -> int:
        self.asked_at = None
        return super().take(at, cost)


class TimeoutCompletes(WindowLedger):
    """A time-out treated as completed."""

    def abandon(self, now: int, cost: int, mark: int) -> None:
        super().complete(now, cost, mark)


class FullIsCompleted(WindowLedger):
    """`start="full"` counted as completed."""

    def exhaust(self, now: int) -> None:
        cost = self.remaining(now)
        super().complete(now, cost, super().take(now, cost))


class MutantRule(Rule):
    """Opens a ledger of another class, which may have another rule too."""

    def __init__(
        self, limit: Window, inner: WindowRule, ledger: type[WindowLedger], settings: dict[str, Any]
    ) -> None:
        Rule.__init__(self, limit, held=True)
        self.inner = inner
        self.ledger = ledger
        self.settings = settings

    def open(self) -> Ledger:
        ledger = self.ledger(self.inner)
        for name, value in self.settings.items():
            setattr(ledger, name, value)
        return ledger


class MutantLimiter(Limiter):
    """A limiter on mutant ledgers."""

    __slots__ = ("_mutate",)

    def __init__(self, limit: Window, mutate: Callable[[Window, int, float], Rule], **options: Any) -> None:
        self._mutate = mutate
        super().__init__(limit, **options)

    def _rules_of(self, clock: Clock, limit: Limit) -> tuple[Rule, ...]:
        assert isinstance(limit, Window)
        return (self._mutate(limit, round(clock.resolution * 1e9), clock.drift_ppm),)


def _forget_back(limit: Window) -> Window:
    """The same gap, and a transit without `back_latency`."""
    remote = limit.remote
    assert remote
    spans = [remote.resolution_ns, remote.out_latency_ns + remote.back_latency_ns, remote.max_transit_ns]
    resolution, out, transit = (f"{ns}ns" if ns else 0 for ns in spans)
    other = Remote(resolution=resolution, drift_ppm=remote.drift_ppm, out_latency=out, max_transit=transit)
    return Window(limit.count, per=f"{limit.per_ns}ns", remote=other)


@dataclass(frozen=True)
class Mutant:
    """A fault, and the kind of world that can show it: `fixed` replaces what would be drawn, so that it can happen."""

    name: str
    ledger: type[WindowLedger] = WindowLedger
    fixed: dict[str, Any] = field(default_factory=dict)

    def rule(self, limit: Window, resolution_ns: int, drift_ppm: float) -> Rule:
        known = _forget_back(limit) if self.name == "forgets back_latency on abandon" else limit
        settings: dict[str, Any] = {}
        if self.ledger is ShortGap:
            settings["tick"] = resolution_ns
        if self.ledger is MintOnCancel:
            settings["told"] = (resolution_ns, drift_ppm)
        return MutantRule(limit, WindowRule(known, resolution_ns, drift_ppm), self.ledger, settings)

    def build(self, _: World, limit: Window, clock: LocalClock, start: str) -> Limiter:
        return MutantLimiter(limit, self.rule, clock=clock, start=start)

    def world(self, seed: int, events: int = 300) -> World:
        return draw(seed, events, **self.fixed)

    def run(self, world: World, *, trace: bool = False) -> Outcome:
        """Run a world on the mutant."""
        if self.name == ONE_CASE:
            return run_world(world, trace=trace, simulation=OneCase)
        return run_world(world, self.build, trace=trace)


class OneCase(Simulation):
    """The seed's formula, in a world that lets a negative gap count."""

    def _open(self, start: str) -> None:
        world = self.world
        true = Fraction((world.per + world.rr) * 10**6, 10**6 - world.re_ppm) - world.out - world.back
        self.gap = math.ceil(true * (1 + Fraction(world.le_ppm, 10**6)) + world.lr)
        super()._open(start)


ONE_CASE = "one-case formula"

FLOORS_BEYOND = {
    "per": BILLION,
    "out": 2 * BILLION,
    "back": 2 * BILLION,
    "max_transit": 20 * BILLION,
    "rr": 16_000_000,
    "lr": 1_000_000,
    "re_ppm": 250,
    "restart_every": 0,
    "faults": (),
    "clairvoyant": True,
    "public": False,
}

MUTANTS = (
    Mutant("gap one tick short", ShortGap),
    Mutant("completion recorded at dispatch", AtDispatch),
    Mutant("a permit minted on cancel", MintOnCancel),
    Mutant("no re-check after sleep", NoRecheck),
    Mutant("time-out treated as completed", TimeoutCompletes),
    Mutant("forgets back_latency on abandon"),
    Mutant(ONE_CASE, fixed=FLOORS_BEYOND),
    Mutant('start="full" counted as completed', FullIsCompleted),
)


def hunt(mutant: Mutant, worlds: int, first: int = 0, events: int = 300) -> tuple[int, Outcome] | None:
    """The first world that shows the fault, as (how many were needed, what happened there); None: not found."""
    for number in range(worlds):
        outcome = mutant.run(mutant.world(first + number, events))
        if outcome.verdict.violations:
            return number + 1, outcome
    return None
