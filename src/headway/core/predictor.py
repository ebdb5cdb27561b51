"""How many permits to fetch, and when: demand of the recent past stands for demand of the near future.

A client that asks a remote server for every permit pays a round trip for every request. The naive remedy is to fetch
a fixed batch whenever the last one is used up. A batch that is too small is used up before its answer comes, and the
client stands still for most of its time; one that is too large takes permits that other clients needed, and lets them
expire unused. And a batch that is fetched only when nothing is left makes every batch begin with a wait.

What was added, in this order:

*A predict window.* The client counts what its callers ask for in the last `window`, granted or not. That many will be
asked for in the next window, if nothing changes, and that many are *desired*. Old demand
leaves the count in steps of a twentieth, and not all at once (`headway.core.sliding_count`).

*A minimum.* A client that has just started has counted nothing. It desires `minimum` permits, so that it does not
have to fetch them one by one.

*A threshold.* A fetch begins when less than half of what is desired is left: the other half is spent while the answer
is on its way. An answer that takes longer than half a window arrives too late; a longer window helps.

*A close wait.* A server that grants less than it was asked for has no more. Asking again with every request would put
the whole load on the server that prefetching was to take off it. So such an answer closes the predictor: until the
time that the server named or, where it named none, for `close_wait` from when the fetch was sent. It closes no longer
than what was granted with that answer is valid: when permits end together, as they do at the end of a server's
window, the server has new ones.

*A top-up.* What is asked for is what is desired less what is left. The original asked for all that is desired: of
permits that are valid for about a predict window, the surplus expired in the client's hands while other clients were
refused.

Worked example: window 1 s, minimum 10, close wait 0.5 s, a request every 25 ms, answers after 0.2 s. At 0 nothing is
left and 10 are desired: ask for 10. They come at 0.2 s. At 0.3 s 6 are left and 13 requests were counted; 6 is less
than half of 13: ask for the 7 that are missing. At 0.5, 0.7 and 0.95 s ask for 14, 15 and 20, as the count grows to
39. From then on the predictor asks every half second, for 20, when 19 are left; 11 are left when the answer comes. At
1.95 s the server grants 8 of the 20, so it is not asked again before 2.45 s, although less than half is left from
2.15 s on.

Times are integer nanoseconds of one clock that never runs backward; an earlier one counts as the latest seen.
"""

from __future__ import annotations

from headway.core.sliding_count import SlidingCount


class Predictor:
    """Counts demand, and says how many permits to ask for.

    >>> predictor = Predictor(window_ns=1000, minimum=10, close_wait_ns=500)
    >>> predictor.amount(0, available=0, needed=1)
    10
    >>> for now in range(0, 1000, 25):
    ...     predictor.note(now, 1)
    >>> predictor.desired(1000), predictor.amount(1000, available=20), predictor.amount(1000, available=18)
    (38, 0, 20)
    >>> predictor.answered(sent_at=1000, asked=20, granted=5)
    >>> predictor.amount(1499, available=0, needed=1), predictor.amount(1500, available=0, needed=1)
    (0, 18)
    """

    __slots__ = ("_asked", "_cut", "close_wait_ns", "closed_until", "maximum", "minimum")

    def __init__(self, window_ns: int, minimum: int, close_wait_ns: int, maximum: int | None = None) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.close_wait_ns = close_wait_ns
        # When asking makes sense again.
        self.closed_until = 0
        # Whether the end of permits has cut the close wait short.
        self._cut = False
        self._asked = SlidingCount(window_ns)

    def note(self, now: int, cost: int) -> None:
        """A caller asked for `cost` permits."""
        self._asked.note(now, cost)

    def count(self, now: int) -> int:
        """What callers asked for in the predict window; its oldest sub-slot leaves it as a whole."""
        self._asked.roll(now)
        return self._asked.total

    def desired(self, now: int) -> int:
        """How many permits would serve a predict window of demand."""
        desired = max(self.count(now), self.minimum)
        return desired if self.maximum is None else min(desired, self.maximum)

    def amount(self, now: int, available: int, needed: int = 0) -> int:
        """How many permits to ask for now; 0: enough are left, or asking would be in vain.

        `needed` is what callers wait for at this moment: whatever is desired, it has to be fetched. What is owed to
        the server makes `available` smaller, and may make it negative.
        """
        if now < self.closed_until:
            return 0
        desired = self.desired(now)
        if available >= needed and 2 * available >= desired:
            return 0
        return max(desired, needed) - available

    def answered(
        self, sent_at: int, asked: int, granted: int, retry_ns: int | None = None, ends: int | None = None
    ) -> None:
        """The server has answered: one that has no more is left alone for a while.

        `retry_ns` is the time that it named, `ends` when the permits of this answer expire.
        """
        if granted >= asked:
            self.closed_until = 0
            self._cut = False
        elif retry_ns is not None:
            self.closed_until = sent_at + retry_ns
        else:
            self.close(sent_at)
            # A server that grants nothing, and says each time that this ends in a moment, is not asked at each of them.
            self._cut = (
                ends is not None and sent_at < ends < self.closed_until and not (self._cut and granted == 0)
            )
            if self._cut:
                self.closed_until = ends  # type: ignore[assignment] # it is not None here

    def close(self, since: int) -> None:
        """Ask no more for the close wait."""
        self.closed_until = since + self.close_wait_ns
