"""The figures of capacity leases: what passes, what is above the limit, and how many calls it takes.

Traffic is evenly spaced and is tried, never kept waiting: what is refused is lost. That is how the original was
tested (`headway.lab.leases.traffic`). An answer takes 200 ms. All of min(demand, limit) counts, from each client's
first answer on, where the limit of a `Bucket` is what its rate earns; its burst comes on top, so a share above 100
% is no error. What is above the limit is counted by `headway.lab.leases.audit`, on every window and every interval
there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headway.core.holder import Terms
from headway.core.limits import Bucket, Limit, Window
from headway.lab.clocks import BILLION, Skewed
from headway.lab.leases.audit import above
from headway.lab.leases.fleet import TRUE, Fleet
from headway.lab.leases.traffic import even, poisson, split, switching, zipf

CLIENTS = {"1": (1,), "2 (3:1)": (3, 1), "8 equal": (1,) * 8, "8 uneven": (8, 4, 2, 1, 1, 1, 1, 1)}
DEMANDS = (0.5, 0.9, 1.0, 1.1, 10.0)
LIMITS: dict[str, Limit] = {
    "Window 1200/min": Window(1200, per=60, remote=False),
    "Window 20/s": Window(20, per=1, remote=False),
    "Bucket 1200/min burst 1200": Bucket("1200/minute", burst=1200),
    "Bucket 20/s burst 20": Bucket("20/s", burst=20),
}
RATE = 20  # a second, of all of them
FAST = Skewed(1, 0, ((0, BILLION + 1_000_000),))
SLOW = Skewed(1, 0, ((0, BILLION - 250_000),))
BARS = {60: (0.99, 0.99, 0.95, 0.95), 1: (0.98, 0.95, 0.85, 0.75)}
"""What has to pass, by the length of the window in seconds, for each set of clients."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: what it is about, the share that passed, what was above the limit, calls per second and client."""

    what: str
    passed: float
    bar: float
    above: int
    calls: float
    more: str = ""

    @property
    def met(self) -> bool:
        return self.passed >= self.bar and self.above == 0

    def __str__(self) -> str:
        verdict = "" if self.met else "  below the bar" if not self.above else "  ABOVE THE LIMIT"
        shares = f"{self.passed:7.1%} (bar {self.bar:.0%})"
        return f"{self.what:70} {shares}  above {self.above}  calls/s {self.calls:.2f}{self.more}{verdict}"


def window_of(limit: Limit) -> int:
    """Its window in seconds; the time in which a bucket fills."""
    assert isinstance(limit, Window | Bucket)
    return limit.per_ns // BILLION


def measure(what: str, fleet: Fleet, seconds: float, bar: float, more: str = "") -> Row:
    """Run a fleet and compare what passed with what could have passed."""
    fleet.run(seconds + 0.2)
    asked = sum(client.asked for client in fleet.clients)
    passed = sum(client.passed for client in fleet.clients)
    calls = sum(client.calls for client in fleet.clients) / len(fleet.clients) / seconds
    assert isinstance(fleet.limit, Window | Bucket)
    allowed = fleet.limit.count * seconds * BILLION / fleet.limit.per_ns
    return Row(what, passed / max(1, min(asked, allowed)), bar, above(fleet.limit, fleet.times), calls, more)


def accuracy(
    name: str, clients: str, demand: float, windows: int = 10, *, waits: bool = False, drifts: bool = False
) -> Row:
    """One cell of the table of strict accuracy.

    `waits`: a request waits for a token for half a second. `drifts`: the ledger's clock is fast by 1000 ppm and
    those of the clients are slow by 250 ppm, which is what they allow for; otherwise clocks are perfect, and known
    to be.
    """
    limit = LIMITS[name]
    seconds = windows * window_of(limit)
    bar = BARS[window_of(limit)][list(CLIENTS).index(clients)]
    weights = CLIENTS[clients]
    fleet = Fleet(
        limit,
        split(RATE * demand, weights),
        Terms() if drifts else None,
        ledger_clock=FAST if drifts else TRUE,
        clocks=[SLOW if drifts else TRUE for _ in weights],
        patience=BILLION // 2 if waits else 0,
    )
    marks = f"{', waiting' if waits else ''}{', drifting' if drifts else ''}"
    what = f"{name}, {clients} clients, demand x {demand}{marks}"
    return measure(what, fleet, seconds, bar)


