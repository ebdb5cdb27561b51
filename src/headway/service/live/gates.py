"""Gates, followed while they are watched: what is pending, and what became of events.

A follower keeps a copy of the gate's state by a subscription (`headway.once.Replica`): a change is told as it happens,
and nothing is polled. It keeps of each event only as much of its text as is shown, so it needs some hundred bytes for
each of at most `max_pending` events. Times are the engine's; they are told by the server's clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from headway.core.once import EventStatus
from headway.errors import EngineUnavailable, GateClosed
from headway.once import Change, Replica, Snapshot
from headway.service.live.limits import cut
from headway.service.live.messages import LiveChange, LiveGate, LivePending

if TYPE_CHECKING:
    from headway.once import Once

UPCOMING: Final = 12
RECENT: Final = 8
FIRST_RETRY: Final = 0.25
LAST_RETRY: Final = 5.0


class GateFollower:
    """One gate, as long as it is watched."""

    def __init__(self, name: str, gate: Once, wall: Callable[[], float]) -> None:
        self.gate = gate
        self._name = name
        self._wall = wall
        self._since = round(wall(), 1)
        self._replica = Replica(gate.duration, cast("Any", gate.mode))
        self._ahead = 0.0  # the engine's clock minus ours
        self._recent: deque[LiveChange] = deque(maxlen=RECENT)
        self._counts = dict.fromkeys(EventStatus, 0)
        self._readable = True
        self._begun = asyncio.Event()
        # What was told last, and the clock value to which it belongs: a million pending events are not read in vain.
        self._told: tuple[tuple[int, bool], list[LivePending], int] | None = None
        self._subscription = gate.subscribe()
        self._task = asyncio.ensure_future(self._follow())

    async def begun(self) -> None:
        """Wait until the gate was read, or could not be."""
        await self._begun.wait()

    async def _follow(self) -> None:
        retry = FIRST_RETRY
        try:
            while True:
                try:
                    self._take(await anext(self._subscription))
                    retry = FIRST_RETRY
                except EngineUnavailable:
                    self._readable = False
                    self._begun.set()
                    await asyncio.sleep(retry)
                    retry = min(2 * retry, LAST_RETRY)
                else:
                    self._readable = True
                    self._begun.set()
        except (StopAsyncIteration, GateClosed):
            return  # it is served no more
        finally:
            self._begun.set()

    def _take(self, item: Change | Snapshot) -> None:
        if isinstance(item, Snapshot):
            self._ahead = item.time - self._wall()
            pending = tuple(one._replace(event=cut(one.event), value=None) for one in item.pending)
            self._replica.apply(item._replace(pending=pending))
            return
        self._counts[item.status] += 1
        self._replica.apply(item._replace(event=cut(item.event), value=None))
        status = cast("Any", item.status.name)
        self._recent.appendleft(
            LiveChange(status=status, id=cut(item.id), event=cut(item.event), time=self._here(item.time))
        )

    def _here(self, engine_time: float) -> float:
        return round(engine_time - self._ahead, 2)

    def told(self, subscribers: int) -> LiveGate:
        """The gate as it is now."""
        replica = self._replica
        position = replica.clock, self._readable
        if self._told is None or self._told[0] != position:
            pending = replica.pending
            upcoming = [
                LivePending(
                    id=cut(one.id), event=one.event, submitted=self._here(one.time), due=self._here(one.due)
                )
                for one in pending[:UPCOMING]
            ]
            self._told = position, upcoming, len(pending)
        _, upcoming, count = self._told
        return LiveGate(
            name=self._name,
            mode=cast("Any", self.gate.mode),
            duration=self.gate.duration,
            clock=replica.clock,
            pending=count,
            upcoming=upcoming,
            published=self._counts[EventStatus.PUBLISHED],
            invalidated=self._counts[EventStatus.INVALIDATED],
            since=self._since,
            subscribers=subscribers,
            recent=list(self._recent),
            readable=self._readable,
        )

    def close(self) -> None:
        self._subscription.close()
        self._task.cancel()


class GateFollowers:
    """All gates that are shown."""

    def __init__(self, gates: Mapping[str, Once], most: int, wall: Callable[[], float]) -> None:
        self._gates = gates
        self._most = most
        self._wall = wall
        self._followed: dict[str, GateFollower] = {}

    def follow(self) -> None:
        """Follow those that are there now, and no others."""
        wanted = dict(list(self._gates.items())[: self._most])
        for name, follower in list(self._followed.items()):
            if wanted.get(name) is not follower.gate:
                self._followed.pop(name).close()
        for name, gate in wanted.items():
            if name not in self._followed:
                self._followed[name] = GateFollower(name, gate, self._wall)

    async def begun(self) -> None:
        """Wait until all of them were read."""
        await asyncio.gather(*(follower.begun() for follower in self._followed.values()))

    def told(self, subscribers: Callable[[Once], int]) -> list[LiveGate]:
        return [follower.told(subscribers(follower.gate)) for follower in self._followed.values()]

    @property
    def more(self) -> int:
        """How many are not shown."""
        return max(0, len(self._gates) - self._most)

    def close(self) -> None:
        for follower in self._followed.values():
            follower.close()
        self._followed.clear()
