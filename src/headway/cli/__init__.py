"""The `headway` command: one module for each subcommand.

Only `main` is here, because it must be importable without the `cli` extra: where only the library is installed, it says
what is missing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

__all__ = ["main"]

INTERRUPTED = 130  # what a shell reports for a program that was ended by Ctrl-C
STDOUT = "<stdout>"


def main() -> None:
    """Run the command line."""
    if sys.stdout is None:
        # Closed (`>&-`). The next file that is opened would take its place.
        log_once(f"{STDOUT} is closed, so there is nowhere to write to")
        raise SystemExit(1)
    try:
        from headway.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("rich", "typer"):
            raise
        log_once(f"the command line needs {missing}; install it with: pip install 'headway[cli]'")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    name_faults(sys.stdout)
    try:
        app(prog_name="headway")
    except OSError as error:
        if error.filename != STDOUT:
            raise
        mute(sys.stdout)
        log_once(f"{STDOUT}: {error.strerror}")
        raise SystemExit(1) from None


def log_once(text: str) -> None:
    """One line on stderr, if there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"headway: {text}\n")


def name_faults(sink: Any) -> None:
    """Mark errors of writing to stdout, to tell a full disk there from a fault of the command."""
    with contextlib.suppress(AttributeError):  # not a stream of Python's own
        raw = getattr(sink.buffer, "raw", sink.buffer)
        write = raw.write

        def named(data: Any) -> Any:
            try:
                return write(data)
            except OSError as error:
                error.filename = STDOUT
                raise

        raw.write = named


def mute(sink: Any) -> None:
    """Send the rest to /dev/null: the reader is gone, and Python would complain when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sink.fileno())
