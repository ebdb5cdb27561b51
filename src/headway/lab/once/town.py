"""The processes of a world: some submit, some follow the gate with a copy of it, and all of them may be killed.

A *submitter* submits equal and other events under ids of its own, gives up when the server does not answer, comes back
with the same id or does not, and asks for what became of it. A *follower* applies what its subscription hands out to a
`Replica`, behind a relay that loses, repeats and swaps changes; it loses its connection, is away for a moment or for
longer than changes are kept, and goes on with `replica.since`. Both are killed at any await, and replaced: another
submitter repeats the last id of the one that died, another follower has its copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from headway.core.once import OnceGate, Submission
from headway.engines.memory.gates import MemoryGate
from headway.errors import EngineUnavailable, GateFull, IdReused
from headway.lab.clocks import BILLION, Skewed, TaskClock
from headway.lab.leases.fleet import RoughNetwork
from headway.lab.once.clients import LabEngine, Listener, NearGate, Process, RemoteGate
from headway.lab.once.followers import Follower
from headway.lab.once.server import Server
from headway.once import Once, Replica
from headway.once.results import submission_of

if TYPE_CHECKING:
    from headway.lab.once.worlds import World
    from headway.testing import ManualClock

MOST_WRONG = 5


@dataclass(frozen=True, slots=True)
class Parts:
    """What a world is built of: the real thing, or a mutant."""

    core: type[OnceGate] = OnceGate
    engine: type[MemoryGate] = MemoryGate
    once: type[Once] = Once
    replica: type[Replica] = Replica


class Town:
    """All processes of one world, and what was found wrong."""

    def __init__(self, world: World, true: ManualClock, parts: Parts) -> None:
        self.world, self.true, self.parts = world, true, parts
        self.rng = rng = Random(world.seed)
        self.server = Server(true, world.server_clock(), world.rule(), parts.core, parts.engine)
        self.wrong = self.server.wrong
        self.network = RoughNetwork(rng, world.one_way, world.longest, world.lost)
        self.calm = False
        self.ids: list[tuple[str, str]] = []  # and their events
        self.told: list[tuple[str, Any]] = []
        self.unavailable = self.kills = self.lost_lines = 0
        self.followers: list[Follower] = []

    def fault(self, problem: str) -> None:
        if len(self.wrong) < MOST_WRONG:
            self.wrong.append(problem)

    # -- processes ---------------------------------------------------------------------------------------

    async def sleep(self, ns: int) -> None:
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self.true.park_async(waker, self.true.now() + max(1, ns))

    def delay(self) -> int:
        """After how long a process notices that its server is not the right one any more."""
        return self.rng.choice((0, self.world.timeout, 5 * self.world.duration))

    def clock(self) -> TaskClock:
        """That of a process: some drift, and some other time."""
        edge = self.world.drift_ppm * 1000
        rate = BILLION + self.rng.choice((-edge, 0, edge))
        skewed = Skewed(1, self.rng.randrange(10**6) * BILLION, ((0, rate),))
        return TaskClock(self.true, skewed, self.world.drift_ppm, [0])

    def process(self) -> Process:
        return Process(self.server, self.network, self.true, self.clock(), self.world.timeout)

    def open(self, gate: RemoteGate | NearGate, clock: TaskClock) -> Once:
        world = self.world
        return self.parts.once(
            f"{world.duration}ns",
            "strict" if world.strict else "only",
            name="gate",
            engine=LabEngine(gate),
            clock=clock,
        )

    async def submit(self, again: tuple[str, str] | None) -> None:
        """A process that submits; `again` is what another one did not finish."""
        rng, process = self.rng, self.process()
        once = self.open(
            RemoteGate(process, Listener(process, looks=False, notices=self.delay)), process.clock
        )
        while not self.calm:
            if again is None:
                again = self._draw_event()
                self.ids.append(again)
            try:
                answer = await once.submit_async(again[0], id=again[1], value=again[0] * 2)
                self.told.append((again[1], answer))
                if rng.random() < 0.2:
                    await once.status_async(rng.choice(self.ids)[1])
            except EngineUnavailable:
                self.unavailable += 1
                if rng.random() < 0.7:
                    continue
            except (GateFull, IdReused):
                pass
            again = None
            await self.sleep(int(rng.expovariate(1 / self.world.rest)))

    def _draw_event(self) -> tuple[str, str]:
        rng = self.rng
        if self.ids and rng.random() < 0.05:
            return rng.choice(self.ids)  # once more, long after
        event = rng.choice("abcdefghijklmnopqrstuvwxyz"[: self.world.kinds])
        if self.ids and rng.random() < 0.02:
            return event, rng.choice(self.ids)[1]
        return event, f"{event}{len(self.ids)}"

    # -- followers ---------------------------------------------------------------------------------------

    async def follow(self, follower: Follower) -> None:
        """A process with a copy of the gate."""
        rng, world, process = self.rng, self.world, self.process()
        if follower.near:
            once, listening = self.open(NearGate(self.server), self.server.clock), None
        else:
            listener = Listener(process, looks=world.looks, notices=self.delay)
            once = self.open(RemoteGate(process, listener), process.clock)
            listening = asyncio.ensure_future(listener.listen())
        try:
            while True:
                since = follower.connect()
                subscription = once.subscribe(since)
                while follower.replica.since is not None or since is None:
                    try:
                        item = await anext(subscription)
                    except EngineUnavailable:
                        self.unavailable += 1
                        await self.sleep(BILLION // 10)
                        if rng.random() < 0.5:
                            break
                        continue
                    since = item
                    follower.handed_out(item, faithful=self.calm)
                    if not self.calm and rng.random() < 0.1:
                        await self.sleep(rng.choice((1, world.duration // 3, world.duration, 2 * world.kept)))
                        if rng.random() < 0.5:
                            break
        finally:
            if listening is not None:
                listening.cancel()

    # -- the world ---------------------------------------------------------------------------------------

    async def main(self) -> None:
        world, rng = self.world, self.rng
        self.followers = [
            Follower(f"follower {number}", near, self._replica(), self.server, rng, self.fault)
            for number, near in enumerate([False] * world.followers + [True] * world.near)
        ]
        followers = [asyncio.ensure_future(self.follow(one)) for one in self.followers]
        submitters = [asyncio.ensure_future(self.submit(None)) for _ in range(world.processes)]
        troubles = [asyncio.ensure_future(self._replicate())] if world.failovers else []
        end = self.true.now() + world.rough
        for what in self._plan():
            await self.sleep(rng.randrange(2 * world.rough // max(1, len(self._plan()) + 1)))
            if self.true.now() > end:
                break
            await what()
            self._kill(submitters, lambda: self.submit(rng.choice(self.ids) if self.ids else None))
            self._kill(followers, None)
        await self.sleep(max(0, end - self.true.now()))
        await self._come_to_rest(submitters, followers)
        for task in (*followers, *submitters, *troubles):
            task.cancel()
        for found in await asyncio.gather(*followers, *submitters, *troubles, return_exceptions=True):
            if isinstance(found, Exception):
                self.fault(f"a process failed: {found!r}")

    def _replica(self) -> Replica:
        return self.parts.replica(f"{self.world.duration}ns", "strict" if self.world.strict else "only")

    def _kill(
        self, tasks: list[asyncio.Task[None]], other: Callable[[], Coroutine[Any, Any, None]] | None
    ) -> None:
        """One of them, wherever it is; another process takes its place."""
        if not tasks or self.rng.random() >= self.world.killed:
            return
        place = self.rng.randrange(len(tasks))
        if tasks[place].done():
            return  # it has failed, which is told at the end
        tasks[place].cancel()
        self.kills += 1
        if other is None:
            follower = self.followers[place]
            if self.rng.random() < 0.3:
                follower.replica = self._replica()
            tasks[place] = asyncio.ensure_future(self.follow(follower))
        else:
            tasks[place] = asyncio.ensure_future(other())

    # -- what goes wrong

    def _plan(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What is done to the server, one after the other; the same each time."""
        world = self.world
        plan = [self._restart] * world.restarts + [self._failover] * world.failovers
        plan += [self._lose] * world.losses + [self._step] * len(world.steps) + [self._cut] * world.cuts
        Random(world.seed).shuffle(plan)
        return plan

    async def _restart(self) -> None:
        await self._away(self.server.cut)

    async def _failover(self) -> None:
        def failover() -> None:
            self.lost_lines += self.server.failover()

        # The old server may live on, and so may connections to it.
        await self._away(failover, keeps=self.rng.random() < 0.7)

    async def _lose(self) -> None:
        await self._away(self.server.lose)

    async def _away(self, then: Callable[[], object], *, keeps: bool = False) -> None:
        self.server.up = False
        if not keeps:
            self.server.cut()
        # Longer than a tick of its clock: what begins anew began at another time.
        await self.sleep(2 * self.world.tick + self.rng.randrange(self.world.timeout * 3))
        then()
        self.server.up = True

    async def _step(self) -> None:
        self.server.clock.offset += self.rng.choice(self.world.steps)

    async def _cut(self) -> None:
        for listener in list(self.server.listeners):
            if self.rng.random() < 0.5:
                listener.lost()

    async def _replicate(self) -> None:
        while True:
            # A line that was not kept any more when it was lost could not be missed.
            await self.sleep(self.rng.randrange(min(self.world.rest * 8, self.world.kept // 2)))
            self.server.replicate()

    async def _come_to_rest(
        self, submitters: list[asyncio.Task[None]], followers: list[asyncio.Task[None]]
    ) -> None:
        """Nothing goes wrong any more: every event ends, and every copy arrives."""
        self.calm, self.network.calm_from = True, 0
        await asyncio.wait([*submitters, asyncio.ensure_future(self.sleep(60 * BILLION))])
        server, world = self.server, self.world
        if world.silent:
            await self.sleep(3 * world.kept)
        # A clock that was set back stands still for the gate until it has caught up.
        await self.sleep(2 * world.duration + 4 * world.tick + sum(map(abs, world.steps)) * 2 + BILLION)
        server.execute("snapshot")
        # What the relay has lost is asked for by the next connection.
        for place, follower in enumerate(self.followers):
            if not followers[place].done():
                followers[place].cancel()
                followers[place] = asyncio.ensure_future(self.follow(follower))
        if await self._arrive(followers):
            # And without a new connection: what happens now is pushed, and what is due is published.
            server.execute("submit", "last", "last", None)
            await self._arrive(followers)
            await self.sleep(2 * world.duration + 4 * world.tick)
            server.execute("snapshot")
            await self._arrive(followers)

    async def _arrive(self, followers: list[asyncio.Task[None]]) -> bool:
        """Wait until every copy is the server's state, and say whether it is."""
        for _ in range(40):
            await self.sleep(3 * BILLION)
            if any(task.done() for task in followers):
                return False
            if all(one.arrived() for one in self.followers):
                return True
        late = [one.name for one in self.followers if not one.arrived()]
        self.fault(f"{', '.join(late)} never arrived at clock {self.server.tip.clock}")
        return False

    def audit_answers(self) -> None:
        """Every answer that a process was told was given by the server."""
        given: dict[str, set[Any]] = {}
        for history in (*self.server.ended, self.server.history()):
            for step in history.steps:
                if step.verb == "submit" and isinstance(step.answer, Submission):
                    given.setdefault(step.arguments[1], set()).add(submission_of(step.answer))
        for id, answer in self.told:
            if answer not in given.get(id, ()):
                self.fault(f"{id} was told {answer}, which the server never said")
