"""Faults: what can go wrong with a request.

A request was granted at `t`. Without a fault it would arrive at `arrive`, and its answer would be back at `done`. A
fate says instead when the remote notes it (None: never), when its permit ends, and how: by one of the permit's own
ends, by an exception that leaves the block around it, or not at all, when its worker has crashed.

Whatever happens, the remote notes a request `max_transit` after its grant at the latest; half of the delayed ones
arrive exactly then.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from random import Random
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from headway.lab.worlds import World


TABLE = 64
BATCH = 256


def latencies(rng: Random, spread: str, floor: int, more: int) -> list[int]:
    """A table to choose from: the floor, and what comes on top of it."""
    if spread == "floor" or not more:
        return [floor] * TABLE
    if spread == "edges":
        return [floor + more * (i & 1) for i in range(TABLE)]
    if spread == "tail":
        return [floor + int(rng.expovariate(4 / more)) for _ in range(TABLE)]
    return [floor + rng.randrange(more + 1) for _ in range(TABLE)]


def nap_errors(rng: Random, error: int) -> list[int]:
    """By how much sleeps end too late, or too early (below zero); half of them are exact."""
    return [rng.choice((0, 0, -error, rng.randint(-error, error))) for _ in range(TABLE)]


def picks(rng: Random, table: list[int]) -> Iterator[int]:
    """Numbers out of a table, without end: a world needs thousands, and a byte for each is the cheapest way to draw."""
    pick = (table * (256 // TABLE)).__getitem__
    return chain.from_iterable(iter(lambda: map(pick, rng.randbytes(BATCH)), None))


def misfortunes(rng: Random, world: World) -> Iterator[Callable[[Request], Fault] | None]:
    """The faults of one request after another, without end; None: no fault."""
    if not world.fault_every or not world.faults:
        return repeat(None)
    kinds: list[Callable[[Request], Fault] | None] = [FATES[name] for name in world.faults]
    kinds += [None] * (len(kinds) * (world.fault_every - 1))
    return chain.from_iterable(iter(lambda: rng.choices(kinds, k=BATCH), None))


Fault: TypeAlias = tuple[int | None, int, str | BaseException, str]
"""When it is noted, when and how its permit ends ("complete", "cancel", "abandon", "drop" or an exception), a name."""


class Request:
    """What a fate is computed from. A world has one, which is filled again for each request that needs it."""

    __slots__ = ("arrive", "done", "random", "t", "world")

    def __init__(self, world: World, random: Callable[[], float]) -> None:
        self.world = world
        self.random = random
        self.t = self.arrive = self.done = 0

    def delayed(self) -> int:
        """The last moment at which the remote may note it, or a moment before."""
        last = self.t + self.world.max_transit
        return last if self.random() < 0.5 else self.arrive + int(self.random() * (last - self.arrive))

    def under_way(self) -> int:
        """A moment between grant and answer."""
        return self.t + int(self.random() * (self.done - self.t + 1))

    def timeout(self) -> int:
        return self.t + self.world.timeout


def late(request: Request) -> Fault:
    """Times out here, and arrives later."""
    return (request.delayed(), min(request.timeout(), request.done), "abandon", "timed out")


def slow(request: Request) -> Fault:
    """The answer takes longer than max_transit."""
    at = request.done + request.world.max_transit + int(request.random() * request.world.per)
    return (request.delayed(), at, "complete", "slow answer")


def mute(request: Request) -> Fault:
    """It arrives, the answer is lost."""
    return (request.arrive, request.timeout(), "abandon", "answer lost")


def lost(request: Request) -> Fault:
    """It never arrives."""
    return (None, request.timeout(), "abandon", "request lost")


def unsent(request: Request) -> Fault:
    """The permit is cancelled: nothing was sent."""
    return (None, request.t + int(request.random() * request.world.timeout), "cancel", "cancelled")


def refused(request: Request) -> Fault:
    """An exception that proves that nothing was sent."""
    return (None, request.done, ConnectionRefusedError(), "refused")


def torn(request: Request) -> Fault:
    """The task is cancelled while its request is under way."""
    return (request.delayed(), request.under_way(), CancelledError(), "task cancelled")


def parse(request: Request) -> Fault:
    """The answer is there, and raises."""
    return (request.arrive, request.done, ValueError(), "parse error")


def crash(request: Request) -> Fault:
    """The worker crashes while its request is under way, and its permit is dropped without an end."""
    return (request.delayed(), request.under_way(), "drop", "worker crashed")


def tardy(request: Request) -> Fault:
    """The permit is spent long after it was granted."""
    noted = request.delayed()
    return (noted, noted + request.world.back, "complete", "spent late")


FATES: dict[str, Callable[[Request], Fault]] = {
    fate.__name__: fate for fate in (late, slow, mute, lost, unsent, refused, torn, parse, crash, tardy)
}
