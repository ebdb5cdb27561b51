"""One subscription per gate and event loop, for all that subscribed there: the fan-out.

The naive server gives every peer a subscription of its own: two hundred readers of the log for one gate, and every
change made JSON two hundred times. Here a *feed* reads the gate and turns each change to JSON once; subscribers get the
same bytes.

The difficulty is to join. A subscriber wants a key frame and then every change after it, or every change after what it
saw last, while the feed is somewhere in the log. So it is caught up by a subscription of its own, which decides all
that there is to decide (whether lines are gone, whether the gate was lost, whether lines were rewritten), until that
one has nothing more to hand out. Then two positions are compared, without a turn of the loop in between:

    the feed is at          the subscriber
    a lesser clock value    joins, and leaves out what the feed hands out up to its own position; the line with the
                            clock value of its position must be the one that it has, or it is caught up anew
    the same                joins
    a greater one           is caught up further: the feed has seen lines that came meanwhile
    another gate            waits: the feed has not noticed yet that the gate was lost, or the subscriber has not

**Key frames** at intervals are one snapshot for all. A snapshot is of one clock value, and the feed may not be there
yet, or be further. It is held until the feed is there; one that the feed has overtaken is taken anew a few times, and
then left out until the next interval. So a key frame is always in order with the changes around it. A key frame that
is larger than what may wait for a connection is left out as well, except at subscribe.

**An engine that is away** ends nothing: the feed and those that are being caught up retry, at growing intervals, and go
on where they stood. The feed says it once in the log. A gate that is closed ends its subscribers with an ERROR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from headway.errors import EngineUnavailable, HeadwayError
from headway.once.results import Change, Snapshot, ns_of
from headway.once.stomp.wire import Message, message_of, short
from headway.once.subscription import Position
from headway.printable import printable

if TYPE_CHECKING:
    from headway.once.gate import Once

log = logging.getLogger("headway")

T = TypeVar("T")

FIRST_RETRY: Final = 0.05
LAST_RETRY: Final = 2.0
FRESH: Final = 1.0
"""Seconds for which a key frame is handed to others that subscribe at the same clock value."""
TRIES: Final = 3


class Peer(Protocol):
    """What a subscriber knows of its connection."""

    def push(self, subscriber: Subscriber, message: Message) -> bool:
        """Send it; whether the subscription goes on."""

    def has_room(self, message: Message) -> bool:
        """Whether a message that may be left out should be sent."""

    async def room(self) -> None:
        """Wait until much of what waits for it is sent."""

    def fail(self, reason: str) -> None:
        """End it with an ERROR."""


def position_of(item: Change | Snapshot) -> Position:
    if isinstance(item, Snapshot):
        return Position(item.clock, ns_of(item.began), None)
    return Position(item.clock, ns_of(item.began), (item.id, int(item.status), ns_of(item.time)))


class Feed:
    """A gate, read once, and its subscribers on this loop."""

    def __init__(self, gate: Once, name: str, every: float | None, on_end: Callable[[], None]) -> None:
        self.gate = gate
        self.position: Position | None = None  # of what was handed out last
        self._name = name
        self._every = every
        self._on_end = on_end
        self._subscribers: set[Subscriber] = set()
        self._joined: dict[Subscriber, None] = {}  # in the order of joining
        self._tasks: list[asyncio.Task[None]] = []
        self._held: Snapshot | None = None  # a key frame for a clock value that is to come
        self._latest: tuple[Message, Position, float] | None = (
            None  # the last key frame, and when it was taken
        )

    # -- subscribers

    @property
    def subscribers(self) -> int:
        """How many there are, with those that are being caught up."""
        return len(self._subscribers)

    def enter(self, subscriber: Subscriber) -> None:
        """It will join, or leave."""
        self._subscribers.add(subscriber)
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._guarded(self._read)))
            if self._every is not None:
                self._tasks.append(asyncio.create_task(self._guarded(self._send_key_frames)))

    def leave(self, subscriber: Subscriber) -> None:
        """It gets nothing any more. A feed without subscribers ends."""
        self._joined.pop(subscriber, None)
        if subscriber in self._subscribers:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._end()

    def join(self, subscriber: Subscriber) -> None:
        self._joined[subscriber] = None

    def pause(self, subscriber: Subscriber) -> None:
        self._joined.pop(subscriber, None)

    def fresh_key_frame(self) -> Message | None:
        """A key frame of where the feed is, if there is a recent one."""
        if self._latest is None:
            return None
        message, position, taken = self._latest
        recent = asyncio.get_running_loop().time() - taken < FRESH
        here = self.position
        return message if recent and here is not None and here[:2] == position[:2] else None

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._on_end()

    async def _guarded(self, run: Callable[[], Awaitable[str]]) -> None:
        """A feed that cannot go on takes its subscribers with it, and says why."""
        try:
            reason = await run()
        except HeadwayError as error:
            reason = f"gate {printable(self._name)!r} cannot be read: {short(str(error))}"
        except Exception:
            log.exception("gate %r: its subscribers on STOMP are ended", self._name)
            reason = (
                f"gate {printable(self._name)!r} cannot be read: an error of the server, which is in its log"
            )
        for subscriber in list(self._subscribers):
            subscriber.fail(reason)

    # -- changes

    async def _read(self) -> str:
        subscription = self.gate.subscribe()
        retry = Retry(self._name)
        while True:
            try:
                item = await anext(subscription)
            except StopAsyncIteration:
                return f"gate {printable(self._name)!r} was closed"
            except EngineUnavailable as error:
                await retry.wait(error)
                continue
            retry.over()
            self._hand_out(item)
            # The writers' turn: a crowd of changes that are there at once must not make every peer seem slow.
            await asyncio.sleep(0)

    def _hand_out(self, item: Change | Snapshot) -> None:
        message = message_of(item, self.gate)
        self.position = position = position_of(item)
        if isinstance(item, Snapshot):
            self._latest = message, position, asyncio.get_running_loop().time()
        for subscriber in list(self._joined):
            subscriber.take(item, position, message)
        held = self._held
        if held is not None and (held.began != item.began or held.clock <= item.clock):
            self._held = None
            if held.began == item.began and held.clock == item.clock:
                self._hand_out_key_frame(held)

    # -- key frames at intervals

    async def _send_key_frames(self) -> str:
        assert self._every is not None
        while True:
            await asyncio.sleep(self._every)
            for _ in range(TRIES):
                if not self._joined or self.position is None or await self._try_key_frame():
                    break

    async def _try_key_frame(self) -> bool:
        """Whether one was sent, or will be, or cannot be; if not, the feed has overtaken it."""
        try:
            snapshot = await self.gate.snapshot_async()
        except EngineUnavailable:
            return True  # the feed says so
        here = self.position
        if here is None or ns_of(snapshot.began) != here.began:
            return True  # the feed is about to notice, and sends one itself
        if snapshot.clock < here.clock:
            return False
        if snapshot.clock == here.clock:
            self._hand_out_key_frame(snapshot)
        else:
            self._held = snapshot
        return True

    def _hand_out_key_frame(self, snapshot: Snapshot) -> None:
        message, position = message_of(snapshot, self.gate), position_of(snapshot)
        self._latest = message, position, asyncio.get_running_loop().time()
        for subscriber in list(self._joined):
            subscriber.take_key_frame(position, message)


class Subscriber:
    """One subscription of one connection."""

    def __init__(self, peer: Peer, id: str, feed: Feed, since: int | Change | Snapshot | None) -> None:
        self.id = id
        self._peer = peer
        self._feed = feed
        # What it has seen last, before it joined; None: a key frame comes first.
        self._since = since
        # Joined ahead of the feed: what comes up to here was sent already.
        self._ahead: Position | None = None
        self.begun = asyncio.Event()  # the first look at the gate was taken
        feed.enter(self)
        self._task: asyncio.Task[None] = asyncio.create_task(self._catch_up())

    def end(self) -> None:
        """The peer has unsubscribed, or is gone."""
        self._task.cancel()
        self._feed.leave(self)

    def fail(self, reason: str) -> None:
        self._peer.fail(reason)

    # -- joined

    def take(self, item: Change | Snapshot, position: Position, message: Message) -> None:
        """What the feed hands out."""
        ahead = self._ahead
        if ahead is not None:
            if isinstance(item, Change) and position.clock <= ahead.clock:
                if position.clock == ahead.clock:
                    self._ahead = None
                    if ahead.last not in (None, position.last):
                        # The server has lost the line that was sent, and has written another one.
                        self._feed.pause(self)
                        self._task = asyncio.create_task(self._catch_up())
                return
            self._ahead = None
        self._push(message)

    def take_key_frame(self, position: Position, message: Message) -> None:
        """One of those at intervals. They may be left out."""
        if (self._ahead is None or self._ahead.clock <= position.clock) and self._peer.has_room(message):
            self._push(message)

    def _push(self, message: Message) -> bool:
        going_on = self._peer.push(self, message)
        if not going_on:
            self.end()
        return going_on

    # -- joining

    async def _catch_up(self) -> None:
        feed, name = self._feed, self._feed._name
        try:
            if self._since is None:
                message = feed.fresh_key_frame()
                if message is not None:
                    if self._push(message):
                        feed.join(self)
                    return
            await self._follow(feed)
        except HeadwayError as error:
            self.fail(f"gate {printable(name)!r} cannot be read: {short(str(error))}")
        except Exception:
            log.exception("gate %r: a subscriber on STOMP is ended", name)
            self.fail(f"gate {printable(name)!r} cannot be read: an error of the server, which is in its log")
        finally:
            self.begun.set()

    async def _follow(self, feed: Feed) -> None:
        own = feed.gate.subscribe(self._since)
        retry, behind = Retry(None), 0
        while not own.closed:
            await self._peer.room()
            try:
                item = await own.next_now()
            except EngineUnavailable as error:
                self.begun.set()
                await retry.wait(error)
                continue
            retry.over()
            if item is not None:
                behind = 0
                self._since = item
                if not self._push(message_of(item, feed.gate)):
                    return
                self.begun.set()
                continue
            if self._try_join(feed, own.position):
                return
            behind += 1
            if behind > 1:
                # The feed has not begun, or one of the two has not noticed yet that the gate is another one.
                await asyncio.sleep(min(0.002 * 2**behind, LAST_RETRY))

    def _try_join(self, feed: Feed, own: Position | None) -> bool:
        """Compare where the two are; no turn of the loop is between that and the joining."""
        here = feed.position
        if here is None or own is None or here.clock > own.clock or own.began not in (None, here.began):
            return False
        if here.clock == own.clock and None not in (here.last, own.last) and here.last != own.last:
            return False
        self._ahead = own if own.clock > here.clock else None
        feed.join(self)
        return True


class Retry:
    """Waits between attempts while an engine is away; it says so once, if it has a name to say."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._delay = FIRST_RETRY

    async def wait(self, error: EngineUnavailable) -> None:
        if self._delay == FIRST_RETRY and self._name is not None:
            log.warning(
                "gate %r: %s; its subscribers on STOMP stay, and go on when it is back", self._name, error
            )
        await asyncio.sleep(self._delay)
        self._delay = min(self._delay * 2, LAST_RETRY)

    def over(self) -> None:
        if self._delay != FIRST_RETRY and self._name is not None:
            log.info("gate %r: its engine is back", self._name)
        self._delay = FIRST_RETRY
