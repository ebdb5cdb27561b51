"""One limit, one fleet, one traffic, and two ways to share it: leases, and the original's prefetching.

`headway lab prefetch` is made of this. Both get the same requests at the same times, and answers that take as long. A
request is tried and never waits. What passed is compared with min(demand, limit). For leases that begins with each
client's first answer, as in `headway.lab.leases.tables`, and gives the same figures. The original passes requests
before it has any answer, and so it is counted from the first request on.

The original asks a server for permits, which is one of those that it was tested with: a fixed window for a `Window`,
the same by the calendar for a `FixedWindow`, a bucket that refills for a `Bucket`. It has no notion of a permit that
comes back when a call ends, and so there is none for a `Concurrency`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from itertools import repeat, takewhile
from random import Random
from typing import Any

from headway.core.holder import Terms
from headway.core.lease import Answer
from headway.core.lendable import tokens_to_lend
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Window
from headway.lab.clocks import BILLION
from headway.lab.leases.audit import most
from headway.lab.leases.fleet import Client, Fleet, Network
from headway.lab.leases.traffic import Traffic, poisson, split
from headway.lab.prefetch.accuracy import Wire
from headway.lab.prefetch.clients import Client as Prefetches
from headway.lab.prefetch.clients import Original, Send
from headway.lab.prefetch.servers import AlignedServer, FixedWindowServer, RefillingServer, Server

Lent = Window | Bucket | FixedWindow | Concurrency
Advance = Callable[[float], object]
STEP = 1000
"""After about so many requests a run says how far it is."""


@dataclass(frozen=True)
class Plan:
    """What is tried: a limit, the weights of its clients, and the world around them.

    `hold_ns` is how long a call keeps its slot of a `Concurrency`. With a `seed` requests come at random times,
    without one at even distances.

    >>> plan = Plan(Window(20, per=1, remote=False), (3, 1))
    >>> plan.rate, plan.seconds
    (20.0, 10.0)
    >>> plan.leases(22).passed(plan), plan.leases(22).most(plan)
    (0.96, 20)
    """

    limit: Lent
    weights: tuple[int, ...]
    round_trip_ns: int = BILLION // 5
    windows: int = 10
    ttl_ns: int = 3 * BILLION
    hold_ns: int = 3 * BILLION // 10
    seed: int | None = None

    @property
    def span_ns(self) -> int:
        """What the limit counts together: its window, or for how long a slot is in use."""
        return self.hold_ns if isinstance(self.limit, Concurrency) else self.limit.per_ns

    @property
    def rate(self) -> float:
        """What the limit allows in a second."""
        return self.limit.count * BILLION / self.span_ns

    @cached_property
    def seconds(self) -> float:
        """So many windows; those of slots are a second at least."""
        least = BILLION if isinstance(self.limit, Concurrency) else 0
        return self.windows * max(self.span_ns, least) / BILLION

    @cached_property
    def end(self) -> float:
        """When a run ends: a round trip more makes up for the first; a window of the calendar does not wait for it."""
        return self.seconds + (0 if isinstance(self.limit, FixedWindow) else self.round_trip_ns / BILLION)

    @cached_property
    def allowed(self) -> float:
        """What the limit allows in a run; the burst of a bucket comes on top."""
        if not isinstance(self.limit, FixedWindow):
            return self.rate * self.seconds
        at, windows = 0, 0
        while at < self.seconds * BILLION:
            at = self.limit.window_of(at)[1]
            windows += 1
        return float(self.limit.count * windows)

    @property
    def bound(self) -> int:
        """What `Track.most` may be."""
        return self.limit.capacity

    def traffics(self, per_second: float) -> list[Traffic]:
        if self.seed is None:
            return split(per_second, self.weights)
        rates = [per_second * weight / sum(self.weights) for weight in self.weights]
        return [poisson(rate, Random(f"{self.seed} {i}")) for i, rate in enumerate(rates)]

    def leases(self, per_second: float, advance: Advance = lambda _: None) -> Track:
        """Run a fleet with leases; `advance` is told of requests that are done with."""
        trial = LeaseTrial(self, per_second)
        steps = max(1, round(per_second * self.end / STEP))
        for step in range(1, steps + 1):
            trial.run(self.end * step / steps)
            advance(per_second * self.end / steps)
        trial.track.counted = sum(client.asked for client in trial.clients)
        trial.track.counted_passed = sum(client.passed for client in trial.clients)
        return trial.track

    def asking(self, per_second: float, advance: Advance = lambda _: None) -> Track:
        """Run the same without leases, as if answers took no time."""
        return run_asking(self, per_second, advance)

    def original(self, per_second: float, advance: Advance = lambda _: None) -> Track | None:
        """Run the same with the original's algorithm; None where it has no notion of the limit."""
        server = server_for(self.limit)
        return None if server is None else run_original(self, server, per_second, advance)


