"""What a limiter has counted so far, and which warnings it has given already.

A limiter of any engine has one. The numbers only ever grow, but for `granted`: a grant that was withdrawn before its
permit was handed out is taken off again.
"""

from __future__ import annotations

from headway.outcome import Outcome

# C integers where this file is compiled.
_COMPLETE, _CANCEL, _ABANDON = (int(how) for how in (Outcome.COMPLETE, Outcome.CANCEL, Outcome.ABANDON))


class LimiterCounts:
    """Grants, denials and ends, each counted once.

    >>> counts = LimiterCounts()
    >>> counts.granted += 1
    >>> counts.granted, counts.denied, counts.first_time("fork"), counts.first_time("fork")
    (1, 0, True, False)
    """

    __slots__ = ("abandoned", "cancelled", "denied", "ended", "flight_ns", "granted", "warned")

    def __init__(self) -> None:
        self.granted = 0
        self.denied = 0
        # Permits that ended in any way but `cancel`; how many of these were abandoned.
        self.ended = 0
        self.abandoned = 0
        self.cancelled = 0
        # How long completed permits were out, all together.
        self.flight_ns = 0
        self.warned: set[str] = set()

    def count_end(self, how: int, flight_ns: int) -> None:
        """A permit ended; `flight_ns` is how long it was out, where that says something about the remote."""
        if how == _CANCEL:
            self.cancelled += 1
            return
        self.ended += 1
        if how == _ABANDON:
            self.abandoned += 1
        elif how == _COMPLETE:
            self.flight_ns += flight_ns

    def first_time(self, what: str) -> bool:
        """Whether this is the first warning about `what`; it is noted as given."""
        if what in self.warned:
            return False
        self.warned.add(what)
        return True
