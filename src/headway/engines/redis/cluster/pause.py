"""A pause of the whole limiter, where its keys are kept elsewhere than its own ledger: in a cluster.

On one server the script that decides for a key looks whether the limiter is paused. In a cluster the limiter's own
ledger lies in another slot, mostly on another node, and no script can look there. So the process looks, and says with
every command for how long everybody is still held up; the script goes on as if it had looked itself.

    before the first call of a key      one question to the limiter's own ledger, which waits for nobody after that
    when somebody pauses                the news, which are carried to every node, and the same question
    for as long as keys are used        the same question three times in a lease: news may get lost

The question changes nothing, not even that the ledger exists. If it is not answered, what was known last is true:
keys whose nodes are well do not wait for another node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from struct import unpack
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from headway.engines.redis.adopt import run_plain
from headway.engines.redis.lanes import TaskLane, ThreadLane
from headway.engines.redis.ledgers import Meta
from headway.engines.redis.requests import Request
from headway.engines.redis.wires import TROUBLE, LoopEnded
from headway.engines.redis.words import numbers
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.engines.redis.account import Account, Talk
    from headway.engines.redis.place import Place
    from headway.engines.redis.spec import Spec

ATTEMPTS = 4
UNUSED = 6
"""Visits without a call in between after which nobody asks any more: two leases."""

FAILURES = (HeadwayError, *TROUBLE)
"""What is said of, and not waited for."""

Inquiry = Generator[tuple["Place", bytes], Any, None]


class Halt:
    """Until when a limiter is paused, as this process knows it."""

    __slots__ = (
        "__weakref__",
        "_ends",
        "_epoch",
        "_seq",
        "idle",
        "keys",
        "known",
        "spec",
        "until",
        "used",
        "visited",
    )

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.keys = spec.places((None,))
        # On our clock; 0: it is not.
        self.until = 0
        # As the ledger says it, on its server's clock: by that a pause is known from another.
        self._ends = self._seq = 0.0
        self._epoch = b""
        self.begin()

    def begin(self) -> None:
        """Nobody asks; so it is in a forked child."""
        # Whether the keeper asks, and whether keys were used since it did.
        self.known = self.used = False
        self.idle = self.visited = 0

    # -- what is known -----------------------------------------------------------------------------------

    def left(self, now: int) -> bytes:
        """For how long everybody is held up, as a script reads it; empty if nobody is."""
        ticks = -(-(self.until - now) // 1000)
        return numbers(ticks) if self.until and ticks > 0 else b""

    def learn(self, epoch: bytes, seq: float, now: float, pause: float, received: int) -> None:
        """The ledger's own word: it was paused for so long at `now` on its server's clock."""
        if epoch == self._epoch and seq < self._seq:
            return  # from before what is known already
        self._epoch, self._seq = epoch, seq
        ends = now + pause if pause > 0 else 0.0
        if ends == self._ends:
            return
        lifted = ends < self._ends and now < self._ends
        self._ends = ends
        self.until = received + self.spec.stretched(pause) if pause > 0 else 0
        for account in self.spec.everybody():
            if account.halt is self:
                account.heed(lifted)
        self.spec.engine.keeper.wake()

    # -- the question ------------------------------------------------------------------------------------

    def ask(self) -> None:
        """From a thread."""
        inquiry = self._inquiry()
        with contextlib.suppress(StopIteration):
            place, payload = next(inquiry)
            while True:
                try:
                    (answer,) = place.ask(payload)
                except TROUBLE as error:
                    place, payload = inquiry.throw(error)
                else:
                    place, payload = inquiry.send(answer)

    async def ask_async(self, loop: asyncio.AbstractEventLoop) -> None:
        timeout_ns = self.spec.timeout_ns
        deadline = loop.time() + timeout_ns / 1e9
        inquiry = self._inquiry()
        with contextlib.suppress(StopIteration):
            place, payload = next(inquiry)
            while True:
                wire = None
                try:
                    wire = place.wire_of(loop, timeout_ns) or await place.open_wire(
                        loop, timeout_ns, deadline
                    )
                    answer = await wire.ask(payload, deadline)
                except TROUBLE as error:
                    if wire is not None:
                        wire.close()
                    place, payload = inquiry.throw(error)
                else:
                    place, payload = inquiry.send(answer)

    def _inquiry(self) -> Inquiry:
        """Whether it is paused; wherever its ledger is now."""
        engine = self.spec.engine
        place = engine.place_of(self)
        for _ in range(ATTEMPTS):
            script = run_plain("dump", b"1", self.keys[0])
            try:
                payload = next(script)
                while True:
                    payload = script.send((yield place, payload))
            except StopIteration as end:
                self._read(*end.value)
                return
            except TROUBLE as error:
                if isinstance(error, LoopEnded) or not place.again(error):
                    raise
                place = engine.place_of(self)
            except ReplyError as error:
                moved = engine.moved(self, error)
                if moved is None:
                    raise engine.refusal(error) from None
                place = moved
        raise engine.unavailable(ConnectionError("it is always elsewhere"))

    def _read(self, stored: bytes | None, time: bytes) -> None:
        spec = self.spec
        now = spec.engine.fixed_time or unpack("<d", time)[0]
        if stored is None:
            self.learn(b"", 0, now, 0, spec.clock.now())
        else:
            meta = Meta.read(stored)
            self.learn(meta.epoch, meta.seq, now, max(0.0, meta.paused - now), spec.clock.now())

    def follow(self) -> None:
        """From now on the keeper asks."""
        self.idle = 0
        self.known = True
        self.spec.engine.follow(self)

    # -- the lanes of keys -------------------------------------------------------------------------------

    def thread_lane(self, account: Account) -> ThreadLane:
        return HeedingThreadLane(account, self)

    def task_lane(self, account: Account, loop: asyncio.AbstractEventLoop) -> TaskLane:
        return HeedingTaskLane(account, loop, self)


class HeedingThreadLane(ThreadLane):
    """Before the first question: whether the limiter is paused."""

    __slots__ = ("halt",)

    def __init__(self, account: Account, halt: Halt) -> None:
        ThreadLane.__init__(self, account)
        self.halt = halt

    def ask(self, request: Request) -> None:
        halt = self.halt
        halt.used = True
        if not halt.known:
            try:
                halt.ask()
            except FAILURES as error:
                self.engine.complain(error)
            halt.follow()
        ThreadLane.ask(self, request)


class HeedingTaskLane(TaskLane):
    """The same for tasks."""

    __slots__ = ("halt",)

    def __init__(self, account: Account, loop: asyncio.AbstractEventLoop, halt: Halt) -> None:
        TaskLane.__init__(self, account, loop)
        self.halt = halt

    def depart(self) -> None:
        halt = self.halt
        halt.used = True
        if halt.known:
            TaskLane.depart(self)
        else:
            self._slowly(self._look_first())

    async def _look_first(self) -> None:
        try:
            await self.halt.ask_async(self.loop)
        except FAILURES as error:
            self.engine.complain(error)
        self.halt.follow()

    def _go_on(self, slow: asyncio.Task[None]) -> None:
        if slow.cancelled() and not self.halt.known:
            # The loop ends, and nothing was sent yet.
            self.fail([], self.unavailable(LoopEnded("the event loop has ended")))
        TaskLane._go_on(self, slow)


class Pause(Request):
    """A pause that this process calls for: it is the first to know."""

    __slots__ = ()

    def hear(self, talk: Talk, said: tuple[float, ...], position: int) -> int:
        halt = self.account.spec.halt
        if halt is not None and self.account.key is None:
            halt.learn(talk.heard_epoch, talk.seq, talk.now, talk.pause, talk.received)
        return Request.hear(self, talk, said, position)
