"""`python -m headway.lab.once [worlds | mutants]`: the law of gates in seeded worlds, in virtual time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from headway.lab.once.mutants import MUTANTS, hunt
from headway.lab.once.worlds import draw, run_world

COUNTED = ("steps", "lines", "compared", "key_frames", "kills", "lost_lines", "unavailable")


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def worlds(count: int, first: int) -> bool:
    bad, totals = 0, dict.fromkeys(COUNTED, 0)
    for seed in range(first, first + (count or 1000)):
        outcome = run_world(draw(seed))
        for name in COUNTED:
            totals[name] += getattr(outcome, name)
        if outcome.wrong:
            bad += 1
            say(f"{outcome.world.changed()}\n    " + "\n    ".join(outcome.wrong))
    say(
        "{steps} commands, {lines} changes, {compared} states of copies compared, {key_frames} key frames, {kills} "
        "processes killed, {lost_lines} lines lost by failovers, {unavailable} times no answer".format(
            **totals
        )
    )
    say(f"{count or 1000} worlds, {bad} of them against the law")
    return bad == 0


def mutants(count: int, first: int) -> bool:
    missed = 0
    for mutant in MUTANTS:
        found = hunt(mutant, count or 100, first)
        missed += found is None
        told = "NOT FOUND" if found is None else f"found in world {found[0]}: {found[1].wrong[0]}"
        say(f"{mutant.name:60} {told[:100]}")
    say(f"{len(MUTANTS)} mutants, {missed} of them not found")
    return missed == 0


COMMANDS: dict[str, Callable[[int, int], bool]] = {"worlds": worlds, "mutants": mutants}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headway.lab.once", description=__doc__)
    parser.add_argument("what", nargs="?", choices=[*COMMANDS, "all"], default="all")
    parser.add_argument("--count", type=int, default=0, help="worlds, or worlds per mutant")
    parser.add_argument("--seed", type=int, default=0, help="of the first world; the others follow")
    given = parser.parse_args()
    chosen = list(COMMANDS) if given.what == "all" else [given.what]
    good = [COMMANDS[name](given.count, given.seed) for name in chosen]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
