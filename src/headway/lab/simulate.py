"""One world, run: workers, our limiter, the way there and back, in virtual time.

The naive simulator is a task per worker on an event loop; it spends its time on tasks. Here a world is a heap of
moments (a permit ends, a sleep ends, a burst comes) and a count of workers who wait. What is simulated is everything
around the limiter; the limiter is the real one, asked through `try_acquire` and told through the ends of its permits,
as a line of waiting tasks would do: the head of the line sleeps until the promised time and asks again, and whenever a
permit comes back it is called. (`headway.lab.tasks` runs smaller worlds with real tasks.) Arrivals are decided at
dispatch and audited at the end, so they need no moment of their own.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from headway.core.limits import Window
from headway.core.remote import gap_ns
from headway.lab.audit import Outcome, audit
from headway.lab.clocks import LocalClock
from headway.lab.fates import FATES, TABLE, Fate, Request, latencies, nap_errors
from headway.lab.worlds import World
from headway.limiter import Limiter
from headway.permit import Permit

NEVER = 1 << 200

Build = Callable[[World, Window, LocalClock, str], Limiter]


def build(_: World, limit: Window, clock: LocalClock, start: str) -> Limiter:
    """The limiter as a user would build it."""
    return Limiter(limit, clock=clock, start=start)  # type: ignore[arg-type]


def run_world(
    world: World, build: Build = build, *, trace: bool = False, simulation: type[Simulation] | None = None
) -> Outcome:
    """Run a world and audit it.

    >>> from headway.lab.worlds import draw
    >>> run_world(draw(1, events=200)).verdict.violations
    0
    """
    with warnings.catch_warnings():
        # Of dropped permits, of many abandoned ones, of latencies that eat the ceiling: all of it is meant here.
        warnings.simplefilter("ignore")
        collecting = gc.isenabled()
        gc.disable()  # a world has no cycles, and a heap of tuples would be looked through again and again
        try:
            return (simulation or Simulation)(world, build, trace).run()
        finally:
            if collecting:
                gc.enable()


class Simulation:
    def __init__(self, world: World, build: Build, trace: bool) -> None:
        self.world = world
        self.build = build
        self.rng = rng = Random(world.seed)
        self.random = rng.random
        self.local = world.local_clock()
        self.clock = LocalClock(world.lr, world.le_ppm)
        self.clock.shown = self.local.reading(0)
        self.heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self.numbers = count()
        self.t = 0
        self.granted = 0
        self.waiting = world.workers
        self.resting = 0
        self.alarm = self.ready = NEVER  # when the head of the line wakes, and what our clock shows then
        # Whether the head of the line sleeps until a time that no completion can bring forward.
        self.calm = False
        self.busy = 0
        self.arrivals: list[int] = []
        self.log: list[tuple[int, int | None, int, str]] | None = [] if trace else None
        self.outs = [
            min(out, world.max_transit) for out in latencies(rng, world.spread, world.out, world.out_more)
        ]
        self.backs = latencies(rng, world.spread, world.back, world.back_more)
        self.naps = nap_errors(rng, world.nap_error)
        self.fault_rate = 1 / world.fault_every if world.fault_every and world.faults else 0.0
        self.keen = not (world.bursts or world.rest)
        self.plain = not (self.fault_rate or world.restart_every or world.clairvoyant or trace)
        self.limit = world.limit()
        assert self.limit.remote is not None
        self.gap = gap_ns(world.per, self.limit.remote, world.lr, world.le_ppm)
        self._open("idle")

    def _open(self, start: str) -> None:
        self.limiter = self.build(self.world, self.limit, self.clock, start)
        self.ledger = self.limiter._book.first.look(self.world.key)
        assert self.ledger.get_rule().held

    # -- the loop

    def run(self) -> Outcome:
        world, heap, clock, local = self.world, self.heap, self.clock, self.local
        # The reading of a clock whose rate never changes, without the call.
        base, rate, den, tick, steady = (
            local.base,
            local.rate,
            local.den,
            local.tick,
            len(local.segments) == 1,
        )
        if world.bursts:
            self.push(max(self.gap, world.per), self._burst, None)
        self.serve()
        while heap and self.granted < world.events:
            self.t, _, happen, what = heappop(heap)
            clock.shown = (base + rate * self.t) // den * tick if steady else local.reading(self.t)
            happen(what)
            if self.waiting and not self.calm:
                self.serve()
        self._forget()
        del self.limiter, self.ledger  # with what its book remembers, while nobody is warned
        return Outcome(
            world, len(self.arrivals), audit(world, self.arrivals), self._share(), self.t, self.log
        )

    def _share(self) -> float:
        """How much of the ceiling was reached: each permit can be used once per flight and gap, and no more often."""
        slots = self.world.n // self.world.cost
        again = max(0, self.granted - slots)
        cycle = self.busy / max(1, self.granted) + max(0, self.gap)
        return again * cycle / (slots * max(1, self.t))

    def push(self, at: int, happen: Callable[[Any], None], what: Any) -> None:
        heappush(self.heap, (at, next(self.numbers), happen, what))

    def serve(self) -> None:
        """Let the head of the line ask, and the next, until one is denied."""
        world, now = self.world, self.clock.shown
        if world.public or world.key is not None or world.cost > 1:
            self._serve_any(now)
            return
        ledger, ask = self.ledger, self.limiter.try_acquire
        while self.waiting:
            wait = ledger.wait(now, 1)
            if wait:
                sure = ledger.sure(now, 1)
                self.calm = sure == wait
                self._sleep(now + sure)
                return
            permit = ask()
            assert permit, "promised and denied"
            self.waiting -= 1
            self.dispatch(permit)

    def _serve_any(self, now: int) -> None:
        """The same for requests with a key or a weight, and by the public promise alone."""
        world = self.world
        while self.waiting:
            if not world.public:
                ledger = self.limiter._book.first.look(world.key)
                if ledger.wait(now, world.cost):
                    self._sleep(now + ledger.sure(now, world.cost))
                    return
            permit: Any = self.limiter.try_acquire(world.key, cost=world.cost)
            if not permit:
                assert world.public, "promised and denied"
                # While permits are out it is a lower bound, which may be next to nothing.
                self._sleep(now + max(round(permit.retry_after * 1e9), world.per // 2 + 1))
                return
            self.waiting -= 1
            self.dispatch(permit)

    def _sleep(self, ready: int) -> None:
        """Until our clock shows `ready`, more or less; who sleeps already is only woken earlier."""
        if ready >= self.ready:
            return
        self.ready = ready
        due = self.local.when(ready)
        if self.world.nap_error:
            due += self.naps[int(self.random() * TABLE)]
        if due <= self.t:
            due = self.t + 1
        if due < self.alarm:
            self.alarm = due
            heappush(self.heap, (due, next(self.numbers), self._wake, None))

    def _wake(self, _: Any) -> None:
        if self.t == self.alarm:  # otherwise an earlier one took its place
            self.alarm = self.ready = NEVER
            self.calm = False

    def dispatch(self, permit: Any) -> None:
        """Spend a permit that was granted now: decide when it arrives, how it ends, and when."""
        self.granted += 1
        if not self.plain:
            self._dispatch_any(permit)
            return
        dice = int(self.random() * TABLE * TABLE)
        flight = self.outs[dice // TABLE]
        self.arrivals.append(self.t + flight)
        flight += self.backs[dice % TABLE]
        self.busy += flight
        heappush(self.heap, (self.t + flight, next(self.numbers), self._complete, permit))

    def _dispatch_any(self, permit: Any) -> None:
        world, t, random = self.world, self.t, self.random
        if world.restart_every and self.granted % world.restart_every == 0:
            self.push(t + int(random() * world.per), self._restart, None)
        dice = int(random() * TABLE * TABLE)
        arrive = t + self.outs[dice // TABLE]
        done = arrive + self.backs[dice % TABLE]
        if self.fault_rate and random() < self.fault_rate:
            kind = world.faults[int(random() * len(world.faults))]
            self._suffer(permit, FATES[kind](Request(world, random, t, arrive, done)))
            return
        if world.clairvoyant:
            # The completion is known in advance, and a gap below zero reaches back from it.
            done = max(t, self.local.when(self.local.reading(done) + min(0, self.gap)))
        self.arrivals.append(arrive)
        self.busy += done - t
        heappush(self.heap, (done, next(self.numbers), self._complete, permit))
        if self.log is not None:
            self.log.append((t, arrive, done, "completed"))

    def _suffer(self, permit: Any, fate: Fate) -> None:
        noted, at, end, name = fate
        if noted is not None:
            self.arrivals.append(noted)
        if isinstance(end, BaseException):
            self.push(at, self._raise, (permit, end))
        elif end == "drop":
            self.push(at, self._drop, [permit])
        else:
            self.push(at, getattr(self, f"_{end}"), permit)
        if self.log is not None:
            self.log.append((self.t, noted, at, name))

    # -- how permits end

    def _complete(self, permit: Any) -> None:
        permit.complete()
        if self.keen:
            self.waiting += 1
        else:
            self._next()

    def _cancel(self, permit: Any) -> None:
        permit.cancel()
        self.calm = False
        self._next()

    def _abandon(self, permit: Any) -> None:
        permit.abandon()
        self._next()

    def _raise(self, what: tuple[Any, BaseException]) -> None:
        what[0].finish(what[1])
        self.calm = False
        self._next()

    def _drop(self, what: list[Any]) -> None:
        what.clear()
        self._next()

    def _next(self) -> None:
        """A worker is done: it asks again, rests, or waits for the next burst."""
        if self.world.bursts:
            self.resting += 1
        elif self.world.rest:
            self.push(self.t + int(self.random() * self.world.rest), self._come, None)
        else:
            self.waiting += 1

    def _come(self, _: Any) -> None:
        self.waiting += 1

    def _burst(self, _: None) -> None:
        self.waiting += self.resting
        self.resting = 0
        self.push(self.t + max(self.gap, self.world.per), self._burst, None)

    def _restart(self, _: None) -> None:
        """The process is gone with all it knew; what it sent is still under way."""
        self._forget()
        self.alarm = self.ready = NEVER
        self.calm = False
        self.waiting, self.resting = self.world.workers, 0
        if self.world.bursts:
            self.push(self.t + max(self.gap, self.world.per), self._burst, None)
        self._open("full")

    def _forget(self) -> None:
        """Nothing more happens here. Permits are ended first: to drop one is to be warned, which takes its time."""
        for _, _, _, what in self.heap:
            if isinstance(what, Permit):
                what.complete()
        self.heap.clear()
        self.limiter._book.spare = None  # it may still know a permit whose worker crashed
