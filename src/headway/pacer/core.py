"""Where operations start: the verbs of a `Pacer` that are called often, and waiting.

The three pools are in `headway.core.pools`. Here is what surrounds them: one clock reading for each call, a lock where
it takes one, and sleeping. A caller that has to wait has paid already and knows its time. So it sleeps once, to that
time, and looks at the clock again; no caller polls, and none wakes the next. Only when a waiter ahead gives up, or when
the pace changes, the waiters that may start earlier are woken.

This file is compiled, and `Pacer` inherits from it; what is called once or rarely is plain Python in `headway.pacer`.
What a fork and the blocks of `headway.testing` do to the pacers of a process is in `headway.pacer.lifecycle`.
"""

from __future__ import annotations

import os
import select
import threading
import time
import warnings
import weakref
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.core.durations import count_of
from headway.core.pace import rate_text
from headway.core.pools import PoolRule, Pools, Turn
from headway.diagnostics import outside
from headway.engines.memory import store as memory
from headway.engines.memory.store import ATOMIC
from headway.errors import InvalidArgument
from headway.flows.drive import TaskWaker, ThreadWaker, need_loop, running_loop

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from headway.clock import Clock

__all__ = ["PacerCore"]

# C values where this file is compiled.
_ATOMIC = ATOMIC
NAP_NS = 200_000
FAR_NS = 1_000_000_000
NAPPING_NS = 50_000  # a pacer faster than 20,000/s naps

gates: weakref.WeakSet[PacerCore] = weakref.WeakSet()

if not cython.compiled:
    # The compiled form has it from core.pxd, as a C function.
    def small(ops: Any) -> int:
        """The number if it is an int of 1 to 63 bits, else 0."""
        return ops if type(ops) is int and 0 < ops < 1 << 63 else 0


def let_others_run() -> None:
    """Give up the GIL for a moment: time.sleep(0) would take 50 us on Linux."""
    if os.name == "posix":
        select.select((), (), (), 0)
    else:
        time.sleep(0)


