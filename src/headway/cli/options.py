"""Options of commands: what is read from them, and how a wrong one is told."""

from __future__ import annotations

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
