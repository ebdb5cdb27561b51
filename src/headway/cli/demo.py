"""`headway demo`: a crowd behind `headway.throttle` against a strict API, and the same crowd behind a token bucket."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console

from headway import Window, parse
from headway.cli import INTERRUPTED
from headway.core.durations import to_ns
from headway.demo.crowd import Crowd
from headway.demo.host import ApiProcess
from headway.demo.screen import Screen, Show
from headway.demo.token_bucket import TokenBucket
from headway.errors import InvalidLimit
from headway.throttle import throttle

REFRESH = 0.1


def _window(text: str) -> Window:
    try:
        limit = parse(text)
    except InvalidLimit as error:
        raise typer.BadParameter(str(error)) from None
    if not isinstance(limit, Window) or not limit.count:
        raise typer.BadParameter(f"the API of the demo counts in a window: give something like 20/s, not {text!r}")
    return limit


def _latency_ns(text: str) -> int:
    try:
        return to_ns(text) or 0
    except InvalidLimit as error:
        raise typer.BadParameter(str(error).replace("invalid limit", "invalid duration")) from None


def demo(
    seconds: Annotated[float, typer.Option(min=0.5, max=3600, help="How long to run.")] = 12,
    limit: Annotated[str, typer.Option(help="What the API allows, in any window.")] = "20/s",
    workers: Annotated[int, typer.Option(min=1, max=400, help="How many call it at once.")] = 50,
    latency: Annotated[str, typer.Option(help="How long an answer takes on average; it varies a lot.")] = "60ms",
    burst: Annotated[int | None, typer.Option(min=1, help="Of the token bucket.  [default: the limit's count]")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeat the same latencies.  [default: random]")] = None,
) -> None:
    """Watch headway keep a strict limit, next to a token bucket that does not.

    Two equal APIs start, each in a process of its own on a loopback port. Each allows so many calls in any window of time
    by its own coarse and drifting clock, and answers 429 to whoever exceeds that. One crowd of workers calls the first
    through headway.throttle, another crowd the second through a plain token bucket of the same rate.

    The exit code is 0 when headway's API counted no violation, 1 otherwise.
    """
    window, latency_ns = _window(limit), _latency_ns(latency)
    chosen = random.randrange(10_000) if seed is None else seed
    console = Console(highlight=False)
    console.print(
        f"[bold]{workers} workers[/] call an API that allows [bold]{window}[/], in any window, by a clock that ticks in 16 ms "
        f"and drifts. [dim](seed {chosen})[/]\n"
    )
    with ExitStack() as stack:
        try:
            apis = [stack.enter_context(ApiProcess(window, latency_ns, chosen)) for _ in range(2)]
            bucket = TokenBucket(window.count * 1e9 / window.per_ns, burst or window.count)
            crowds = [
                Crowd("headway.throttle", throttle(window), apis[0].port, workers),
                Crowd("token bucket", bucket.throttle, apis[1].port, workers),
            ]
            screen = Screen(console, crowds, window, seconds)
            with screen.live() as show:
                asyncio.run(play(crowds, seconds, show))
        except KeyboardInterrupt:
            console.print("\nstopped")
            raise typer.Exit(INTERRUPTED) from None
        except ConnectionError as error:
            console.print(f"[red]headway: {error}[/]")
            raise typer.Exit(1) from None
    _conclude(screen)
    raise typer.Exit(1 if crowds[0].report.violations else 0)


async def play(crowds: list[Crowd], seconds: float, show: Show) -> None:
    """Let the crowds loose at the same moment, and show them until both are done."""
    runs = {asyncio.create_task(crowd.run(seconds)) for crowd in crowds}
    try:
        while any(not run.done() for run in runs):
            show()
            await asyncio.sleep(REFRESH)
            for run in runs:
                if run.done():
                    run.result()
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


def _conclude(screen: Screen) -> None:
    console = screen.console
    console.print()
    if not console.is_terminal or console.is_dumb_terminal:
        console.print(screen.table())
    console.print(screen.summary(), soft_wrap=True)
    console.print(
        f"\nRead next: [bold]README.md[/]; [bold]headway explain {str(screen.limit)!r}[/] says what the limit promises, "
        "[bold]python -m pydoc headway.core.remote[/] why the gap is that long.",
        soft_wrap=True,
    )
