"""docs/benchmarks.svg: one bar for each side of each comparison, on a logarithmic scale of nanoseconds.

Drawn by hand, so that it needs no library and can follow the reader's colour scheme. It has a ground of its own: a page
that is dark while the system is light must not make the labels vanish.
"""

from __future__ import annotations

import math
from html import escape

from bench.figure import Row
from bench.report import Report
from bench.sections import GROUPS

WIDTH, LEFT, RIGHT = 860, 300, 130
LINE, BAR, TITLE, TOP, FOOT = 22, 13, 36, 52, 34

STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
  .ground { fill: #ffffff }
  .title { font-size: 15px; font-weight: 600 } .group { font-weight: 600 } .soft { fill: #57606a }
  .grid { stroke: #d0d7de } .ours rect { fill: #0a7d5a } .peer rect { fill: #9aa4af } .ours text { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } text { fill: #e6edf3 } .soft { fill: #9198a1 }
    .grid { stroke: #30363d } .ours rect { fill: #3fb98a } .peer rect { fill: #5d6875 }
  }
"""


def times(row: Row, ours: Row) -> float:
    """How many times as long as ours, by the two numbers that the reader sees.

    The tables have the median of the rounds' own ratios, which is steadier and differs a little.

    >>> round(times(Row("g", "peer", 471.2, ratio=7.8), Row("g", "ours", 53.4, ours=True)), 1)
    8.9
    """
    return round(row.ns) / max(1, round(ours.ns))


def chart(report: Report) -> str:
    """The picture as SVG text."""
    groups = [
        (title, sorted(rows, key=lambda row: (not row.ours, row.ns)))
        for name, title in GROUPS.items()
        if (rows := report.group(name))
    ]
    every = [row.ns for _, rows in groups for row in rows]
    low, high = 10 ** math.floor(math.log10(min(every))), max(every) * 1.02
    end = WIDTH - RIGHT

    def x(ns: float) -> float:
        return LEFT + (end - LEFT) * math.log(ns / low) / math.log(high / low)

    parts: list[str] = []
    y = TOP
    for title, rows in groups:
        y += TITLE
        ours = next((row for row in rows if row.ours), None)
        parts.append(f'<text class="group" x="16" y="{y - 10}">{escape(title)}</text>')
        for row in rows:
            middle = y + LINE / 2
            kind = "ours" if row.ours else "peer"
            factor = "" if row.ours or ours is None else f"{times(row, ours):.1f}x"
            ratio = factor and f'<tspan class="soft" dx="8">{factor}</tspan>'
            name, base, length = escape(row.name.replace("`", "")), middle + 4, x(row.ns) - LEFT
            box = f'x="{LEFT}" y="{middle - BAR / 2:.1f}" width="{length:.1f}" height="{BAR}" rx="2"'
            parts += [
                f'<g class="{kind}">',
                f'<text x="{LEFT - 8}" y="{base:.1f}" text-anchor="end">{name}</text>',
                f"<rect {box}/>",
                f'<text x="{LEFT + length + 6:.1f}" y="{base:.1f}">{row.ns:,.0f} ns{ratio}</text>',
                "</g>",
            ]
            y += LINE
    bottom = y + 8
    ticks: list[str] = []
    decade = low
    while decade <= high:
        ticks += [
            f'<line class="grid" x1="{x(decade):.1f}" x2="{x(decade):.1f}" y1="{TOP + 8}" y2="{bottom}"/>',
            f'<text class="soft" x="{x(decade):.1f}" y="{bottom + 16}" text-anchor="middle">{decade:,} ns</text>',
        ]
        decade *= 10
    size = f'viewBox="0 0 {WIDTH} {bottom + FOOT}" width="{WIDTH}" height="{bottom + FOOT}"'
    label = "Nanoseconds per decision, headway and its peers"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{bottom + FOOT}" rx="6"/>',
            '<text class="title" x="16" y="30">Nanoseconds per granted decision (log scale, less is better)</text>',
            *ticks,
            *parts,
            "</svg>\n",
        ]
    )
