"""Options of commands: what is read from them, and how a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import typer

from headway.core.durations import to_ns
from headway.errors import InvalidLimit


def bad_option(option: str, complaint: object) -> typer.BadParameter:
    """Names the option: where a command reads it itself, typer does not know which it was."""
    return typer.BadParameter(str(complaint), param_hint=f"'{option}'")


def duration_ns(option: str, text: str) -> int:
    """The nanoseconds of an option such as "60ms"."""
    try:
        return to_ns(text) or 0
    except InvalidLimit as error:
        raise bad_option(option, error) from None


def check_picture(place: Path) -> None:
    """End the command where an ending promises a picture that is not drawn here."""
    if place.suffix.lower() not in ("", ".svg"):
        typer.echo(f"headway: {place}: pictures are SVG; give a name that ends in .svg", err=True)
        raise typer.Exit(2)


def write_picture(place: Path, picture: str) -> None:
    try:
        place.write_text(picture, encoding="utf-8")
    except OSError as error:
        typer.echo(f"headway: {place}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
