"""`base.Gate` on a server: commands for threads and tasks, and a listener for those that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from struct import unpack
from typing import TYPE_CHECKING, Any

from headway.core.once import SUBMITTED, EventStatus, Pending, Snapshot, Submission
from headway.engines.base import GateLog, GateTerms, GateView
from headway.engines.redis.gates.codec import GONE, Head, read_line, read_pending
from headway.engines.redis.gates.commands import GateCommands
from headway.engines.redis.script.protocol import TICK

if TYPE_CHECKING:
    from headway.core.wait_queue import Waker
    from headway.engines.redis.engine import Engine

LINES, EVENTS = 200, 1000
"""How many lines of the log one answer has, and how many pending events."""
UNHEARD_NS = 1_000_000_000
"""After how long a watcher looks again while there is no subscription: the server is away, or refuses it."""


class RedisGate:
    """One front end's gate."""

    __slots__ = ("__weakref__", "commands", "engine")

    def __init__(self, engine: Engine, terms: GateTerms) -> None:
        self.engine = engine
        self.commands = GateCommands(engine, terms)

    # -- commands ----------------------------------------------------------------------------------------

    def submit(self, event: str, id: str, value: str | None) -> Submission:
        return self.commands.submit(event, id, value)

    def submit_async(self, event: str, id: str, value: str | None) -> Awaitable[Submission]:
        return self.commands.submit_async(event, id, value)

    def status(self, id: str) -> EventStatus | None:
        return self._status(*self._send(b"status", b"i" + id.encode()))

    async def status_async(self, id: str) -> EventStatus | None:
        return self._status(*await self._send_async(b"status", b"i" + id.encode()))

    def _status(self, head: Head, said: list[Any]) -> EventStatus | None:  # noqa: ARG002
        return EventStatus(said[0][0]) if said else None

    def changes(self, since: int) -> GateLog:
        run = self.engine.gates.run
        return self._log(run, *self._send(b"changes", b"%d" % since, b"%d" % LINES))

    async def changes_async(self, since: int) -> GateLog:
        run = self.engine.gates.run
        return self._log(run, *await self._send_async(b"changes", b"%d" % since, b"%d" % LINES))

    def _log(self, run: int, head: Head, said: list[Any]) -> GateLog:
        oldest = int(unpack("<d", said[0])[0])
        lines = None if head.status == GONE else [read_line(line) for line in said[1]]
        return GateLog(head.began * TICK, head.clock, oldest, lines, run)

    def snapshot(self) -> GateView:
        steps = self._snapshot()
        words = next(steps)
        try:
            while True:
                words = steps.send(self._send(*words))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def snapshot_async(self) -> GateView:
        steps = self._snapshot()
        words = next(steps)
        try:
            while True:
                words = steps.send(await self._send_async(*words))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _snapshot(self) -> Generator[tuple[bytes, ...], tuple[Head, list[Any]], GateView]:
        """What is pending, read in parts: yields commands, and is given their answers.

        Each part is as it was at its own clock value. Events are read in the order of their submission, so what is
        submitted meanwhile comes with the last part. What has ended meanwhile is told by the log.
        """
        duration = self.commands.rule.duration
        while True:
            head, said = yield b"snapshot", b"0", b"%d" % EVENTS
            began, clock = head.began, head.clock
            pending: dict[str, Pending] = {}
            while True:
                pending.update((one.id, one) for one in (read_pending(part, duration) for part in said[1]))
                after, end = unpack("<2d", said[0])
                if after >= end or head.began != began:
                    break
                head, said = yield b"snapshot", b"%d" % after, b"%d" % EVENTS
            last = head
            while head.began == began and clock < last.clock:
                head, said = yield b"changes", b"%d" % clock, b"%d" % LINES
                if head.status == GONE:
                    break
                for line in map(read_line, said[1]):
                    one = pending.get(line.id)
                    ended = line.status != SUBMITTED and line.clock <= last.clock
                    if ended and one is not None and one.clock < line.clock:
                        del pending[line.id]
                    clock = line.clock
            # Otherwise the gate was lost meanwhile, or is faster than its reader.
            if head.began == began and clock >= last.clock:
                found = tuple(pending.values())
                return GateView(began * TICK, Snapshot(last.clock, last.now * TICK, found))

    def _send(self, *words: bytes) -> tuple[Head, list[Any]]:
        return self.commands.send(self.commands.payload(*words))

    def _send_async(self, *words: bytes) -> Coroutine[Any, Any, tuple[Head, list[Any]]]:
        return self.commands.send_async(self.commands.payload(*words))

    # -- waiting -----------------------------------------------------------------------------------------

    def watch(self, waker: Waker) -> None:
        self.engine.gates.watch(self.commands, waker)

    def unwatch(self, waker: Waker) -> None:
        self.engine.gates.unwatch(self.commands, waker)

    def news(self, since: int) -> GateLog | None:
        tail = self.engine.gates.tails.get(self.commands.root)
        return None if tail is None else tail.after(since)

    def next_look_ns(self) -> int | None:
        tail = self.engine.gates.tails.get(self.commands.root)
        return None if tail is not None and tail.live else UNHEARD_NS

    def close(self) -> None:
        """Nothing is held for it: watchers leave by themselves."""
