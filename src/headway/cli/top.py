"""`headway top redis://...`: the ledgers of a server, in a table that is kept up to date."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway.cli import INTERRUPTED
from headway.cli.words import count, shown
from headway.engines.ledger_view import LedgerView, Scanner
from headway.engines.uri import open_scanner
from headway.errors import EngineUnavailable, HeadwayError, seconds_text
from headway.printable import printable

HEADS = (
    "name",
    "key",
    "limit",
    "left",
    "out",
    "lent",
    "abandoned",
    "waiting",
    "next permit",
    "held up",
    "seen",
)
WORDS = 3
"""Columns of words; the others are numbers."""
TELLING = 1_000
"""Ticks: a shorter wait only means that the caller has to ask again."""
SHARE = 4
"""A name or a key takes a quarter of a terminal's width at most: a longer one would push the figures out of sight, or
fill a line of its own and fake a row."""
SELDOM = {HEADS.index("lent"): "holders", HEADS.index("abandoned"): "abandoned"}
"""Columns that are left out while they are empty, since a terminal is narrow; and what of a ledger fills them."""

SEARCH_STEPS = 50
"""How far one look searches a large server; the next look goes on from there."""

Uri = Annotated[
    str, typer.Argument(help="The engine, as a Limiter names it: redis://host:6379/0", metavar="URI")
]


def top(
    uri: Uri,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as plain text.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Show it once, as JSON.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two updates.")] = 2.0,
    wanted: Annotated[
        str | None,
        typer.Option("--filter", help="Show only these: a pattern (api*), or a part of NAME or NAME:KEY."),
    ] = None,
    most: Annotated[
        int, typer.Option("--max", min=1, max=10_000, help="How many ledgers to read, by name.")
    ] = 100,
) -> None:
    """Watch the ledgers of a shared engine: what is left, how many wait, when the next permit comes.

    Of the ledgers that are read (--max, by name), those with waiters come first. It only reads, with SCAN in small
    steps and a script that may not write, so it can be left running beside a busy fleet. Ctrl-C ends it. Where the
    output is not a terminal, it shows the table once.
    """
    console = Console(highlight=False)
    with complaints():
        scanner = open_scanner(uri, 2.0)
        live = console.is_terminal and not console.is_dumb_terminal and not once and not as_json
        views, more = look(scanner, wanted, most, SEARCH_STEPS if live else None)
    if live:
        watch(console, scanner, wanted, most, interval, (views, more))
    elif as_json:
        typer.echo(json.dumps({"ledgers": [as_data(view) for view in views], "more": more}, indent=2))
    else:
        typer.echo(plain(views, more, console.width // SHARE if console.is_terminal else None))


@contextmanager
def complaints() -> Iterator[None]:
    """End the command with one line on stderr: exit code 1 if the engine is away, 2 if an argument is wrong."""
    try:
        yield
    except HeadwayError as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, EngineUnavailable) else 2) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def look(scanner: Scanner, wanted: str | None, most: int, steps: int | None) -> tuple[list[LedgerView], int]:
    """The ledgers to show, and the number of those that are left out."""
    scanner.search(steps)
    addresses = scanner.addresses(wanted)
    read = scanner.read(addresses[:most])
    with_ledgers = {view.address.root for view in read if view.ledgers}
    # A root without ledgers says something only while it holds up what is new.
    views = [
        view for view in read if view.ledgers or (view.held_up and view.address.root not in with_ledgers)
    ]
    metered = {address.root for address in addresses if address.metric is not None}
    more = sum(address.metric is not None or address.root not in metered for address in addresses[most:])
    return sorted(views, key=lambda view: -view.waiting), more


def watch(
    console: Console,
    scanner: Scanner,
    wanted: str | None,
    most: int,
    interval: float,
    seen: tuple[list[LedgerView], int],
) -> None:
    """Draw the table until Ctrl-C. While the server is away, the last table stays."""
    trouble = ""
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(picture(console, scanner, *seen, trouble), refresh=True)
                time.sleep(interval)
                try:
                    seen, trouble = look(scanner, wanted, most, SEARCH_STEPS), ""
                except EngineUnavailable as error:
                    trouble = str(error)
    except KeyboardInterrupt:
        return  # the usual end


# -- words ----------------------------------------------------------------------------------------------------


def span(ticks: int | None) -> str:
    """
    >>> span(0), span(250_000), span(7_260_000_000), span(None)
    ('now', '0.25 s', '2 h 1 min', 'never')
    """
    if ticks is None:
        return "never"
    if ticks <= 0:
        return "now"
    minutes = int(ticks // 60_000_000)
    if minutes >= 24 * 60:
        return f"{minutes // 1440} d {minutes // 60 % 24} h"
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return seconds_text(ticks / 1e6)


def ago(ticks: int) -> str:
    """
    >>> ago(1_000), ago(2_500_000)
    ('now', '2.5 s ago')
    """
    return "now" if ticks < 100_000 else f"{span(ticks)} ago"


def next_permit(view: LedgerView) -> str:
    """When the next permit comes; while permits are out, the earliest time that is known."""
    text, wait = span(view.wait), view.wait
    if view.exact or not wait:
        return text
    return "not known" if wait < TELLING else f">= {text}"


def held_up(view: LedgerView) -> str:
    """Why nothing is granted, and for how long; or for how long a loss may still matter."""
    meta, now = view.meta, view.now
    if meta.quarantined > now:
        return f"quarantine {span(meta.quarantined - now)}"
    if meta.paused > now:
        return f"pause {span(meta.paused - now)}"
    return f"in doubt {span(view.in_doubt)}" if view.in_doubt else ""


def lent(view: LedgerView) -> str:
    """How many tokens clients hold, how many clients, and how long at most until those are back."""
    if not view.holders:
        return ""
    return f"{view.lent} to {count(view.holders, 'client')}, {span(view.lent_for)}"


def cells(view: LedgerView, longest: int | None = None) -> tuple[str, ...]:
    """One line of the table."""
    key = view.address.key
    return (
        shown(view.address.label, longest),
        "" if key is None else shown(key, longest),
        printable(view.limit),
        f"{view.remaining}/{view.capacity}" if view.ledgers else "",
        str(view.in_flight or ""),
        lent(view),
        str(view.abandoned or ""),
        str(view.waiting or ""),
        next_permit(view),
        held_up(view),
        ago(view.now - view.meta.last),
    )


def rows(views: Sequence[LedgerView], longest: int | None = None) -> list[tuple[str, ...]]:
    """The table, heads first."""
    table = [HEADS, *(cells(view, longest) for view in views)]
    empty = {column for column, what in SELDOM.items() if not any(getattr(view, what) for view in views)}
    return [tuple(cell for column, cell in enumerate(row) if column not in empty) for row in table]


def remark(more: int) -> str:
    return f"and {more:,} more: choose with --filter, or read more with --max" if more else ""


def plain(views: Sequence[LedgerView], more: int, longest: int | None = None) -> str:
    """The table as plain text."""
    if not views:
        return "no ledgers"
    table = rows(views, longest)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column < WORDS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    return "\n".join([*lines, *filter(None, [remark(more)])])


def picture(
    console: Console, scanner: Scanner, views: Sequence[LedgerView], more: int, trouble: str = ""
) -> RenderableType:
    """The table on a terminal, no higher than it."""
    room = max(1, console.height - 5)
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    heads, *lines = rows(views[:room], console.width // SHARE)
    for number, head in enumerate(heads):
        words = number < WORDS
        table.add_column(head, justify="left" if words else "right", no_wrap=True, overflow="ellipsis")
    for view, line in zip(views, lines, strict=False):
        style = "red" if held_up(view) else "yellow" if view.waiting else ""
        table.add_row(*map(Text, line), style=style)
    title = f"{scanner.where}, {count(len(views), 'ledger')}"
    if not scanner.complete:
        title += ", still looking"
    below = trouble or remark(more + max(0, len(views) - room))
    return Group(
        Text(title, style="dim", no_wrap=True, overflow="ellipsis"),
        table if views else Text("no ledgers"),
        Text(below, style="red" if trouble else "dim"),
    )


def as_data(view: LedgerView) -> dict[str, Any]:
    """One ledger for JSON; times in seconds."""
    meta, now = view.meta, view.now
    return {
        "name": view.address.name,
        "metric": view.address.metric,
        "key": view.address.key,
        "limit": view.limit,
        "remaining": view.remaining,
        "capacity": view.capacity,
        "in_flight": view.in_flight,
        "lent": view.lent,
        "holders": view.holders,
        "lease_left": view.lent_for / 1e6,
        "abandoned": view.abandoned,
        "waiting": view.waiting,
        "next_permit": None if view.wait is None else view.wait / 1e6,
        "exact": view.exact,
        "quarantine": max(0, meta.quarantined - now) / 1e6,
        "pause": max(0, meta.paused - now) / 1e6,
        "in_doubt": view.in_doubt / 1e6,
        "seen": (now - meta.last) / 1e6,
    }
