"""A remote that hides its limit, and clients that share it without knowing of each other.

Everything is drawn from a seed: the kind of the hidden limit (a sliding window, or a bucket), how high it is, when it
changes and by how much, how many clients there are, and how long an answer takes. The demand has no end: each client
sends whenever its rate allows. A refused call is lost, and does not count against the hidden limit.

What is measured, from the 60th second on: the part of what the hidden limit admits that was used, and the part of what
was sent that was refused. The changes are in it, with all that they cost.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import NamedTuple

from headway.core.adaptive import SECOND
from headway.lab.adaptive.opponents import Controller

WARM_UP = 60
SECONDS = 360
CLIENTS = (1, 4, 16)


class Family(NamedTuple):
    """Worlds of one kind.

    `changes` are the factors by which the hidden limit changes. Each client has at least `least_rate` of it in a
    second, and `least_calls` in a window. The calls per second of a client are drawn from 10 to the `slowest` on.
    """

    changes: tuple[float, ...]
    least_rate: float
    least_calls: float
    slowest: float


FAMILIES = {
    # Of fewer calls a client learns little within a minute. The constants of the core were chosen in such worlds.
    "narrow": Family((0.5, 0.7, 1.5, 2.0), 2.0, 8.0, 0.7),
    # AWS's algorithm never sends less than 0.5/s.
    "wide": Family((0.1, 0.25, 0.5, 0.7, 1.5, 2.0, 4.0, 10.0), 0.5, 1.0, -0.3),
}


class Step(NamedTuple):
    """From this second on the hidden limit is so many times what it was drawn as."""

    at: float
    factor: float


@dataclass(frozen=True)
class World:
    """The hidden limit is `rate` per second: in any `per` seconds (a window), or with a `burst` (a bucket)."""

    seed: int
    kind: str
    rate: float
    per: float
    burst: float
    clients: int
    latency: float
    steps: tuple[Step, ...]
    seconds: int

    def factor(self, at: float) -> float:
        found = 1.0
        for step in self.steps:
            if step.at <= at:
                found = step.factor
        return found

    def count(self, at: float) -> int:
        """The calls that a hidden window admits in `per` seconds, at such a time."""
        return max(1, int(self.rate * self.per * self.factor(at)))

    def allowed(self, at: float) -> float:
        """The calls per second that the hidden limit admits, at such a time: a window counts whole calls."""
        return self.count(at) / self.per if self.kind == "window" else self.rate * self.factor(at)

    def admitted(self) -> float:
        """What the hidden limit admits from the warm-up to the end."""
        edges = [WARM_UP, *(step.at for step in self.steps if step.at > WARM_UP), self.seconds]
        return sum((after - before) * self.allowed(before) for before, after in pairwise(edges))

    def __str__(self) -> str:
        what = f"window {self.per:g} s" if self.kind == "window" else f"bucket of {self.burst:.3g}"
        changes = ", ".join(f"x{step.factor:.2f} at {step.at:.0f} s" for step in self.steps) or "no change"
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return (
            f"world {self.seed}: {self.rate:.3g}/s, {what}, {clients}, "
            f"{self.latency * 1000:.0f} ms, {changes}"
        )


def draw(seed: int, name: str = "narrow") -> World:
    """The world of a seed, in one of the `FAMILIES`."""
    random, family = Random(seed), FAMILIES[name]
    clients = CLIENTS[seed % 3]
    kind = "window" if seed // 3 % 2 == 0 else "bucket"
    per = random.choice([1.0, 1.0, 2.0, 5.0, 10.0])
    latency = 10 ** random.uniform(-2.0, math.log10(0.5))
    steps, at, factor = [], 60.0, 1.0
    for _ in range(random.choice([0, 1, 1, 2])):
        at += random.uniform(60, 120)
        factor *= random.choice(family.changes)
        steps.append(Step(at, factor))
    lowest = min([1.0, *(step.factor for step in steps)])
    rate = clients * 10 ** random.uniform(family.slowest, 2.0 if clients < 16 else 1.5)
    rate = max(rate, family.least_calls * clients / per / lowest, family.least_rate * clients / lowest)
    burst = max(float(clients), rate * random.choice([0.1, 0.5, 1.0, 2.0]))
    return World(seed, kind, rate, per, burst, clients, latency, tuple(steps), SECONDS)


class HiddenWindow:
    """Never more than the count in any window."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.span = round(world.per * SECOND)
        self.times: deque[int] = deque()

    def admits(self, now: int) -> bool:
        while self.times and self.times[0] <= now - self.span:
            self.times.popleft()
        if len(self.times) >= self.world.count(now / SECOND):
            return False
        self.times.append(now)
        return True


class HiddenBucket:
    """A rate, and a burst."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.level = world.burst
        self.at = 0

    def admits(self, now: int) -> bool:
        rate = self.world.allowed(now / SECOND)
        self.level = min(self.world.burst, self.level + (now - self.at) / SECOND * rate)
        self.at = now
        if self.level < 1.0:
            return False
        self.level -= 1.0
        return True


@dataclass
class Score:
    """What happened from the warm-up on; `seconds` has (accepted, refused, allowed) for each second of the world."""

    world: World
    accepted: int = 0
    refused: int = 0
    seconds: list[list[float]] = field(default_factory=list)

    @property
    def used(self) -> float:
        """The part of the hidden limit that was used."""
        return self.accepted / self.world.admitted()

    @property
    def refusals(self) -> float:
        """The part of the calls that was refused."""
        return self.refused / max(1, self.accepted + self.refused)


def play(world: World, controller: Callable[[float], Controller], start: float = 1.0) -> Score:
    """Run a world with clients that each have such a controller."""
    random = Random(world.seed + 1_000_003)
    remote = HiddenWindow(world) if world.kind == "window" else HiddenBucket(world)
    clients = [controller(start) for _ in range(world.clients)]
    score = Score(world, seconds=[[0.0, 0.0, 0.0] for _ in range(world.seconds)])
    # (time, order, client, phase, sent at, served): phases are send, arrive, answer
    events: list[tuple[int, int, int, int, int, bool]] = []
    order = 0
    for index in range(world.clients):
        heapq.heappush(events, (round(random.uniform(0, 1 / start) * SECOND), order, index, 0, 0, False))
        order += 1
    end = world.seconds * SECOND
    while events:
        now, _, index, phase, sent_at, served = heapq.heappop(events)
        if now >= end:
            break
        client = clients[index]
        order += 1
        if phase == 0:
            client.sent(now)
            heapq.heappush(events, (now + max(1, round(SECOND / client.value)), order, index, 0, 0, False))
            order += 1
            way = round(world.latency / 2 * random.uniform(0.8, 1.2) * SECOND)
            heapq.heappush(events, (now + way, order, index, 1, now, False))
        elif phase == 1:
            served = remote.admits(now)
            second = score.seconds[now // SECOND]
            second[0 if served else 1] += 1
            second[2] = world.allowed(now / SECOND)
            if now >= WARM_UP * SECOND:
                score.accepted += served
                score.refused += not served
            way = round(world.latency / 2 * random.uniform(0.8, 1.2) * SECOND)
            heapq.heappush(events, (now + way, order, index, 2, sent_at, served))
        else:
            client.ended(now - sent_at)
            if served:
                client.accepted(now)
            else:
                client.refused(now)
    return score
