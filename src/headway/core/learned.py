"""A limit that is learned from refusals alone, where the remote states none.

A remote that lowered its limit and says nothing but "429, come back in 0.6 s" refuses half of all calls for ever, if
its clients go on as before after each pause. But a refusal says more than it spells out: *what was served in the last
window is all that there is*. The ledger knows how many calls were made in that window, and every one that was refused
was not served. What is left is the remote's limit, or just above it.

    round     the refusals until the pause that the first of them brought is over. Calls that were on their way come
              back refused too, and each is one less that was served
    used      what the ledger counts when a round begins, calls on their way included
    learned   used, less the refusals of the last window and of this round, less a margin: the ledger counts a call
              for a little longer than the remote does

Refusals have other causes than our own use: others on the same account, a remote that is overloaded. So nothing is
learned unless the ledger is at least half used, and a round never lowers the limit by more than half. And what was
learned is doubted in time: after a calm without refusals it is raised by an eighth, and so on up to what was
configured. If a raise is refused, the calm doubles, so that a limit that is really lower is tried ever more rarely. The
first calm is ten windows, and a minute at least; the longest an hour, or ten windows if that is more.

Worked example: "20/s", the remote serves 10 from now on and refuses the other ten. When the first one is refused, 20
are used: 19 were served at most, and 18 are kept. With each further refusal it is one less, and after the tenth 9. Half
of 20 is more, so that 10 are kept.

Time is an integer of nanoseconds and comes as an argument.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MARGIN: Final = 32
"""Of what was served, one in so many is taken off."""
RAISE: Final = 8
"""A raise is one in so many, and at least 1."""
CALM_WINDOWS: Final = 10
SHORTEST_CALM: Final = 60 * 10**9
LONGEST_CALM: Final = 3600 * 10**9


class Learned:
    """What refusals have taught of one window.

    >>> learned = Learned(20, 10**9)
    >>> learned.begins(now=0)
    True
    >>> learned.refused(now=0, until=10**9, used=20), [learned.refused(now=1, until=10**9) for _ in range(12)][-1]
    (18, 10)
    >>> learned.served(now=10**9), learned.served(now=61 * 10**9)
    (10, 11)
    """

    __slots__ = (
        "_calm",
        "_configured",
        "_floor",
        "_raised",
        "_recent",
        "_since",
        "_until",
        "_used",
        "_window",
        "count",
    )

    def __init__(self, configured: int, window: int) -> None:
        self._configured = configured
        self._window = window
        self._calm = max(SHORTEST_CALM, CALM_WINDOWS * window)
        # The round: when it is over, how many were served at most, and the least to keep.
        self._until = -1
        self._used = self._floor = 0
        # When the last refusal was, or the last raise; and whether it was a raise.
        self._since = 0
        self._raised = False
        self._recent: deque[int] = deque(maxlen=max(1, configured))
        self.count = configured
        """The limit that is learned; the configured one where nothing was."""

    def begins(self, now: int) -> bool:
        """Whether a refusal would begin a round, so that it has to be known how much is used."""
        return now >= self._until

    def refused(self, now: int, until: int, used: int = 0) -> int:
        """A call was refused, and others will be `until` then; the limit to keep. `used`: where a round begins."""
        if self.begins(now):
            self._begin(now, used)
        self._until = max(self._until, until)
        self._recent.append(now)
        self._since = now
        self._used -= 1
        if self._floor:
            served = max(0, self._used - -(-self._used // MARGIN))
            self.count = max(self._floor, min(self.count, served))
        return self.count

    def _begin(self, now: int, used: int) -> None:
        while self._recent and self._recent[0] <= now - self._window:
            self._recent.popleft()
        if self._raised:
            self._calm = min(2 * self._calm, max(LONGEST_CALM, CALM_WINDOWS * self._window))
            self._raised = False
        self._used = used - len(self._recent)
        # Half of the limit, and 1 at least; 0: it was not our own use, and teaches nothing.
        self._floor = max(1, self.count // 2) if 2 * used >= self.count else 0

    def served(self, now: int) -> int:
        """A call was served; the limit to keep."""
        if self.count < self._configured and now - self._since > self._calm:
            self.count = min(self._configured, self.count + max(1, self.count // RAISE))
            self._since = now
            self._raised = True
        return self.count
