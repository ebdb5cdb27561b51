"""One sampler for all watchers: a tick takes a sample, compares it with the last one, and encodes what differs once.

While there is a watcher, a tick comes four times a second, so a change is told within a quarter of one and what the
look at an engine takes. A tick in which nothing has changed is told only now and then, so that a watcher knows that its
connection is alive. When the last watcher has gone, gates are followed and ledgers looked at for a while longer, since
a page that is loaded again is a new watcher; then only counters are read.

A watcher that reads slowly has no queue here. What it has not taken when the next change comes is dropped, and it gets
the whole state as soon as it reads again: so memory is bounded by one message for each, whatever a client does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from headway.service.live.gates import GateFollowers
from headway.service.live.limits import HOLDERS, STEP, LimitSample, LimitSamples, live_limit
from headway.service.live.messages import LiveLimit, LiveState
from headway.service.problems import Problem

if TYPE_CHECKING:
    from headway.once import Once
    from headway.service.served_limit import ServedLimit
    from headway.service.service import Service

log = logging.getLogger("headway")

TICK: Final = 0.25
"""Seconds between two samples while there is a watcher."""
QUIET: Final = 5.0
"""Seconds after which a watcher is told something even if nothing has changed."""
LINGER: Final = 30.0
"""Seconds for which gates are followed after the last watcher has gone."""
LIMITS: Final = 100
GATES: Final = 50
WATCHERS: Final = 200
LOOK_WITHIN: Final = 0.25
BEGIN: Final = 1.0
"""Seconds that an engine has to answer before a state is told without it; the first state is waited for longer."""

_ENCODER = msgspec.json.Encoder()


class Watcher:
    """One client that is told."""

    __slots__ = ("_behind", "_message", "_news", "ended")

    def __init__(self) -> None:
        self._message: tuple[str, bytes] | None = None
        self._news = asyncio.Event()
        self._behind = True
        self.ended = False

    def tell(self, kind: str, data: bytes) -> None:
        if self._message is not None or self._behind:
            self._message, self._behind = None, True
        else:
            self._message = kind, data
        self._news.set()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    async def messages(self, state: Callable[[], bytes]) -> AsyncIterator[tuple[str, bytes]]:
        """Kinds and data, until the server ends. `state` is the whole state, as it was told last."""
        while not self.ended:
            if self._behind:
                self._behind, self._message = False, None
                yield "state", state()
                continue
            if self._message is None:
                self._news.clear()
                await self._news.wait()
                continue
            message, self._message = self._message, None
            yield message


class Sampler:
    """What a service does, for all that watch it. `subscribers` says how many STOMP subscriptions a gate has."""

    def __init__(
        self,
        service: Service,
        subscribers: Callable[[Once], int] = lambda _: 0,
    ) -> None:
        self._service = service
        self._subscribers = subscribers
        self._began = service.now()
        # From the wall clock as it was then, so that a clock that is set does not move what is shown.
        self._ahead = time.time() - self._began
        self._limits = LimitSamples()
        self._gates = GateFollowers(service.gates, GATES, self._wall)
        self._watchers: set[Watcher] = set()
        self._watched_until = float("-inf")
        self._state: LiveState | None = None
        self._encoded: bytes | None = None
        self._told_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def _wall(self) -> float:
        """Seconds since 1970."""
        return self._service.now() + self._ahead

    # -- its life

    def start(self) -> None:
        """Read counters from now on. Does nothing if it does so already."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """End every stream, and itself."""
        self._end_watchers()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._limits.close()
        self._gates.close()

    async def _run(self) -> None:
        while not self._service.decider.closing:
            try:
                await self._tick(LOOK_WITHIN)
            except Exception:
                log.exception("the console's sampler failed, and goes on")
            self._wake.clear()
            try:
                async with asyncio.timeout(TICK if self._watchers else STEP):
                    await self._wake.wait()
            except TimeoutError:
                continue
        self._end_watchers()

    def _end_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.end()

    # -- watchers

    async def watch(self) -> AsyncIterator[tuple[str, bytes]]:
        """What one watcher is told, from the whole state on; raises a `Problem` if there are too many."""
        if len(self._watchers) >= WATCHERS:
            detail = f"{WATCHERS} watchers are here already"
            raise Problem("too-many-watchers", detail, headers={"Retry-After": "5"}, retry_after=5)
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            await self._begin()
            self._wake.set()
            async for message in watcher.messages(self.encoded):
                yield message
        finally:
            self._watchers.discard(watcher)

    async def state(self) -> bytes:
        """The whole state as JSON, for one look."""
        await self._begin()
        return self.encoded()

    async def _begin(self) -> None:
        """Look at ledgers and gates before the first state is told."""
        self.start()
        self._watched_until = self._service.now() + LINGER
        await self._tick(BEGIN)

    def encoded(self) -> bytes:
        """The whole state as it was told last, encoded once for all."""
        if self._encoded is None:
            self._encoded = _ENCODER.encode(self._state)
        return self._encoded

    # -- a tick

    async def _tick(self, patience: float) -> None:
        """Take a sample, and tell what has changed. An engine has `patience` seconds to answer."""
        service, now = self._service, self._service.now()
        self._limits.count(service.limits, self._place(now)[0])
        if self._watchers:
            self._watched_until = now + LINGER
        if now >= self._watched_until:
            self._gates.close()
            self._state = self._encoded = None
            return
        self._gates.follow()
        shown = self._limits.shown(LIMITS)
        self._limits.look(shown, self._wall, service.now)
        try:
            async with asyncio.timeout(patience):
                await asyncio.gather(self._limits.settled(), self._gates.begun())
        except TimeoutError:
            log.debug("a state is told without what the engine has not answered yet")
        self._publish(self._sample(shown))

    def _place(self, now: float) -> tuple[int, float]:
        """The number of the bin that is now, and how many seconds of it are over."""
        number, into = divmod(now - self._began, STEP)
        return int(number), into

    def _publish(self, state: LiveState) -> None:
        now = self._service.now()
        before, self._state, self._encoded = self._state, state, None
        if before is None:
            self._told_at = now
            return
        change = difference(before, state)
        quiet = not (change.limits or change.gates or change.gone) and _head(before) == _head(state)
        if not quiet or now - self._told_at >= QUIET:
            self._tell(change, now)

    def _tell(self, change: LiveState, now: float) -> None:
        self._told_at = now
        data = _ENCODER.encode(change)
        for watcher in self._watchers:
            watcher.tell("change", data)

    def _sample(self, shown: list[tuple[ServedLimit, LimitSample]]) -> LiveState:
        service, now = self._service, self._service.now()
        number, into_bin = self._place(now)
        held = service.permits.first_by_limit(HOLDERS)
        return LiveState(
            time=round(now + self._ahead, 3),
            step=STEP,
            bin=number,
            engine=service.limits.address,
            engine_up=self._limits.engine_up,
            limits=[
                live_limit(
                    served,
                    sample,
                    service.permits.out(served.name),
                    held.get(served.name, ()),
                    into_bin,
                    self._ahead,
                )
                for served, sample in shown
            ],
            gates=self._gates.told(self._subscribers),
            more_limits=len(self._limits) - len(shown),
            more_gates=self._gates.more,
        )


def _head(state: LiveState) -> tuple[object, ...]:
    return state.engine_up, state.more_limits, state.more_gates


def difference(before: LiveState, after: LiveState) -> LiveState:
    """What has changed, as a state of that alone; series have only their newest bin."""
    limits = {limit.name: limit for limit in before.limits}
    gates = {gate.name: gate for gate in before.gates}
    gone = [f"limits/{name}" for name in limits.keys() - {limit.name for limit in after.limits}]
    gone += [f"gates/{name}" for name in gates.keys() - {gate.name for gate in after.gates}]
    return replace(
        after,
        limits=[_newest(limit, limits.get(limit.name)) for limit in after.limits if _differs(limits, limit)],
        gates=[gate for gate in after.gates if gates.get(gate.name) != gate],
        gone=sorted(gone),
    )


def _differs(before: dict[str, LiveLimit], limit: LiveLimit) -> bool:
    known = before.get(limit.name)
    if known is None:
        return True
    # That time goes on, and moves a series without anything new in it, is no change.
    empty: dict[str, list[int]] = {"granted_series": [], "denied_series": []}
    return replace(known, **empty) != replace(limit, **empty)


def _newest(limit: LiveLimit, known: LiveLimit | None) -> LiveLimit:
    if known is None:
        return limit
    return replace(limit, granted_series=limit.granted_series[-1:], denied_series=limit.denied_series[-1:])
