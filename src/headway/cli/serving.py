"""What the commands that serve have in common: what they need, where they keep things, and how they end."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import typer

from headway.cli import INTERRUPTED
from headway.cli.options import bad_option
from headway.errors import EngineUnavailable, HeadwayError
from headway.printable import printable

WRONG = 2
UNAVAILABLE = 3


@contextmanager
def complaints() -> Iterator[None]:
    """End the command with one line on stderr: exit code 2 if an argument is wrong, 3 if something does not answer."""
    from headway.service.client import ServiceUnavailable

    try:
        yield
    except HeadwayError as error:
        typer.echo(f"headway: {error}", err=True)
        away = isinstance(error, EngineUnavailable | ServiceUnavailable)
        raise typer.Exit(UNAVAILABLE if away else WRONG) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def need(command: str, *modules: str) -> None:
    """End the command if a module of the `server` extra is missing."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != module:
                raise
            typer.echo(f"headway {command}: this needs {module}: pip install 'headway[server]'", err=True)
            raise typer.Exit(WRONG) from None


def check_origins(origins: Iterable[str]) -> None:
    """Refuse what no browser sends as an `Origin`: it would never be met."""
    for origin in origins:
        parts = urlsplit(origin)
        named = parts.scheme in ("http", "https") and parts.netloc and not parts.path.strip("/")
        if origin != "*" and not named:
            raise bad_option("--origin", f"{printable(origin)} is no origin; give https://ops.example, or *")


def state_engine(part: str) -> str:
    """A private server in the user's own folder for what programs keep."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is to be ignored: so says the specification of these folders.
    folder = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return f"embedded://{quote(str(folder / 'headway' / part))}"
