"""How many tokens a client will need: counted from what was asked of it.

The naive prediction counts the last second. At one request in 0.95 s it says 1 and 2 by turns, and tokens travel to
and fro for nothing; at one a minute it says sixty, and then zero. A long count is steady, and sees a client that
wakes up or falls silent only when the long time has passed. So two spans are counted:

    steady   as long as a token is gone once it is spent, at least `window_ns`: what is lasting
    recent   half of `window_ns`: what has certainly changed. A count of c is random by about its root, so the
             truth lies between c - 2 root(c) and c + 2 root(c) + 2.

The steady count is what is predicted, moved into the bounds of the recent one. While a client is younger than the
long span, its age is what is divided by. Of evenly spaced requests the first one opens the first interval and ends
none, so it is not counted then: two requests 50 ms apart are 20 a second, not 40.

Worked example, a window of 4 s, a token gone for 60 s. A client has had 20 requests a second for an hour: 1200 in
the long span, and 40 in the last two seconds, so between 27 and 54. It needs 1200 tokens. Then its traffic ends.
After 2 s the recent count is 0, so at most 2: one a second, and 60 tokens are all it will ask for.

Refused requests count as well: a client that has no tokens is the one that needs them.
"""

from __future__ import annotations

from math import isqrt

from headway.core.ledger import LONG_AGO
from headway.core.shares import MILLI
from headway.core.sliding_count import SlidingCount

# A C integer where this file is compiled.
_LONG_AGO = LONG_AGO


class Demand:
    """Requests of the last while, and how many of them a span will bring."""

    __slots__ = ("first", "last", "recent", "span", "steady")

    def __init__(self, window_ns: int, span_ns: int) -> None:
        self.span = span_ns
        self.steady = SlidingCount(max(window_ns, span_ns))
        self.recent = SlidingCount(max(1, window_ns // 2))
        self.first = self.last = _LONG_AGO

    @property
    def total(self) -> int:
        return self.steady.total

    def note(self, now: int, cost: int) -> None:
        """So much was asked for."""
        if self.first == _LONG_AGO:
            self.first = now
        self.last = now
        self.steady.note(now, cost)
        self.recent.note(now, cost)

    def expected(self, now: int) -> int:
        """The thousandths of tokens that requests will need within the span.

        >>> demand = Demand(4 * 10**9, 10**9)
        >>> for k in range(5):
        ...     demand.note(k * 50_000_000, 1)
        >>> demand.expected(200_000_000)
        20000
        """
        covered = self.steady.roll(now)
        count = self.steady.total
        if count == 0:
            return 0
        age = now - self.first
        if age < covered:
            covered = max(age, 2 * self.recent.slot)
            count -= 1
        lately = min(self.recent.roll(now), max(age, 2 * self.recent.slot))
        seen = self.recent.total
        spread = 2 * isqrt(seen)
        want = count * MILLI * self.span // covered
        want = min(want, (seen + spread + 2) * MILLI * self.span // lately)
        want = max(want, (seen - spread) * MILLI * self.span // lately)
        return max(want, MILLI)
