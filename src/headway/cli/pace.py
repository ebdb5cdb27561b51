"""`headway pace 50/s`: let lines through at a rate, or run a command for each.

A line is read when its turn has come, and written at once: nothing is held back in a buffer, and no line is lost when
the command ends early (see `headway.cli.lines`). With a command, a free place among the `--jobs` comes first and the
turn second: so a slow command makes a backlog, which is made up at the ratio, and never a flood.
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

from headway.cli import INTERRUPTED, STDOUT, mute
from headway.cli.lines import Lines, SigintGuard, abandoned
from headway.cli.options import check_picture, write_picture
from headway.errors import InvalidArgument, InvalidLimit, seconds_text
from headway.lab.pacer import draw
from headway.pacer.pacer import Pacer
from headway.printable import printable

FAILED = 123  # what xargs reports when a command failed
FEW = 500  # lines a second: reading a pipe byte by byte costs 6 % of a processor then, at 60 bytes a line


def count(lines: int) -> str:
    """
    >>> count(1), count(2000)
    ('1 line', '2,000 lines')
    """
    return f"{lines:,} line" + ("" if lines == 1 else "s")


class Meter:
    """The live line: the rate of the last second or so, the backlog, the last scheduling delay."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.done = 0
        self.delay_ns = 0
        self._mark = (time.monotonic(), 0)
        self._rate = 0.0
        self._young = True

    def note(self, delay_ns: int) -> None:
        self.done += 1
        self.delay_ns = delay_ns

    def __rich__(self) -> Text:
        now = time.monotonic()
        since, done = self._mark
        if now - since >= 1:
            self._rate = (self.done - done) / (now - since)
            self._mark = (now, self.done)
            self._young = False
        elif self._young:
            self._rate = self.done / max(now - since, 0.1)
        backlog = seconds_text(self.pacer.wait_time_ns / 1e9)
        delay = seconds_text(self.delay_ns / 1e9)
        text = f"{count(self.done)}  {self._rate:,.1f}/s  backlog {backlog}  scheduling delay {delay}"
        return Text(text, no_wrap=True, overflow="ellipsis")

    def live(self, lines_here: bool) -> AbstractContextManager[object]:
        """Draw the live line on stderr, if that is a terminal and the lines themselves do not appear there."""
        console = Console(stderr=True, highlight=False)
        if not console.is_terminal or lines_here:
            return nullcontext()
        return Live(self, console=console, refresh_per_second=5, transient=True, redirect_stdout=False)


def pace(
    rate: Annotated[str, typer.Argument(help='Such as "50/s", "30/minute" or "12000,1.1".')],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: a command to run for each line; {} stands for the line."),
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(help="How much faster than the rate to catch up; 1: never faster.  [default: 1.1]"),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=1000, help="How many commands may run at the same time.")
    ] = 1,
) -> None:
    """Let lines of the input through at a rate, or run a command for each.

    cat urls.txt | headway pace 50/s | xargs -n1 curl -s

    cat urls.txt | headway pace 50/s --jobs 8 -- curl -s {}

    Where stderr is a terminal, a line there shows rate, backlog and scheduling delay. The exit code is 123 if a
    command failed, as with xargs, and 130 after Ctrl-C. Commands that are running then are waited for, and the
    lines that were not let through are still in the input.
    """
    try:
        pacer = Pacer(rate, ratio=ratio)
        pacer.start()  # also where the rate has the verb "stop": no later verb could start it
    except (InvalidLimit, InvalidArgument) as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(2) from None
    if sys.stdin is None:
        typer.echo("headway: there is no input: stdin is closed", err=True)
        raise typer.Exit(1)
    meter, brake = Meter(pacer), SigintGuard()
    lines = Lines(sys.stdin.fileno(), brake, sparing=pacer.rate <= FEW)
    brake.install()
    try:
        with meter.live(lines_here=not command and sys.stdout.isatty()):
            if command:
                code = run_each(command, jobs, pacer, meter, lines, brake)
            else:
                code = pass_through(pacer, meter, lines, brake, sys.stdout.buffer)
        lines.give_back()
    except KeyboardInterrupt:
        lost = lines.give_back()
        more = f", {lost:,} more read and not {'started' if command else 'let through'}" if lost else ""
        typer.echo(f"headway: interrupted after {count(lines.taken)}{more}", err=True)
        code = INTERRUPTED
    except OSError as error:
        lines.give_back()
        if error.filename == STDOUT:
            raise
        typer.echo(f"headway: {error.strerror}", err=True)
        mute(sys.stdout.buffer)
        code = 1
    finally:
        brake.remove()
    raise typer.Exit(code)


