"""`python -m headway.lab.adaptive worlds [--count N] [--family wide]`: `Adaptive` beside AWS's algorithm and AIMD.

`python -m headway.lab.adaptive backends` plays `AdaptiveConcurrency` beside Netflix's Gradient2 and a fixed number.
"""

from __future__ import annotations

import argparse
import sys

from headway.lab.adaptive.backends import CONTENDERS as BACKEND_CONTENDERS
from headway.lab.adaptive.backends import draw as draw_backend
from headway.lab.adaptive.backends import play as play_backend
from headway.lab.adaptive.backends import serves
from headway.lab.adaptive.informed import LEAST_USED, MOST_REFUSED, meets, within_reach
from headway.lab.adaptive.opponents import CONTENDERS
from headway.lab.adaptive.worlds import CLIENTS, FAMILIES, Score, draw, play

BACKEND_BAR = "backends with >= 90 % used and calls of at most twice their time"
OWN, RIVAL = "headway", "AWS"

Row = dict[str, Score]


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def summary(rows: list[Row]) -> list[str]:
    """The means by number of clients, how many worlds meet the bar, and how the two compare world by world."""
    lines = [f"{'clients':>8}" + "".join(f"{name + ' used':>16}{'refused':>9}" for name in CONTENDERS)]
    for clients in (*CLIENTS, None):
        chosen = [row for row in rows if clients in (None, row[OWN].world.clients)]
        if chosen:
            cells = "".join(
                f"{_mean([row[name].used for row in chosen]):>16.1%}"
                f"{_mean([row[name].refusals for row in chosen]):>9.2%}"
                for name in CONTENDERS
            )
            lines.append(f"{clients or 'all':>8}{cells}")
    bar = "worlds with >= 90 % used and <= 2 % refused"
    lines += [f"{name}: {sum(meets(row[name]) for row in rows)} of {len(rows)} {bar}" for name in CONTENDERS]
    fewer = sum(row[OWN].refusals < row[RIVAL].refusals for row in rows)
    more = sum(row[OWN].used > row[RIVAL].used for row in rows)
    least = min(row[OWN].used - row[RIVAL].used for row in rows)
    lines.append(
        f"against {RIVAL}: fewer refusals in {fewer} of {len(rows)} worlds; more used in {more}, "
        f"and where less, {max(0.0, -least):.1%} of the limit less at worst"
    )
    return lines


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def worlds(count: int, first: int = 0, family: str = "narrow") -> bool:
    """Print each world and the summary; whether the means meet the bar and are better than the rival's in both."""
    rows = []
    beyond = 0
    for seed in range(first, first + count):
        world = draw(seed, family)
        row = {name: play(world, make) for name, make in CONTENDERS.items()}
        rows.append(row)
        figures = "  ".join(
            f"{name} {score.used:.1%}, {score.refusals:.2%} refused" for name, score in row.items()
        )
        verdict = ""
        if not meets(row[OWN]):
            reachable = within_reach(world)
            beyond += not reachable
            verdict = "   below the bar" + ("" if reachable else ", as is a client that knows the limit")
        say(f"{world}\n    {figures}{verdict}")
    for line in summary(rows):
        say(line)
    if beyond:
        say(f"of those that {OWN} misses, {beyond} are missed by a client that knows the limit, too")
    own, rival = ([row[name] for row in rows] for name in (OWN, RIVAL))
    used, refused = _mean([score.used for score in own]), _mean([score.refusals for score in own])
    better = used > _mean([score.used for score in rival]) and refused < _mean(
        [score.refusals for score in rival]
    )
    return better and used >= LEAST_USED and refused <= MOST_REFUSED


def backends(count: int, first: int = 0) -> bool:
    """Print each backend and the means; whether every one is used, and no call takes much longer than it has to."""
    names = tuple(BACKEND_CONTENDERS)
    rows = []
    for seed in range(first, first + count):
        backend = draw_backend(seed)
        row = {name: play_backend(backend, make) for name, make in BACKEND_CONTENDERS.items()}
        rows.append(row)
        figures = "  ".join(f"{name} {made.used:.1%}, x{made.slower:.2f}" for name, made in row.items())
        say(f"{backend}\n    {figures}{'' if serves(row[OWN]) else '   below the bar'}")
    for name in names:
        used, slower = (_mean([getattr(row[name], what) for row in rows]) for what in ("used", "slower"))
        met = sum(serves(row[name]) for row in rows)
        say(
            f"{name}: {used:.1%} of the capacity used, a call takes x{slower:.2f}; {met} of {count} {BACKEND_BAR}"
        )
    return all(serves(row[OWN]) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headway.lab.adaptive", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["worlds", "backends"], default="worlds")
    parser.add_argument("--count", type=int, default=36, help="how many worlds")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--family", choices=[*FAMILIES], default="narrow", help="how far the limits change")
    given = parser.parse_args()
    if given.what == "backends":
        return 0 if backends(given.count, given.seed) else 1
    return 0 if worlds(given.count, given.seed, given.family) else 1


if __name__ == "__main__":
    sys.exit(main())