@dataclass
class Track:
    """What happened: (time, client) of requests, of those that passed, and of calls; (time, client, tokens) held.

    `counted` requests, and `counted_passed` of them, are those that the share is of.
    """

    asked: list[tuple[int, int]] = field(default_factory=list)
    spent: list[tuple[int, int]] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)
    held: list[tuple[int, int, int]] = field(default_factory=list)
    counted: int = 0
    counted_passed: int = 0

    def passed(self, plan: Plan) -> float:
        """The share of min(demand, limit)."""
        return self.counted_passed / max(1, min(self.counted, plan.allowed))

    def most(self, plan: Plan) -> int:
        """The largest number that the limit counts together."""
        return most(plan.limit, [at for at, _ in self.spent], plan.hold_ns)

    def calls_per_second(self, plan: Plan) -> float:
        """Of all clients together."""
        return len(self.calls) / plan.seconds


class LeaseTrial(Fleet):
    """A fleet of leases that keeps a record of what it does."""

    def __init__(self, plan: Plan, per_second: float) -> None:
        self.track = Track()
        self.hold_ns = plan.hold_ns
        self.slots = isinstance(plan.limit, Concurrency)
        terms = Terms(
            ttl=plan.ttl_ns, margin=plan.ttl_ns // 10, drift_ppm=0, ledger_drift_ppm=0, resolution=0
        )
        network = Network(plan.round_trip_ns // 2)
        super().__init__(plan.limit, plan.traffics(per_second), terms, network)

    def request(self, client: Client) -> None:
        self.track.asked.append((self.t, _number(client)))
        super().request(client)

    def spend(self, client: Client, now: int) -> None:
        ledger = client.holder.tokens.ledger
        mark = ledger.take(now, 1)
        self.track.spent.append((self.t, _number(client)))
        if self.slots:
            self.push(self.t + self.hold_ns, lambda: ledger.complete(self.t, 1, mark))

    def call(self, client: Client, now: int) -> None:
        super().call(client, now)
        self.track.calls.append((self.t, _number(client)))
        self._note_tokens(client)

    def answered(self, client: Client, answer: Answer) -> None:
        super().answered(client, answer)
        self._note_tokens(client)

    def _note_tokens(self, client: Client) -> None:
        self.track.held.append((self.t, _number(client), client.holder.held))


def _number(client: Client) -> int:
    return int(client.holder.client)


def _play(
    plan: Plan, per_second: float, admit: Callable[[int, int], bool], track: Track, advance: Advance
) -> Track:
    """Try each request, by its time and client, and count what passes."""
    traffics = [zip(traffic, repeat(i)) for i, traffic in enumerate(plan.traffics(per_second))]
    counted_until, end = plan.seconds * BILLION, plan.end * BILLION
    for at, number in takewhile(lambda request: request[0] < end, merge(*traffics)):
        passed = admit(at, number)
        track.asked.append((at, number))
        if passed:
            track.spent.append((at, number))
        if at < counted_until:
            track.counted += 1
            track.counted_passed += passed
        if len(track.asked) % STEP == 0:
            advance(STEP)
    return track


def run_original(plan: Plan, server: Server, per_second: float, advance: Advance) -> Track:
    """The same clients with the original's algorithm, answered as in its own tests."""
    track, wire = Track(), Wire(server, plan.round_trip_ns)

    def sender(number: int) -> Send:
        def send(client: Prefetches, note: Any, amount: int, now: int) -> None:
            track.calls.append((now, number))
            wire.send(client, note, amount, now)

        return send

    def admit(at: int, number: int) -> bool:
        passed = clients[number].admit(at)
        wire.deliver(at)
        return passed

    clients = [Original(sender(number)) for number in range(len(plan.weights))]
    return _play(plan, per_second, admit, track, advance)


def run_asking(plan: Plan, per_second: float, advance: Advance) -> Track:
    """Every request asks the one ledger and is answered at once: what the limit itself admits."""
    track = Track()
    ledger = tokens_to_lend(plan.limit, 0, 0, plan.ttl_ns).ledger
    in_use: deque[tuple[int, int]] = deque()

    def admit(at: int, number: int) -> bool:
        track.calls.append((at, number))
        while in_use and in_use[0][0] <= at:
            end, mark = in_use.popleft()
            ledger.complete(end, 1, mark)
        if ledger.wait(at, 1):
            return False
        mark = ledger.take(at, 1)
        if isinstance(plan.limit, Concurrency):
            in_use.append((at + plan.hold_ns, mark))
        return True

    return _play(plan, per_second, admit, track, advance)


def server_for(limit: Limit) -> Server | None:
    """The server of the original's own tests that keeps a limit of this kind, if there is one."""
    match limit:
        case Window():
            return FixedWindowServer(limit.count, limit.per_ns)
        case FixedWindow():
            return AlignedServer(limit)
        case Bucket(count=0):
            return RefillingServer(0, limit.per_ns)
        case Bucket():
            return RefillingServer(limit.burst, -(-limit.burst * limit.per_ns // limit.count))
        case _:
            return None
