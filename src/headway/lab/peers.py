"""Other libraries in the same world, through their public interfaces.

Each *gate* waits until its library lets one request through; a crowd of asyncio tasks then sends it over the same
network to the same remote, which audits every window by its own clock. Libraries that read the time from `time` get the
virtual one for as long as they run, in their own modules only; those that read it from the event loop have it already.

The peers get a perfect local clock, exact timers and no faults: what is counted here happened under the best
conditions. A library that only says yes or no (`limits`) is asked again when its window resets, as its users do.
"""

from __future__ import annotations

import asyncio
import importlib
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

from headway.core.remote import gap_ns
from headway.lab.audit import Verdict, audit, fullest
from headway.lab.clocks import BILLION, TaskClock
from headway.lab.worlds import World
from headway.limiter.limiter import Limiter
from headway.testing import ManualClock
from headway.testing.loop import VirtualLoop

EPOCH_NS = 1_700_000_000 * BILLION
LONG = 1e6

PacerCore = Callable[[], Any]  # an async context manager around one request


@dataclass(frozen=True, slots=True)
class Score:
    """How a library did: `share` is its rate over the highest that is provably safe."""

    name: str
    events: int
    verdict: Verdict
    worst: int
    share: float
    arrivals: tuple[int, ...]


def ceiling(world: World) -> float:
    """The provable ceiling in requests per ns of true time: n permits, each out for a flight and a gap."""
    flight = world.out + world.back + (world.out_more + world.back_more) / 2
    gap = gap_ns(world.per, world.remote(), world.lr, world.le_ppm)
    return world.n / (max(0, gap) + min(flight, world.max_transit))


class Crowd:
    """Workers that send as fast as a gate lets them."""

    def __init__(self, world: World, true: ManualClock) -> None:
        self.world = world
        self.true = true
        self.rng = Random(world.seed)
        self.arrivals: list[int] = []
        self.last = 0

    async def worker(self, gate: PacerCore) -> None:
        while len(self.arrivals) < self.world.events:
            async with gate():
                self.last = self.true.now()
                out = self.world.out + int(self.rng.random() * self.world.out_more)
                back = self.world.back + int(self.rng.random() * self.world.back_more)
                self.arrivals.append(self.last + out)
                await self.true.sleep_async((out + back) / BILLION)

    async def main(self, enter: Callable[[World, ManualClock], PacerCore]) -> None:
        gate = enter(self.world, self.true)
        workers = [asyncio.ensure_future(self.worker(gate)) for _ in range(self.world.workers)]
        await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        for task in workers:
            task.cancel()
        for result in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


class PacedLoop(VirtualLoop):
    """Virtual time in which a timer that is already due takes a microsecond, as it would on a real loop.

    A library that computes a time in floats may wake a little before it, and would ask for "now" again for ever.
    """

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(max(when, self.time() + 1e-6), callback, *args, context=context)


def compete(name: str, world: World) -> Score:
    """Let the crowd of a world through a library's gate, and audit what the remote saw."""
    true = ManualClock(autojump=True)
    crowd = Crowd(world, true)
    enter, modules = PEERS[name]
    with warnings.catch_warnings(), virtual(true, modules):
        warnings.simplefilter("ignore")
        with asyncio.Runner(loop_factory=lambda: PacedLoop(true)) as runner:
            runner.run(crowd.main(enter))
    verdict = audit(world, crowd.arrivals)
    worst, _ = fullest(list(verdict.readings), world.per * (1 if world.rr else BILLION))
    # Every library lets the first n through at once; the ceiling is about those that follow.
    rate = max(0, len(crowd.arrivals) - world.n) / max(1, crowd.last)
    return Score(name, len(crowd.arrivals), verdict, worst, rate / ceiling(world), tuple(crowd.arrivals))


