"""`headway explain "100/minute"`: what a limit string promises, in words."""

from __future__ import annotations

from functools import singledispatch
from typing import Annotated

import typer

from headway import AllOf, Bucket, Concurrency, FixedWindow, Limit, Remote, Spacing, SystemClock, Window, parse
from headway.core.durations import duration_text
from headway.core.remote import gap_ns
from headway.errors import InvalidLimit, seconds_text


def explain(
    limit: Annotated[list[str], typer.Argument(help='Such as "100/minute", "100/s burst 20" or "1 every 6s".')],
) -> None:
    """Say in words what a limit string means, or where it is wrong."""
    try:
        found = parse(" ".join(limit))
    except InvalidLimit as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(2) from None
    parts = found.limits if isinstance(found, AllOf) else (found,)
    if len(parts) > 1:
        typer.echo(f"{found}\n  All {len(parts)} of these, taken in one step: all or none.\n")
    typer.echo("\n\n".join(paragraph(part) for part in parts))


def paragraph(limit: Limit) -> str:
    """A limit with its meaning below it.

    >>> print(paragraph(parse("5 concurrent")))
    5 concurrent
      At most 5 at the same time; each is held until its call has ended.
      In Python: Concurrency(5)
    """
    lines = meaning(limit) if limit.capacity else ["Admits nothing: every call is denied at once."]
    return "\n  ".join([str(limit), *lines, f"In Python: {limit!r}"])


@singledispatch
def meaning(limit: Limit) -> list[str]:
    """What a limit promises, a sentence a line.

    >>> meaning(parse("100/s burst 20"))[0]
    'A steady 100 a second, and up to 20 at once after a rest.'
    """
    return [f"A limit of kind {limit.kind}."]


@meaning.register
def _(limit: Window) -> list[str]:
    clock = SystemClock()
    gap = gap_ns(limit.per_ns, limit.remote or Remote(), round(clock.resolution * 1e9), clock.drift_ppm)
    at_once = "It may go at once" if limit.count == 1 else f"All {limit.count} may go at once"
    return [
        f"Never more than {limit.count} in any {_span(limit.per_ns)}, wherever the {_span(limit.per_ns)} start.",
        f"{at_once}; then each permit comes back {_span(limit.per_ns)} after it was taken.",
        f"With throttle, which counts as the remote does, it comes back {gap / 1e9:.6g} s after its call has ended:",
        "long enough for a remote clock that ticks in 16 ms and is wrong by 250 parts in a million.",
    ]


@meaning.register
def _(limit: Bucket) -> list[str]:
    return [
        f"A steady {_rate(limit.rate)}, and up to {limit.burst} at once after a rest.",
        f"So up to {limit.burst + limit.count} can pass in {_span(limit.per_ns)}; "
        f"where that is too many, write {limit.count}/{duration_text(limit.per_ns)}.",
    ]


@meaning.register
def _(limit: Spacing) -> list[str]:
    return [
        f"One, then none for {_span(limit.interval_ns)}; unused turns are not saved up.",
        f"Up to {limit.max_reserved} turns can be reserved ahead, each with the time it will come.",
    ]


@meaning.register
def _(limit: FixedWindow) -> list[str]:
    period = "month" if limit.monthly else duration_text(limit.per_ns)
    return [
        f"At most {limit.count} per {period} of the calendar in {limit.tz}; the count starts anew at each boundary.",
        f"Around a boundary {2 * limit.count} can pass in a short time.",
    ]


@meaning.register
def _(limit: Concurrency) -> list[str]:
    return [f"At most {limit.count} at the same time; each is held until its call has ended."]


def _span(ns: int) -> str:
    """60 s, 250 ms; hours and days as they are written."""
    return seconds_text(ns / 1e9) if ns < 120 * 10**9 else _long(ns)


def _long(ns: int) -> str:
    size, unit = next(
        (size, unit)
        for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "s"))
        if ns >= size * 10**9 and (ns % (size * 10**9) == 0 or size == 1)
    )
    number = ns / (size * 1e9)
    return f"{number:g} {unit.removesuffix('s') if number == 1 and size > 1 else unit}"


def _rate(rate: float) -> str:
    """A rate in the unit in which it is at least 1.

    >>> _rate(100), _rate(0.5)
    ('100 a second', '30 a minute')
    """
    for seconds, unit in ((1, "second"), (60, "minute"), (3_600, "hour")):
        if rate * seconds >= 1:
            return f"{rate * seconds:.6g} a {unit}".replace("a hour", "an hour")
    return f"{rate * 86_400:.6g} a day"