def moving_burst(limit: Limit, demand: float, seconds: int = 600) -> Row:
    """All demand switches sides each second."""
    fleet = Fleet(limit, [switching(RATE * demand, side) for side in (0, 1)])
    return measure(f"{limit}, demand x {demand} switches each second", fleet, seconds, 0.9)


def large_fleet(
    clients: int, per_minute: int, demand: float, seconds: int, terms: Terms | None = None
) -> Row:
    """Many clients, of which the k-th has 1/k of the first one's demand, at random times."""
    limit = Window(per_minute, per=60, remote=False)
    rates = zipf(per_minute / 60 * demand, clients)
    fleet = Fleet(limit, [poisson(rate, Random(i)) for i, rate in enumerate(rates)], terms)
    row = measure(f"{clients} clients, {limit}, Zipf, demand x {demand}", fleet, seconds, 0.9)
    # A client may call once in a TTL / 3, and once for each change of its share.
    periods = seconds * 3 * BILLION / fleet.terms.ttl + 1
    most = max(client.calls - client.moves for client in fleet.clients) / periods
    moves = sum(client.moves for client in fleet.clients) / clients / seconds
    return Row(
        row.what, row.passed, row.bar, row.above, row.calls, f"  moves/s {moves:.2f}  busiest {most:.2f} of 1"
    )


def calls_per_decisions(seconds: int = 20) -> float:
    """Calls per 10,000 decisions of one client at 1000/s, steady."""
    fleet = Fleet(Window(1000, per=1, remote=False), [even(1000)]).run(seconds)
    client = fleet.clients[0]
    return client.calls * 10_000 / max(1, client.asked)


def near_the_limit() -> Iterator[Row]:
    """900 a second of 1000; nothing at all; 100 a second of 1."""
    yield measure("1000/s, demand 900/s", Fleet(Window(1000, per=1, remote=False), [even(900)]), 20, 0.995)
    fleet = Fleet(Window(0, per=1, remote=False), [even(100)]).run(20)
    yield Row("a limit of 0, demand 100/s", 1.0, 1.0, len(fleet.times), fleet.clients[0].calls / 20)
    yield measure(
        "10 per 10 s, demand 100/s", Fleet(Window(10, per=10, remote=False), [even(100)]), 100, 0.98
    )


def everything(fleet_clients: int = 10_000) -> Iterator[Row]:
    """Every figure, row by row; minutes."""
    for name in LIMITS:
        for clients in CLIENTS:
            for demand in DEMANDS:
                yield accuracy(name, clients, demand)
    for clients in CLIENTS:
        for demand in DEMANDS:
            yield accuracy("Window 20/s", clients, demand, waits=True)
            yield accuracy("Window 20/s", clients, demand, drifts=True)
            yield accuracy("Window 20/s", clients, demand, waits=True, drifts=True)
    for limit in (
        LIMITS["Window 1200/min"],
        LIMITS["Bucket 1200/min burst 1200"],
        Bucket("1200/minute", burst=20),
    ):
        for demand in (1.0, 1.1, 10.0):
            yield moving_burst(limit, demand)
    yield from near_the_limit()
    # Thirty tokens a client on average, and ten: the fewer there are, the more of them lie idle at small clients.
    for each in (30, 10):
        for demand in (0.8, 1.0, 2.0):
            yield large_fleet(fleet_clients, each * fleet_clients, demand, 60)
