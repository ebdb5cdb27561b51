"""What `headway events watch` shows: a picture on a terminal, a line for each change elsewhere.

A countdown goes by the server's clock, as far as messages tell it (`headway.service.watching`). What comes from the
server is shown with every control character escaped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Protocol

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway.cli.words import shown, span
from headway.once import Change, Pending
from headway.printable import printable
from headway.service.watching import Back, Item, KeyFrame, Lost, Watcher

COLORS = {"SUBMITTED": "cyan", "PUBLISHED": "green", "INVALIDATED": "red"}
PICTURES_A_SECOND = 5
RECENT = 200
"""Changes that are remembered for the picture; a terminal shows fewer."""


def show(url: str, gate: str) -> None:
    """Until Ctrl-C."""
    console = Console(highlight=False)
    watcher = Watcher(url, gate)
    live = console.is_terminal and not console.is_dumb_terminal
    asyncio.run(_picture(console, watcher) if live else _lines(watcher))


class View(Protocol):
    def take(self, item: Item) -> None: ...


async def _follow(watcher: Watcher, view: View) -> None:
    async with aclosing(watcher.watch()) as items:
        async for item in items:
            view.take(item)


# -- lines ----------------------------------------------------------------------------------------------------


async def _lines(watcher: Watcher) -> None:
    await _follow(watcher, Lines(watcher))


class Lines:
    """For a file or a pipe: changes on stdout, all else on stderr."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._began = self._lost = False

    def take(self, item: Item) -> None:
        if isinstance(item, Change):
            typer.echo(change_line(item))
        elif isinstance(item, Lost):
            if not self._lost:  # and not at each attempt
                typer.echo(f"headway: connection lost: {printable(item.reason)}; trying again", err=True)
            self._lost = True
        elif isinstance(item, Back):
            self._lost = False
            typer.echo("headway: connected again", err=True)
        elif not self._began or item.missed:
            # Those at intervals say nothing new.
            self._began = True
            self._key_frame(item)

    def _key_frame(self, item: KeyFrame) -> None:
        if item.missed:
            typer.echo("headway: some changes were missed, and are not kept any more", err=True)
        typer.echo(f"headway: {about(self._watcher)}", err=True)
        for pending in item.snapshot.pending:
            typer.echo(f"{time_text(pending.time)}  {pending.clock}  PENDING      {what(pending)}")


def time_text(seconds: float) -> str:
    """A time of the server, in UTC.

    >>> time_text(1731772803.5)
    '2024-11-16T16:00:03.500Z'
    """
    when = datetime.fromtimestamp(seconds, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z"


def change_line(change: Change) -> str:
    return f"{time_text(change.time)}  {change.clock}  {change.status.name:<11}  {what(change)}"


def what(item: Change | Pending) -> str:
    """The event, its value and its id, on one line whatever they contain."""
    value = "" if item.value is None else f"  {shown(item.value, 500)}"
    return f"{shown(item.event, 500)}{value}  (id {shown(item.id, 200)})"


def about(watcher: Watcher) -> str:
    """The gate in a line.

    >>> from types import SimpleNamespace
    >>> about(SimpleNamespace(gate="alarms", mode="strict", duration=60.0, clock=3, pending=(1, 2)))
    'gate alarms, strict, 1 minute: clock 3, 2 pending'
    """
    terms = "" if watcher.duration is None else f", {watcher.mode}, {span(round(watcher.duration * 1e9))}"
    return f"gate {shown(watcher.gate)}{terms}: clock {watcher.clock}, {len(watcher.pending)} pending"


# -- picture --------------------------------------------------------------------------------------------------


async def _picture(console: Console, watcher: Watcher) -> None:
    picture = Picture(console, watcher)
    following = asyncio.create_task(_follow(watcher, picture))
    try:
        # Nothing is drawn before the first answer: an error is told on a clean terminal.
        while not picture.began and not following.done():
            await asyncio.wait({following}, timeout=0.05)
        if following.done():
            await following
        with Live(picture.draw(), console=console, auto_refresh=False) as live:
            while not following.done():
                await asyncio.wait({following}, timeout=1 / PICTURES_A_SECOND)
                live.update(picture.draw(), refresh=True)
        await following
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


class Picture:
    """What is pending with its countdown, and the latest changes."""

    def __init__(self, console: Console, watcher: Watcher) -> None:
        self.began = False
        self._console = console
        self._watcher = watcher
        self._recent: deque[tuple[str, str, str, str]] = deque(maxlen=RECENT)
        self._trouble = ""

    def take(self, item: Item) -> None:
        self.began = True
        if isinstance(item, Change):
            status = item.status.name
            self._recent.append((time_text(item.time)[11:-1], str(item.clock), status, what(item)))
        elif isinstance(item, Lost):
            self._trouble = (
                f"connection lost: {printable(item.reason)}; what is shown is of clock {self._watcher.clock}"
            )
        elif isinstance(item, Back):
            self._trouble = ""
        elif item.missed:
            gap = "changes were missed, and are not kept any more"
            self._recent.append((time_text(item.snapshot.time)[11:-1], str(item.snapshot.clock), "...", gap))

    def draw(self) -> RenderableType:
        """No higher and no wider than the terminal."""
        room = max(2, self._console.height - 5)
        pending = self._watcher.pending
        recent = min(len(self._recent), max(room // 2, room - len(pending) - 1))
        parts: list[RenderableType] = [
            Text(
                f"{about(self._watcher)}, at {printable(self._watcher.url)}",
                no_wrap=True,
                overflow="ellipsis",
            )
        ]
        if pending:
            parts.append(self._pending(pending, max(1, room - recent)))
        if recent:
            parts += [Text(""), self._changes(list(self._recent)[-recent:])]
        if not pending and not recent:
            parts.append(Text("nothing is pending, and nothing has happened yet", style="dim"))
        parts.append(Text(self._trouble, style="red", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _pending(self, pending: tuple[Pending, ...], room: int) -> Table:
        table = grid()
        now = self._watcher.now()
        for one in pending[: room if len(pending) <= room else room - 1]:
            left = "" if now is None else countdown(one.due - now)
            table.add_row(Text(left, style="yellow"), Text(what(one)))
        if len(pending) > room:
            table.add_row("", Text(f"and {len(pending) - room + 1:,} more", style="dim"))
        return table

    def _changes(self, lines: list[tuple[str, str, str, str]]) -> Table:
        table = grid(4)
        for when, clock, status, text in lines:
            color = COLORS.get(status, "yellow")
            table.add_row(
                Text(when, style="dim"), Text(clock, style="dim"), Text(status, style=color), Text(text)
            )
        return table


def grid(columns: int = 2) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns - 1):
        table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.expand = True
    return table


def countdown(seconds: float) -> str:
    """
    >>> countdown(0.04), countdown(9.96), countdown(75), countdown(3700), countdown(-1)
    ('0.0 s', '10.0 s', '1:15', '1:01:40', 'now')
    """
    if seconds < 0:
        return "now"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
