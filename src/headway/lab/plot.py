"""What the remote saw, as a picture: one row for each library, hand-written SVG.

Every event is a bar at the time that the remote's clock showed. Its height is the number of events in the window that
ends with it, so a bar above the line is one too many. The fullest window is shaded, and each row shows the stretch
around its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from headway.lab.audit import fullest
from headway.lab.clocks import BILLION
from headway.lab.peers import Score
from headway.lab.worlds import World

WIDTH, ROW, LEFT, RIGHT, HEAD = 960, 120, 20, 20, 54
WINDOWS = 6
FINE, BAD, SHADE, INK, FAINT = "#2f6f9f", "#c0392b", "#f6d9d5", "#222222", "#777777"


def counts(readings: list[int], span: int) -> list[int]:
    """For each event, how many are in the closed window that ends with it.

    >>> counts([0, 5, 10, 11], 5)
    [1, 2, 2, 2]
    """
    found, first = [], 0
    for last, reading in enumerate(readings):
        while reading - readings[first] > span:
            first += 1
        found.append(last - first + 1)
    return found


def draw(scores: Iterable[Score], world: World) -> str:
    """The picture, as the text of an SVG file."""
    rows = list(scores)
    height = HEAD + ROW * len(rows) + 10
    title = f"never more than {world.n} in any {world.per / BILLION:g} s, by the remote's clock"
    parts = [
        *opening(title, WIDTH, height),
        text(LEFT, 22, f"What the remote saw: {title}?", 15),
        text(
            LEFT,
            40,
            "bar: an event, as high as the window that ends with it is full; red: one too many",
            11,
            FAINT,
        ),
    ]
    for number, score in enumerate(rows):
        parts += _row(score, world, HEAD + ROW * number)
    return "\n".join([*parts, "</svg>", ""])


def _row(score: Score, world: World, top: int) -> list[str]:
    unit = 1 if world.rr else BILLION
    span = world.per * unit
    readings = list(score.verdict.readings)
    heights = counts(readings, span)
    worst, at = fullest(readings, span)
    middle = readings[at] + span // 2
    start = max(readings[0] - span // 20, middle - WINDOWS * span // 2)
    width = WINDOWS * span

    def x(reading: int) -> float:
        return LEFT + (reading - start) / width * (WIDTH - LEFT - RIGHT)

    floor, tall = top + ROW - 22, ROW - 52
    scale = tall / max(world.n * 2, worst)
    line = floor - world.n * scale
    too_many = score.verdict.violations
    verdict = (
        f"{too_many} too many, {worst} in a window"
        if too_many
        else f"none too many, at most {worst} in a window"
    )
    left, right = max(x(readings[at]), LEFT), min(x(readings[at] + span), WIDTH - RIGHT)
    shade = SHADE if too_many else "#eef3f6"
    parts = [
        text(LEFT, top + 14, f"{score.name}: {verdict}, {score.share:.1%} of the safe ceiling", 12),
        f'<path d="M{left:.1f} {floor}V{floor - tall}H{right:.1f}V{floor}Z" fill="{shade}"/>',
        f'<path d="M{LEFT} {floor}H{WIDTH - RIGHT}" stroke="{FAINT}" stroke-width="1"/>',
        f'<path d="M{LEFT} {line:.1f}H{WIDTH - RIGHT}" stroke="{INK}" stroke-width="1" stroke-dasharray="4 3"/>',
        text(WIDTH - RIGHT - 8, line - 3, str(world.n), 10, FAINT),
    ]
    for reading, count in zip(readings, heights, strict=True):
        if start <= reading <= start + width:
            color = BAD if count > world.n else FINE
            parts.append(
                f'<path d="M{x(reading):.1f} {floor}v-{count * scale:.1f}" stroke="{color}" stroke-width="1.6"/>'
            )
    for window in range(WINDOWS):
        label = f"{(start + window * span - readings[0]) / unit / BILLION:.4g} s"
        parts.append(text(x(start + window * span), floor + 13, label, 10, FAINT))
    return parts


def opening(title: str, width: int, height: int) -> list[str]:
    """The beginning of every picture: how large it is, what it is called, and a white ground."""
    frame = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img" aria-label="{escape(title)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def text(x: float, y: float, words: str, size: int, color: str = INK, anchor: str = "") -> str:
    """Words at a place; `anchor` "end" and "middle" say which part of them is there."""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{where} font-size="{size}" fill="{color}">{escape(words)}</text>'
