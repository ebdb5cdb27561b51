"""One world, run: workers, our limiter, the way there and back, in virtual time.

The naive simulator is a task per worker on an event loop; it spends its time on tasks. Here a world is a heap of
moments (a permit ends, a sleep ends, a burst comes) and a count of workers that wait. Everything around the limiter is
simulated. The limiter is the real one: it is asked through `try_acquire` and told through the ends of its permits, as
a queue of waiting tasks would do. The head of the queue sleeps until the promised time and asks again, and it is woken
whenever a permit comes back. (`headway.lab.tasks` runs smaller worlds with real tasks.) Arrivals are decided at
dispatch and audited at the end, so they need no moment of their own.

A lab finds more the more worlds it runs, so this file is compiled where the limiter is.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from headway.core.limits import Window
from headway.core.remote import gap_ns
from headway.lab.audit import Outcome, audit
from headway.lab.clocks import LocalClock
from headway.lab.faults import Fault, Request, latencies, misfortunes, nap_errors, picks
from headway.lab.worlds import World
from headway.limiter.limiter import Limiter
from headway.limiter.permits import Permit

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
        # Warnings of dropped and abandoned permits and of long latencies: all of that is intended here.
        warnings.simplefilter("ignore")
        collecting = gc.isenabled()
        gc.disable()  # a world has no cycles, and the collector would walk a heap of tuples again and again
        try:
            return (simulation or Simulation)(world, build, trace).run()
        finally:
            if collecting:
                gc.enable()


class Simulation:
    # More fields than a dict shares between objects, and all of them are read for every request.
    __slots__ = (
        "alarm",
        "arrivals",
        "ask",
        "build",
        "busy",
        "clairvoyant",
        "clock",
        "cost",
        "draws",
        "gap",
        "granted",
        "heap",
        "keen",
        "key",
        "ledger",
        "limit",
        "limiter",
        "local",
        "log",
        "naps",
        "public",
        "pushed",
        "random",
        "ready",
        "request",
        "restart_at",
        "resting",
        "t",
        "uncontended",
        "waiting",
        "world",
    )  # fmt: skip

    def __init__(self, world: World, build: Build, trace: bool) -> None:
        self.world = world
        self.key, self.cost = world.key, world.cost
        self.public, self.clairvoyant = world.public, world.clairvoyant
        self.build = build
        rng = Random(world.seed)
        self.random = rng.random
        self.local = world.local_clock()
        self.clock = LocalClock(world.lr, world.le_ppm)
        self.clock.shown = self.local.reading(0)
        # When, a number that settles ties, what happens (None: a permit completes, as nearly all do) and to what.
        self.heap: list[tuple[int, int, Callable[[Any], None] | None, Any]] = []
        self.pushed = 0
        self.t = 0
        self.granted = 0
        self.restart_at = world.restart_every
        self.waiting = world.workers
        self.resting = 0
        self.alarm = self.ready = NEVER  # when the head of the queue wakes, and what our clock shows then
        # Whether the head of the queue sleeps until a time that no completion can bring forward.
        self.uncontended = False
        self.busy = 0
        self.arrivals: list[int] = []
        self.log: list[tuple[int, int | None, int, str]] | None = [] if trace else None
        outs = latencies(rng, world.spread, world.out, world.out_more)
        outs = [min(out, world.max_transit) for out in outs]
        backs = latencies(rng, world.spread, world.back, world.back_more)
        # For each request the way there, the way back, and what goes wrong, if anything.
        self.draws = zip(picks(rng, outs), picks(rng, backs), misfortunes(rng, world), strict=True)
        self.naps = picks(rng, nap_errors(rng, world.nap_error)) if world.nap_error else None
        self.request = Request(world, rng.random)
        self.keen = not (world.bursts or world.rest)
        self.limit = world.limit()
        assert self.limit.remote
        self.gap = gap_ns(world.per, self.limit.remote, world.lr, world.le_ppm)
        self._open("idle")

    def _open(self, start: str) -> None:
        self.limiter = self.build(self.world, self.limit, self.clock, start)
        self.ledger = self.limiter._store.first.peek(self.key)
        assert self.ledger.get_rule().held
        self.ask: Callable[[], Any] = self.limiter.try_acquire
        if self.key is not None or self.cost > 1:
            self.ask = partial(self.ask, self.key, cost=self.cost)

    # -- the loop

    def run(self) -> Outcome:
        world, heap, clock, local, events = self.world, self.heap, self.clock, self.local, self.world.events
        # The reading of a clock with a constant rate, without a call.
        base, rate, den, tick = local.base, local.rate, local.den, local.tick
        steady = len(local.segments) == 1
        if world.bursts:
            self._burst(None)
        self.serve()
        while self.granted < events:
            # The sleeping head of the queue is not on the heap: most of its alarms would be replaced by earlier ones.
            if heap and heap[0][0] <= self.alarm:
                t, _, happen, what = heappop(heap)
            elif self.alarm != NEVER:
                t, happen, what = self.alarm, self._wake, None
            else:
                break
            if t != self.t:
                self.t = t
                clock.shown = (base + rate * t) // den * tick if steady else local.reading(t)
            if happen is not None:
                happen(what)
            else:
                what.complete()
                if self.keen:
                    self.waiting += 1
                else:
                    self._next()
            if self.waiting and not self.uncontended:
                self.serve()
        self._forget()
        return Outcome(
            world, len(self.arrivals), audit(world, self.arrivals), self._share(), self.t, self.log
        )

    def _share(self) -> float:
        """How much of the ceiling was reached: each permit can be used once per flight and gap, and no more often."""
        slots = self.world.n // self.world.cost
        again = max(0, self.granted - slots)
        cycle = self.busy / max(1, self.granted) + max(0, self.gap)
        return again * cycle / (slots * max(1, self.t))

    def push(self, at: int, happen: Callable[[Any], None] | None, what: Any) -> None:
        self.pushed += 1
        heappush(self.heap, (at, self.pushed, happen, what))

    def serve(self) -> None:
        """Let the head of the queue ask, and then the next, until one is denied."""
        now, ledger, key, cost = self.clock.shown, self.ledger, self.key, self.cost
        if self.public:
            self._serve_public(now)
            return
        while self.waiting:
            if key is not None:
                # An idle key may have been forgotten, and opened again by the last grant.
                ledger = self.limiter._store.first.peek(key)
            wait = ledger.wait(now, cost)
            if wait:
                sure = ledger.latest_wait(now, cost)
                self.uncontended = sure == wait
                if now + sure < self.ready:
                    self._sleep(now + sure)
                return
            permit = self.ask()
            assert permit, "promised and denied"
            self.waiting -= 1
            self.dispatch(permit)

    def _serve_public(self, now: int) -> None:
        """The same by the public promise alone."""
        while self.waiting:
            permit = self.ask()
            if not permit:
                # While permits are out it is a lower bound, which may be next to nothing.
                ready = now + max(round(permit.retry_after * 1e9), self.world.per // 2 + 1)
                if ready < self.ready:
                    self._sleep(ready)
                return
            self.waiting -= 1
            self.dispatch(permit)

    def _sleep(self, ready: int) -> None:
        """Sleep until our clock shows about `ready`; a sleep that is under way can only be shortened."""
        self.ready = ready
        due = self.local.when(ready)
        if self.naps is not None:
            due += next(self.naps)
        if due <= self.t:
            due = self.t + 1
        if due < self.alarm:
            self.alarm = due

    def _wake(self, _: Any) -> None:
        self.alarm = self.ready = NEVER
        self.uncontended = False

    def dispatch(self, permit: Any) -> None:
        """Spend a permit that was granted now: decide when it arrives, how it ends, and when."""
        t = self.t
        self.granted += 1
        if self.granted == self.restart_at:
            self.restart_at += self.world.restart_every
            self.push(t + int(self.random() * self.world.per), self._restart, None)
        out, back, misfortune = next(self.draws)
        arrive = t + out
        done = arrive + back
        if misfortune is not None:
            self._suffer(permit, misfortune, arrive, done)
            return
        if self.clairvoyant:
            # The completion is known in advance, and a gap below zero reaches back from it.
            done = max(t, self.local.when(self.local.reading(done) + min(0, self.gap)))
        self.arrivals.append(arrive)
        self.busy += done - t
        self.pushed += 1
        heappush(self.heap, (done, self.pushed, None, permit))
        if self.log is not None:
            self.log.append((t, arrive, done, "completed"))

    def _suffer(self, permit: Any, misfortune: Callable[[Request], Fault], arrive: int, done: int) -> None:
        request = self.request
        request.t, request.arrive, request.done = self.t, arrive, done
        noted, at, end, name = misfortune(request)
        if noted is not None:
            self.arrivals.append(noted)
        if end == "complete":
            self.push(at, None, permit)
        elif end == "abandon":
            self.push(at, self._abandon, permit)
        elif end == "cancel":
            self.push(at, self._cancel, permit)
        elif end == "drop":
            self.push(at, self._drop, [permit])
        else:
            self.push(at, self._raise, (permit, end))
        if self.log is not None:
            self.log.append((self.t, noted, at, name))

    # -- how permits end, other than by completion

    def _cancel(self, permit: Any) -> None:
        permit.cancel()
        self.uncontended = False
        self._next()

    def _abandon(self, permit: Any) -> None:
        permit.abandon()
        self._next()

    def _raise(self, what: tuple[Any, BaseException]) -> None:
        what[0]._finish(what[1])
        self.uncontended = False
        self._next()

    def _drop(self, what: list[Any]) -> None:
        what.clear()
        self._next()

    def _next(self) -> None:
        """A worker has finished: it asks again, rests, or waits for the next burst."""
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
        """The process restarts and has lost its state; what it sent is still under way."""
        self._forget()
        self.alarm = self.ready = NEVER
        self.uncontended = False
        self.waiting, self.resting = self.world.workers, 0
        if self.world.bursts:
            self._burst(None)
        self._open("full")

    def _forget(self) -> None:
        """Clear the world. Permits are ended first: a dropped one would warn, which takes time."""
        for _, _, _, what in self.heap:
            if isinstance(what, Permit):
                what.complete()
        self.heap.clear()
        self.limiter._store.spare = None  # it may still hold the permit of a worker that crashed
