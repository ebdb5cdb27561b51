"""A process's side of a gate that is elsewhere: `base.Gate` over a network that delays, loses and repeats.

A command is sent, and sent again if no answer came in time; after the last attempt it is `EngineUnavailable`. Every
copy of a message that arrives is carried out, however late, and in whatever order they arrive.

The `Listener` keeps what an engine may keep for its watchers, by the contract of `base.Gate`: the last lines, as far as
they are known without a gap, and the number of the connection by which they came. A connection delivers in order, or is
cut. The listener looks when the next event is due, unless the world says that no process does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.clock import wake
from headway.core.once import Change, EventStatus, Submission
from headway.engines.base import Engine, Gate, GateLog, GateTerms, GateView, Ledgers, LimiterTerms
from headway.engines.memory.gates import MemoryGate
from headway.errors import EngineUnavailable

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.core.limits import Limit
    from headway.core.wait_queue import Waker
    from headway.lab.clocks import TaskClock
    from headway.lab.leases.fleet import Network
    from headway.lab.once.server import Server
    from headway.testing import ManualClock

ATTEMPTS = 2
UNHEARD_NS = 1_000_000_000
SILENCE = 30.0
ADDRESS = "lab://"


class Process:
    """What all gates of one process share: the way to the server, its own clock, and the time that an answer has."""

    def __init__(
        self, server: Server, network: Network, true: ManualClock, clock: TaskClock, timeout: int
    ) -> None:
        self.server, self.network, self.true, self.clock = server, network, true, clock
        self.timeout = timeout

    async def ask(self, verb: str, *arguments: Any) -> Any:
        """Send a command until there is an answer."""
        loop = asyncio.get_running_loop()
        for _ in range(ATTEMPTS):
            answer: asyncio.Future[Any] = loop.create_future()
            for at in self.network.arrivals(self.true.now()):
                loop.call_at(at / 1e9, self._arrive, answer, verb, arguments)
            await asyncio.wait([answer], timeout=self.timeout / 1e9)
            if answer.done():
                found = answer.result()
                if isinstance(found, Exception):
                    raise found
                return found
        raise EngineUnavailable(ADDRESS, "timed out")

    def _arrive(self, answer: asyncio.Future[Any], verb: str, arguments: tuple[Any, ...]) -> None:
        if not self.server.up:
            return
        found, loop = self.server.execute(verb, *arguments), answer.get_loop()
        for at in self.network.arrivals(self.true.now()):
            loop.call_at(at / 1e9, _answer, answer, found)


def _answer(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)


class Listener:
    """What one process hears of the gate by itself. `run` counts its connections."""

    def __init__(self, process: Process, *, looks: bool, notices: Callable[[], int]) -> None:
        self.process, self.looks, self.notices = process, looks, notices
        self.wakers: dict[int, Waker] = {}
        self.run = 0
        self.live = False
        self.began = self.first = self.clock = 0
        self.lines: list[Change] = []
        self.arrived = 0  # when the last message of this connection arrives
        self.planned: asyncio.Event = asyncio.Event()
        self.wait: float = SILENCE

    # -- the server's side

    def push(self, began: int, lines: list[Change], wait: int | None) -> None:
        """The server sends new lines, and how long until the next event is due."""
        process = self.process
        for at in process.network.arrivals(process.true.now())[:1]:
            self.arrived = max(self.arrived + 1, at)
            loop = asyncio.get_running_loop()
            loop.call_at(self.arrived / 1e9, self._heard, self.run, began, list(lines), wait)
            return
        self.lost()  # a connection loses nothing without ending

    # -- the connection

    async def listen(self) -> None:
        """Connect, and stay connected; for ever."""
        server = self.process.server
        while True:
            self.run += 1
            run, self.arrived = self.run, 0
            server.listeners.append(self)
            try:
                while self.run == run and self in server.listeners:
                    self.planned.clear()
                    await self._look()
                    await self._sleep()
            except EngineUnavailable:
                self.lost()
            finally:
                if self in server.listeners:
                    server.listeners.remove(self)
            await asyncio.sleep(0.2)

    async def _look(self) -> None:
        if self.live and not self.looks:
            self.wait = SILENCE
            return
        run = self.run
        view: GateView = await self.process.ask("snapshot")
        if self.run != run or self not in self.process.server.listeners:
            return
        if not self.live or view.began != self.began:
            self.began, self.first, self.clock, self.lines = (
                view.began,
                view.snapshot.clock,
                view.snapshot.clock,
                [],
            )
            self.live = True
            self.wake_all()
        pending = view.snapshot.pending
        self.wait = max(0.001, (pending[0].due - view.snapshot.time) / 1e9) if pending else SILENCE

    async def _sleep(self) -> None:
        """Until the next look by this process's clock, or until it is planned anew."""
        waker = asyncio.get_running_loop().create_future()
        clock, planned = self.process.clock, asyncio.ensure_future(self.planned.wait())
        planned.add_done_callback(lambda _: wake(waker))
        try:
            await clock.park_async(waker, clock.now() + int(min(self.wait, SILENCE) * 1e9) + 1)
        finally:
            planned.cancel()

    def orphaned(self) -> None:
        """The server at the other end is not the one that answers commands any more: noticed at once, or later."""
        self.process.server.listeners.remove(self)
        asyncio.get_running_loop().call_later(self.notices() / 1e9, self._notice, self.run)

    def _notice(self, run: int) -> None:
        if run == self.run:
            self.lost()

    def lost(self) -> None:
        """The connection has ended: what is on its way does not arrive."""
        if self in self.process.server.listeners:
            self.process.server.listeners.remove(self)
        self.run += 1
        self.live = False
        self.planned.set()
        self.wake_all()

    def _heard(self, run: int, began: int, lines: list[Change], wait: int | None) -> None:
        if run != self.run or not self.live or (began == self.began and lines[-1].clock <= self.clock):
            return
        if began != self.began or lines[0].clock != self.clock + 1:
            self.began, self.first, self.lines = began, lines[0].clock - 1, []
        self.lines += lines
        self.clock = lines[-1].clock
        if self.looks and wait is not None and wait / 1e9 < self.wait:
            self.wait = max(0.001, wait / 1e9)
            self.planned.set()
        self.wake_all()

    # -- watchers

    def wake_all(self) -> None:
        for waker in list(self.wakers.values()):
            waker.wake()

    def after(self, since: int) -> GateLog | None:
        if not self.live or not self.first <= since <= self.clock:
            return None
        return GateLog(self.began, self.clock, self.first, self.lines[since - self.first :], self.run)


