"""The traffic with which the original was tested, and what each client passes of it.

The original was tested in 24 cases: 1200 in a minute and 20 in a second, a fixed-window and a refilling server, one
client and two (which get two thirds and one third of the requests). The demand is a little below the limit, then the
limit, then a little above it, for ten windows each, and the clients keep what they know from one to the next.
Requests come at even intervals of whole milliseconds. An answer takes 200 ms, and is told to its client at the first
request after that, behind it. All this is kept here, so that the original's algorithm gives the figures of its own
tests.

16 cases more are half the limit and ten times the limit, with new clients and a new server.

100 % is what the server itself admits of the same requests when it is asked for each, without any delay. That is the
limit or the demand, whichever is less; a refilling server also gives away what it has saved up. The original's tests
compare with the limit alone, which a client of a refilling server can exceed by spending what it is granted.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from headway.lab.prefetch.clients import MS, SECOND, Asking, Client, Original, Prefetching, Send
from headway.lab.prefetch.servers import FixedWindowServer, RefillingServer, Server

DELAY = 200 * MS
WINDOWS = 10

SERVERS: dict[str, Callable[[int, int], Server]] = {"fixed": FixedWindowServer, "refilling": RefillingServer}

CLIENTS: dict[str, Callable[[Send, Server], Client]] = {
    "ideal": lambda _, server: Asking(server),
    "original": lambda send, _: Original(send),
    "strict": lambda send, _: Prefetching(send, optimistic=False),
    "optimistic": lambda send, _: Prefetching(send, optimistic=True),
}


class Case(NamedTuple):
    """A server, its clients, and the requests in a window: the last of `demands` counts, those before lead up to it.

    Requests come at even intervals, of whole ticks.
    """

    server: str
    limit: int
    window_ns: int
    clients: int
    demands: tuple[int, ...]
    windows: int = WINDOWS
    tick_ns: int = MS

    @property
    def demand(self) -> int:
        return self.demands[-1]

    def __str__(self) -> str:
        per = {SECOND: "s", 60 * SECOND: "min"}.get(self.window_ns, f"{self.window_ns / SECOND:g} s")
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{self.server:9} {self.limit}/{per}, {clients}, demand {self.demand}"


class Run(NamedTuple):
    """What happened: when requests passed, when the last stretch began and how many requests it had."""

    times: list[int]
    begin: int
    requests: int
    calls: int
    server: Server

    @property
    def passed(self) -> int:
        """In the last stretch."""
        return len(self.times) - bisect_left(self.times, self.begin)


class Score(NamedTuple):
    """What a client passed of the requests of a case, and what the server itself would have admitted."""

    case: Case
    client: str
    requests: int
    passed: int
    ideal: int
    calls: int

    @property
    def percent(self) -> float:
        """Of what the server itself admits."""
        if self.ideal == 0:
            return 0.0 if self.passed == 0 else math.inf
        return 100 * self.passed / self.ideal


def _cases() -> list[Case]:
    cases = []
    for server in SERVERS:
        for limit, window_ns, delta in ((1200, 60 * SECOND, 100), (20, SECOND, 2)):
            for clients in (1, 2):
                steps = (limit - delta, limit, limit + delta)
                demands = [steps[:1], steps[:2], steps[:3], (limit // 2,), (limit * 10,)]
                cases += [Case(server, limit, window_ns, clients, ways) for ways in demands]
    return cases


CASES = _cases()


class Wire:
    """Answers on their way. The server decides when it is asked, and its answer is told behind a later request."""

    def __init__(self, server: Server, delay: int = DELAY) -> None:
        self._server = server
        self._delay = delay
        self._due: list[tuple[int, int, Client, Any, int, int]] = []
        self._numbers = itertools.count()
        self.calls = 0

    def send(self, client: Client, note: Any, amount: int, now: int) -> None:
        self.calls += 1
        grant = self._server.grant(amount, now)
        answer = (now + self._delay, next(self._numbers), client, note, grant.amount, grant.valid_ns)
        heapq.heappush(self._due, answer)

    def deliver(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, client, note, granted, valid_ns = heapq.heappop(self._due)
            client.hear(note, granted, valid_ns, now)


def run(case: Case, client: str) -> Run:
    """Every stretch of a case, one after another."""
    server = SERVERS[case.server](case.limit, case.window_ns)
    wire = Wire(server)
    clients = [CLIENTS[client](wire.send, server) for _ in range(case.clients)]
    stretch = case.window_ns * case.windows
    times: list[int] = []
    requests = 0
    for begin, demand in zip(itertools.count(0, stretch), case.demands, strict=False):
        whole = demand * case.windows
        shares = [whole] if case.clients == 1 else [whole * 2 // 3, whole // 3]
        sent = [0] * len(shares)
        requests = sum(shares)
        step = max(1, stretch // case.tick_ns // requests) * case.tick_ns
        for now in range(begin, begin + requests * step, step):
            # The client that is furthest behind its share is next.
            turn = min(
                range(len(shares)), key=[n / share for n, share in zip(sent, shares, strict=True)].__getitem__
            )
            sent[turn] += 1
            if clients[turn].admit(now):
                times.append(now)
            wire.deliver(now)
    return Run(times, stretch * (len(case.demands) - 1), requests, wire.calls, server)


def play(case: Case, client: str) -> Score:
    """What one client passes in one case."""
    own = run(case, client)
    ideal = own if client == "ideal" else run(case, "ideal")
    return Score(case, client, own.requests, own.passed, ideal.passed, own.calls)


def play_all(
    cases: Iterable[Case] = CASES, clients: Sequence[str] = ("original", "strict", "optimistic")
) -> Iterator[dict[str, Score]]:
    """Every case with each of the clients, one case after another."""
    for case in cases:
        yield {client: play(case, client) for client in clients}
