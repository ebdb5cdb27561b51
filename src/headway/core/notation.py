"""Limits as people write them.

    limits  =  limit { ";" limit }
    limit   =  count rate  |  "1" "every" duration  |  count "concurrent"
             |  "adaptive" steady "to" steady [ "from" steady ]
    steady  =  count ( "/" | "per" ) duration
    rate    =  ( "/" | "per" ) duration [ "burst" count  |  "aligned" [ zone ] ]

A duration is a unit with an optional number: `s`, `minute`, `250ms`, `1.5 hours`. Upper and lower case are
the same (except in the name of a zone), white space is free, and `1_000` is a number. The scanner reads
from left to right and never guesses: what it cannot read it points at, says what belongs there, and names
the nearest spelling.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from headway.core.adaptive_limit import Adaptive
from headway.core.durations import MONTH, Scanner, duration_text
from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.errors import InvalidLimit

__all__ = ["parse_limit"]

_AFTER_COUNT = "/ or per and a duration (100/minute), every (1 every 6s), or concurrent (5 concurrent)"
_AFTER_ADAPTIVE = "adaptive and two rates: adaptive 1/s to 100/s"
_AFTER_RATE = "burst and a number, aligned, ; and another limit, or the end"


def parse_limit(text: str) -> Limit:
    """The limit that the text describes; several, joined by `;`, become an `AllOf`.

    >>> parse_limit("100/minute"), parse_limit("100/s burst 20"), parse_limit("1 every 6s")
    (Window(100, per=60), Bucket('100/s', burst=20), Spacing(6))
    >>> parse_limit("10/s; 500 per minute; 5 concurrent")
    AllOf(Window(10, per=1), Window(500, per=60), Concurrency(5))
    """
    if not isinstance(text, str):
        raise InvalidLimit(repr(text), None, _instead_of(text))
    scan = Scanner(text)
    limits = [_limit(scan)]
    while scan.skip(";"):
        limits.append(_limit(scan))
    if scan.peek():
        scan.fail("; and another limit, or the end", _comma(scan))
    return limits[0] if len(limits) == 1 else AllOf(*limits)


def _instead_of(value: object) -> str:
    """What to give in the place of something that is no string."""
    if not isinstance(value, list | tuple | set | frozenset):
        return 'a string such as "100/minute", or a Limit'
    texts = [str(part) for part in value if isinstance(part, str | Limit)]
    if not texts or len(texts) < len(value):
        texts = ["10/s", "5 concurrent"]
    joined, quoted = "; ".join(texts), ", ".join(f'"{text}"' for text in texts)
    return f'"{joined}", or AllOf({quoted})'


def _limit(scan: Scanner) -> Limit:
    if scan.peek().isalpha():
        return _adaptive(scan)
    start = scan.at
    count = scan.count()
    if scan.skip("/"):
        return _rate(scan, start, count)
    scan.peek()
    word_at = scan.at
    word = scan.word()
    if word == "per":
        return _rate(scan, start, count)
    if word == "every":
        return _every(scan, start, count)
    if word == "concurrent":
        return Concurrency(count)
    return scan.fail(_AFTER_COUNT, _unknown(word, ["per", "every", "concurrent"]), word_at)


def _adaptive(scan: Scanner) -> Limit:
    start = scan.at
    word = scan.word()
    if word != "adaptive":
        near = difflib.get_close_matches(word, ["adaptive"], 1, 0.7)
        if not near:
            scan.at = start
            scan.count()  # says what belongs here
        scan.fail(_AFTER_ADAPTIVE, _unknown(word, ["adaptive"]), start)
    least = scan.rate()
    scan.peek()
    word_at = scan.at
    word = scan.word()
    if word != "to":
        scan.fail("to and the highest rate (adaptive 1/s to 100/s)", _unknown(word, ["to"]), word_at)
    most = scan.rate()
    scan.peek()
    word_at = scan.at
    word = scan.word()
    if word and word != "from":
        scan.fail("from and the rate to begin with, or the end", _unknown(word, ["from"]), word_at)
    first = scan.rate() if word else least
    pairs = [(count, f"{per_ns}ns") for count, per_ns in (first, least, most)]
    return _build(scan, start, lambda: Adaptive(*pairs))


def _rate(scan: Scanner, start: int, count: int) -> Limit:
    scan.peek()
    per_at = scan.at
    per_ns = scan.duration()
    # The exact text, and not seconds: a float cannot hold every number of nanoseconds.
    per = "month" if per_ns == MONTH else f"{per_ns}ns"
    scan.peek()
    word_at = scan.at
    word = scan.word()
    if word == "aligned":
        scan.peek()
        zone_at = scan.at
        zone = scan.chunk() or "UTC"
        tz = "UTC" if zone.lower() == "utc" else zone
        return _build(scan, zone_at, lambda: FixedWindow(count, per=per, tz=tz))
    if per_ns == MONTH:
        scan.fail("month aligned, or a number of days", "a month is no fixed duration", per_at)
    if word == "burst":
        scan.peek()
        burst_at = scan.at
        burst = scan.count()
        if burst == 0:
            scan.fail("a whole number from 1 up", "a burst of 0 admits nothing", burst_at)
        return _build(scan, start, lambda: Bucket((count, per), burst=burst))
    if word or scan.peek() not in ("", ";"):
        scan.fail(_AFTER_RATE, _unknown(word, ["burst", "aligned"]) or _comma(scan), word_at)
    return Window(count, per=per)


def _every(scan: Scanner, start: int, count: int) -> Limit:
    scan.peek()
    interval_at = scan.at
    interval_ns = scan.duration()
    if interval_ns == MONTH:
        scan.fail("a number of days", "a month is no fixed duration", interval_at)
    if count != 1:
        even = count and interval_ns % count == 0
        hint = f"; write 1 every {duration_text(interval_ns // count)}" if even else ""
        scan.fail("1, because it is always one that goes every so often", f"{count} every{hint}", start)
    return _build(scan, start, lambda: Spacing(f"{interval_ns}ns"))


def _build(scan: Scanner, at: int, build: Callable[[], Limit]) -> Limit:
    """What only the limit itself can check, reported at its place in the text."""
    try:
        return build()
    except InvalidLimit as error:
        problem = f"{error.text}: {error.problem}" if error.problem else error.text
        raise InvalidLimit(scan.text, at, error.accepted, problem) from None


def _comma(scan: Scanner) -> str:
    return "limits are joined by ;" if scan.peek() == "," else ""


def _unknown(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, 1, 0.7)
    return f"unknown word {word!r}" + (f"; did you mean {near[0]!r}?" if near else "") if word else ""
