"""What a limiter warns about, once each: a fork, permits that nobody ends, answers that are too slow for the limit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from headway.core.window import WindowRule

if TYPE_CHECKING:
    from headway.engines.memory import Book

ENOUGH = 256
"""So many permits must have ended before their average says anything."""


def describe(book: Book) -> str:
    """How a person would call the limiter of this book."""
    limits = "; ".join(str(shelf.rule.limit) for shelf in book.shelves)
    return f"limiter '{limits}'" if book.name is None else f"limiter {book.name!r} ('{limits}')"


def warn_once(book: Book, what: str, message: str) -> None:
    if what not in book.warned:
        book.warned.add(what)
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def warn_forked(book: Book) -> None:
    """Parent and child each keep the whole limit now."""
    warn_once(
        book,
        "fork",
        f"{describe(book)} was forked: parent and child now keep the limit each on its own, so together they allow "
        "twice as much; share one ledger with engine='embedded://DIR'",
    )


def check_health(book: Book) -> None:
    """Look at what has ended so far."""
    if not book.held or book.ended < ENOUGH:
        return
    if book.abandoned * 100 > book.ended:
        warn_once(
            book,
            "abandoned",
            f"{book.abandoned} of {book.ended} permits of {describe(book)} were abandoned, and each counts until "
            "max_transit is over: end permits explicitly, or say which errors prove an answer (answered=) or that "
            "nothing was sent (not_sent=)",
        )
    completed = book.ended - book.abandoned
    if completed < ENOUGH:
        return
    mean_ns = book.flight_ns // completed
    for shelf in book.shelves:
        rule = shelf.rule
        if isinstance(rule, WindowRule) and rule.held:
            per_ns: int = rule.limit.per_ns  # type: ignore[attr-defined]
            cycle_ns = rule.gap + min(mean_ns, rule.transit)
            if 10 * per_ns < 9 * cycle_ns:
                warn_once(
                    book,
                    "latency",
                    f"answers take {mean_ns / 1e9:.3g} s, so {describe(book)} reaches {per_ns / cycle_ns:.0%} of its "
                    "rate at most: complete permits when the headers are there, give a smaller max_transit, or use a "
                    "Bucket",
                )
