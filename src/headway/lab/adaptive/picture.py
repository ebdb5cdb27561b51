"""What each contender sends into a hidden limit, as a picture: one row for each, hand-written SVG."""

from __future__ import annotations

from collections.abc import Mapping

from headway.lab.adaptive.worlds import WARM_UP, Score
from headway.lab.plot import BAD, FAINT, FINE, INK, opening, text

WIDTH, ROW, LEFT, RIGHT, HEAD = 960, 150, 50, 20, 70


def draw_scores(scores: Mapping[str, Score]) -> str:
    """The picture, as the text of an SVG file: calls served in each second, those refused on top, and the limit."""
    rows = list(scores.items())
    world = rows[0][1].world
    height = HEAD + ROW * len(rows) + 16
    clients = "1 client" if world.clients == 1 else f"{world.clients} clients"
    kind = f"a window of {world.per:g} s" if world.kind == "window" else f"a bucket of {world.burst:.3g}"
    title = f"a hidden limit of {world.rate:.3g}/s ({kind}), {clients}, answers after {world.latency * 1000:.0f} ms"
    parts = [
        *opening(title, WIDTH, height),
        text(LEFT, 22, f"Which client finds the limit? {title[0].upper()}{title[1:]}", 15),
        text(
            LEFT,
            40,
            "blue: calls served in a second; red: calls refused; line: what the hidden limit allows",
            11,
            FAINT,
        ),
        text(LEFT, 55, f"the figures count from the {WARM_UP}th second on", 11, FAINT),
    ]
    tallest = max(
        max(served + refused, allowed) for _, score in rows for served, refused, allowed in score.seconds
    )
    for number, (name, score) in enumerate(rows):
        parts += _row(name, score, HEAD + ROW * number, tallest * 1.05)
    return "\n".join([*parts, "</svg>", ""])


def _row(name: str, score: Score, top: int, tallest: float) -> list[str]:
    seconds = score.world.seconds
    floor, tall = top + ROW - 20, ROW - 46
    step = (WIDTH - LEFT - RIGHT) / seconds
    scale = tall / tallest

    def x(second: float) -> float:
        return LEFT + second * step

    parts = [
        text(
            LEFT,
            top + 16,
            f"{name}: {score.used:.1%} of the limit used, {score.refusals:.2%} of the calls refused",
            12,
        ),
        f'<path d="M{LEFT} {floor}H{WIDTH - RIGHT}" stroke="{FAINT}" stroke-width="1"/>',
        f'<path d="M{x(WARM_UP):.1f} {floor}v-{tall}" stroke="{FAINT}" stroke-width="1" stroke-dasharray="2 3"/>',
    ]
    blue, red, line = [], [], []
    for second, (served, refused, _) in enumerate(score.seconds):
        middle = x(second + 0.5)
        blue.append(f"M{middle:.1f} {floor}v-{served * scale:.1f}")
        if refused:
            red.append(f"M{middle:.1f} {floor - served * scale:.1f}v-{max(1.0, refused * scale):.1f}")
        allowed = floor - score.world.allowed(second) * scale
        line.append(f"{'M' if second == 0 else 'L'}{x(second):.1f} {allowed:.1f}H{x(second + 1):.1f}")
    width = step * 0.85
    parts += [
        f'<path d="{"".join(blue)}" stroke="{FINE}" stroke-width="{width:.2f}" fill="none"/>',
        f'<path d="{"".join(red)}" stroke="{BAD}" stroke-width="{width:.2f}" fill="none"/>',
        f'<path d="{"".join(line)}" stroke="{INK}" stroke-width="1.2" fill="none"/>',
    ]
    top_rate = score.world.rate
    parts.append(text(LEFT - 6, floor - top_rate * scale + 4, f"{top_rate:.3g}/s", 10, FAINT, "end"))
    parts += [
        text(x(second), floor + 13, f"{second} s", 10, FAINT, "middle")
        for second in range(0, seconds + 1, 60)
    ]
    return parts