class RemoteGate:
    """`base.Gate` of a process, for its tasks: the half of it that a task calls."""

    def __init__(self, process: Process, listener: Listener) -> None:
        self.process, self.listener = process, listener

    async def submit_async(self, event: str, id: str, value: str | None) -> Submission:
        found: Submission = await self.process.ask("submit", event, id, value)
        return found

    async def status_async(self, id: str) -> EventStatus | None:
        found: EventStatus | None = await self.process.ask("status", id)
        return found

    async def changes_async(self, since: int) -> GateLog:
        run = self.listener.run
        log: GateLog = await self.process.ask("changes", since)
        return log._replace(run=run)

    async def snapshot_async(self) -> GateView:
        view: GateView = await self.process.ask("snapshot")
        return view

    def watch(self, waker: Waker) -> None:
        self.listener.wakers[id(waker)] = waker

    def unwatch(self, waker: Waker) -> None:
        self.listener.wakers.pop(id(waker), None)

    def news(self, since: int) -> GateLog | None:
        return self.listener.after(since)

    def next_look_ns(self) -> int | None:
        return None if self.listener.live else UNHEARD_NS

    def close(self) -> None:
        """Nothing is held for it."""


class NearGate(MemoryGate):
    """A gate in the server's own process, whose commands are written down too."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.shared)
        self.server = server

    def changes(self, since: int) -> GateLog:
        log: GateLog = self.server.execute("changes", since)
        return log

    def snapshot(self) -> GateView:
        view: GateView = self.server.execute("snapshot")
        return view


class LabEngine(Engine):
    """An engine that has one gate and no ledgers, for `Once`."""

    address, namespace, tick_ns, drift_ppm = ADDRESS, "lab", 1000, 250.0

    def __init__(self, gate: RemoteGate | NearGate) -> None:
        self.gate: Any = gate

    def open_gate(self, terms: GateTerms) -> Gate:  # noqa: ARG002
        gate: Gate = self.gate
        return gate

    def rules_of(self, limit: Limit) -> tuple[Rule, ...]:
        raise NotImplementedError

    def adapt(self, limit: Limit, *, measure: bool = True) -> Limit:
        raise NotImplementedError

    def open(self, terms: LimiterTerms) -> Ledgers:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""
