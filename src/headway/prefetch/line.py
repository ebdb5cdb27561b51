"""The line of waiters: first come, first served.

Only the head may take, whatever it costs, and takes by itself; leaving, it wakes the next. Nothing is handed over
that a cancelled waiter could lose. The caller holds the prefetcher's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.wait_queue import Waker


class Waiter:
    """A request that may wait. `until` is when to look again, `deadline` when to give up."""

    __slots__ = ("cost", "deadline", "number", "until", "waker")

    def __init__(self, cost: int, deadline: int | None) -> None:
        self.cost = cost
        self.deadline = deadline
        # Its place; 0: it has not looked yet.
        self.number = 0
        self.until = 0
        self.waker: Waker | None = None


class Line:
    """Waiters in the order in which they came."""

    __slots__ = ("_last", "_waiters", "needed")

    def __init__(self) -> None:
        self._waiters: OrderedDict[int, Waiter] = OrderedDict()
        self._last = 0
        # What all of them want together.
        self.needed = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter.number in self._waiters

    def number(self, waiter: Waiter) -> bool:
        """Give a request its number; whether it had none before."""
        if waiter.number:
            return False
        self._last += 1
        waiter.number = self._last
        return True

    def is_next(self, waiter: Waiter) -> bool:
        """Whether no other waiter comes before this request."""
        return not self._waiters or next(iter(self._waiters)) == waiter.number

    def join(self, waiter: Waiter) -> None:
        self.needed += waiter.cost
        self._waiters[waiter.number] = waiter

    def leave(self, waiter: Waiter) -> None:
        """Give up a place, if there is one; the next one may be at the head now. It may be called again."""
        if self._waiters.pop(waiter.number, None) is not None:
            self.needed -= waiter.cost
        if not self._waiters:
            self.needed = 0  # whatever was interrupted
        else:
            self.wake_head()

    def wake_head(self) -> None:
        while self._waiters:
            head = next(iter(self._waiters.values()))
            if head.waker is not None and head.waker.alive():
                head.waker.wake()
                return
            # Its event loop was closed around it.
            del self._waiters[head.number]
            self.needed -= head.cost

    def wake_all(self) -> None:
        for waiter in list(self._waiters.values()):
            if waiter.waker is not None:
                waiter.waker.wake()
