"""`headway lab adaptive`: clients that find a hidden limit, beside AWS's algorithm and AIMD in the same world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headway.cli import INTERRUPTED
from headway.cli.lab import progress
from headway.cli.options import check_picture, write_picture
from headway.lab.adaptive.opponents import CONTENDERS
from headway.lab.adaptive.picture import draw_scores
from headway.lab.adaptive.worlds import Score, draw, play


def adaptive(
    seed: Annotated[int, typer.Option(min=0, help="The seed that the world is drawn from.")] = 12,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw what each client sent into this SVG file.")
    ] = None,
) -> None:
    """Let clients find a limit that the remote hides.

    The world is drawn from its seed: a sliding window or a bucket that changes, 1, 4 or 16 clients that do not know of
    each other, answers after 10 to 500 ms. Six minutes are played in virtual time, and measured from the 60th second.

    The exit code is 0 if headway was refused less often than AWS's algorithm, 1 otherwise.
    """
    if picture is not None:
        check_picture(picture)
    console = Console(highlight=False)
    world = draw(seed)
    scores: dict[str, Score] = {}
    try:
        with progress(Console(stderr=True, highlight=False), "clients", len(CONTENDERS)) as advance:
            for name, make in CONTENDERS.items():
                scores[name] = play(world, make)
                advance(1)
    except KeyboardInterrupt:
        console.print("\nstopped")
        raise typer.Exit(INTERRUPTED) from None
    console.print(str(world), markup=False, soft_wrap=True)
    console.print(table(scores))
    if picture is not None:
        write_picture(picture, draw_scores(scores))
    raise typer.Exit(0 if scores["headway"].refusals < scores["AWS"].refusals else 1)


def table(scores: dict[str, Score]) -> Table:
    """The figures of each contender."""
    made = Table()
    for column in ("", "of the limit used", "calls refused"):
        made.add_column(column, justify="right" if column else "left")
    for name, score in scores.items():
        made.add_row(name, f"{score.used:.1%}", f"{score.refusals:.2%}")
    return made
