"""Worlds in which everything goes wrong between prefetching clients and their server, drawn from a seed.

Questions and answers get lost, are delayed up to five seconds, and come twice; fetches fail although the server has
decided; the clients' clocks are slow, as slow as they may be. The server is a `FixedWindowServer` on true time. In
the last third of a world nothing goes wrong any more.

The verdict: `above` is by how much the spending in any window of the server exceeds what the clients may spend there
(what was granted in it and, for optimists, what they may owe; nothing outside of every window), and `late` is how
much of what could pass in the last third did.

>>> verdict = run_world(1)
>>> verdict.above, verdict.late > 0.5
(0, True)
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from headway.core.predictor import Predictor
from headway.core.prefetch import Fetch, PrefetchLedger
from headway.lab.prefetch.clients import MS, SECOND
from headway.lab.prefetch.servers import FixedWindowServer

DRIFT_PPM = 2000
LENGTH = 90 * SECOND

Ledgers = Callable[..., PrefetchLedger]


class Verdict(NamedTuple):
    """How a world ended."""

    above: int
    late: float
    passed: int
    granted: int
    owed: int


class _Client:
    """A ledger on a slow clock."""

    def __init__(self, new_ledger: Ledgers, random: Random, *, optimistic: bool) -> None:
        predictor = Predictor(SECOND, minimum=random.choice((1, 5)), close_wait_ns=500 * MS)
        self.ledger = new_ledger(
            predictor, SECOND, optimistic=optimistic, drift_ppb=DRIFT_PPM * 1000, resolution_ns=MS
        )
        self.drift = random.choice((0, DRIFT_PPM // 2, DRIFT_PPM))
        self.times: list[int] = []
        self.most_owed = 0

    def clock(self, true: int) -> int:
        """What this client's clock shows: whole milliseconds, and fewer of them than have passed."""
        return true * (1_000_000 - self.drift) // 1_000_000 // MS * MS


def run_world(seed: int, *, new_ledger: Ledgers = PrefetchLedger, optimistic: bool = False) -> Verdict:
    """One world, from its seed."""
    random = Random(seed)
    limit, window = random.choice((20, 50, 200)), random.choice((SECOND, 3 * SECOND, 10 * SECOND))
    server = FixedWindowServer(limit, window)
    clients = [_Client(new_ledger, random, optimistic=optimistic) for _ in range(random.choice((1, 2, 4)))]
    # Together half of the limit, the limit, or four times as much.
    gap = window * len(clients) * random.choice((1, 4, 8)) // (4 * limit)
    events: list[tuple[int, int, Callable[[int], None]]] = []
    numbers = itertools.count()

    def at(time: int, act: Callable[[int], None]) -> None:
        heapq.heappush(events, (time, next(numbers), act))

    def request(client: _Client, true: int) -> None:
        at(true + random.randint(1, 2 * gap), lambda now: request(client, now))
        ledger, now = client.ledger, client.clock(true)
        ledger.overdue(now)
        ledger.predictor.note(now, 1)
        fetch = ledger.begin(now, 1)
        if fetch is not None:
            _send(client, fetch, true, server, random, at)
        if ledger.take(now, 1):
            client.times.append(true)
        owed = ledger.debt + (0 if ledger.fetch is None else ledger.fetch.advance)
        client.most_owed = max(client.most_owed, owed)

    for client in clients:
        at(random.randint(1, gap), lambda now, client=client: request(client, now))  # type: ignore[misc]
    while events and events[0][0] < LENGTH:
        time, _, act = heapq.heappop(events)
        act(time)
    return _judge(server, clients, gap, limit, window)


def _send(
    client: _Client,
    fetch: Fetch,
    true: int,
    server: FixedWindowServer,
    random: Random,
    at: Callable[[int, Callable[[int], None]], None],
) -> None:
    calm = true > LENGTH * 2 // 3
    # Up to five seconds there and back, of which the server may be at either end; mostly much less.
    longest = 50 * MS if calm else random.choice((50 * MS, 300 * MS, 5 * SECOND))
    out, back = sorted((random.randint(0, longest), random.randint(0, longest)))
    fate = "fine" if calm else random.choices(("fine", "lost", "error", "twice"), (60, 20, 10, 10))[0]

    def decide(now: int) -> None:
        if fate == "lost" and out % 2:
            return  # the question has not arrived
        grant = server.grant(fetch.amount, now)
        if fate == "lost":
            return

        def answer(now: int) -> None:
            if fate == "error":
                client.ledger.fail(fetch, client.clock(now))
            else:
                client.ledger.answer(fetch, client.clock(now), grant.amount, grant.valid_ns)

        for copy in range(2 if fate == "twice" else 1):
            at(true + back + copy * out, answer)

    at(true + out, decide)


def _judge(server: FixedWindowServer, clients: list[_Client], gap: int, limit: int, window: int) -> Verdict:
    times = sorted(time for client in clients for time in client.times)
    may_owe = sum(client.most_owed for client in clients)
    inside = [bisect_left(times, begin + window) - bisect_left(times, begin) for begin, _ in server.windows]
    excess = [spent - granted - may_owe for spent, (_, granted) in zip(inside, server.windows, strict=True)]
    # Outside of every window a strict client has nothing to spend.
    outside = 0 if may_owe else len(times) - sum(inside)
    above = max(0, outside, *excess)
    granted = sum(client.ledger.granted for client in clients)
    owed = sum(client.ledger.debt for client in clients)
    calm = LENGTH * 2 // 3 + window
    demand = (LENGTH - calm) * len(clients) // gap
    could = min(demand, limit * (LENGTH - calm) // window)
    late = (len(times) - bisect_left(times, calm)) / could
    return Verdict(above, late, len(times), granted, owed)
