"""How commands say things."""

from __future__ import annotations

import re

from headway.core.durations import duration_text


def shown(text: str, longest: int | None = None) -> str:
    r"""A name or a key: as it is if it is one plain word, otherwise in quotes and with escapes, so that it cannot pass
    for something else on the screen. With `longest` the rest of a long one is cut off.

    >>> print(shown("alice"), shown("Zoë"), shown("al ice"), shown("a\x1b[2J"), shown(""), shown("a" * 9, longest=5))
    alice Zoë 'al ice' 'a\x1b[2J' '' aaaa…
    """
    plain = text.isprintable() and re.fullmatch(r"[^\s'\"\\]+", text)
    written = text if plain else repr(text)
    return written if longest is None or len(written) <= longest else f"{written[: longest - 1]}…"


def span(ns: int) -> str:
    """A duration, exactly, with a number and a space.

    >>> span(60 * 10**9), span(90 * 10**9), span(250_000_000)
    ('1 minute', '90 s', '250 ms')
    """
    text = duration_text(ns)
    return re.sub(r"(\d)(\D)", r"\1 \2", text) if text[0].isdigit() else f"1 {text}"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(0, "violation"), count(1, "violation"), count(28, "violation")
    ('no violations', '1 violation', '28 violations')
    """
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def pace(rate: float) -> str:
    """A rate per second, in the unit in which it is at least 1.

    >>> pace(100), pace(0.5), pace(0.001), pace(0.0001)
    ('100 a second', '30 a minute', '3.6 an hour', '8.64 a day')
    """
    for seconds, unit in ((1, "a second"), (60, "a minute"), (3_600, "an hour")):
        if rate * seconds >= 1:
            return f"{rate * seconds:.6g} {unit}"
    return f"{rate * 86_400:.6g} a day"
