"""Backends that serve so many calls at once, and how well `AdaptiveConcurrency` finds the number.

Everything is drawn from a seed: how many calls the backend serves at once, how long one takes and how much that varies,
when it loses or gains servers, and when each call becomes slower or faster for good. More calls than it serves wait in
its queue, first come first served. The demand has no end: a client sends whenever its number allows.

What is measured, from the 10th second on: the part of the backend's capacity that was used, and how long a call took
beside the same call without a queue (1.0: none waited). A fixed number shows what is at stake: too low, and capacity is
lost; too high, and every call waits in the backend.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from headway.core.adaptive_concurrency import AdaptiveCount

SECOND = 10**9
WARM_UP = 10
SECONDS = 120
LEAST_USED, MOST_SLOWER = 0.9, 2.0
SERVER_CHANGES = (0.5, 0.7, 1.5, 2.0)
SERVICE_CHANGES = (0.5, 2.0)


class Counter(Protocol):
    """How many calls at once, and what the number is told."""

    @property
    def allowed(self) -> int:
        """How many may be in flight now."""

    def began(self) -> None: ...
    def ended(self, begun: int, now: int) -> None: ...


class Change(NamedTuple):
    """From this second on the backend has so many servers, and a call takes so long, in seconds."""

    at: float
    servers: int
    service: float


@dataclass(frozen=True)
class Backend:
    """The first change is at 0. `spread`: the deviation of the logarithm of what a call takes."""

    seed: int
    changes: tuple[Change, ...]
    spread: float

    def state(self, at: float) -> Change:
        return [change for change in self.changes if change.at <= at][-1]

    def __str__(self) -> str:
        what = ", ".join(
            f"{change.servers} at once, {change.service * 1000:.3g} ms"
            + (f" from {change.at:.0f} s on" if change.at else "")
            for change in self.changes
        )
        return f"backend {self.seed}: {what}, spread {self.spread:g}"


def draw(seed: int) -> Backend:
    """The backend of a seed."""
    random = Random(seed)
    servers = round(10 ** random.uniform(0.5, 2.0))
    service = 10 ** random.uniform(-2.0, -0.7)
    changes, at = [Change(0.0, servers, service)], 10.0
    for _ in range(random.choice([0, 1, 1, 2])):
        at += random.uniform(20, 50)
        if random.random() < 0.7:
            servers = max(2, round(servers * random.choice(SERVER_CHANGES)))
        else:
            service *= random.choice(SERVICE_CHANGES)
        changes.append(Change(at, servers, service))
    return Backend(seed, tuple(changes), random.choice([0.0, 0.1, 0.3, 0.6]))


@dataclass
class Outcome:
    """What happened from the warm-up on."""

    backend: Backend
    worked: float = 0.0
    capacity: float = 0.0
    slowness: list[float] = field(default_factory=list)

    @property
    def used(self) -> float:
        """The part of the capacity that was used."""
        return self.worked / self.capacity

    @property
    def slower(self) -> float:
        """What a call took beside one that does not wait, as the median."""
        return statistics.median(self.slowness)


def serves(outcome: Outcome) -> bool:
    """Whether nine tenths of the capacity are used, and a call takes at most twice what it has to."""
    return outcome.used >= LEAST_USED and outcome.slower <= MOST_SLOWER


class _Play:
    """One client in front of one backend."""

    def __init__(self, backend: Backend, counter: Counter) -> None:
        self.backend = backend
        self.counter = counter
        self.random = Random(backend.seed + 1_000_003)
        self.outcome = Outcome(backend)
        self.waiting: deque[int] = deque()
        self.busy = 0
        self.in_flight = 0
        # (end, order, begun, took at work)
        self.ends: list[tuple[int, int, int, int]] = []
        self.order = 0

    def run(self) -> Outcome:
        now = 0
        self._send(now)
        while self.ends and now < SECONDS * SECOND:
            now, _, begun, took = heapq.heappop(self.ends)
            self.busy -= 1
            self.in_flight -= 1
            if now >= WARM_UP * SECOND:
                self.outcome.worked += took
                self.outcome.slowness.append((now - begun) / took)
            self.counter.ended(begun, now)
            self._send(now)
        edges = [*(max(WARM_UP, change.at) for change in self.backend.changes), SECONDS]
        for change, since, until in zip(self.backend.changes, edges, edges[1:], strict=False):
            self.outcome.capacity += change.servers * (until - since) * SECOND
        return self.outcome

    def _send(self, now: int) -> None:
        while self.in_flight < self.counter.allowed:
            self.counter.began()
            self.in_flight += 1
            self.waiting.append(now)
        state = self.backend.state(now / SECOND)
        while self.waiting and self.busy < state.servers:
            begun = self.waiting.popleft()
            took = max(
                1, round(state.service * SECOND * math.exp(self.random.gauss(0.0, self.backend.spread)))
            )
            self.busy += 1
            self.order += 1
            heapq.heappush(self.ends, (now + took, self.order, begun, took))


class Fixed:
    """A number that does not change.

    >>> Fixed(20).allowed
    20
    """

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed

    def began(self) -> None:
        """It has nothing to learn."""

    def ended(self, begun: int, now: int) -> None:
        """It has nothing to learn."""


class Gradient:
    """Netflix's Gradient2: the number times how much longer the long-run latency is than that of now, plus a queue.

    >>> gradient = Gradient()
    >>> gradient.began(); gradient.ended(0, 50_000_000)
    >>> gradient.allowed
    20
    """

    LEAST, MOST, QUEUE, TOLERANCE, SMOOTH = 20, 200, 4, 1.5, 0.2

    def __init__(self) -> None:
        self.value = float(self.LEAST)
        self.long = 0.0
        self.in_flight = 0

    @property
    def allowed(self) -> int:
        return int(self.value)

    def began(self) -> None:
        self.in_flight += 1

    def ended(self, begun: int, now: int) -> None:
        took, flying = float(max(1, now - begun)), self.in_flight
        self.in_flight -= 1
        self.long = self.long + (took - self.long) * 2 / 601 if self.long else took
        if self.long > 2 * took:
            self.long *= 0.95
        if flying < self.value / 2:
            return
        gradient = min(1.0, max(0.5, self.TOLERANCE * self.long / took))
        wanted = self.value * gradient + self.QUEUE
        self.value = min(max(self.value * (1 - self.SMOOTH) + wanted * self.SMOOTH, self.LEAST), self.MOST)


CONTENDERS: dict[str, Callable[[], Counter]] = {
    "headway": lambda: AdaptiveCount(10, 1, 200),
    "Gradient2": Gradient,
    "fixed at 20": lambda: Fixed(20),
}


def play(backend: Backend, make: Callable[[], Counter]) -> Outcome:
    """Run a backend with one client."""
    return _Play(backend, make()).run()
