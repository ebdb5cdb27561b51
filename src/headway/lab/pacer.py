"""What a ratio does to a burst, as a picture: one row for each ratio, hand-written SVG.

A worker runs at full demand, stalls, and comes back. Bars are operations started in each slice of time; the line is
the backlog, the waiting pool. All of it is computed on the pools themselves, in virtual time.
"""

from __future__ import annotations

from fractions import Fraction

from headway.core.pools import PoolRule, Pools, Turn
from headway.lab.plot import opening

__all__ = ["draw", "simulate"]

WIDTH, ROW, LEFT, RIGHT, HEAD = 960, 130, 70, 70, 60
INK, FAINT, BAR, LINE, SHADE = "#222222", "#777777", "#2f6f9f", "#c0392b", "#f1f1f1"
SECOND = 10**9
SLICE = SECOND // 10
STALL = (SECOND, 3 * SECOND)
END = 10 * SECOND
RATIOS = (Fraction(1), Fraction(11, 10), Fraction(3, 2), Fraction(2))


def simulate(rate: Fraction, ratio: Fraction) -> tuple[list[int], list[int]]:
    """Operations started in each slice (its end belongs to it), and the backlog in ns at its end.

    >>> started, backlog = simulate(Fraction(100), Fraction(2))
    >>> sum(started), started[:11], started[35]
    (1000, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 0], 20)
    >>> backlog[9], backlog[19], backlog[29], backlog[-1]
    (0, 960000000, 1960000000, 0)
    """
    pools = Pools(PoolRule(rate, ratio), 0)
    started, backlog = [0] * (END // SLICE), []
    now = 0  # when the next one is asked for: as soon as the last has started, or when the stall is over
    for index in range(len(started)):
        edge = (index + 1) * SLICE
        while now <= edge:
            turn = Turn(1)
            pools.join(turn, now)
            pools.leave(turn)
            if turn.due <= END:
                started[(turn.due - 1) // SLICE] += 1
            # A nanosecond after it, so that what starts then is drawn behind it.
            now = STALL[1] + 1 if STALL[0] <= turn.due < STALL[1] else turn.due
        pools.fill(edge)
        backlog.append(pools.waiting)
    return started, backlog


def draw(rate: Fraction = Fraction(100)) -> str:
    """The picture, as the text of an SVG file."""
    height = HEAD + ROW * len(RATIOS) + 10
    title = f"{float(rate):g}/s, a stall of 2 s, then full demand"
    parts = [
        *opening(title, WIDTH, height),
        _text(LEFT, 22, f"What the ratio does to a burst: {title}", 15),
        _text(LEFT, 42, "bars: operations started, in each tenth of a second", 11, BAR),
        _text(LEFT + 300, 42, "line: backlog (the waiting pool)", 11, LINE),
    ]
    for number, ratio in enumerate(RATIOS):
        parts += _row(rate, ratio, HEAD + ROW * number)
    return "\n".join([*parts, "</svg>", ""])


def _row(rate: Fraction, ratio: Fraction, top: int) -> list[str]:
    started, backlog = simulate(rate, ratio)
    floor, tall = top + ROW - 24, ROW - 44
    across = WIDTH - LEFT - RIGHT
    step = across / len(started)
    most = float(rate * SLICE / SECOND * 2) * 1.2
    late = (STALL[1] - STALL[0]) * 1.1

    def x(at: float) -> float:
        return LEFT + at / END * across

    def y(ops: float) -> float:
        return floor - min(ops / most, 1.0) * tall

    left, right = map(x, STALL)
    parts = [
        f'<rect x="{left:.1f}" y="{floor - tall}" width="{right - left:.1f}" height="{tall}" fill="{SHADE}"/>',
        _text((left + right) / 2, floor - 6, "stall", 11, FAINT, "middle"),
        _text(LEFT, top + 14, f"ratio {float(ratio):g}" + (" (strict)" if ratio == 1 else ""), 12),
    ]
    for index, ops in enumerate(started):
        if ops:
            box = f'x="{LEFT + index * step + 1:.1f}" y="{y(ops):.1f}" width="{step - 2:.1f}"'
            parts.append(f'<rect {box} height="{floor - y(ops):.1f}" fill="{BAR}"/>')
    for times in (1, 2):
        level = y(float(rate * SLICE / SECOND * times))
        parts.append(
            f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}" stroke-dasharray="2 4"/>'
        )
        parts.append(_text(LEFT - 6, level + 4, f"{float(rate * times):g}/s", 10, BAR, "end"))
    points = " ".join(
        f"{x((index + 1) * SLICE):.1f},{floor - ns / late * tall:.1f}" for index, ns in enumerate(backlog)
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="2"/>')
    parts.append(f'<path d="M{LEFT} {floor}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
    for second in range(END // SECOND + 1):
        parts.append(f'<path d="M{x(second * SECOND):.1f} {floor}v3" stroke="{FAINT}"/>')
        if second % 2 == 0:
            parts.append(_text(x(second * SECOND), floor + 14, f"{second} s", 10, FAINT, "middle"))
    label = f"{backlog[-1] / SECOND:.2f} s" if backlog[-1] else "0 s"
    parts.append(_text(WIDTH - RIGHT + 6, floor - backlog[-1] / late * tall + 4, label, 11, LINE))
    return parts


def _text(x: float, y: float, text: str, size: int, colour: str = INK, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}" fill="{colour}">{text}</text>'
