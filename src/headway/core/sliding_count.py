"""What was counted in the last while, in 20 sub-slots.

The naive count of the last second keeps the time of every request. The next one starts from zero each second, and
says nothing at its beginning. Here the span is cut into `SLOTS` slots: old requests leave the count a slot at a time,
and the memory is the same for one request and for a million. So the count covers the span less a slot at least.

Worked example, a span of 1 s, so slots of 50 ms, and a request every 25 ms: two in each slot. At 1.0 s the slot that
begins there is empty, and the 19 before it hold 38: the requests of the first 50 ms have left.

Times are integer nanoseconds of one clock; an earlier one counts as the latest seen.
"""

from __future__ import annotations

from headway.core.ledger import LONG_AGO

SLOTS = 20

# C integers where this file is compiled.
_SLOTS = SLOTS
_LONG_AGO = LONG_AGO


class SlidingCount:
    """Counts in a span that moves with the time.

    >>> count = SlidingCount(1000)
    >>> for now in range(0, 1000, 25):
    ...     count.note(now, 1)
    >>> count.total, count.roll(1000), count.total
    (40, 951, 38)
    """

    __slots__ = ("_counts", "_end", "_here", "_newest", "slot", "total")

    def __init__(self, span_ns: int) -> None:
        self.slot = -(-span_ns // SLOTS)
        self.total = 0
        # The newest slot: its number, its end, and its count, which is not yet among the others. Most requests fall
        # into it, and find it without a division.
        self._newest = _LONG_AGO
        self._end = _LONG_AGO
        self._here = 0
        self._counts = [0] * SLOTS

    def roll(self, now: int) -> int:
        """Forget what is too old; returns how long a time `total` covers."""
        newest = now // self.slot
        if self._newest < newest:
            self._counts[self._newest % _SLOTS] = self._here
            self._here = 0
            self._end = (newest + 1) * self.slot
            if self._newest < newest - _SLOTS:
                # Nothing of it is left after so many steps.
                self._newest = newest - _SLOTS
            while self._newest < newest:
                self._newest += 1
                self.total -= self._counts[self._newest % _SLOTS]
                self._counts[self._newest % _SLOTS] = 0
        return (_SLOTS - 1) * self.slot + now - newest * self.slot + 1

    def note(self, now: int, count: int) -> None:
        """So many now."""
        if now >= self._end:
            self.roll(now)
        self._here += count
        self.total += count
