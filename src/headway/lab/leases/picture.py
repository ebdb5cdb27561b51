"""A fleet under a limit, as a picture: demand, what passed, tokens, and calls, over time; hand-written SVG.

Requests are drawn as the limit counts them: at each moment those of the last window (of the calendar's, for a
`FixedWindow`; of slots those in use), stacked by client. So an area above the dashed line is more than the limit, and
it is red. A stretch of time is three pixels wide, and its fullest instant is the one that is drawn. Tokens are those
that a client holds at the end of a stretch. A tick is a call.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import merge

from headway.core.durations import duration_text
from headway.core.limits import Bucket, Concurrency, FixedWindow
from headway.lab.clocks import BILLION
from headway.lab.leases.trial import Plan, Track
from headway.lab.plot import BAD, FAINT, INK, opening, text

WIDTH, LEFT, RIGHT, HEAD, TALL, GAP, FOOT = 800, 46, 14, 66, 84, 34, 30
BINS = (WIDTH - LEFT - RIGHT) // 3
COLORS = ("#2f6f9f", "#e59a35", "#4f9d69", "#8a5fb0", "#b8a52a", "#4fb0c6", "#a0526d", "#9a9a9a")
GRID = "#ececec"
Levels = list[tuple[int, ...]]


class Groups:
    """The clients that have a color of their own, by weight; those beyond the colors share the last one."""

    def __init__(self, weights: Sequence[int]) -> None:
        order = sorted(range(len(weights)), key=lambda client: -weights[client])
        self.of = {client: min(place, len(COLORS) - 1) for place, client in enumerate(order)}
        self.count = min(len(weights), len(COLORS))
        parts = [100 * weights[client] / sum(weights) for client in order]
        self.names = [
            f"client {client + 1} ({part:.3g} %)"
            for client, part in zip(order[: self.count], parts, strict=False)
        ]
        if len(weights) > len(COLORS):
            rest = parts[self.count - 1 :]
            self.names[-1] = f"{len(rest)} others ({sum(rest):.3g} %)"


def levels(plan: Plan, events: Iterable[tuple[int, int]], groups: Groups) -> Levels:
    """For each stretch of time the fullest moment: how many events of each group the limit counts together then."""
    end = plan.end * BILLION
    edges = [(round(end * place / BINS), -1) for place in range(BINS)]
    fullest: list[tuple[int, ...]] = [()] * BINS
    counts, live = [0] * groups.count, deque[tuple[int, int]]()
    place = -1
    for at, client in merge(edges, events):
        since = plan.limit.window_of(at)[0] if isinstance(plan.limit, FixedWindow) else at - plan.span_ns + 1
        while live and live[0][0] < since:
            counts[live.popleft()[1]] -= 1
        if client < 0:
            place += 1
        else:
            live.append((at, groups.of[client]))
            counts[groups.of[client]] += 1
        if sum(counts) >= sum(fullest[place]):
            fullest[place] = tuple(counts)
    return fullest


def tokens(plan: Plan, track: Track, groups: Groups) -> Levels:
    """What each group holds at the end of each stretch of time."""
    found: Levels = []
    held, changes = dict.fromkeys(groups.of, 0), deque(track.held)
    for place in range(BINS):
        until = plan.end * BILLION * (place + 1) / BINS
        while changes and changes[0][0] < until:
            _, client, number = changes.popleft()
            held[client] = number
        sums = [0] * groups.count
        for client, number in held.items():
            sums[groups.of[client]] += number
        found.append(tuple(sums))
    return found


def draw(plan: Plan, per_second: float, leases: Track, original: Track | None) -> str:
    """The picture, as the text of an SVG file."""
    groups = Groups(plan.weights)
    what = counted(plan)
    bound = plan.bound + (plan.limit.count if isinstance(plan.limit, Bucket) else 0)
    passed = levels(plan, leases.spent, groups)
    other = levels(plan, original.spent, groups) if original else []
    top = max(bound, peak(passed), peak(other))
    demand = levels(plan, leases.asked, groups)
    panels = [
        ("demand", f"Demand: requests {what}, by client", demand, bound, max(bound, peak(demand)), FAINT),
        _passed("leases", "Passed with leases", passed, bound, top, what),
    ]
    if original:
        panels.append(_passed("original", "Passed with the original's algorithm", other, bound, top, what))
    own = tokens(plan, leases, groups)
    said = f"Tokens with the clients, of {plan.bound:,}"
    panels.append(("tokens", said, own, plan.bound, max(plan.bound, 1), FAINT))
    parts: list[str] = []
    y = HEAD
    for name, words, data, line, most, red in panels:
        parts += _panel(name, words, data, line, most, y, red)
        y += TALL + GAP
    ticks = [("leases", leases), *([("original", original)] if original else [])]
    row = max(20, 4 * groups.count)
    parts += _calls(plan, ticks, groups, y, row)
    bottom = y + 20 + (row + 8) * len(ticks)
    return "\n".join(
        [*_frame(plan, per_second, groups, bottom + FOOT), *_grid(plan, bottom), *parts, "</svg>", ""]
    )


def counted(plan: Plan) -> str:
    """What the limit counts together, in words."""
    match plan.limit:
        case FixedWindow():
            return f"so far in each {'month' if plan.limit.monthly else _length(plan.limit.per_ns)}"
        case Concurrency():
            return f"within {_length(plan.hold_ns)}, as long as a call takes"
        case _:
            return f"in the last {_length(plan.limit.per_ns)}"


def _length(ns: int) -> str:
    words = duration_text(ns)
    return re.sub(r"(\d)(\D)", r"\1 \2", words) if words[0].isdigit() else f"1 {words}"


def peak(data: Levels) -> int:
    return max(map(sum, data), default=0)


def _passed(
    name: str, words: str, data: Levels, bound: int, top: int, what: str
) -> tuple[str, str, Levels, int, int, str]:
    most = peak(data)
    verdict = f"above the limit of {bound:,}" if most > bound else f"never above {bound:,}"
    return name, f"{words}, {what}: at most {most:,}, {verdict}", data, bound, top, BAD


def _frame(plan: Plan, per_second: float, groups: Groups, height: int) -> list[str]:
    clients = "1 client" if len(plan.weights) == 1 else f"{len(plan.weights)} clients"
    title = f"{plan.limit} shared by {clients}, demand {per_second:,.5g}/s"
    latency = f"answers take {plan.round_trip_ns / 1e6:,.5g} ms"
    parts = [
        *opening(title, WIDTH, height),
        text(LEFT, 20, f"{title}; {latency}", 15),
    ]
    step = (WIDTH - LEFT - RIGHT) / 4
    for place, name in enumerate(groups.names):
        x, y = LEFT + place % 4 * step, 38 + place // 4 * 15
        parts.append(f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" fill="{COLORS[place]}"/>')
        parts.append(text(x + 15, y, name, 12))
    return parts


def _grid(plan: Plan, bottom: int) -> list[str]:
    """Lines at round times, over all panels, and the times below them."""
    step = _round_step(plan.end / 8)
    parts, at = [], 0.0
    while at <= plan.end + 1e-9:
        x = LEFT + at / plan.end * BINS * 3
        parts.append(f'<path d="M{x:.1f} {HEAD + 18}V{bottom}" stroke="{GRID}"/>')
        if x < WIDTH - 30:
            parts.append(text(x, bottom + 16, f"{at:,.6g} s", 12, FAINT, "middle"))
        at += step
    return parts


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... and of their parts.

    >>> _round_step(0.3), _round_step(7), _round_step(75)
    (0.5, 10.0, 100.0)
    """
    power = 1e-9
    while power * 10 <= least:
        power *= 10
    return float(f"{next(power * times for times in (1, 2, 5, 10) if power * times >= least * 0.999):.3g}")


