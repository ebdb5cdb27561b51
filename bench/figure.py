"""The words of this folder: a section has figures, a probe reads them, a reading passes its bar or misses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class NotMeasured(Exception):
    """A probe found that it would measure something else than its figure says."""


@dataclass(frozen=True)
class Effort:
    """How long to look: the same probes, fewer and shorter samples for `--quick`."""

    rounds: int
    slice_ms: float
    seconds: float
    quick: bool = False


FULL = Effort(rounds=600, slice_ms=2.0, seconds=3.0)
QUICK = Effort(rounds=150, slice_ms=1.0, seconds=1.0, quick=True)


@dataclass(frozen=True)
class Reading:
    """A measured value, the middle half of its samples, and what a reader should know about it."""

    value: float
    low: float | None = None
    high: float | None = None
    ns: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One line of a comparison, and one bar of the chart: `ratio` is over the row of the group that is ours."""

    group: str
    name: str
    ns: float
    ratio: float = 1.0
    ours: bool = False
    note: str = ""


@dataclass
class Findings:
    """What a probe brings back: readings by the name of their figure, and rows of comparisons."""

    readings: dict[str, Reading] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


Probe = Callable[[Effort], Findings]


@dataclass(frozen=True)
class Figure:
    """One line of the table of bars. Without a bar it is there to be known, and cannot fail."""

    name: str
    title: str
    probe: Probe
    compare: str = "<="
    bar: float | None = None
    unit: str = "x clock"

    def passes(self, value: float) -> bool | None:
        """Whether `value` holds the bar; None where there is no bar."""
        if self.bar is None:
            return None
        return value <= self.bar if self.compare == "<=" else value >= self.bar


@dataclass(frozen=True)
class Section:
    """A subject: its figures, and how `--only` calls it."""

    name: str
    title: str
    figures: tuple[Figure, ...]
