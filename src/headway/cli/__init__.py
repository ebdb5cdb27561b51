"""The `headway` command: one module for each thing that a person can ask it to do.

Only `main` is here, because it must be importable without the `cli` extra: who installed the library alone is told
what is missing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

__all__ = ["main"]

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
STDOUT = "<stdout>"


def main() -> None:
    """Run the command line."""
    try:
        from headway.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("rich", "typer"):
            raise
        sys.stderr.write(
            f"headway: the command line needs {missing}; install it with: pip install 'headway[cli]'\n"
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    name_faults(sys.stdout)
    try:
        app()
    except OSError as error:
        if error.filename != STDOUT:
            raise
        mute(sys.stdout)
        with contextlib.suppress(OSError):
            sys.stderr.write(f"headway: {STDOUT}: {error.strerror}\n")
        raise SystemExit(1) from None


def name_faults(sink: Any) -> None:
    """Let an error of writing to stdout say so: a full disk there is no fault of a command's."""
    with contextlib.suppress(AttributeError):  # somebody else's stream, or none
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
    """Nobody reads it any more, and Python would complain when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sink.fileno())
