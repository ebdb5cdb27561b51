"""Rate limiting servers that grant amounts: the two that the original was tested with, and one of the calendar."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headway.core.limits import FixedWindow


class Grant(NamedTuple):
    """So many permits, valid for so long from the moment of the decision."""

    amount: int
    valid_ns: int


class Server(Protocol):
    """Grants up to `amount` permits at `now`."""

    def grant(self, amount: int, now: int) -> Grant: ...


class FixedWindowServer:
    """`limit` in each window; a window begins with the first request after the last one has ended.

    >>> server = FixedWindowServer(20, 1000)
    >>> server.grant(15, 0), server.grant(15, 400), server.grant(15, 1100)
    (Grant(amount=15, valid_ns=1000), Grant(amount=5, valid_ns=600), Grant(amount=15, valid_ns=1000))
    """

    def __init__(self, limit: int, window_ns: int) -> None:
        self.limit = limit
        self.window_ns = window_ns
        self.end = 0
        self.left = 0
        # (begin, granted) of every window.
        self.windows: list[tuple[int, int]] = []

    def grant(self, amount: int, now: int) -> Grant:
        if now >= self.end or not self.windows:
            self.left, self.end = self.limit, self._end_of(now)
            self.windows.append((now, 0))
        granted = min(amount, self.left)
        self.left -= granted
        begin, before = self.windows[-1]
        self.windows[-1] = (begin, before + granted)
        return Grant(granted, self.end - now)

    def _end_of(self, now: int) -> int:
        """When the window ends that begins now."""
        return now + self.window_ns


class AlignedServer(FixedWindowServer):
    """The same with windows of the calendar, whenever the first request comes.

    >>> AlignedServer(FixedWindow(20, per=1)).grant(15, 400_000_000)
    Grant(amount=15, valid_ns=600000000)
    """

    def __init__(self, limit: FixedWindow) -> None:
        super().__init__(limit.count, limit.per_ns)
        self._calendar = limit

    def _end_of(self, now: int) -> int:
        return self._calendar.window_of(now)[1]


class RefillingServer:
    """A token bucket that holds `limit` and fills in one window; what it grants is valid for a window.

    The original's server dropped the fractions of a token at every request; this one keeps them.

    >>> server = RefillingServer(20, 1000)
    >>> server.grant(30, 0).amount, server.grant(30, 475).amount, server.grant(30, 500).amount
    (20, 9, 1)
    """

    def __init__(self, limit: int, window_ns: int) -> None:
        self.limit = limit
        self.window_ns = window_ns
        # In parts of a permit: one is as many as the window has nanoseconds.
        self._level = limit * window_ns
        self._at = 0

    def grant(self, amount: int, now: int) -> Grant:
        self._level = min(self.limit * self.window_ns, self._level + (now - self._at) * self.limit)
        self._at = now
        granted = min(amount, self._level // self.window_ns)
        self._level -= granted * self.window_ns
        return Grant(granted, self.window_ns)
