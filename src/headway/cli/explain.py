"""`headway explain "100/minute"`: what a limit string promises, in words."""

from __future__ import annotations

from functools import singledispatch
from typing import Annotated

import typer

from headway import (
    Adaptive,
    AllOf,
    Bucket,
    Concurrency,
    FixedWindow,
    Limit,
    Remote,
    Spacing,
    SystemClock,
    Window,
    parse_limit,
)
from headway.cli.words import pace, span
from headway.core.durations import duration_text
from headway.core.remote import gap_ns
from headway.errors import InvalidLimit


def explain(
    limit: Annotated[
        list[str], typer.Argument(help='Such as "100/minute", "100/s burst 20" or "10/s; 5 concurrent".')
    ],
) -> None:
    """Say in words what a limit string means, or where it is wrong."""
    try:
        found = parse_limit(" ".join(limit))
    except InvalidLimit as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(2) from None
    parts = found.limits if isinstance(found, AllOf) else (found,)
    if len(parts) > 1:
        typer.echo(f"All {len(parts)} of these, taken in one step: all or none.\n")
    typer.echo("\n\n".join(paragraph(part) for part in parts))


def paragraph(limit: Limit) -> str:
    """A limit with its meaning below it.

    >>> print(paragraph(Concurrency(5)))
    5 concurrent
      At most 5 at the same time; each is held until its call has ended.
      In Python: Concurrency(5)
    """
    lines = meaning(limit) if limit.capacity else ["Admits nothing: every call is denied at once."]
    return "\n  ".join([str(limit), *lines, f"In Python: {limit!r}"])


@singledispatch
def meaning(limit: Limit) -> list[str]:
    """What a limit promises, in lines.

    >>> meaning(Bucket("100/s", burst=20))[0]
    'A steady 100 a second, and up to 20 at once after a rest.'
    """
    raise NotImplementedError(limit.kind)


@meaning.register
def _(limit: Window) -> list[str]:
    clock, per = SystemClock(), span(limit.per_ns)
    gap = gap_ns(limit.per_ns, Remote(), round(clock.resolution * 1e9), clock.drift_ppm)
    subject = "It may" if limit.count == 1 else f"All {limit.count} may"
    return [
        f"Never more than {limit.count} in any {per}, wherever it starts.",
        f"{subject} go at once; each permit of a bare acquire is there again {per} after it was taken.",
        f"Around a call (with, @throttle) it counts as a remote does: there again {gap / 1e9:.6g} s after its end,",
        "so that a remote clock which ticks in 16 ms and is 250 ppm wrong agrees.",
    ]


@meaning.register
def _(limit: Bucket) -> list[str]:
    per = span(limit.per_ns)
    return [
        f"A steady {pace(limit.rate)}, and up to {limit.burst} at once after a rest.",
        f"So up to {limit.burst + limit.count} pass in {per}.",
        f"Where that is too many, write {limit.count}/{duration_text(limit.per_ns)}.",
    ]


@meaning.register
def _(limit: Spacing) -> list[str]:
    return [
        f"One, then none for {span(limit.interval_ns)}; turns that are not taken are not saved up.",
        f"Up to {limit.max_reserved} turns can be reserved ahead, each for a promised time.",
    ]


@meaning.register
def _(limit: FixedWindow) -> list[str]:
    period = "month" if limit.monthly else duration_text(limit.per_ns)
    return [
        f"At most {limit.count} per {period} of the calendar ({limit.tz}); each starts anew.",
        f"Around a boundary up to {2 * limit.count} pass in a short time.",
    ]


@meaning.register
def _(limit: Adaptive) -> list[str]:
    return [
        f"A rate that finds the remote's limit by itself, from {pace(limit.least)} to {pace(limit.most)}.",
        f"It begins with {pace(limit.start)}, rises while calls are answered, and steps down when one is refused.",
        "It needs limiter.feedback(response) for every answer, as the HTTP clients' integrations do.",
    ]


@meaning.register
def _(limit: Concurrency) -> list[str]:
    return [f"At most {limit.count} at the same time; each is held until its call has ended."]
