"""`base.Gate` on a server: commands for threads and tasks, and a listener for those that wait."""

from __future__ import annotations

from collections.abc import Coroutine
from struct import unpack
from typing import TYPE_CHECKING, Any

from headway.core.once import EventStatus, Snapshot, Submission
from headway.engines.base import GateLog, GateTerms, GateView
from headway.engines.redis.gates.commands import (
    EVENTS,
    GONE,
    LINES,
    GateCommands,
    Head,
    read_line,
    read_pending,
)
from headway.engines.redis.script.protocol import TICK

if TYPE_CHECKING:
    from headway.core.wait_queue import Waker
    from headway.engines.redis.engine import Engine

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

    def submit_async(self, event: str, id: str, value: str | None) -> Coroutine[Any, Any, Submission]:
        return self.commands.submit_async(event, id, value)

    def status(self, id: str) -> EventStatus | None:
        return self._status(*self.commands.send(b"status", id.encode()))

    async def status_async(self, id: str) -> EventStatus | None:
        return self._status(*await self.commands.send_async(b"status", id.encode()))

    def _status(self, head: Head, said: list[Any]) -> EventStatus | None:  # noqa: ARG002
        return EventStatus(int(unpack("<d", said[0])[0])) if said else None

    def changes(self, since: int) -> GateLog:
        run = self.engine.gates.run
        return self._log(run, *self.commands.send(b"changes", b"%d" % since, b"%d" % LINES))

    async def changes_async(self, since: int) -> GateLog:
        run = self.engine.gates.run
        return self._log(run, *await self.commands.send_async(b"changes", b"%d" % since, b"%d" % LINES))

    def _log(self, run: int, head: Head, said: list[Any]) -> GateLog:
        oldest = int(unpack("<d", said[0])[0])
        lines = None if head.status == GONE else [read_line(line) for line in said[1:]]
        return GateLog(head.began * TICK, head.clock, oldest, lines, run)

    def snapshot(self) -> GateView:
        return self._view(*self.commands.send(b"snapshot", b"%d" % EVENTS))

    async def snapshot_async(self) -> GateView:
        return self._view(*await self.commands.send_async(b"snapshot", b"%d" % EVENTS))

    def _view(self, head: Head, said: list[Any]) -> GateView:
        pending = tuple(read_pending(packed) for some in said[0] for packed in some)
        return GateView(head.began * TICK, Snapshot(head.clock, head.now * TICK, pending))

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
