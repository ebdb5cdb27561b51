"""How a call is timed.

The naive way times one side for a second, then the other, and divides. On a shared machine the second second is not
like the first: a neighbour wakes, the clock rate steps, and the quotient moves by a third. So the sides take turns, a
few milliseconds each (A B A B ...), every round gives one quotient of neighbours in time, and the median of the
quotients is the figure. A slow moment hits both halves of its round, or spoils one round of some hundreds.

Every side runs the same generated loop, as `timeit` does it,

    for _ in range(n):
        f()

with its names as locals. The loop's own cost (some 10 ns) is in both sides and is not taken out, because a program
has a loop or a statement around the call too. The garbage collector stays on, because it stays on in programs.

A side may be *net of* another statement: what it costs to build a key, say. Then the loop without the call is timed in
the same round and subtracted, and an empty loop is added back, so that it still compares with a side that has one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.figure import Effort, NotMeasured, Reading

SETUPS = 5

TEMPLATE = """
{kind} loop(_n, _now, {names}):
    _start = _now()
    for _ in range(_n):
        {body}
    return _now() - _start
"""


@dataclass(frozen=True)
class Side:
    """One of the things compared: a statement, the names in it, and how to know that it was granted."""

    statement: str
    names: Mapping[str, Any] = field(default_factory=dict)
    net_of: str | None = None
    over: Sequence[Any] | None = None  # `key` in the statement runs through these
    awaits: bool = False
    granted: Callable[[], bool] | None = None
    before: Callable[[], object] | None = None  # done before each sample, untimed
    after: Callable[[], object] | None = None  # and after it


def clock_side(*, awaits: bool = False) -> Side:
    """The unit of most figures: what Python's own clock costs in the same loop."""
    return Side("f()", {"f": time.monotonic_ns}, awaits=awaits)


class Loop:
    """A side's statement as a compiled loop, with a size that fills its slice of time."""

    def __init__(self, side: Side, statement: str, runner: asyncio.Runner) -> None:
        names = dict(side.names)
        body = statement
        self.per_turn = 1
        if side.over is not None:
            names["_keys"] = side.over
            body = f"for key in _keys: {statement}"
            self.per_turn = len(side.over)
        source = TEMPLATE.format(
            kind="async def" if side.awaits else "def",
            names=", ".join(f"{name}={name}" for name in names),
            body=body,
        )
        exec(compile(source, f"<loop: {statement}>", "exec"), names)
        self._loop = names["loop"]
        self._runner = runner if side.awaits else None
        self._before, self._after = side.before, side.after
        self.turns = 1

    def elapsed(self) -> int:
        """Nanoseconds for `turns` turns."""
        if self._before:
            self._before()
        result = self._loop(self.turns, time.perf_counter_ns)
        taken: int = self._runner.run(result) if self._runner else result
        if self._after:
            self._after()
        return taken

    def calibrate(self, slice_ns: float) -> None:
        """Double the turns until they can be timed well, then scale them to the slice.

        The best of three: one hiccup here would make every later sample too short to outweigh its own start.
        """
        while (took := min(self.elapsed() for _ in range(3))) < slice_ns / 4:
            self.turns *= 2
        self.turns = max(1, round(self.turns * slice_ns / took))

    def sample(self) -> float:
        """Nanoseconds per call."""
        return self.elapsed() / (self.turns * self.per_turn)


class Timer:
    """A side ready to be sampled, its subtrahend with it."""

    def __init__(self, side: Side, slice_ns: float, runner: asyncio.Runner) -> None:
        self.side = side
        self._runner = runner
        self._loop = Loop(side, side.statement, runner)
        self._net: list[Loop] = []
        if side.net_of is not None:
            self._net = [Loop(side, side.net_of, runner), Loop(Side("pass"), "pass", runner)]
        for loop in (self._loop, *self._net):
            loop.calibrate(slice_ns)

    def sample(self) -> float:
        taken = self._loop.sample()
        if self._net:
            built, empty = (loop.sample() for loop in self._net)
            taken = taken - built + empty
        return taken

    def check(self) -> None:
        """Ask once more by hand: a loop of refusals would be a measurement of something else."""

        async def ask() -> bool:
            return self.side.granted is None or self.side.granted()

        granted = (
            self._runner.run(ask()) if self.side.awaits else self.side.granted is None or self.side.granted()
        )
        if not granted:
            raise NotMeasured(f"not granted, so not a measurement of granting: {self.side.statement}")


def take_turns(
    sides: Sequence[Side], effort: Effort, *, slice_ms: float | None = None
) -> list[tuple[float, ...]]:
    """One tuple for each round: nanoseconds per call of every side, in the order given.

    Longer slices than the effort's make fewer rounds of the same length in all.
    """
    rounds, slice_ns = effort.rounds, effort.slice_ms * 1e6
    if slice_ms is not None:
        rounds, slice_ns = max(7, round(rounds * effort.slice_ms / slice_ms)), slice_ms * 1e6
    with asyncio.Runner() as runner:
        timers = [Timer(side, slice_ns, runner) for side in sides]
        for timer in timers:
            timer.check()
        taken = [tuple(timer.sample() for timer in timers) for _ in range(rounds)]
        for timer in timers:
            timer.check()
    return taken


def ratio(rounds: Sequence[tuple[float, ...]], top: int = 0, under: int = 1, *, note: str = "") -> Reading:
    """Side `top` over side `under`: the median of the rounds' quotients, and the middle half of them."""
    quotients = [taken[top] / taken[under] for taken in rounds]
    return spread(quotients, ns=undisturbed([taken[top] for taken in rounds]), note=note)


def undisturbed(samples: Sequence[float]) -> float:
    """Nanoseconds to show beside a ratio: the first decile, because what disturbs a loop can only make it slower."""
    return statistics.quantiles(samples, n=10, method="inclusive")[0]


def spread(samples: Sequence[float], *, ns: float | None = None, note: str = "") -> Reading:
    """The median of samples with their quartiles."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Reading(middle, low, high, ns, note)


def over_clock(make: Callable[[], Side], effort: Effort, *, note: str = "") -> Reading:
    """A side in units of `time.monotonic_ns()`, over several fresh ones: where its memory happens to lie is luck."""
    rounds: list[tuple[float, ...]] = []
    part = replace(effort, rounds=effort.rounds // SETUPS)
    for _ in range(SETUPS):
        side = make()
        rounds += take_turns([side, clock_side(awaits=side.awaits)], part)
    return ratio(rounds, note=note)