def _panel(name: str, words: str, data: Levels, bound: int, most: int, top: int, above: str) -> list[str]:
    floor = top + 22 + TALL - 8
    scale = (TALL - 8) / (most * 1.06 or 1)
    exceeds = above == BAD and peak(data) > bound
    parts = [f'<g id="{name}">', text(LEFT, top + 13, words, 13, BAD if exceeds else INK)]
    for group in reversed(range(len(data[0]))):
        heights = [sum(counts[: group + 1]) for counts in data]
        parts.append(f'<path d="{_steps(heights, floor, scale)}" fill="{COLORS[group]}"/>')
    line = floor - bound * scale
    if exceeds:
        over = [max(0, sum(counts) - bound) for counts in data]
        parts.append(f'<path class="above" d="{_steps(over, line, scale)}" fill="{BAD}"/>')
    parts += [
        f'<path d="M{LEFT} {floor}H{LEFT + BINS * 3}" stroke="{FAINT}"/>',
        f'<path d="M{LEFT} {line:.1f}H{LEFT + BINS * 3}" stroke="{INK}" stroke-dasharray="4 3"/>',
        text(LEFT - 6, line + 4, f"{bound:,}", 12, INK, "end"),
        "</g>",
    ]
    return parts


def _steps(heights: Sequence[int], floor: float, scale: float) -> str:
    """The outline of an area that is as high as this in each stretch of time."""
    path, before = [f"M{LEFT} {floor:.1f}"], 0
    for place, height in enumerate(heights):
        if height != before:
            path.append(f"H{LEFT + 3 * place}V{floor - height * scale:.1f}")
            before = height
    return "".join([*path, f"H{LEFT + 3 * len(heights)}V{floor:.1f}Z"])


def _calls(plan: Plan, ticks: Sequence[tuple[str, Track]], groups: Groups, top: int, row: int) -> list[str]:
    tall = row / groups.count
    rates = " and ".join(
        f"{track.calls_per_second(plan):,.1f} a second {'with leases' if name == 'leases' else 'by the original'}"
        for name, track in ticks
    )
    parts = ['<g id="calls">', text(LEFT, top + 13, f"Calls: {rates}", 13)]
    for number, (name, track) in enumerate(ticks):
        y = top + 22 + number * (row + 8)
        parts.append(
            text(LEFT - 6, y + row / 2 + 4, {"leases": "leases", "original": "orig."}[name], 12, INK, "end")
        )
        for group in range(groups.count):
            places = {
                round(at / BILLION / plan.end * BINS * 3)
                for at, client in track.calls
                if groups.of[client] == group
            }
            path = "".join(
                f"M{LEFT + place} {y + group * tall:.1f}v{tall - 1:.1f}" for place in sorted(places)
            )
            if path:
                parts.append(f'<path class="{name}" d="{path}" stroke="{COLORS[group]}" stroke-width="1.4"/>')
    return [*parts, "</g>"]
