"""What a ratio does to a burst, as a picture: one row for each ratio, hand-written SVG.

Somebody works at full demand, stalls, and comes back. Bars are operations started in each slice of time; the line is
the backlog, the waiting pool. All of it is computed on the pools themselves, in virtual time.
"""

from __future__ import annotations

from fractions import Fraction

from headway.core.pools import PoolRule, Pools, Turn

__all__ = ["draw", "simulate"]

WIDTH, ROW, LEFT, RIGHT, HEAD = 960, 130, 60, 70, 60
INK, FAINT, BAR, LINE, SHADE = "#222222", "#777777", "#2f6f9f", "#c0392b", "#f1f1f1"
SECOND = 10**9
SLICE = SECOND // 10
STALL = (SECOND, 3 * SECOND)
END = 10 * SECOND
RATIOS = (Fraction(1), Fraction(11, 10), Fraction(3, 2), Fraction(2))


def simulate(rate: Fraction, ratio: Fraction) -> tuple[list[int], list[int]]:
    """Operations started in each slice, and the backlog in ns at its end.

    >>> started, backlog = simulate(Fraction(100), Fraction(2))
    >>> sum(started), started[35], backlog[-1]
    (999, 20, 0)
    """
    pools = Pools(PoolRule(rate, ratio), 0)
    started, backlog = [0] * (END // SLICE), []
    now = 0
    for index in range(END // SLICE):
        while now < (index + 1) * SLICE:
            started[index] += now > 0
            if STALL[0] <= now < STALL[1]:
                now = STALL[1]
            turn = Turn(1)
            pools.join(turn, now)
            pools.leave(turn)
            now = turn.due
        pools.fill((index + 1) * SLICE)
        backlog.append(pools.waiting)
    return started, backlog


def draw(rate: Fraction = Fraction(100)) -> str:
    """The picture, as the text of an SVG file."""
    height = HEAD + ROW * len(RATIOS) + 10
    title = f"{float(rate):g}/s, a stall of 2 s, then full demand"
    frame = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img" aria-label="{title}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 22, f"What the ratio does to a burst: {title}", 15),
        _text(
            LEFT,
            42,
            "bars: operations started in each tenth of a second; line: backlog (waiting pool)",
            11,
            FAINT,
        ),
    ]
    for number, ratio in enumerate(RATIOS):
        parts += _row(rate, ratio, HEAD + ROW * number)
    return "\n".join([*parts, "</svg>", ""])


def _row(rate: Fraction, ratio: Fraction, top: int) -> list[str]:
    started, backlog = simulate(rate, ratio)
    floor, tall = top + ROW - 24, ROW - 44
    step = (WIDTH - LEFT - RIGHT) / len(started)
    most = float(rate * SLICE / SECOND * 2) * 1.2
    late = (STALL[1] - STALL[0]) * 1.1
    left, right = (LEFT + at / END * (WIDTH - LEFT - RIGHT) for at in STALL)
    parts = [
        f'<rect x="{left:.1f}" y="{floor - tall}" width="{right - left:.1f}" height="{tall}" fill="{SHADE}"/>',
        _text(LEFT, top + 14, f"ratio {float(ratio):g}" + (" (strict)" if ratio == 1 else ""), 12),
        f'<path d="M{LEFT} {floor}H{WIDTH - RIGHT}" stroke="{FAINT}"/>',
    ]
    for index, ops in enumerate(started):
        size = min(ops / most, 1.0) * tall
        if ops:
            box = f'x="{LEFT + index * step + 1:.1f}" y="{floor - size:.1f}" width="{step - 2:.1f}"'
            parts.append(f'<rect {box} height="{size:.1f}" fill="{BAR}"/>')
    points = " ".join(
        f"{LEFT + (index + 1) * step:.1f},{floor - ns / late * tall:.1f}" for index, ns in enumerate(backlog)
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="2"/>')
    across = WIDTH - LEFT - RIGHT
    parts += [
        _text(LEFT + second * SECOND / END * across, floor + 14, f"{second} s", 10, FAINT)
        for second in range(0, END // SECOND + 1, 2)
    ]
    parts.append(
        _text(
            WIDTH - RIGHT + 6,
            floor - backlog[-1] / late * tall + 4,
            f"{backlog[-1] / SECOND:.2f} s",
            11,
            LINE,
        )
    )
    return parts


def _text(x: float, y: float, text: str, size: int, colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{text}</text>'
