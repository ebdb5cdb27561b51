"""`headway pace 50/s`: let lines through at a rate, or run a command for each.

A line is read, its turn is waited for, and it is written at once: nothing is buffered that a reader could want. In
front of a command a place among the `--jobs` is waited for first, then the turn: so a slow command makes a backlog,
which is made up at the ratio, and never a flood.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headway.cli import INTERRUPTED
from headway.errors import InvalidArgument, InvalidLimit, seconds_text
from headway.lab.pacer import draw
from headway.pacer import Pacer

FAILED = 123  # what xargs reports when a command failed


class Meter:
    """What the live line says: the rate of the last second or so, the backlog, the last scheduling delay."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.done = 0
        self.delay_ns = 0
        self._mark = (time.monotonic(), 0)
        self._rate = 0.0

    def note(self, delay_ns: int) -> None:
        self.done += 1
        self.delay_ns = delay_ns

    def __rich__(self) -> Text:
        now = time.monotonic()
        since, done = self._mark
        if now - since >= 1:
            self._rate = (self.done - done) / (now - since)
            self._mark = (now, self.done)
        backlog = seconds_text(self.pacer.wait_time_ns / 1e9)
        delay = seconds_text(self.delay_ns / 1e9)
        return Text(f"{self.done:,} lines  {self._rate:,.1f}/s  backlog {backlog}  scheduling delay {delay}")

    def live(self) -> AbstractContextManager[object]:
        """The line on stderr, where that is a terminal; nothing elsewhere."""
        console = Console(stderr=True, highlight=False)
        if not console.is_terminal or console.is_dumb_terminal:
            return nullcontext()
        return Live(self, console=console, refresh_per_second=5, transient=True, redirect_stdout=False)


def pace(
    rate: Annotated[str, typer.Argument(help='Such as "50/s", "30/minute" or "12000,1.1".')],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: run this for each line, which replaces {}.")
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="How much faster to catch up; 1 is strict.  [default: 1.1]")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=1000, help="Commands at the same time.")
    ] = 1,
) -> None:
    """Let lines of the input through at a rate, or run a command for each.

    cat urls.txt | headway pace 50/s | xargs -n1 curl -s

    cat urls.txt | headway pace 50/s --jobs 8 -- curl -s {}

    Where stderr is a terminal a line there shows rate, backlog and scheduling delay. The exit code is 123 when
    a command failed, as with xargs.
    """
    try:
        pacer = Pacer(rate, ratio=ratio)
    except (InvalidLimit, InvalidArgument) as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(2) from None
    meter = Meter(pacer)
    try:
        with meter.live():
            if command:
                code = run_each(command, jobs, pacer, meter, sys.stdin.buffer)
            else:
                code = pass_through(pacer, meter, sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        # Nobody reads any more: that is how `| head` ends. Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


def pass_through(pacer: Pacer, meter: Meter, source: BinaryIO, sink: BinaryIO) -> int:
    """Every line, as it is, when its turn has come; a last line without an end stays without."""
    for line in source:
        meter.note(pacer.acquire())
        sink.write(line)
        sink.flush()
    return 0


def words_for(command: list[str], line: str) -> list[str]:
    """The command with the line in place of each {}, or at its end where there is none.

    >>> words_for(["cp", "{}", "{}.bak"], "a"), words_for(["echo"], "a b")
    (['cp', 'a', 'a.bak'], ['echo', 'a b'])
    """
    if any("{}" in word for word in command):
        return [word.replace("{}", line) for word in command]
    return [*command, line]


def run_each(command: list[str], jobs: int, pacer: Pacer, meter: Meter, source: BinaryIO) -> int:
    """The command for every line that is not empty; waits for all of them, also after Ctrl-C."""
    places = threading.Semaphore(jobs)
    failed: list[int] = []

    def run(words: list[str]) -> None:
        try:
            # Its input is empty: ours is the list of lines, and not to be eaten.
            code = subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
        except OSError as error:
            typer.echo(f"headway: {words[0]}: {error.strerror}", err=True)
            code = 127
        if code:
            failed.append(code)

    def ended(_: Future[None]) -> None:
        places.release()

    with ThreadPoolExecutor(jobs) as crew:
        for raw in source:
            line = os.fsdecode(raw.rstrip(b"\r\n"))
            if not line:
                continue
            places.acquire()
            meter.note(pacer.acquire())
            crew.submit(run, words_for(command, line)).add_done_callback(ended)
    return FAILED if failed else 0


def plot(
    out: Annotated[Path, typer.Option(help="Where to write the picture, an SVG file.")] = Path("pacer.svg"),
) -> None:
    """Draw what the ratio of a Pacer does to a burst: a stall of 2 s at 100/s, and how it is made up."""
    try:
        out.write_text(draw(), encoding="utf-8")
    except OSError as error:
        typer.echo(f"headway: {out}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {out}")
