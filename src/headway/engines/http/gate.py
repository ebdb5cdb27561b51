"""`base.Gate` on a service: commands on a channel, and watchers that are woken when the service tells that the gate's
clock has moved.

A subscription watches only while it looks and sleeps, so the server goes on watching for a while after the last one has
left, and the next one finds it so.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.core.once import EventStatus, Submission
from headway.engines.base import GateLog, GateTerms, GateView
from headway.engines.http.requests import Request
from headway.engines.wire import log_in, submission_in, view_in

if TYPE_CHECKING:
    from headway.core.wait_queue import Waker
    from headway.engines.http.engine import Engine

STAYS_NS = 10_000_000_000
"""For how long a gate is watched after its last watcher has left."""
RUN = 1 << 40
"""Runs of a server's engine are below this; the session is added in multiples of it."""

_numbers = itertools.count(1)


class HttpGate:
    """One front end's gate."""

    def __init__(self, engine: Engine, terms: GateTerms) -> None:
        self.engine = engine
        self.terms = terms
        self.number = next(_numbers)
        self.opened = 0
        self._wakers: dict[int, Waker] = {}
        # In which session the server was told to watch it; and when the last watcher left.
        self._watched_in = 0
        self._left_at = 0
        self.closed = False

    def opening(self) -> list[Any]:
        terms = self.terms
        return ["gate", self.number, terms.name, terms.rule, terms.timeout_ns]

    def apply_opening(self, answer: Any) -> None:
        """There is nothing to be learned."""

    # -- commands ----------------------------------------------------------------------------------------

    def submit(self, event: str, id: str, value: str | None) -> Submission:
        return submission_in(self._call("submit", event, id, value))

    def submit_async(self, event: str, id: str, value: str | None) -> Awaitable[Submission]:
        return self._submit_async(event, id, value)

    async def _submit_async(self, event: str, id: str, value: str | None) -> Submission:
        return submission_in(await self._call_async("submit", event, id, value))

    def status(self, id: str) -> EventStatus | None:
        said = self._call("status", id)
        return None if said is None else EventStatus(said)

    async def status_async(self, id: str) -> EventStatus | None:
        said = await self._call_async("status", id)
        return None if said is None else EventStatus(said)

    def changes(self, since: int) -> GateLog:
        return log_in(self._call("changes", since), self.engine.channel.number * RUN)

    async def changes_async(self, since: int) -> GateLog:
        return log_in(await self._call_async("changes", since), self.engine.channel.number * RUN)

    def snapshot(self) -> GateView:
        return view_in(self._call("snapshot"))

    async def snapshot_async(self) -> GateView:
        return view_in(await self._call_async("snapshot"))

    def _call(self, *words: Any) -> Any:
        return self.engine.channel.call(Request(self, *words), self.terms.timeout_ns)

    async def _call_async(self, *words: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await self.engine.channel.call_async(Request(self, *words), self.terms.timeout_ns, loop)

    # -- waiting -----------------------------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """Whether the server is to watch it; called by the sender now and then."""
        if not self._watched_in:
            return False
        if not self._wakers and SYSTEM.now() - self._left_at > STAYS_NS:
            self._watched_in = 0
            self.engine.channel.post(Request(self, "unwatch"))
        return bool(self._watched_in)

    def watch(self, waker: Waker) -> None:
        self._wakers[id(waker)] = waker
        self._watch()

    def _watch(self) -> None:
        channel = self.engine.channel
        if self._watched_in != channel.number:
            self._watched_in = channel.number
            channel.gates[self.number] = self
            channel.listen()
            # Before the look that follows: what happens after that look is told.
            channel.post(Request(self, "watch"))

    def unwatch(self, waker: Waker) -> None:
        self._wakers.pop(id(waker), None)
        self._left_at = SYSTEM.now()

    def begin_session(self) -> None:
        """No server watches it: its watchers look, and have it watched again."""
        self._watched_in = 0
        if self._wakers:
            self._watch()
            self.wake_all()

    def wake_all(self) -> None:
        """Its clock may have moved."""
        for key, waker in list(self._wakers.items()):
            if waker.alive():
                with suppress(RuntimeError):  # another thread has woken it just now
                    waker.wake()
            else:
                self._wakers.pop(key, None)

    def news(self, since: int) -> GateLog | None:  # noqa: ARG002 - the server is asked
        return None

    def next_look_ns(self) -> int | None:
        return None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.opened == self.engine.channel.number:
                self.engine.channel.post(Request(self, "close_gate"))

    def after_fork(self) -> None:
        """In a forked child: watchers and what the server knows are the parent's."""
        self._wakers.clear()
        self._watched_in = self.opened = 0
