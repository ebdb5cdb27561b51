"""`python -m headway.lab.leases [tables | worlds | mutants]`: the figures of capacity leases, in virtual time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from headway.lab.leases.mutants import MUTANTS, hunt
from headway.lab.leases.tables import calls_per_decisions, everything
from headway.lab.leases.worlds import draw, run_world


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tables(count: int) -> bool:
    rows = []
    for row in everything(count or 10_000):
        rows.append(row)
        say(row)
    say(f"calls per 10,000 decisions at 1000/s: {calls_per_decisions():.1f} (bar 30)")
    say(f"{sum(row.met for row in rows)} of {len(rows)} figures meet their bar")
    return all(row.above == 0 for row in rows)


def worlds(count: int) -> bool:
    bad = 0
    for seed in range(count or 1000):
        outcome = run_world(draw(seed))
        if outcome.above or outcome.jammed:
            bad += 1
            say(outcome)
    say(f"{count or 1000} worlds, {bad} of them above the limit or jammed")
    return bad == 0


def mutants(count: int) -> bool:
    missed = 0
    for mutant in MUTANTS:
        found = hunt(mutant, count or 150)
        missed += found is None
        say(f"{mutant.name:46} {'NOT FOUND' if found is None else f'found in world {found[0]}'}")
    return missed == 0


COMMANDS: dict[str, Callable[[int], bool]] = {"tables": tables, "worlds": worlds, "mutants": mutants}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headway.lab.leases", description=__doc__)
    parser.add_argument("what", nargs="?", choices=[*COMMANDS, "all"], default="all")
    parser.add_argument(
        "--count", type=int, default=0, help="clients of the fleet, worlds, or worlds per mutant"
    )
    given = parser.parse_args()
    chosen = list(COMMANDS) if given.what == "all" else [given.what]
    good = [COMMANDS[name](given.count) for name in chosen]  # all of them, whatever the first one found
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
