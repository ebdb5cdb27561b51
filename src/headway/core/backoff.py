"""How long to leave a remote alone that has refused and did not say for how long.

The rule is the usual one: after the n-th refusal in a row, a time drawn evenly between nothing and `FIRST * 2**n`, up
to a bound ("full jitter": clients that were refused together do not come back together). What is not usual is what
counts as a refusal *in a row*. A client with 200 calls on their way may be refused 200 times by one event; if each of
them doubled the time, a hiccup would cost minutes. So the refusals of one burst are one: while a pause lasts, others
change nothing. And an answer that comes during a pause was asked for before it: it says nothing of how the remote
feels now, so that only a success after the pause ends the row.

Time is an integer of nanoseconds and comes as an argument, and so does the random number.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 1_000_000_000
"""The bound of the first pause, in ns."""
MOST_DOUBLINGS: Final = 20


class Backoff:
    """The refusals of one key.

    >>> backoff = Backoff(longest=60 * 10**9)
    >>> backoff.refused(now=0, draw=0.5), backoff.refused(now=1000, draw=0.5)  # the second is of the same burst
    (500000000, 0)
    >>> backoff.refused(now=10**9, draw=0.5)
    1000000000
    >>> backoff.answered(now=3 * 10**9)
    >>> backoff.refused(now=4 * 10**9, draw=0.5)
    500000000
    """

    __slots__ = ("_longest", "_row", "_until")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._row = 0
        self._until = 0

    def refused(self, now: int, draw: float) -> int:
        """The remote has refused; the pause that follows, or 0 while one lasts. `draw` is from 0 up to 1."""
        if now < self._until:
            return 0
        bound = min(self._longest, FIRST << min(self._row, MOST_DOUBLINGS))
        self._row += 1
        pause = max(1, int(bound * draw))
        self._until = now + pause
        return pause

    def told(self, now: int, wait: int) -> None:
        """The remote has refused, and said for how long: refusals until then are of the same burst."""
        self._until = max(self._until, now + wait)

    def answered(self, now: int) -> None:
        """The remote has served a call."""
        if now >= self._until:
            self._row = 0
