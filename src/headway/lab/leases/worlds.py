"""Seeded worlds in which everything goes wrong that can go wrong with a lease.

One message in five is lost, one in ten repeated, one in ten delayed by up to five seconds. Clients are killed, and
new ones come. Clients are stopped for longer than their lease and go on where they were. Every clock runs at the
edge of its drift, and the ledger's is set back (then it stands still until it has caught up) or forward. That an
engine notices a clock that was set forward is the engine's part (it compares with the clients' clocks); what is
tried here is that the ledger is safe once it has been told (`LeaseLedger.quarantine`).

A world ends with a calm part: no more faults, and three times the demand of the limit. There the fleet has to
recover. It is *jammed* if a token is missing, if a client is without a lease, or if less than half of what the
limit allows passes. The last is not asked of a limit with no more tokens than clients: a token serves the requests
of its holder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random
from typing import Any

from headway.core.holder import Holder, Terms
from headway.core.lease import LeaseLedger
from headway.core.limits import Bucket, FixedWindow, Limit, Window
from headway.core.remote import Remote
from headway.lab.clocks import BILLION, Skewed
from headway.lab.leases.audit import above
from headway.lab.leases.fleet import Client, Fleet, RoughNetwork
from headway.lab.leases.traffic import Traffic, poisson

KINDS = ("window", "window", "remote", "remote", "bucket", "fixed_window", "bare", "entered")
"""Of a window: at the decision, as a remote counts, and with `remote=None` one or the other, by its use."""
MILLISECOND = 1_000_000
ALIGNED = (BILLION, 2 * BILLION, 5 * BILLION)
STEPS = ((), (), (-2 * BILLION,), (60 * BILLION,), (BILLION, -BILLION))


@dataclass(frozen=True, slots=True)
class World:
    """The numbers of one world; times are nanoseconds.

    >>> draw(7) == draw(7), draw(7) == draw(8)
    (True, False)
    """

    seed: int
    kind: str = "window"
    n: int = 10
    per: int = BILLION
    clients: int = 3
    ttl: int = 3 * BILLION
    drift_ppm: int = 250
    ledger_drift_ppm: int = 1000
    one_way: int = 50 * MILLISECOND
    longest: int = 5 * BILLION
    lost: float = 0.2
    demand: float = 2.0  # of the limit
    singles: float = 0.0  # of the limit: asked for at the ledger, by clients without a lease
    max_transit: int = 500 * MILLISECOND
    rough: int = 20 * BILLION  # how long things go wrong
    calm: int = 30 * BILLION
    kills: int = 2
    stops: int = 2
    steps: tuple[int, ...] = field(default=())

    def limit(self) -> Limit:
        per = f"{self.per}ns"
        match self.kind:
            case "window":
                return Window(self.n, per=per, remote=False)
            case "remote":
                remote = Remote(resolution=0, drift_ppm=250, max_transit=f"{self.max_transit}ns")
                return Window(self.n, per=per, remote=remote)
            case "bare" | "entered":
                return Window(self.n, per=per)
            case "bucket":
                return Bucket((self.n, per), burst=self.n)
            case _:
                return FixedWindow(self.n, per=per)

    @property
    def held(self) -> bool:
        """Whether a permit is out until its call is over."""
        return self.kind in ("remote", "entered")

    @property
    def transit(self) -> int:
        """How long a vanished client's call may be on its way, as far as the ledger knows."""
        return {"remote": self.max_transit, "bare": 10 * BILLION, "entered": 10 * BILLION}.get(self.kind, 0)

    def terms(self) -> Terms:
        return Terms(
            ttl=self.ttl,
            margin=self.ttl // 100,
            resend=max(4 * self.one_way, self.ttl // 10),
            resolution=1,
            drift_ppm=self.drift_ppm,
            ledger_drift_ppm=self.ledger_drift_ppm,
        )


def draw(seed: int, **fixed: Any) -> World:
    """The world of a seed; `fixed` replaces what was drawn."""
    rng = Random(seed)
    kind = rng.choice(KINDS)
    world = World(
        seed=seed,
        kind=kind,
        n=rng.choice((1, 2, 5, 10, 10, 30)),
        per=rng.choice(ALIGNED if kind == "fixed_window" else (BILLION // 5, BILLION, 3 * BILLION)),
        clients=rng.choice((1, 2, 3, 6)),
        ttl=rng.choice((BILLION, 3 * BILLION)),
        drift_ppm=rng.choice((0, 250, 50_000)),
        ledger_drift_ppm=rng.choice((0, 1000, 50_000)),
        one_way=rng.choice((1, 20, 100)) * MILLISECOND,
        longest=rng.choice((1, 5)) * BILLION,
        demand=rng.choice((0.5, 1.0, 2.0, 10.0)),
        max_transit=rng.choice((100, 500, 2000)) * MILLISECOND,
        kills=rng.choice((0, 1, 3)),
        stops=rng.choice((0, 1, 4)),
        singles=rng.choice((0.0, 0.0, 0.2, 2.0)),
        steps=() if kind == "fixed_window" else rng.choice(STEPS),
    )
    return replace(world, **fixed)


@dataclass(frozen=True, slots=True)
class Outcome:
    world: World
    passed: int
    above: int
    recovered: float  # what passed in the calm part, of what the limit allows
    missing: int  # tokens that are neither in the ledger nor lent
    without: int  # clients without a lease at the end
    calls: int

    @property
    def jammed(self) -> bool:
        poor = self.recovered < 0.5 and self.world.n > self.world.clients
        return poor or self.missing != 0 or self.without > 0


def run_world(
    world: World, holder: type[Holder] = Holder, lender: type[LeaseLedger] = LeaseLedger
) -> Outcome:
    """Run a world and audit it.

    >>> run_world(draw(1)).above
    0
    """
    return WorldFleet(world, holder, lender).outcome()


class WorldFleet(Fleet):
    """A fleet whose clients are killed and stopped, and whose calls may be counted by a remote."""

    def __init__(self, world: World, holder: type[Holder], lender: type[LeaseLedger]) -> None:
        self.world = world
        self.rng = rng = Random(world.seed)
        self.network_of_world = RoughNetwork(rng, world.one_way, world.longest, world.lost)
        self.network_of_world.calm_from = world.rough
        self.remote_clock = self._skewed(250, -1, 1 if world.kind == "remote" else 16 * MILLISECOND)
        self.calm_from = world.rough + 2 * world.ttl + 2 * world.per + 2 * world.transit + 2 * world.longest
        super().__init__(
            world.limit(),
            (),
            world.terms(),
            self.network_of_world,
            ledger_clock=self._skewed(world.ledger_drift_ppm, 1),
            holder=holder,
            lender=lender,
        )
        for _ in range(world.clients):
            self.join(self._traffic(), self._skewed(world.drift_ppm, 1))
        for _ in range(world.kills):
            self.push(rng.randrange(world.rough), self.kill)
        for _ in range(world.stops):
            self.push(rng.randrange(world.rough), self.stop)
        self.offset = 0
        self.singles = self._singles()
        self._next_single()
        for step in world.steps:
            self.push(rng.randrange(world.rough), self.step, step)

    def _skewed(self, ppm: int, worst: int, tick: int = 1) -> Skewed:
        """A clock within its drift, mostly at one of the edges; far from zero, as clocks are."""
        edge = ppm * 1000
        rate = BILLION + self.rng.choice((worst * edge, worst * edge, -worst * edge, 0))
        return Skewed(tick, self.rng.randrange(100, 200) * BILLION * BILLION, ((0, rate),))

    def _traffic(self) -> Traffic:
        world = self.world
        per_client = world.n * BILLION / world.per / world.clients
        start = self.t
        rough = takewhile(
            lambda at: at < self.calm_from, _from(start, poisson(per_client * world.demand, self.rng))
        )
        yield from rough
        yield from _from(max(start, self.calm_from), poisson(per_client * 3, self.rng))

    # -- what goes wrong

    def _victim(self) -> Client | None:
        alive = [client for client in self.clients if client.alive]
        return self.rng.choice(alive) if alive else None

    def kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.alive = False
            self.join(self._traffic(), self._skewed(self.world.drift_ppm, 1))

    def stop(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.stopped = self.t + self.rng.randrange(3 * self.world.ttl)

    def step(self, by: int) -> None:
        """The ledger's clock is set; forward, the engine notices and says so."""
        self.offset += by
        if by > 0:
            self.ledger_now = max(self.ledger_now, self._shown())
            self.ledger.quarantine(self.ledger_now)

    def _shown(self) -> int:
        return self.ledger_clock.reading(self.t) + self.offset

    def heard(self, client: Client, call: Any) -> None:
        self.ledger_now = max(self.ledger_now, self._shown())
        answer = self.ledger.sync(self.ledger_now, call)
        if answer is not None:
            for at in self.network.arrivals(self.t):
                self.push(at, self.answered, client, answer)

    # -- single permits

    def _singles(self) -> Traffic:
        # A call that is held would need a remote of its own here: single permits are asked for where none counts.
        part = 0.0 if self.world.held else self.world.singles
        return poisson(self.world.n * BILLION / self.world.per * part, self.rng)

    def _next_single(self) -> None:
        at = next(self.singles, None)
        if at is not None:
            self.push(at, self.single)

    def single(self) -> None:
        self._next_single()
        self.ledger_now = max(self.ledger_now, self._shown())
        if self.ledger.direct(self.ledger_now, 1) == 0:
            self.ledger.tokens.ledger.take(self.ledger_now, 1)
            self.times.append(self.ledger_clock.reading(self.t))

    # -- what is counted

    def spend(self, client: Client, now: int) -> None:
        if not self.world.held:
            super().spend(client, now)
            return
        ledger, rng, transit = client.holder.tokens.ledger, self.rng, self.world.max_transit
        mark = ledger.take_held(now, 1)
        fate = rng.random()
        if fate < 0.1:
            self.push(self.t + rng.randrange(transit), self.end, client, ledger, "cancel", mark, ledger.tally)
            return
        arrive = self.t + rng.choice((0, transit, rng.randrange(transit + 1)))
        self.times.append(self.remote_clock.reading(arrive))
        if fate < 0.8:
            self.push(arrive + rng.randrange(transit), self.end, client, ledger, "complete", mark, 0)
        elif fate < 0.9:
            self.push(self.t + rng.randrange(transit), self.end, client, ledger, "abandon", mark, 0)

    def end(self, client: Client, ledger: Any, how: str, mark: int, tally: int) -> None:
        if not client.alive:
            return
        if self.t < client.stopped:
            self.push(client.stopped, self.end, client, ledger, how, mark, tally)
            return
        now = client.clock.reading(self.t)
        if how == "cancel":
            ledger.cancel(now, 1, mark, tally)
        else:
            getattr(ledger, how)(now, 1, mark)

    def _missing(self) -> int:
        """By the ledger's own books; a token that was used up is not missing."""
        if self.world.kind == "fixed_window":
            return 0
        return self.world.n - self.ledger.tokens.count(self.ledger_now) - self.ledger.held

    def _without(self, client: Client) -> bool:
        """Whether its lease ended long ago, and no call is under way."""
        holder = client.holder
        then = client.clock.reading(self.t) - self.world.ttl
        return holder.stop < then and (holder.pending is None or holder.sent[0] < then)

    def outcome(self) -> Outcome:
        world = self.world
        self.run((self.calm_from + world.calm) / BILLION)
        clock = self.remote_clock if world.held else self.ledger_clock
        calm = clock.reading(self.calm_from)
        late = sum(at >= calm for at in self.times)
        # The gap is longer by both drifts. What is held is out for a transit at worst, and one in five has no end.
        cycle = world.per * 1.2 + (world.max_transit + world.transit / 5 if world.held else 0)
        return Outcome(
            world,
            len(self.times),
            above(self.limit, sorted(self.times)),
            late / (world.n * world.calm / cycle),
            self._missing(),
            sum(self._without(client) for client in self.clients if client.alive and client.asked),
            sum(client.calls for client in self.clients),
        )


def _from(start: int, traffic: Traffic) -> Iterator[int]:
    return (start + at for at in traffic)
