"""How many calls a backend should have at once, found from how long they take.

A fixed number is right for one day: a backend with a cold cache, a busy neighbour or twice the machines wants another.
The naive way to find it is to add calls until one fails. By then the backend has had a queue for a long time, and
every call has waited in it: a queue in the backend adds latency and no throughput.

So look at latency. A backend that serves c calls at once takes the same time for each as long as there are no more than
c. From there on calls wait in its queue, and by Little's law the queue can be told from outside: with L calls in flight
that take `seen` where an unhindered call takes `best`, the part `best / seen` of them is being served, and

    queue = L * (1 - best / seen)

are waiting. The number rises while the queue is shorter than `LOW`, and falls while it is longer than `HIGH`; between
them it stays. A few calls in the queue are wanted: without any, the backend would be idle between two calls. A step is
larger where the number is larger, as its root: a number of 4 moves by 2, one of 400 by 20.

Worked example, a backend that serves 20 at once in 50 ms each, start 10: no queue, so 10, 13, 17, 21, 26; there, a call
takes 65 ms, the queue is 6, and the number stays. The backend loses half of its machines: a call takes 130 ms, the
queue is 16, and the number falls step by step to 14, with 4 in the queue.

*Looks.* A single latency says little. A look is over when as many calls have ended as are allowed at once, `FEWEST` at
least, and it takes their mean. Calls that were begun before the last change are not counted. A time-out or a broken
connection is a loss: the number is cut by a tenth, once per look.

*What `best` is.* What a call takes on average without a queue. The naive way is to remember the shortest latency. But
calls differ: where the shortest takes a third of the mean, every mean looks like a queue, and the number falls to a
handful while most of the backend is idle. A mean has to be compared with a mean. So each `REST` looks the number goes
down to half for one look (a small one to a quarter), the queue drains, and `best` is measured anew. Between rests it
moves only towards a look that is faster. One look is not exact, so `best` moves only a part of the way.

A backend that became slower for good (a new version, a larger payload) looks like one with a queue, and the number
falls. After `FALLS` falls in a row it rests: if calls are slow with half of the number, too, it is no queue.

*It rises only if it is used.* If at most half of the number were ever in flight during a look, its latency says nothing
about more.

Time is in nanoseconds and comes as an argument; the memory is a dozen numbers.
"""

from __future__ import annotations

import math
from typing import Final

FEWEST: Final = 8
"""Calls of which a look is made, at least."""
LOW: Final = 3.0
HIGH: Final = 6.0
"""Calls in the backend's queue below which the number rises, and above which it falls; for a number of 10."""
CUT: Final = 0.9
"""What a loss makes of the number."""
RESTED: Final = 0.7
FASTER: Final = 0.1
"""The part of the way to the mean of a look that `best` moves: after a rest, and where that mean is shorter."""
FALLS: Final = 3
"""After so many falls in a row the number rests: perhaps a call takes longer now, and there is no queue."""
SMALL_SCALE: Final = 10.0
LEAST_SCALE: Final = 0.3
"""The bounds of the queue grow as the logarithm of the number; below 10 as the number itself."""
REST: Final = 30
"""Each so many looks the number is halved for one look."""
SMALL: Final = 20
"""A smaller number goes to a quarter: half of 10 is still a queue for a backend that serves 4."""


class AdaptiveCount:
    """Calls at once, between `least` and `most`.

    >>> count = AdaptiveCount(start=10, least=1, most=100)
    >>> for call in range(10):
    ...     count.began()
    >>> for call in range(10):
    ...     count.ended(begun=0, now=50_000_000)
    >>> count.allowed                                       # nothing says that there is a queue
    13
    """

    __slots__ = (
        "_falls", "_looks", "_lost", "_peak", "_resting", "_samples", "_since", "_total", "best", "in_flight",
        "least", "most", "value",
    )  # fmt: skip

    def __init__(self, start: int, least: int, most: int) -> None:
        self.least = least
        self.most = most
        self.value = float(min(max(start, least), most))
        self.best: float | None = None
        self.in_flight = 0
        # Of this look: when it began, and of its calls how many, their sum, the losses, the most at once.
        self._since = -1
        self._samples = 0
        self._total = 0.0
        self._lost = False
        self._peak = 0
        self._looks = 0
        self._falls = 0
        self._resting = False

    @property
    def allowed(self) -> int:
        """How many may be in flight now."""
        number = self.value / (2 if self.value >= SMALL else 4) if self._resting else self.value
        return max(self.least, int(number))

    def began(self) -> None:
        """A call begins."""
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def dropped(self) -> None:
        """A call was never made, or says nothing: it is in flight no more."""
        self.in_flight = max(0, self.in_flight - 1)

    def ended(self, begun: int, now: int) -> None:
        """A call was answered."""
        self.dropped()
        if begun > self._since:
            took = float(max(1, now - begun))
            self._samples += 1
            self._total += took
            self._look(now)

    def lost(self, begun: int, now: int) -> None:
        """A call timed out, or its connection broke."""
        self.dropped()
        if begun > self._since:
            self._lost = True
            self._samples += 1
            self._total += float(max(1, now - begun))
            self._look(now)

    def _look(self, now: int) -> None:
        if self._samples < max(FEWEST, self.allowed):
            return
        seen = self._total / self._samples
        if not self._lost:
            # A time-out says nothing of what a call takes without a queue.
            if self.best is None:
                self.best = seen
            elif self._resting:
                self.best += (seen - self.best) * RESTED
            elif seen < self.best:
                # Half of it is no accident.
                self.best += (seen - self.best) * (FASTER if 2.0 * seen >= self.best else 1.0)
        used = 2 * self._peak > self.allowed
        if self._resting:
            self._resting = False
        else:
            self._step(seen, used=used)
            self._looks += 1
            due = self._looks % REST == 0 or self._falls >= FALLS
            self._resting = due and self.value >= 2 * self.least
            if due:
                self._falls = 0
        self._since = now
        self._samples = 0
        self._total = 0.0
        self._lost = False
        self._peak = self.in_flight

    def _step(self, seen: float, *, used: bool) -> None:
        falls, self._falls = self._falls, 0
        if self._lost:
            self._set(self.value * CUT)
        elif self.best is not None:
            scale = max(min(math.log10(self.value), self.value / SMALL_SCALE), LEAST_SCALE)
            queue = self.value * max(0.0, 1.0 - self.best / seen)
            if queue < LOW * scale and used:
                self._set(self.value + math.sqrt(self.value))
            elif queue > HIGH * scale:
                self._set(self.value - math.sqrt(self.value))
                self._falls = falls + 1

    def _set(self, value: float) -> None:
        self.value = min(max(value, float(self.least)), float(self.most))
