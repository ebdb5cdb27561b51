"""`headway lab prefetch 20/s --clients 3:1`: how much of a limit passes with leases, and with how many calls.

The figures are those of `headway.lab.leases.trial`. This is where the words of a command line become a plan, and where
a plan that would run for hours is refused.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from headway import AllOf, Bucket, Concurrency, FixedWindow, Window, parse_limit
from headway.cli import INTERRUPTED
from headway.cli.lab import progress
from headway.cli.options import bad_option, check_picture, duration_ns, write_picture
from headway.cli.words import span
from headway.core.durations import Scanner
from headway.core.lendable import tokens_to_lend
from headway.errors import InvalidLimit
from headway.lab.clocks import BILLION
from headway.lab.leases.picture import draw
from headway.lab.leases.trial import Lent, Plan, Track, server_for
from headway.printable import printable

MOST_CLIENTS = 10_000
MOST_EVENTS = 20_000_000
"""Requests and calls in all runs together: some minutes."""
SLOWEST = 0.001
"""Requests of a client in a second; `headway.lab.leases.traffic` is not exact for much fewer."""


class Tried(NamedTuple):
    """What became of one demand; without leases only for random times, where the limit itself denies requests too."""

    per_second: float
    leases: Track
    original: Track | None
    asking: Track | None


def prefetch(
    limit: Annotated[
        list[str], typer.Argument(help='Such as "20/s", "1200/minute burst 100" or "5 concurrent".')
    ],
    clients: Annotated[
        str, typer.Option(help='How many, such as "8"; or how they divide the demand, such as "3:1".')
    ] = "2",
    demand: Annotated[
        str, typer.Option(help='Multiples of the limit or rates such as "30/s", with commas between them.')
    ] = "0.5,0.9,1,1.1,10",
    latency: Annotated[str, typer.Option(help="How long a call and its answer take together.")] = "200ms",
    windows: Annotated[int, typer.Option(min=1, help="How many windows of the limit to run.")] = 10,
    ttl: Annotated[str, typer.Option(help="How long a lease lasts unless it is renewed.")] = "3s",
    hold: Annotated[
        str, typer.Option(help="How long a call keeps its slot, for a limit of concurrency.")
    ] = "300ms",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Draw random times of requests.  [default: evenly spaced]")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", help="Draw the smallest demand above the limit into this SVG file."),
    ] = None,
) -> None:
    """Try how clients that lease parts of a limit share it.

    Each client holds some of the limit's tokens and decides alone; calls keep and move them. Requests never wait: what
    is denied is lost. The same requests are run through the original, the published algorithm of prefetching.

    The exit code is 0 if leases never passed more than the limit, 1 otherwise.
    """
    plan = Plan(
        limit_of(limit),
        weights_of(clients),
        round_trip_ns=duration_ns("--latency", latency),
        windows=windows,
        ttl_ns=_positive("--ttl", ttl),
        hold_ns=_positive("--hold", hold),
        seed=seed,
    )
    rates = rates_of(demand, plan)
    _check_size(plan, rates)
    if picture is not None:
        check_picture(picture)
    console = Console(highlight=False)
    try:
        tried = run(plan, rates)
        console.print(title(plan), markup=False)
        console.print(table(plan, tried))
        console.print("\n".join(notes(plan)), markup=False)
        if picture is not None:
            drawn = _to_draw(plan, tried)
            write_picture(picture, draw(plan, drawn.per_second, drawn.leases, drawn.original))
    except KeyboardInterrupt:
        console.print("\nstopped")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(1 if any(one.leases.most(plan) > plan.bound for one in tried) else 0)


def limit_of(words: list[str]) -> Lent:
    """The limit, if it can be lent; otherwise the command ends with the reason."""
    try:
        found = parse_limit(" ".join(words))
        if isinstance(found, AllOf):
            parts = ", ".join(f'"{part}"' for part in found.limits)
            reason = f"each part of {str(found)!r} is lent on its own: try them one by one: {parts}"
            raise bad_option("LIMIT", reason)
        tokens_to_lend(found, 0, 0, BILLION)
    except InvalidLimit as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(2) from None
    if isinstance(found, Window):
        return Window(found.count, per=f"{found.per_ns}ns", remote=False)
    assert isinstance(found, Bucket | FixedWindow | Concurrency)
    return found


def weights_of(text: str) -> tuple[int, ...]:
    """
    >>> weights_of("3"), weights_of("3:1")
    ((1, 1, 1), (3, 1))
    """
    if not re.fullmatch(r"\s*\d{1,9}\s*(:\s*\d{1,9}\s*)*", text, re.ASCII):
        complaint = (
            f'{printable(text)!r} is neither a number of clients such as "8" nor weights such as "3:1"'
        )
        raise bad_option("--clients", complaint)
    numbers = tuple(map(int, text.split(":")))
    clients = numbers[0] if len(numbers) == 1 else len(numbers)
    if not 1 <= clients <= MOST_CLIENTS or 0 in numbers:
        raise bad_option("--clients", f"give 1 to {MOST_CLIENTS:,} clients, each with a weight of at least 1")
    return (1,) * clients if len(numbers) == 1 else numbers


def rates_of(text: str, plan: Plan) -> list[float]:
    """What is asked for in a second, for each demand."""
    rates = [_rate_of(part.strip(), plan) for part in text.split(",")]
    slowest = min(rates) * min(plan.weights) / sum(plan.weights)
    if slowest < SLOWEST:
        complaint = f"a client would ask once in {1 / slowest:,.0f} s; give more demand, or fewer clients"
        raise bad_option("--demand", complaint)
    return rates


def _rate_of(text: str, plan: Plan) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not math.isnan(factor):
        if not 0.001 <= factor <= 1000:
            raise bad_option("--demand", f"{text}: give multiples of the limit from 0.001 to 1000")
        if plan.rate == 0:
            complaint = f'{text} times a limit of 0 is nothing; give the demand as a rate, such as "100/s"'
            raise bad_option("--demand", complaint)
        return factor * plan.rate
    try:
        scan = Scanner(text, "demand")
        count, per_ns = scan.rate()
        if scan.peek():
            scan.fail("nothing more after the rate")
    except InvalidLimit as error:
        neither = (
            f'{printable(text)!r} is neither a multiple of the limit such as "0.9" nor a rate such as "30/s"'
        )
        raise bad_option("--demand", error if "/" in text else neither) from None
    if count == 0:
        raise bad_option("--demand", f"{text}: without requests there is nothing to try")
    return count * BILLION / per_ns


def _positive(option: str, text: str) -> int:
    if (ns := duration_ns(option, text)) < 1_000_000:
        raise bad_option(option, f"{text}: give at least 1ms")
    return ns


def _check_size(plan: Plan, rates: list[float]) -> None:
    """End the command if its runs would take hours."""
    renewals = 3 * BILLION / plan.ttl_ns * len(plan.weights)
    if isinstance(plan.limit, FixedWindow):
        renewals += BILLION / plan.limit.per_ns * len(plan.weights)
    events = sum(2 * rate + 2 * renewals for rate in rates) * plan.end
    if events > MOST_EVENTS:
        complaint = (
            f"{plan.windows} windows are {plan.end:,.0f} s with about {events:,.0f} requests and calls, and more than "
            f"{MOST_EVENTS:,} would take too long; give fewer windows, a smaller --demand, or a longer --ttl"
        )
        raise bad_option("--windows", complaint)


def run(plan: Plan, rates: list[float]) -> list[Tried]:
    """Every demand, both ways; how far it is, is told on stderr."""
    console = Console(stderr=True, highlight=False)
    ways = 1 + (server_for(plan.limit) is not None) + (plan.seed is not None)
    found = []
    with progress(console, "requests", round(sum(rates) * plan.end * ways)) as advance:
        for rate in rates:
            asking = None if plan.seed is None else plan.asking(rate, advance)
            found.append(Tried(rate, plan.leases(rate, advance), plan.original(rate, advance), asking))
    return found


def _to_draw(plan: Plan, tried: list[Tried]) -> Tried:
    above = [one for one in tried if one.per_second > plan.rate * 1.000001]
    return min(above) if above else max(tried)


def table(plan: Plan, tried: list[Tried]) -> Table:
    """The figures: for each demand what leases did, and what the original."""
    made = Table()
    for column in ("demand", "", "passed", most_of(plan), "calls/s"):
        made.add_column(column, justify="right" if column else "left")
    for one in tried:
        made.add_row(demand_text(plan, one.per_second), "leases", *figures(plan, one.leases))
        for name, track in (("no leases", one.asking), ("original", one.original)):
            if track is not None:
                made.add_row("", name, *figures(plan, track))
        made.add_section()
    return made


def figures(plan: Plan, track: Track) -> tuple[str, str, str]:
    """The share that passed, the most that the limit counted together, and the calls in a second."""
    most = track.most(plan)
    fullest = f"{most:,} of {plan.bound:,}"
    if most > plan.bound:
        fullest = f"[red]{fullest}[/]"
    passed = f"{track.passed(plan):.1%}" if plan.allowed else f"{track.counted_passed:,} of 0"
    return passed, fullest, f"{track.calls_per_second(plan):,.1f}"


def demand_text(plan: Plan, per_second: float) -> str:
    """
    >>> demand_text(Plan(Window(20, per=1), (1,)), 22), demand_text(Plan(Window(0, per=1), (1,)), 100)
    ('1.1 x = 22/s', '100/s')
    """
    rate = f"{per_second:,.5g}/s"
    return f"{per_second / plan.rate:.4g} x = {rate}" if plan.rate else rate


def title(plan: Plan) -> str:
    """What is tried."""
    weights = plan.weights
    equal = len(set(weights)) == 1
    clients = "1 client" if len(weights) == 1 else f"{len(weights)} clients"
    if len(weights) > 1:
        shares = ":".join(map(str, weights[:12])) + (":…" if len(weights) > 12 else "")
        clients += " alike" if equal else f" ({shares})"
    traffic = "evenly spaced" if plan.seed is None else f"at random times (seed {plan.seed})"
    hold = f", calls of {span(plan.hold_ns)}" if isinstance(plan.limit, Concurrency) else ""
    return (
        f"{plan.limit}, {clients}, answers after {span(plan.round_trip_ns) if plan.round_trip_ns else '0 s'}, "
        f"{plan.seconds:,.6g} s, requests {traffic}{hold}"
    )


def most_of(plan: Plan) -> str:
    """What the column says whose figure the limit bounds."""
    match plan.limit:
        case Window():
            return f"most in any {span(plan.limit.per_ns)}"
        case Bucket():
            return "most beyond the rate"
        case FixedWindow():
            return "most in a window"
        case Concurrency():
            return "most at once"


def notes(plan: Plan) -> list[str]:
    """What the figures mean."""
    burst = " A burst comes on top, so more than 100 % may pass." if isinstance(plan.limit, Bucket) else ""
    original = {
        "window": "the published algorithm, with the server of its tests, which counts in fixed windows.",
        "bucket": "the published algorithm, with the server of its tests, which refills like a bucket.",
        "fixed_window": "the published algorithm, with a server that counts in the same windows.",
        "concurrency": "left out, since the published algorithm knows no calls that end.",
    }
    lines = [
        f"passed: the share of min(demand, limit), where a request that is denied is lost.{burst}",
        f"calls/s: of all clients ({len(plan.weights)}) together; without leases each request is a call.",
        f"original: {original[plan.limit.kind]}",
    ]
    if plan.seed is not None:
        lines.insert(
            2, "no leases: what the limit itself admits of these requests, if an answer takes no time."
        )
    return lines
