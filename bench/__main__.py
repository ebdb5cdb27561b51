"""`python -m bench`: measure, print, and after a full run write docs/benchmarks.md and docs/benchmarks.svg."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import headway
from bench.alone import ROOT
from bench.chart import chart
from bench.figure import FULL, QUICK, Effort, Figure, Findings, NotMeasured, Probe
from bench.page import page
from bench.report import Report, WaitQueue, text
from bench.sections import SECTIONS


def arguments() -> argparse.Namespace:
    names = ", ".join(figure.name for section in SECTIONS for figure in section.figures)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure headway beside its peers. A full run writes docs/benchmarks.md and docs/benchmarks.svg.",
        epilog=f"Sections: {', '.join(section.name for section in SECTIONS)}. Figures: {names}.",
    )
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="a figure or a section; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, about half a minute")
    parser.add_argument(
        "--json", metavar="FILE", help="write every figure there as well ('-': to standard output)"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ as it is after a full run, too")
    return parser.parse_args()


def chosen(only: list[str] | None) -> list[Figure]:
    """The figures that `--only` names, all of them without it."""
    known = {
        name for section in SECTIONS for name in (section.name, *(figure.name for figure in section.figures))
    }
    unknown = [name for name in only or () if name not in known]
    if unknown:
        sys.exit(f"bench: no figure or section is called {', '.join(unknown)}; see --help")
    return [
        figure
        for section in SECTIONS
        for figure in section.figures
        if not only or section.name in only or figure.name in only
    ]


def measure(figures: list[Figure], effort: Effort) -> Report:
    """Run every probe once, also where several figures come from it."""
    report = Report()
    found: dict[Probe, Findings] = {}
    for number, figure in enumerate(figures, 1):
        if figure.probe not in found:
            print(f"bench: {number}/{len(figures)} {figure.name}", file=sys.stderr, end=" ", flush=True)
            start = time.monotonic()
            try:
                found[figure.probe] = figure.probe(effort)
            except NotMeasured as reason:
                found[figure.probe] = Findings()
                report.failures.append(f"{figure.name} was not measured: {reason}")
            report.rows += found[figure.probe].rows
            print(f"({time.monotonic() - start:.1f} s)", file=sys.stderr)
        reading = found[figure.probe].readings.get(figure.name)
        if reading is not None:
            report.lines.append(WaitQueue(figure, reading))
    return report


def write_docs(report: Report) -> None:
    docs = ROOT / "docs"
    docs.mkdir(exist_ok=True)
    (docs / "benchmarks.md").write_text(page(report), encoding="utf-8")
    (docs / "benchmarks.svg").write_text(chart(report), encoding="utf-8")
    print("bench: wrote docs/benchmarks.md and docs/benchmarks.svg", file=sys.stderr)


def main() -> int:
    options = arguments()
    report = measure(chosen(options.only), QUICK if options.quick else FULL)
    if options.json == "-":
        print(json.dumps(report.data(), indent=2))
    else:
        print(text(report))
        if options.json:
            Path(options.json).write_text(json.dumps(report.data(), indent=2) + "\n", encoding="utf-8")
    if not headway.compiled:
        print("bench: this is the interpreted form; the bars are for the compiled one", file=sys.stderr)
    elif not (options.only or options.quick or options.no_docs or report.failures):
        write_docs(report)
    return 1 if report.failures or (options.strict and report.missed()) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as missing:
        sys.exit(f"bench: {missing.name} is not installed; `make bench` installs what is compared")
