"""The `headway` command: one module for each thing that a person can ask it to do.

Only `main` is here, because it must be importable without the `cli` extra: who installed the library alone is told
what is missing.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


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
    app()
