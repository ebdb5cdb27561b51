"""A pace as people write it: how fast, how much faster to catch up, and what to do about it.

    spec  =  rate { separator ( ratio | verb | scope ) }  |  verb
    rate  =  number [ ( "/" | "per" ) duration ]

Without a duration a rate is per second. A separator is one of `, : ;`. The verbs are the original's: `start` (it is
what happens without a verb), `configure` (set the figures, leave it running or not, as it is), `restart` (forget the
backlog, begin anew), `stop`. The scope is `thread` (pools for each thread) or `shared`.
"""

from __future__ import annotations

import difflib
import math
import numbers
import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from headway.core.durations import MONTH, SECOND, Scanner
from headway.errors import InvalidArgument

__all__ = ["Pace", "pace_of", "rate_of", "rate_text", "ratio_of"]

VERBS = ("configure", "start", "restart", "stop")
SCOPES = ("thread", "shared")

MIN_RATE, MAX_RATE = Fraction(1, 10**6), Fraction(10**15)
MAX_RATIO = 1000

_RATES = "a rate from 0.000001 to 1e15 operations a second, such as 500, 500/s or 30/minute"
_RATIOS = f"a ratio from 1 (strict) to {MAX_RATIO}, such as 1.1"
_ITEMS = f"a ratio, a verb ({', '.join(VERBS)}) or a scope ({', '.join(SCOPES)})"
_NUMBER = re.compile(r"[+-]?(\d[\d_]*(\.\d*)?|\.\d+)(e[+-]?\d{1,3}(?!\d))?", re.IGNORECASE)


class Pace(NamedTuple):
    """What a spec says; None where it says nothing. Rate in operations a second."""

    rate: Fraction | None = None
    ratio: Fraction | None = None
    verb: str | None = None
    scope: str | None = None


def pace_of(spec: object) -> Pace:
    """Read a spec: a string, or a number of operations a second.

    >>> pace_of("12000,1.1,restart")
    Pace(rate=Fraction(12000, 1), ratio=Fraction(11, 10), verb='restart', scope=None)
    >>> pace_of("30/minute:thread").rate, pace_of(0.5).rate, pace_of("stop").verb
    (Fraction(1, 2), Fraction(1, 2), 'stop')
    """
    return _parse(spec) if isinstance(spec, str) else Pace(rate_of(spec))


def rate_of(value: object) -> Fraction:
    """A number of operations a second, exact, or an error."""
    rate = _exact(value)
    if rate is None or not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidArgument("rate", value, _RATES)
    return rate


def ratio_of(value: object) -> Fraction:
    """A burst ratio, to six decimals or as the nearest fraction of that size.

    >>> ratio_of(1.1), ratio_of(Fraction(4, 3))
    (Fraction(11, 10), Fraction(4, 3))
    """
    ratio = _exact(value)
    if ratio is None or not 1 <= ratio <= MAX_RATIO:
        raise InvalidArgument("ratio", value, _RATIOS)
    return ratio.limit_denominator(10**6)


def rate_text(rate: Fraction) -> str:
    """A rate, short.

    >>> rate_text(Fraction(12000)), rate_text(Fraction(1, 2)), rate_text(Fraction(10**12))
    ('12000/s', '0.5/s', '1e+12/s')
    """
    whole = rate.denominator == 1 and rate < 10**10
    return f"{rate.numerator}/s" if whole else f"{float(rate):.9g}/s"


def _exact(value: object) -> Fraction | None:
    """The decimal that the caller wrote: 0.1 is a tenth, not its nearest binary fraction."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        return None
    if isinstance(value, numbers.Rational):
        return Fraction(value)
    number = float(value)
    return Fraction(float.__repr__(number)) if math.isfinite(number) else None


def _parse(text: str) -> Pace:
    scan = Scanner(text, "pace")
    if scan.peek().isalpha():
        pace = _item(scan, Pace())
        if pace.verb is None:
            scan.fail(_RATES, "a scope without a rate", 0)
    else:
        pace = Pace(_rate(scan))
    while scan.peek():
        if scan.peek() not in ",:;":
            scan.fail(f", and {_ITEMS}, or the end")
        scan.at += 1
        pace = _item(scan, pace)
    return pace


def _rate(scan: Scanner) -> Fraction:
    start = scan.at
    count = _number(scan, _RATES)
    if scan.skip("/"):
        count = count * SECOND / _duration(scan)
    elif scan.peek().isalpha():
        word_at = scan.at
        if scan.word() != "per":
            scan.fail("/ or per and a duration (500/s), or a comma", at=word_at)
        count = count * SECOND / _duration(scan)
    if not MIN_RATE <= count <= MAX_RATE:
        scan.fail(_RATES, "a rate must be above 0" if count <= 0 else "out of range", start)
    return count


def _duration(scan: Scanner) -> int:
    scan.peek()
    start = scan.at
    ns = scan.duration()
    if ns == MONTH:
        scan.fail("a number of days", "a month is no fixed duration", start)
    return ns


def _item(scan: Scanner, pace: Pace) -> Pace:
    first = scan.peek()
    start = scan.at
    if first.isalpha():
        word = scan.word()
        if (word in VERBS and pace.verb is not None) or (word in SCOPES and pace.scope is not None):
            scan.fail(_ITEMS, "a second verb" if word in VERBS else "a second scope", start)
        if word in VERBS:
            return pace._replace(verb=word)
        if word in SCOPES:
            return pace._replace(scope=word)
        near = difflib.get_close_matches(word, VERBS + SCOPES, 1, 0.6)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        accepted = _ITEMS if any(pace) else f"{_RATES}; or a verb alone"
        scan.fail(accepted, f"unknown word {word!r}{hint}", start)
    number = _number(scan, _ITEMS)
    if pace.ratio is not None or pace.rate is None:
        scan.fail(_ITEMS, "a second ratio" if pace.rate is not None else "a ratio without a rate", start)
    try:
        return pace._replace(ratio=ratio_of(number))
    except InvalidArgument:
        scan.fail(_RATIOS, "the ratio is out of range", start)


def _number(scan: Scanner, accepted: str) -> Fraction:
    scan.peek()
    found = _NUMBER.match(scan.text, scan.at)
    if found is None or len(found[0]) > 60:
        scan.fail(accepted)
    scan.at = found.end()
    return Fraction(found[0].replace("_", ""))