def pass_through(pacer: Pacer, meter: Meter, lines: Lines, brake: SigintGuard, sink: BinaryIO) -> int:
    """Write every line, unchanged, when its turn has come; a last line without a line end gets none."""
    try:
        while lines.more():
            with brake:
                delay_ns = pacer.acquire()
            if abandoned(sink.fileno()):
                raise BrokenPipeError  # before a line is taken that cannot be written
            if not (line := lines.line()):
                break
            sink.write(line)
            sink.flush()
            lines.done()
            meter.note(delay_ns)
    except BrokenPipeError:
        mute(sink)  # the usual end of `| head`
    return 0


def words_for(command: list[str], line: str) -> list[str]:
    """The command with the line in place of each {}, or at its end where there is none.

    >>> words_for(["cp", "{}", "{}.bak"], "a"), words_for(["echo"], "a b")
    (['cp', 'a', 'a.bak'], ['echo', 'a b'])
    """
    if any("{}" in word for word in command):
        return [word.replace("{}", line) for word in command]
    return [*command, line]


def run_one(number: int, words: list[str]) -> int:
    """Run a command for the line of this number, with nothing to read; its exit code, 127 if it could not be run."""
    try:
        # Without an input of its own it would read the lines that are ours.
        return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        typer.echo(f"headway: {printable(words[0])}: {error.strerror}", err=True)
    except ValueError:
        typer.echo(
            f"headway: line {number:,}: it contains a NUL byte, and an argument cannot: not run", err=True
        )
    return 127


def run_each(
    command: list[str], jobs: int, pacer: Pacer, meter: Meter, lines: Lines, brake: SigintGuard
) -> int:
    """Run the command for every line that is not empty; waits for all that were started, also after Ctrl-C."""
    places = threading.Semaphore(jobs)
    failed: list[int] = []

    def run(number: int, words: list[str]) -> None:
        if code := run_one(number, words):
            failed.append(code)

    def ended(_: Future[None]) -> None:
        places.release()

    crew = ThreadPoolExecutor(jobs)
    try:
        while lines.more():
            with brake:
                places.acquire()
                delay_ns = pacer.acquire()
            while (line := lines.line()) and not line.strip(b"\r\n"):
                lines.done()
            if not line:
                break
            words = words_for(command, os.fsdecode(line.rstrip(b"\r\n")))
            crew.submit(run, lines.taken + 1, words).add_done_callback(ended)
            lines.done()
            meter.note(delay_ns)
        with brake:
            crew.shutdown()
    except KeyboardInterrupt:
        try:
            crew.shutdown()
        except KeyboardInterrupt:
            # Pressed again: what runs goes on by itself. A normal exit would wait for it.
            os._exit(INTERRUPTED)
        raise
    return FAILED if failed else 0


def plot(
    picture: Annotated[Path, typer.Option("--picture", help="The SVG file to draw into.")] = Path(
        "pacer.svg"
    ),
) -> None:
    """Draw what the ratio of a Pacer does to a burst: a stall of 2 s at 100/s, and how it is made up."""
    check_picture(picture)
    write_picture(picture, draw())