@contextmanager
def virtual(true: ManualClock, modules: tuple[str, ...]) -> Iterator[None]:
    """Give these modules the virtual time instead of the machine's, wherever they imported it from."""
    fake = {
        "time": lambda: (EPOCH_NS + true.now()) / BILLION,
        "time_ns": lambda: EPOCH_NS + true.now(),
        "monotonic": lambda: true.now() / BILLION,
        "monotonic_ns": true.now,
        "perf_counter": lambda: true.now() / BILLION,
        "perf_counter_ns": true.now,
    }
    before: list[tuple[Any, str, Any]] = []
    for module in map(importlib.import_module, modules):
        shim = SimpleNamespace(**{**vars(time), **fake})
        for name, value in list(vars(module).items()):
            if value is time:
                before.append((module, name, value))
                setattr(module, name, shim)
            elif name in fake and value is getattr(time, name):
                before.append((module, name, value))
                setattr(module, name, fake[name])
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def once(acquire: Callable[[], Awaitable[Any]]) -> PacerCore:
    """A gate that is not told when its request ends: most libraries have no use for that."""

    @asynccontextmanager
    async def gate() -> AsyncIterator[None]:
        await acquire()
        yield

    return gate


def _headway(world: World, true: ManualClock) -> PacerCore:
    clock = TaskClock(true, world.local_clock(), world.le_ppm, [0])
    return Limiter(world.limit(), clock=clock).hold


def _headway_local(world: World, true: ManualClock) -> PacerCore:
    """headway with `remote=False`: the exact sliding log of what was sent, to show what the gap is for."""
    clock = TaskClock(true, world.local_clock(), world.le_ppm, [0])
    return Limiter(f"{world.n}/{world.per}ns", remote=False, clock=clock).hold


def _aiolimiter(world: World, _: ManualClock) -> PacerCore:
    return once(importlib.import_module("aiolimiter").AsyncLimiter(world.n, world.per / BILLION).acquire)


def _asynciolimiter(world: World, _: ManualClock) -> PacerCore:
    return once(importlib.import_module("asynciolimiter").StrictLimiter(world.n * BILLION / world.per).wait)


def _limits(world: World, true: ManualClock) -> PacerCore:
    limits = importlib.import_module("limits")
    seconds = max(1, round(world.per / BILLION))
    item = limits.RateLimitItemPerSecond(world.n, seconds)
    storage = limits.storage.MemoryStorage()
    # Its thread only frees memory, and virtual time is slow while another thread runs.
    storage.timer = SimpleNamespace(is_alive=lambda: True)
    limiter = limits.strategies.MovingWindowRateLimiter(storage)

    async def acquire() -> None:
        while not limiter.hit(item, "lab"):
            reset = limiter.get_window_stats(item, "lab").reset_time
            now = (EPOCH_NS + true.now()) / BILLION
            await asyncio.sleep(max(0.001, reset - now))

    return once(acquire)


def _pyrate(world: World, _: ManualClock) -> PacerCore:
    pyrate = importlib.import_module("pyrate_limiter")
    limiter = pyrate.Limiter(pyrate.Rate(world.n, max(1, world.per // 1_000_000)))
    return once(lambda: limiter.try_acquire_async("lab"))


def _throttled(using: str) -> Callable[[World, ManualClock], PacerCore]:
    def enter(world: World, _: ManualClock) -> PacerCore:
        throttled = importlib.import_module("throttled.asyncio")
        duration = importlib.import_module("datetime").timedelta(seconds=max(1, round(world.per / BILLION)))
        quota = throttled.rate_limiter.per_duration(duration, world.n, world.n)
        gate = throttled.Throttled(
            key="lab", using=using, quota=quota, timeout=LONG, store=throttled.MemoryStore()
        )
        return once(gate.limit)

    return enter


_THROTTLED = ("throttled.utils", "throttled.store.memory", "throttled.asyncio.store.memory")

PEERS: dict[str, tuple[Callable[[World, ManualClock], PacerCore], tuple[str, ...]]] = {
    "headway": (_headway, ()),
    "headway without remote": (_headway_local, ()),
    "aiolimiter": (_aiolimiter, ("aiolimiter.leakybucket",)),
    "asynciolimiter (strict)": (_asynciolimiter, ("asynciolimiter",)),
    "limits (moving window)": (_limits, ("limits.storage.memory", "limits.strategies")),
    "pyrate-limiter": (_pyrate, ("pyrate_limiter.clocks", "pyrate_limiter.limiter")),
    "throttled-py (sliding window)": (_throttled("sliding_window"), _THROTTLED),
    "throttled-py (gcra)": (_throttled("gcra"), _THROTTLED),
}


def present() -> tuple[list[str], list[str]]:
    """The libraries that can be run here, and those that are not installed."""
    there, missing = [], []
    for name, (_, modules) in PEERS.items():
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError:
            missing.append(name)
        else:
            there.append(name)
    return there, missing
