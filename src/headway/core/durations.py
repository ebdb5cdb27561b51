"""Numbers and durations, as people write them and as headway keeps them.

A float of seconds is the wrong thing to count with: 0.1 has no exact binary form, and a window computed
from it is a little too short or a little too long. So a duration is a float only in the caller's hand. It
becomes an integer of nanoseconds once, here, by way of the decimal that the caller wrote (0.1 is
100_000_000, not 100_000_000.0000000055), and stays one.
"""

from __future__ import annotations

import difflib
import math
import operator
from datetime import timedelta
from fractions import Fraction
from typing import NoReturn, TypeAlias

from headway.errors import InvalidLimit

__all__ = [
    "MAX",
    "MONTH",
    "Duration",
    "Scanner",
    "count_of",
    "duration_text",
    "seconds_source",
    "span_of",
    "to_ns",
]

Duration: TypeAlias = float | timedelta | str
"""Seconds, a timedelta, or a string such as "minute" or "250ms"."""

MAX = 2**62
"""The largest count, and the longest duration in ns (146 years): the sum of two still fits a C int64."""

MONTH = -1
"""What `Scanner.duration` returns for a month, which has no length of its own."""

SECOND = 10**9
MINUTE, HOUR, DAY, WEEK = 60 * SECOND, 3600 * SECOND, 86400 * SECOND, 604800 * SECOND

_NAMES = {
    1: ("ns",),
    10**3: ("us",),
    10**6: ("ms",),
    SECOND: ("s", "sec", "secs", "second", "seconds"),
    MINUTE: ("m", "min", "mins", "minute", "minutes"),
    HOUR: ("h", "hour", "hours"),
    DAY: ("d", "day", "days"),
    WEEK: ("w", "week", "weeks"),
}
UNITS = {name: size for size, names in _NAMES.items() for name in names}
_UNITS_TEXT = "a unit: ns, us, ms, s, sec, second, m, min, minute, h, hour, d, day, w, week, or a plural"

# Near in meaning but not in spelling: the closest spelling of "milliseconds" would be "seconds".
_OTHER_NAMES = {"hr": "h", "hrs": "h", "wk": "w", "msec": "ms", "usec": "us", "nsec": "ns", "mon": "month"}
_OTHER_NAMES |= {f"{long}second": short for long, short in (("milli", "ms"), ("micro", "us"), ("nano", "ns"))}

# How a duration is written: alone ("100/minute") and with a number ("100/5min").
_WRITTEN = (
    (WEEK, "week", "w"),
    (DAY, "day", "d"),
    (HOUR, "hour", "h"),
    (MINUTE, "minute", "min"),
    (SECOND, "s", "s"),
    (10**6, "ms", "ms"),
    (10**3, "us", "us"),
    (1, "ns", "ns"),
)


def duration_text(ns: int) -> str:
    """The shortest exact way to write a duration; reads back as the same number.

    >>> duration_text(60 * 10**9), duration_text(90 * 10**9), duration_text(250_000_000)
    ('minute', '90s', '250ms')
    """
    size, alone, short = next(row for row in _WRITTEN if ns % row[0] == 0)
    return alone if ns == size else f"{ns // size}{short}"


