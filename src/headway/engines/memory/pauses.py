"""Which keys are paused, and until when.

A pause without a key holds everything up. Of several pauses of one key the longest holds: a 429 that asks for one
second does not cut short the thirty seconds that another one asked for. Only a pause of 0 lifts it.
"""

from __future__ import annotations


class Pauses:
    """The pauses of one store.

    >>> pauses = Pauses()
    >>> pauses.pause("alice", 0, 30), pauses.pause("alice", 0, 1)
    (30, 30)
    >>> pauses.resume_time(("alice",), 10), pauses.resume_time(("bob",), 10), pauses.resume_time(("alice",), 40)
    (30, 10, 40)
    """

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until: dict[str | None, int] = {}

    def pause(self, key: str | None, now: int, duration_ns: int) -> int:
        """Hold a key up from now on for so long, or as long as it is paused already; returns when that is over."""
        end = max(now + duration_ns, self.until.get(key, now))
        self.until[key] = end
        return end

    def lift(self, key: str | None) -> None:
        """End the pause of a key."""
        self.until.pop(key, None)

    def lift_all(self) -> None:
        """End every pause."""
        self.until.clear()

    def resume_time(self, keys: tuple[str | None, ...], now: int) -> int:
        """When nothing holds these keys up any more; `now` if nothing does. Pauses that are over are forgotten."""
        if not self.until:
            return now
        for key, until in list(self.until.items()):
            if until <= now:
                del self.until[key]
        until = now
        for key in {None, *keys}:
            until = max(until, self.until.get(key, now))
        return until
