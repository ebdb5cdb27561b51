"""Options that several commands have: how they are read, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import typer

from headway.core.durations import to_ns
from headway.errors import InvalidLimit
from headway.printable import printable


def bad_option(option: str, complaint: object) -> typer.BadParameter:
    """An error that names the option: where the command itself reads it, typer does not know which it was."""
    return typer.BadParameter(str(complaint), param_hint=f"'{option}'")


def duration_ns(option: str, text: str) -> int:
    """The nanoseconds of an option such as "60ms"."""
    try:
        return to_ns(text) or 0
    except InvalidLimit as error:
        raise bad_option(option, error) from None


def check_picture(place: Path) -> None:
    """End the command if the name of the file promises another format than SVG."""
    if place.suffix.lower() not in ("", ".svg"):
        name = printable(str(place))
        typer.echo(f"headway: {name}: pictures are SVG; give a name that ends in .svg", err=True)
        raise typer.Exit(2)


def write_picture(place: Path, picture: str) -> None:
    """Write a picture and say where, or end the command with the reason why it cannot be written."""
    try:
        place.write_text(picture, encoding="utf-8")
    except OSError as error:
        typer.echo(f"headway: {printable(str(place))}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {printable(str(place))}")
