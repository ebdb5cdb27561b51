"""What happens at a gate, as it happens: an iterator for threads, an async iterator for tasks.

What comes out is a `Change` for every tick of the gate's clock, in order and without gaps, or a `Snapshot` (a key
frame) where that is not possible: at the beginning, if no clock value was given to go on from; after an absence longer
than the gate's retention; when the gate was lost or expired, and another has begun under its name; and when a server
has forgotten the last lines of the log (a failover, a crash of a machine) and has written others in their place. From
a key frame on, changes follow without gaps again. So a consumer that applies both never has a wrong state without
knowing.

Lines that were forgotten and written anew are noticed by the last line that was handed out: is it still the same one?
A key frame stands for its last line, so that is read with it. A subscription that goes on from a key frame of another
one does not know the line, only that it was not later than the key frame. That is enough where the clock of a server
that takes over is not behind by more than the failover took. A line can be missed as long as it is kept, so a gate's
retention should be longer than the lag of replication.

It is written once, as a generator that yields what it needs (a part of the log, a snapshot, a sleep), and driven twice.
A sleeper is woken by the gate; it does not poll. It is registered as a watcher only while it looks and sleeps, so a
subscription that is dropped, or copied by a fork, leaves nothing behind.

If the engine does not answer, `EngineUnavailable` is raised and nothing is lost: the next call goes on where this one
stood.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headway.core.once import Snapshot as CoreSnapshot
from headway.diagnostics import outside
from headway.engines.base import GateLog, GateView
from headway.flows.drive import TaskWaker, ThreadWaker, need_loop, running_loop
from headway.once.results import Change, Snapshot, change_of, snapshot_of

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.core import once as core
    from headway.engines.base import Gate

READ: Final = "read"
SNAPSHOT: Final = "snapshot"
PARK: Final = "park"

Mark = tuple[str, int, int]
"""Of a line: its id, status and time in nanoseconds. No other line has the same."""

Steps = Generator[tuple[str, int | None], Any, Change | Snapshot | None]


class Position(NamedTuple):
    """How far a subscription is: the last clock value, when its gate began, and the last line, as far as known."""

    clock: int
    began: int | None
    last: Mark | None


class Subscription:
    """Changes of a gate, from now on or from a clock value on: `Once.subscribe` makes it. For one consumer at a time.

    >>> from headway import Once
    >>> gate = Once(60)
    >>> _ = gate.submit("order 7")
    >>> for change in gate.subscribe(since=1):
    ...     print(change.clock, change.status.name)
    ...     gate.close()  # ends it
    2 PUBLISHED
    """

    def __init__(
        self,
        gate: Gate,
        clock: Clock,
        since: int | None,
        began: int | None = None,
        last: Mark | int | None = None,
    ) -> None:
        self._gate = gate
        self._clock = clock
        # The last clock value that was handed out; None: a key frame comes next. And the gate that it belongs to, as
        # far as that is known.
        self._since = since
        self._began = began
        # The last line that was handed out, or a time than which it is not later; and on which run of the engine it was
        # seen to be there.
        self._last = last
        self._run: int | None = None
        # Read, and not handed out yet: `_since` is further by these.
        self._ready: deque[Change | Snapshot] = deque()
        self._waker: ThreadWaker | TaskWaker | None = None
        self._warned = False
        self.closed = False

    def close(self) -> None:
        """End it, for whatever waits in it too. What is closed twice stays closed."""
        self.closed = True
        waker = self._waker
        if waker is not None:
            with suppress(RuntimeError):  # another thread has woken it just now
                waker.wake()

    # -- what comes next ---------------------------------------------------------------------------------

    def _steps(self) -> Steps:
        """Until there is something to hand out; None: it was closed."""
        gate = self._gate
        while not self.closed:
            if self._ready:
                return self._ready.popleft()
            if self._since is None:
                yield from self._take_snapshot()
                continue
            log = self._news(self._since)
            if log is None or not self._fits(log) or log.run != self._run:
                log = self._checked((yield READ, self._since - (self._last is not None)))
            if not self._fits(log):
                yield from self._key_frame(log)
            elif log.changes:
                self._hand_out(log)
            else:
                yield PARK, gate.next_look_ns()
        return None

    def _news(self, since: int) -> GateLog | None:
        """What the gate tells unasked, if that follows on the last line that was handed out.

        Commands may have reached another server than the one that the news is from, and that one may have written other
        lines. So news counts if it has the last line too. If not, it is good for knowing that there is nothing new.
        """
        last = self._last
        if not isinstance(last, tuple):
            return self._gate.news(since)
        log = self._gate.news(since - 1)
        if log is not None and log.changes:
            first, *others = log.changes
            return log._replace(changes=others) if mark_of(first) == last else None
        log = self._gate.news(since)
        return None if log is None or log.changes else log

    def _checked(self, log: GateLog) -> GateLog:
        """Lines that begin with the last one that was handed out, without it; no lines if it is another one now."""
        last = self._last
        if last is not None and log.changes:
            first, *others = log.changes
            same = first.time <= last if isinstance(last, int) else mark_of(first) == last
            log = log._replace(changes=others if same else None)
            if same:
                self._last = mark_of(first)
        if self._fits(log):
            self._run = log.run  # not before: the engine may fail before there is a key frame
        return log

    def _fits(self, log: GateLog) -> bool:
        """Whether these lines follow on what was handed out."""
        same = self._began is None or self._began == log.began
        return same and log.changes is not None and self._since is not None and self._since <= log.clock

    def _hand_out(self, log: GateLog) -> None:
        self._began = log.began
        for line in log.changes or ():
            self._ready.append(change_of(line, log.began))
            self._since, self._last = line.clock, mark_of(line)

    def _key_frame(self, log: GateLog) -> Generator[tuple[str, int | None], Any, None]:
        """Begin anew. A gate that is kept from its first line is handed out from there: nothing of it is skipped."""
        if self._began is not None and self._began != log.began and log.oldest == 0:
            self._restart(GateView(log.began, CoreSnapshot(0, log.began, ())))
        else:
            yield from self._take_snapshot()

    def _take_snapshot(self) -> Generator[tuple[str, int | None], Any, None]:
        """A key frame and its last line, if that is kept; again if the engine has forgotten lines in between."""
        while True:
            view: GateView = yield SNAPSHOT, None
            clock, time, _ = view.snapshot
            if clock == 0:
                self._restart(view)
                return
            log: GateLog = yield READ, clock - 1
            lines = log.changes
            if log.began == view.began and clock <= log.clock and (not lines or lines[0].time <= time):
                self._restart(view)
                if lines:
                    self._run, self._last = log.run, mark_of(lines[0])
                    self._hand_out(log._replace(changes=lines[1:]))
                return

    def _restart(self, view: GateView) -> None:
        self._began, self._since, self._last = view.began, view.snapshot.clock, None
        self._ready.append(snapshot_of(view))

    # -- for threads -------------------------------------------------------------------------------------

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Change | Snapshot:
        gate, steps = self._gate, self._steps()
        answer: GateLog | GateView | None = None
        waker = self._waker = ThreadWaker()
        gate.watch(waker)
        try:
            while True:
                what, argument = steps.send(answer)
                answer = None
                if what == READ:
                    answer = gate.changes(argument or 0)
                elif what == SNAPSHOT:
                    answer = gate.snapshot()
                else:
                    self._warn_blocking()
                    self._clock.park(waker.lock, None if argument is None else self._clock.now() + argument)
        except StopIteration as end:
            if end.value is None:
                raise StopIteration from None
            found: Change | Snapshot = end.value
            return found
        finally:
            self._waker = None
            gate.unwatch(waker)

    def _warn_blocking(self) -> None:
        if not self._warned and running_loop() is not None:
            self._warned = True
            warnings.warn(
                "a subscription waits inside a running event loop and stops all its tasks: use `async for`",
                RuntimeWarning,
                stacklevel=outside(),
            )

    # -- for tasks ---------------------------------------------------------------------------------------

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Change | Snapshot:
        found = await self._next(True)
        if found is None:
            raise StopAsyncIteration
        return found

    @property
    def position(self) -> Position | None:
        """What was handed out last; None before the first key frame. What `next_now` has said None after is all."""
        last = self._last if isinstance(self._last, tuple) else None
        return None if self._since is None else Position(self._since, self._began, last)

    async def next_now(self) -> Change | Snapshot | None:
        """What comes next, if it is there now; None if it would have to be waited for, or this is closed."""
        return await self._next(False)

    async def _next(self, patient: bool) -> Change | Snapshot | None:
        gate, steps = self._gate, self._steps()
        answer: GateLog | GateView | None = None
        waker = self._waker = TaskWaker(need_loop())
        gate.watch(waker)
        try:
            while True:
                what, argument = steps.send(answer)
                answer = None
                if what == READ:
                    answer = await gate.changes_async(argument or 0)
                elif what == SNAPSHOT:
                    answer = await gate.snapshot_async()
                elif not patient:
                    return None
                else:
                    until = None if argument is None else self._clock.now() + argument
                    await self._clock.park_async(waker.future, until)
                    waker.rearm()
        except StopIteration as end:
            found: Change | Snapshot | None = end.value
            return found
        finally:
            self._waker = None
            gate.unwatch(waker)


def mark_of(line: core.Change) -> Mark:
    return line.id, line.status, line.time
