"""What was measured, as text: lines for the terminal and as plain data for `--json`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import headway
from bench.figure import Figure, Reading, Row
from bench.sections import GROUPS

FORMATS = {
    "x clock": "{:.2f}".format,
    "x": "{:.2f}".format,
    "x ours": "{:.1f}".format,
    "x ideal": "{:.4f}".format,
    "calls": "{:.2f}".format,
    "count": "{:.0f}".format,
    "ms": "{:.2f}".format,
    "us": "{:.1f}".format,
    "%": lambda share: f"{100 * share:.3g} %",
    "B": "{:.0f}".format,
    "MiB": "{:.1f}".format,
    "keys": "{:.0f}".format,
}
VERDICTS = {True: "holds", False: "MISSED", None: ""}


def describe_machine() -> str:
    """Processor, system, Python and the form of headway; nothing that names this one computer."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    cores = 0
    if cpuinfo.exists():
        fields = [line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines()]
        models = [value.strip() for name, _, value in fields if name.strip() == "model name"]
        processor, cores = (models[0], len(models)) if models else (processor, 0)
    form = "compiled" if headway.compiled else "interpreted"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    many = f", {cores} cores" if cores else ""
    return f"{processor}{many}; {platform.system()}; {python}; headway {headway.__version__}, {form} form"


@dataclass(frozen=True)
class WaitQueue:
    """A figure with its reading."""

    figure: Figure
    reading: Reading

    @property
    def holds(self) -> bool | None:
        return self.figure.passes(self.reading.value)

    @property
    def value(self) -> str:
        return FORMATS[self.figure.unit](self.reading.value)

    @property
    def bar(self) -> str:
        if self.figure.bar is None:
            return ""
        sign = {"<=": "≤", ">=": "≥"}[self.figure.compare]
        number = f"{100 * self.figure.bar:g} %" if self.figure.unit == "%" else f"{self.figure.bar:g}"
        return f"{sign} {number}"

    @property
    def unit(self) -> str:
        return "" if self.figure.unit in {"%", "B", "count", "keys"} else self.figure.unit

    @property
    def ns(self) -> str:
        return "" if self.reading.ns is None else f"{self.reading.ns:.0f}"

    @property
    def half(self) -> str:
        """The middle half of the rounds."""
        if self.reading.low is None or self.reading.high is None:
            return ""
        low, high = (FORMATS[self.figure.unit](end) for end in (self.reading.low, self.reading.high))
        return f"{low} to {high}"


@dataclass
class Report:
    """A whole run."""

    lines: list[WaitQueue] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    machine: str = field(default_factory=describe_machine)
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    date: str = field(default_factory=lambda: f"{datetime.now(UTC).date():%Y-%m-%d}")

    @property
    def busy(self) -> str:
        """A caution, where other programs were running before this one began; empty on a quiet machine."""
        if self.load < 0.3 * (os.cpu_count() or 1):
            return ""
        return f"The machine was busy (load {self.load:.1f}): trust ratios, not nanoseconds or CPU shares."

    def missed(self) -> list[WaitQueue]:
        return [line for line in self.lines if line.holds is False]

    def group(self, name: str) -> list[Row]:
        """Ours first, then the others by their ratio, which is steadier than nanoseconds."""
        return sorted(
            (row for row in self.rows if row.group == name), key=lambda row: (not row.ours, row.ratio)
        )

    def data(self) -> dict[str, Any]:
        """The same as JSON can say it."""
        return {
            "date": self.date,
            "machine": self.machine,
            "load": self.load,
            "figures": [
                {
                    "name": line.figure.name,
                    "title": line.figure.title,
                    "unit": line.figure.unit,
                    "compare": line.figure.compare,
                    "bar": line.figure.bar,
                    "holds": line.holds,
                    **asdict(line.reading),
                }
                for line in self.lines
            ],
            "rows": [asdict(row) for row in self.rows],
            "failures": self.failures,
        }


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Columns as wide as they need to be; the first is flush left, the others flush right."""
    cells = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def text(report: Report) -> str:
    """The tables as a person sees them at the end of a run."""
    parts = [f"{report.machine}\n{report.busy}".rstrip()]
    for name, title in GROUPS.items():
        rows = report.group(name)
        if rows:
            body = [(row.name.replace("`", ""), f"{row.ns:.0f}", f"{row.ratio:.1f}") for row in rows]
            parts.append(table((title, "ns", "over ours"), body))
    lines = [
        (line.figure.title.replace("`", ""), line.ns, line.value, line.unit, line.bar, VERDICTS[line.holds])
        for line in report.lines
    ]
    parts.append(table(("figure", "ns", "measured", "", "bar", ""), lines))
    bars = sum(line.holds is not None for line in report.lines)
    parts += [f"{bars - len(report.missed())} of {bars} bars hold", *report.failures]
    return "\n\n".join(parts)
