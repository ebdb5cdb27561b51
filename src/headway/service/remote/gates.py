"""One gate of a session: commands of the seam on the service's engine, and watching it for a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.engines import base
from headway.engines.wire import rule_in
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.engines.base import Engine

AT_LEAST_NS = 1_000_000
"""Between two looks at a gate that is due."""


class OpenedGate:
    """What a client calls one of its gates."""

    def __init__(self, engine: Engine, name: str, rule: list[Any], timeout_ns: int) -> None:
        self.gate = engine.open_gate(base.GateTerms(str(name), SYSTEM, rule_in(rule), int(timeout_ns)))
        self._watch: Watch | None = None

    def watch(self, tell: Callable[[], None]) -> None:
        """Tell whenever its clock may have moved."""
        if self._watch is None:
            self._watch = Watch(self.gate, tell)

    def unwatch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def close(self) -> None:
        self.unwatch()
        self.gate.close()


class Watch:
    """Watches a gate; a waker of it, that any thread may wake."""

    def __init__(self, gate: base.Gate, tell: Callable[[], None]) -> None:
        self._gate = gate
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        gate.watch(self)
        self._task = asyncio.ensure_future(self._run())

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._moved.set)

    def alive(self) -> bool:
        return not self._loop.is_closed()

    async def _run(self) -> None:
        while True:
            look_ns = self._gate.next_look_ns()
            try:
                async with asyncio.timeout(None if look_ns is None else max(AT_LEAST_NS, look_ns) / 1e9):
                    await self._moved.wait()
            except TimeoutError:
                # Something is due, or the engine tells nothing just now: any command lets time act.
                with suppress(HeadwayError):  # the client looks, and hears it
                    await self._gate.status_async("")
            self._moved.clear()
            self._tell()

    def end(self) -> None:
        self._gate.unwatch(self)
        self._task.cancel()
