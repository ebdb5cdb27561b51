"""`headway demo`: a crowd behind `headway.throttle` against a strict API, and the same behind a token bucket."""

from __future__ import annotations

import asyncio
import logging
import random
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console

from headway import Window, parse_limit, throttle
from headway.cli import INTERRUPTED
from headway.cli.options import bad_option, duration_ns
from headway.cli.screen import Screen
from headway.errors import InvalidLimit
from headway.lab.demo.crowd import Crowd
from headway.lab.demo.host import ApiProcess
from headway.lab.demo.token_bucket import TokenBucket

REFRESH = 0.1


def _window(option: str, text: str) -> Window:
    try:
        limit = parse_limit(text)
    except InvalidLimit as error:
        raise bad_option(option, error) from None
    if not isinstance(limit, Window) or not limit.count:
        raise bad_option(option, f"the demo's API counts in a window: give something like 20/s, not {text!r}")
    return limit


def demo(
    seconds: Annotated[float, typer.Option(min=0.5, max=3600, help="How many seconds to run.")] = 12,
    limit: Annotated[str, typer.Option(help="What the API allows.")] = "20/s",
    workers: Annotated[int, typer.Option(min=1, max=400, help="How many workers call the API.")] = 50,
    latency: Annotated[
        str, typer.Option(help="How long an answer takes on average; it varies a lot.")
    ] = "60ms",
    burst: Annotated[
        int | None,
        typer.Option(min=1, help="The burst of the token bucket.  [default: what the limit allows]"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="A seed, to draw the same latencies again.  [default: random]")
    ] = None,
) -> None:
    """Watch headway keep a strict limit, and a token bucket break it.

    Two equal APIs are started on loopback, each in a process of its own. Each allows
    so many calls in any window of time, by its own coarse and drifting clock. It
    answers 429 to a call too many, and then to every call for a quarter of the
    window. One crowd of workers calls through headway.throttle, the other through a
    token bucket of the same rate.

    The exit code is 1 if headway broke the limit.
    """
    window, latency_ns = _window("--limit", limit), duration_ns("--latency", latency)
    if seed is None:
        seed = random.randrange(1000)
    console = Console(highlight=False)
    # Calls that are cut off at the end abandon their permits. That is no news here, and the screen is taken.
    logging.getLogger("headway").addHandler(logging.NullHandler())
    try:
        with ExitStack() as stack:
            apis = [stack.enter_context(ApiProcess(window, latency_ns, seed)) for _ in range(2)]
            console.print(
                f"[bold]{workers} workers[/] call an API that allows [bold]{window}[/]: in any window, by its clock\n"
                f"[dim](it drifts and ticks in 16 ms; answers take {latency}, more or less; seed {seed})[/]\n"
            )
            bucket = TokenBucket(window.count * 1e9 / window.per_ns, burst or window.count)
            crowds = [
                Crowd("headway.throttle", throttle(window), apis[0].port, workers),
                Crowd("token bucket", bucket.throttle, apis[1].port, workers),
            ]
            screen = Screen(console, crowds, window, seconds)
            notes = stack.enter_context(warnings.catch_warnings(record=True))
            with screen.live() as show:
                asyncio.run(play(crowds, seconds, show))
    except KeyboardInterrupt:
        console.print("stopped")
        raise typer.Exit(INTERRUPTED) from None
    except ConnectionError as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(1) from None
    console.print("", screen.summary(), sep="\n")
    for note in notes:
        console.print(f"\nheadway warned: {note.message}", style="yellow", markup=False)
    explain = f'headway explain "{window}"'
    console.print(
        f"\nRead next: README.md\n"
        f"           {explain:<38}what the limit promises\n"
        f"           {'python -m pydoc headway.core.remote':<38}why the gap is that long"
    )
    raise typer.Exit(1 if crowds[0].report.violations else 0)


async def play(crowds: list[Crowd], seconds: float, show: Callable[[], None]) -> None:
    """Start the crowds at the same moment, and show them until both have finished."""
    try:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(crowd.run(seconds)) for crowd in crowds]
            while any(not run.done() for run in runs):
                show()
                await asyncio.sleep(REFRESH)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the first is enough: an API that went away
