"""`headway lab`: the adversary against `Window` limits, and other libraries in the same world."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headway.cli import INTERRUPTED
from headway.cli.options import bad_option, check_picture, duration_ns, write_picture
from headway.cli.words import count
from headway.lab import World, draw, run_world, shrink, tell
from headway.lab.clocks import BILLION
from headway.lab.peers import Score, compete, present
from headway.lab.plot import draw as draw_plot
from headway.lab.worlds import with_clocks

app = typer.Typer(no_args_is_help=True, help="Attack the limits and try them out, in virtual time.")
CHUNK = 50
ROUNDS = 5


@app.callback()
def lab() -> None:
    """Attack the limits and try them out, in virtual time."""


@app.command()
def window(
    n: Annotated[
        int | None, typer.Option(min=1, help="How many requests the remote allows.  [default: drawn]")
    ] = None,
    per: Annotated[str | None, typer.Option(help="The length of the window.  [default: drawn]")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many workers send at once.  [default: drawn]")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="The longest latency, each way.  [default: drawn]")
    ] = None,
    worlds: Annotated[int, typer.Option(min=0, help="How many worlds to attack headway in.")] = 500,
    events: Annotated[int, typer.Option(min=10, help="How many requests in each world.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first world; the others follow.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="How many processes to use.")] = 1,
    peers: Annotated[bool, typer.Option(help="Run other libraries in the same worlds, too.")] = True,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw what the remote saw into this SVG file.")
    ] = None,
) -> None:
    """Try to make headway send more than a remote allows.

    Every world is drawn from its seed: clocks that tick and drift as badly as they may, latencies, time-outs, crashes,
    restarts. An option fixes a value; the rest is drawn, extremes first. The remote audits every window. Then other
    libraries, if they are installed, get the same requests without faults and with a perfect clock.

    The exit code is 0 if headway never sent one too many, 1 otherwise.
    """
    given = {"n": n, "per": None if per is None else duration_ns("--per", per), "workers": workers}
    fixed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if latency is not None:
        ns = duration_ns("--latency", latency)
        fixed |= {"out_more": ns, "back_more": ns, "spread": "even"}
    if picture is not None:
        check_picture(picture)
    elif not (worlds or peers):
        raise bad_option("--worlds", "with 0 worlds, --no-peers and no --picture there is nothing to do")
    console = Console(highlight=False)
    try:
        failed = _attack(console, range(seed, seed + worlds), events, fixed, jobs) if worlds else []
        if peers or picture:
            _compare(console, _everyday(seed, events, fixed), picture, with_peers=peers)
    except KeyboardInterrupt:
        console.print("\nstopped")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(1 if failed else 0)


def _attack(console: Console, seeds: range, events: int, fixed: dict[str, Any], jobs: int) -> list[int]:
    """Run headway in each world, and explain the first that fails, reduced. Returns the seeds that failed."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    failed: list[int] = []
    sent, began = 0, time.monotonic()
    with progress(console, "worlds", len(seeds)) as advance, _mapper(jobs) as spread:
        for chunk, (number, bad) in zip(
            chunks, spread(partial(_run_chunk, events, fixed), chunks), strict=True
        ):
            sent += number
            failed += bad
            advance(len(chunk))
    seconds = time.monotonic() - began
    console.print(
        f"headway: {count(len(failed), 'world')} of {len(seeds):,} with one too many; {sent:,} requests, "
        f"{len(seeds) / seconds:.0f} worlds a second",
        style="red" if failed else None,
        soft_wrap=True,
    )
    if failed:
        small = shrink(draw(failed[0], events, **fixed))
        console.print(
            f"seed {failed[0]}, reduced:\n{tell(run_world(small, trace=True))}",
            markup=False,
            soft_wrap=True,
        )
    return failed


def _run_chunk(events: int, fixed: dict[str, Any], seeds: range) -> tuple[int, list[int]]:
    sent, bad = 0, []
    for seed in seeds:
        outcome = run_world(draw(seed, events, **fixed))
        sent += outcome.events
        if outcome.verdict.violations:
            bad.append(seed)
    return sent, bad


@contextmanager
def _mapper(jobs: int) -> Iterator[Any]:
    if jobs == 1:
        yield map
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield pool.map


@contextmanager
def progress(console: Console, what: str, total: int) -> Iterator[Any]:
    """Show how far it is; yields what is to be called with what has been done."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # A thread draws it, and takes time from the run: at the usual ten times a second about 2 %. In a file it would be
    # an empty line.
    bar = Progress(
        *columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
    )
    with bar:
        yield partial(bar.advance, bar.add_task(what, total=total))


def _everyday(seed: int, events: int, fixed: dict[str, Any]) -> list[World]:
    """Ordinary worlds for the comparison: the given numbers, latencies, and a remote clock at the edge of its drift."""
    own = {"n": 10, "per": BILLION, "out_more": 100_000_000, "back_more": 100_000_000, **fixed}
    own.setdefault("workers", 4 * own["n"])
    own["max_transit"] = 10 * BILLION + own["out_more"]
    own["spread"] = "even"
    made = [World(seed=seed + i, events=max(events, 20 * own["n"]), **own) for i in range(ROUNDS)]
    return [with_clocks(world, Random(world.seed)) for world in made]


def _compare(console: Console, worlds: list[World], picture: Path | None, *, with_peers: bool) -> None:
    names, missing = present()
    if not with_peers:
        names = names[:1]
    table = Table(title=_title(worlds[0]), title_justify="left")
    for column in ("", "requests", "too many", "most in a window", "of the safe ceiling"):
        table.add_column(column, justify="left" if not column else "right")
    first: list[Score] = []
    with progress(console, "libraries", len(names)) as advance:
        for name in names:
            scores = [compete(name, world) for world in worlds]
            first.append(scores[0])
            table.add_row(name, *row_of(scores, worlds[0].n))
            advance(1)
    console.print(table)
    if missing and with_peers:
        console.print(f"not installed: {', '.join(missing)}")
    if picture is not None:
        write_picture(picture, draw_plot(first, worlds[0]))


def row_of(scores: list[Score], n: int) -> tuple[str, str, str, str]:
    """What a library did over several worlds."""
    too_many = sum(score.verdict.violations for score in scores)
    worst = max(score.worst for score in scores)
    share = sum(score.share for score in scores) / len(scores)
    return f"{sum(score.events for score in scores):,}", f"{too_many:,}", f"{worst} of {n}", f"{share:.1%}"


def _title(world: World) -> str:
    latency = (world.out_more + world.back_more) / BILLION * 1000
    return (
        f"{world.n} in any {world.per / BILLION:g} s, {world.workers} workers, round trips up to {latency:g} ms, "
        f"{ROUNDS} worlds"
    )
