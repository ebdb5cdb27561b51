"""A client that knows the hidden limit: what it cannot do, no client can learn to do.

It sends evenly, at a fixed part of what the limit admits at the moment, and is told of each change at once. In some
worlds even this client is refused too often. Answers take some time, which varies, so calls do not arrive as evenly as
they are sent: a bucket of one call refuses each that is early. And a window that is lowered is full for a while.
"""

from __future__ import annotations

from headway.core.adaptive import SECOND
from headway.lab.adaptive.worlds import Score, World, play

MOST_REFUSED, LEAST_USED = 0.02, 0.9
"""The bar: so much of the hidden limit is used, and so little of what is sent is refused."""
PARTS = (0.91, 0.93, 0.95, 0.97, 0.99, 1.0)


def meets(score: Score) -> bool:
    """Whether a score meets the bar."""
    return score.used >= LEAST_USED and score.refusals <= MOST_REFUSED


class Informed:
    """An even rate: a part of the hidden limit, divided by the clients."""

    def __init__(self, world: World, part: float) -> None:
        self.world = world
        self.part = part
        self.now = 0

    @property
    def value(self) -> float:
        return self.part * self.world.allowed(self.now / SECOND) / self.world.clients

    def sent(self, now: int) -> None:
        self.now = now

    def ended(self, took: int) -> None:
        """It has nothing to learn."""

    def accepted(self, now: int) -> None:
        """It has nothing to learn."""

    def refused(self, now: int) -> None:
        """It has nothing to learn."""


def within_reach(world: World) -> bool:
    """Whether the bar is met by a client that knows the limit, at the best of some parts of it.

    >>> within_reach(World(0, "window", 50.0, 1.0, 0.0, 1, 0.01, (), 90))
    True
    """

    def score(part: float) -> Score:
        return play(world, lambda _: Informed(world, part))

    return any(meets(score(part)) for part in PARTS)