def seconds_source(ns: int) -> str:
    """A duration as Python source, in seconds where a float can say it exactly.

    >>> seconds_source(60 * 10**9), seconds_source(16_000_000), seconds_source(2**60 + 1)
    ('60', '0.016', "'1152921504606846977ns'")
    """
    if ns % SECOND == 0:
        return str(ns // SECOND)
    seconds = ns / SECOND
    return repr(seconds) if to_ns(seconds) == ns else repr(f"{ns}ns")


def to_ns(value: object) -> int | None:
    """Nanoseconds of a duration given at the edge, or None for no duration; the caller checks the range.

    >>> to_ns(0.1), to_ns(timedelta(minutes=1)), to_ns("250ms"), to_ns(float("nan")), to_ns(True)
    (100000000, 60000000000, 250000000, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return Scanner(value, "duration").only_duration()
    if isinstance(value, timedelta):
        return (value.days * 86400 + value.seconds) * SECOND + value.microseconds * 1000
    if isinstance(value, float):
        # float.__repr__, because a subclass (numpy's) may print itself in another way.
        return round(Fraction(float.__repr__(value)) * SECOND) if math.isfinite(value) else None
    try:
        return int(operator.index(value)) * SECOND  # type: ignore[arg-type]
    except TypeError:
        return None


def span_of(value: object) -> int | None:
    """The same, and None also for a string that is no duration: for arguments whose error says their name.

    >>> span_of("250ms"), span_of("soon")
    (250000000, None)
    """
    try:
        return to_ns(value)
    except InvalidLimit:
        return None


def count_of(value: object) -> int | None:
    """The value as an integer, or None: no bool, no float, no digits in a string.

    >>> count_of(5), count_of(True), count_of(5.5), count_of("5")
    (5, None, None, None)
    """
    try:
        return None if isinstance(value, bool) else int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        return None


class Scanner:
    """Reads a string from left to right; whatever it cannot read it points at.

    >>> scan = Scanner("100 per 1.5s")
    >>> scan.count(), scan.word(), scan.duration()
    (100, 'per', 1500000000)
    """

    def __init__(self, text: str, what: str = "limit") -> None:
        self.text = text
        self.what = what
        self.at = 0

    def fail(self, accepted: str, problem: str = "", at: int | None = None) -> NoReturn:
        raise InvalidLimit(self.text, self.at if at is None else at, accepted, problem, self.what)

    def peek(self) -> str:
        """The next character that is no white space, or "" at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def skip(self, char: str) -> bool:
        found = self.peek() == char
        self.at += found
        return found

    def word(self) -> str:
        """A run of letters in lower case, or ""."""
        self.peek()
        start = self.at
        while self.at < len(self.text) and self.text[self.at].isalpha():
            self.at += 1
        return self.text[start : self.at].lower()

    def chunk(self) -> str:
        """Everything up to white space or a semicolon: the name of a time zone."""
        self.peek()
        start = self.at
        while self.at < len(self.text) and not self.text[self.at].isspace() and self.text[self.at] != ";":
            self.at += 1
        return self.text[start : self.at]

    def count(self) -> int:
        self.peek()
        start = self.at
        digits = self._digits("a whole number such as 100 or 1_000")
        if self.text[self.at : self.at + 1] == ".":
            self.fail(f"a whole number; {self._whole_rate(start)}", "a count has no decimals", start)
        if self.text[self.at : self.at + 1] == "," and self.text[self.at + 1 : self.at + 2].isdecimal():
            self.fail("the digits alone, or with underscores such as 1_000", "a comma in a number")
        # The length first: Python refuses to read very long numbers.
        if len(digits) > 19 or int(digits) > MAX:
            self.fail(f"a whole number up to 2**62 ({MAX})", "the count is too large", start)
        return int(digits)

    def duration(self) -> int:
        """A unit with an optional number before it, in ns; or MONTH."""
        first = self.peek()
        start = self.at
        number, many = Fraction(1), False
        if not first.isalpha():
            number = self._decimal()
            many = number != 1
        self.peek()
        unit_at = self.at
        word = self.word()
        if word in ("month", "months"):
            if many:
                self.fail("month, without a number", "only one month at a time", start)
            return MONTH
        if word not in UNITS:
            self.fail(_UNITS_TEXT, self._unknown_unit(word), unit_at)
        ns = number * UNITS[word]
        if ns == 0:
            self.fail("a duration from 1 ns up", "the duration is 0", start)
        if ns.denominator != 1:
            self.fail("a whole number of nanoseconds", "the duration is finer than a nanosecond", start)
        if ns > MAX:
            self.fail("up to 2**62 ns, which is 146 years", "the duration is too long", start)
        return int(ns)

    def only_duration(self) -> int:
        """The whole text as one duration."""
        ns = self.duration()
        if self.peek():
            self.fail("nothing more after the duration")
        if ns == MONTH:
            self.fail("a number of days", "a month is no fixed duration", 0)
        return ns

    def rate(self) -> tuple[int, int]:
        """`100/s` or `100 per minute` as count and ns."""
        count = self.count()
        if not self.skip("/"):
            start = self.at
            if self.word() != "per":
                self.fail("/ or per", at=start)
        self.peek()
        start = self.at
        ns = self.duration()
        if ns == MONTH:
            self.fail("a number of days", "a month is no fixed duration", start)
        return count, ns

    def _digits(self, accepted: str) -> str:
        start = self.at
        while self.at < len(self.text) and (self.text[self.at] in "0123456789" or self._separates()):
            self.at += 1
        if start == self.at:
            self.fail(accepted)
        return self.text[start : self.at].replace("_", "").lstrip("0") or "0"

    def _separates(self) -> bool:
        """An underscore between two digits."""
        around = self.text[max(self.at - 1, 0) : self.at + 2]
        return len(around) == 3 and around[1] == "_" and (around[0] + around[2]).isdecimal()

    def _decimal(self) -> Fraction:
        start = self.at
        whole = self._digits("a duration such as s, minute, 60s or 250ms")
        part = "0"
        if self.text[self.at : self.at + 1] == ".":
            self.at += 1
            part_at = self.at
            self._digits("digits after the decimal point")
            part = self.text[part_at : self.at].replace("_", "")
        if self.at - start > 60:
            self.fail("a shorter number", "the number is too long", start)
        return int(whole) + Fraction(int(part), 10 ** len(part))

    def _whole_rate(self, start: int) -> str:
        """How to write a rate whose count has decimals: more in a longer time."""
        scan = Scanner(self.text, self.what)
        scan.at = start
        try:
            count = scan._decimal()
            if not scan.skip("/") and scan.word() != "per":
                return "such as 3/2s for 1.5/s"
            ns = scan.duration()
        except InvalidLimit:
            ns = MONTH
        if ns == MONTH or ns * count.denominator > MAX:
            return "such as 3/2s for 1.5/s"
        return f"write {count.numerator}/{duration_text(ns * count.denominator)}"

    def _unknown_unit(self, word: str) -> str:
        if not word:
            return "a unit is missing"
        meant = _OTHER_NAMES.get(word) or _OTHER_NAMES.get(word.removesuffix("s"))
        near = [meant] if meant else difflib.get_close_matches(word, [*UNITS, "month"], 1, 0.7)
        return f"unknown unit {word!r}" + (f"; did you mean {near[0]!r}?" if near else "")