class PacerCore:
    """The hot half of a `Pacer`; of a thread-scoped one, each thread has another."""

    __slots__ = (
        "__weakref__",
        "_children",
        "_clock",
        "_forked",
        "_local",
        "_lock",
        "_off",
        "_plain",
        "_pools",
        "_scoped",
        "_spin",
        "_warned_loop",
    )

    def __init__(self, rule: PoolRule, clock: Clock, spin_ns: int, scoped: bool) -> None:
        self._clock = clock
        self._spin = spin_ns
        self._scoped = scoped
        self._lock: Any = threading.RLock()
        self._local = threading.local()
        self._children: weakref.WeakSet[PacerCore] = weakref.WeakSet()
        self._warned_loop = False
        self._forked = False
        self._off: bool = memory.disabled
        self._pools = Pools(rule, clock.now())
        self._choose()
        gates.add(self)

    def _choose(self) -> None:
        """Whether the quick way will do: no other pools to find, no block that switches off, no fork to tell of."""
        self._plain = not (self._scoped or self._off or self._forked)

    # -- verbs

    def acquire(self, ops: int = 1) -> int:
        """Wait until `ops` operations may start; returns how far behind schedule they start, in ns.

        More than the pools can hold at once is paid in parts while the caller waits, and every later caller
        waits behind it: `acquire(5000)` at 1000/s returns after 5 s.

        >>> from headway import Pacer
        >>> from headway.testing import ManualClock
        >>> clock = ManualClock(autojump=True)
        >>> pacer = Pacer("1000/s", clock=clock)
        >>> pacer.acquire(5000), clock.now()
        (0, 5000000000)
        """
        delay = self._try_fast(small(ops))
        return delay if delay >= 0 else self._wait(ops)

    async def acquire_async(self, ops: int = 1) -> int:
        """`acquire` for a task; a task that is cancelled gives back what it was promised.

        >>> from headway import Pacer
        >>> import headway.testing
        >>> async def main():
        ...     return await Pacer("10/s").acquire_async()
        >>> headway.testing.run(main())
        0
        """
        delay = self._try_fast(small(ops))
        return delay if delay >= 0 else await self._wait_async(ops)

    def try_acquire(self, ops: int = 1) -> bool:
        """Whether `ops` operations may start now; never waits.

        >>> from headway import Pacer
        >>> from headway.testing import ManualClock
        >>> clock = ManualClock()
        >>> pacer = Pacer("1000/s", clock=clock)
        >>> pacer.try_acquire()
        False
        >>> clock.advance(0.001)
        >>> pacer.try_acquire(), pacer.try_acquire()
        (True, False)
        """
        if self._try_fast(small(ops)) >= 0:
            return True
        me = self._mine()
        number = me._checked(ops)
        most = me._pools.rule.at_once
        if number > most:
            raise InvalidArgument(
                "ops", ops, f"at most {most}, all that the pools ever hold at once; acquire() waits for more"
            )
        if me is self and self._plain:
            return False
        me._notice()
        return me._off or me._try_fast(number) >= 0

    # -- the kernel

    def _try_fast(self, number: int) -> int:
        """The delay, if it may start at once; -1 if not, or if it is not so simple."""
        if not self._plain or number < 1 or number > self._pools.rule.most:
            return -1
        now = self._clock.now()
        if _ATOMIC:
            return self._pools.take(now, number)
        with self._lock:
            return self._pools.take(now, number)

    def _mine(self) -> PacerCore:
        """This pacer, or the calling thread's own."""
        if not self._scoped:
            return self
        mine: PacerCore | None = getattr(self._local, "core", None)
        if mine is None:
            with self._lock:
                mine = PacerCore(self._pools.rule, self._clock, self._spin, False)
                if not self._pools.running:
                    mine._pools.run(mine._pools.at, False)
                self._local.core = mine
                self._children.add(mine)
        return mine

    def _checked(self, ops: Any) -> int:
        number = count_of(ops)
        most = self._pools.rule.most
        if number is None or not 1 <= number <= most:
            raise InvalidArgument("ops", ops, f"a whole number from 1 to {most}")
        return number

    def _join(self, turn: Turn) -> Pools:
        """Join the queue; returns the pools that the turn belongs to, which a block may set aside meanwhile."""
        with self._lock:
            if not self._pools.join(turn, self._clock.now()):
                raise InvalidArgument("ops", turn.ops, "less: the queue is longer than 36 years already")
            return self._pools

    def _wait(self, ops: Any) -> int:
        """Wait in this thread."""
        me = self._mine()
        if me is not self:
            return me.acquire(ops)
        turn = Turn(self._checked(ops))
        self._notice()
        if self._off:
            return 0
        turn.waker = waker = ThreadWaker()
        pools = self._join(turn)
        clock = self._clock
        try:
            now = clock.now()
            if now < turn.due:
                self._mind_the_loop()
            while self._early(pools, turn, now):
                until = self._until(turn, now)
                if until > now:
                    clock.park(waker.lock, until if turn.reserved else None)
                    waker.rearm()
                else:
                    let_others_run()
                if pools.held:
                    self._settle(pools)
                now = clock.now()
            return self._begin(pools, turn, now)
        except BaseException:
            self._cancel(pools, turn)
            raise

    async def _wait_async(self, ops: Any) -> int:
        """Wait in this task."""
        me = self._mine()
        if me is not self:
            return await me.acquire_async(ops)
        turn = Turn(self._checked(ops))
        self._notice()
        if self._off:
            return 0
        turn.waker = waker = TaskWaker(need_loop())
        pools = self._join(turn)
        clock = self._clock
        try:
            now = clock.now()
            while self._early(pools, turn, now):
                until = self._until(turn, now)
                if until > now:
                    await clock.park_async(waker.future, until if turn.reserved else None)
                    waker.rearm()
                else:
                    await clock.sleep_async(0)
                if pools.held:
                    self._settle(pools)
                now = clock.now()
            return self._begin(pools, turn, now)
        except BaseException:
            self._cancel(pools, turn)
            raise

    def _early(self, pools: Pools, turn: Turn, now: int) -> bool:
        """Whether to sleep (again). Not where a block has begun or ended meanwhile: its time is not the turn's."""
        return now < turn.due and pools is self._pools and not self._off

    def _begin(self, pools: Pools, turn: Turn, now: int) -> int:
        """The wait is over: how late it is."""
        with self._lock:
            if pools is self._pools and not self._off:
                pools.leave(turn)
                return max(0, now - turn.mark)
        self._cancel(pools, turn)
        return 0

    def _until(self, turn: Turn, now: int) -> int:
        """How long to sleep: to the turn, or, where the rest is spun, to a little before it.

        No system sleeps for a microsecond, and waking is dear: at a high rate a nap lets a small batch gather.
        """
        if self._clock is not SYSTEM or abs(monotonic_ns() - now) > FAR_NS:
            return turn.due  # virtual time: nothing passes while we spin, and no sleep is late
        if self._spin:
            return max(now, turn.due - self._spin)
        return max(turn.due, now + NAP_NS) if self._pools.rule.whole < NAPPING_NS else turn.due

    def _cancel(self, pools: Pools, turn: Turn) -> None:
        with self._lock:
            if turn in pools.turns:
                now = self._clock.now() if pools is self._pools else pools.at
                looker = pools.cancel(turn, now)
                if looker is not None:
                    looker.waker.wake()

    def _settle(self, pools: Pools) -> None:
        with self._lock:
            if pools is self._pools:
                pools.fill(self._clock.now())
                pools.settle()
                self._ring()

    def _ring(self) -> None:
        for turn in self._pools.turns:
            if turn.moved:
                turn.waker.wake()

    # -- warnings, once each

    def _notice(self) -> None:
        if not self._forked:
            return
        self._forked = False
        self._choose()
        warnings.warn(
            f"Pacer '{rate_text(self._pools.rule.rate)}' was forked: parent and child now hold the rate each on its "
            "own, so together they start twice as much: give each its share (`set_rate`), or make one in the child",
            RuntimeWarning,
            stacklevel=outside(),
        )

    def _mind_the_loop(self) -> None:
        if not self._warned_loop and running_loop() is not None:
            self._warned_loop = True
            warnings.warn(
                "Pacer.acquire() has to wait inside a running event loop and stops all its tasks: "
                "use `await pacer.acquire_async()` or `async for`",
                RuntimeWarning,
                stacklevel=outside(),
            )


if cython.compiled:
    quicken()  # type: ignore[name-defined] # noqa: F821 - a C function, in core.pxd
