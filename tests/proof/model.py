"""The clocks, the way there and back, and what "in one window" means: once, for all proofs.

Every quantity is a real number that z3 may choose. A clock is a list of *pulses*: moments of true time at which its
reading jumps. The reading between two pulses is that of the earlier one. What bounds a clock is its drift: between the
starts of any two pulses, `(1 - e) * true <= measured <= (1 + e) * true`.

Windows are closed: two events share one if their readings differ by *at most* w. That is the harder reading of "any
window of w seconds", and the promise is kept under it wherever at least one of the two clocks ticks. (Two clocks
without ticks can place events exactly w apart; under half-open windows, `strict=False`, that is allowed.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import z3

Term = Any
LIMIT_MS = 20_000


def reals(names: str) -> list[Term]:
    return list(z3.Reals(names))


def within(e: Term, true: Term, measured: Term) -> Term:
    """What a clock of error `e` may measure of a true interval, whichever of its ends comes first."""
    forward = z3.And(true >= 0, (1 - e) * true <= measured, measured <= (1 + e) * true)
    backward = z3.And(true < 0, (1 - e) * -true <= -measured, -measured <= (1 + e) * -true)
    return z3.Or(forward, backward)


@dataclass
class Clock:
    """A clock of a given tick and error, and the pulses that the proof talks about."""

    name: str
    tick: Term
    error: Term
    pulses: list[tuple[Term, Term]] = field(default_factory=list)
    facts: list[Term] = field(default_factory=list)

    def read(self, at: Term, label: str) -> Term:
        """The reading at a moment: that of the pulse in which it lies."""
        start, end, reading = reals(f"{self.name}_{label}_start {self.name}_{label}_end {self.name}_{label}")
        self.facts += [start <= at, at < end]
        for pulse in ((start, reading), (end, reading + self.tick)):
            self.facts += [within(self.error, pulse[0] - t, pulse[1] - r) for t, r in self.pulses]
            self.pulses.append(pulse)
        return reading

    def read_smooth(self, at: Term, label: str) -> Term:
        """The reading of a clock without ticks: every moment is the start of a pulse."""
        (reading,) = reals(f"{self.name}_{label}")
        self.facts += [within(self.error, at - t, reading - r) for t, r in self.pulses]
        self.pulses.append((at, reading))
        return reading


@dataclass
class World:
    """The parameters in their ranges. `D` is the true time that the remote's window can last at most."""

    ticking_remote: bool = True
    ticking_local: bool = True

    def __post_init__(self) -> None:
        self.w, self.rr, self.re, self.lr, self.le = reals("w rr re lr le")
        self.out, self.back, self.transit_max, self.D = reals("out back max_transit D")
        self.remote = Clock("remote", self.rr, self.re)
        self.local = Clock("local", self.lr, self.le)
        self.true = self.D - self.out - self.back
        self.ranges = [
            self.w > 0,
            self.rr > 0 if self.ticking_remote else self.rr == 0,
            self.lr > 0 if self.ticking_local else self.lr == 0,
            *(self.re >= 0, self.re < 1, self.le >= 0, self.le < 1),
            *(self.out >= 0, self.back >= 0, self.transit_max >= 0),
            self.D * (1 - self.re) == self.w + self.rr,
        ]

    def gap(self) -> Term:
        """The formula of `headway.core.remote`, before rounding."""
        return z3.If(self.true >= 0, self.true * (1 + self.le), self.true * (1 - self.le)) + self.lr

    def one_case_gap(self) -> Term:
        """The seed's formula."""
        return self.true * (1 + self.le) + self.lr

    def transit(self) -> Term:
        return (self.transit_max + self.back) * (1 + self.le) + self.lr

    def share_a_window(self, first: Term, second: Term, *, strict: bool = True) -> Term:
        """Whether the remote sees both within w."""
        read = self.remote.read if self.ticking_remote else self.remote.read_smooth
        one, other = read(first, "a"), read(second, "b")
        return z3.And(other - one <= self.w, one - other <= self.w) if strict else other - one < self.w

    def local_reading(self, at: Term, label: str) -> Term:
        return (self.local.read if self.ticking_local else self.local.read_smooth)(at, label)

    def solver(self, *claims: Term) -> z3.Solver:
        solver = z3.Tactic("qfnra-nlsat").solver()
        solver.set("timeout", LIMIT_MS)
        solver.add(*self.ranges, *self.remote.facts, *self.local.facts, *claims)
        return solver


def impossible(world: World, *claims: Term) -> bool:
    """Whether no choice of parameters, clocks and moments fulfils the claims; an undecided one is an error."""
    answer = world.solver(*claims).check()
    assert answer != z3.unknown, "z3 gave up"
    return bool(answer == z3.unsat)


def example(world: World, *claims: Term) -> dict[str, Fraction]:
    """One choice that fulfils the claims, as exact fractions."""
    solver = world.solver(*claims)
    assert solver.check() == z3.sat
    model = solver.model()
    return {str(name): _fraction(model[name]) for name in model}


def everyday(world: World, le: Fraction = Fraction(1, 4000), lr: Fraction = Fraction(1, 1000)) -> list[Term]:
    """Numbers to look at: a window of 1 s, a remote that ticks in 1/64 s, 250 ppm on both sides, 1 ms here."""
    return [
        world.w == 1,
        world.rr == Fraction(1, 64),
        world.re == Fraction(1, 4000),
        world.le == le,
        world.lr == lr,
    ]


def _fraction(value: Any) -> Fraction:
    exact = value if z3.is_rational_value(value) else value.approx(12)
    return Fraction(exact.numerator_as_long(), exact.denominator_as_long())
