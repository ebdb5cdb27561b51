"""`Pacer`: hold an operation rate for hours, and know how far behind schedule the work is.

The three pools are in `headway.core.pools`. Here is what surrounds them: one clock reading for each call, a lock where
it takes one, and sleeping. Who has to wait has paid already and knows its time, so it sleeps once, to that time, and
looks at the clock again; nobody polls, and nobody wakes others up in turn. Only when somebody ahead gives up, or when
the pace changes, the bells of those who may start earlier are rung.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from fractions import Fraction
from time import monotonic_ns
from typing import Any, Generic, NamedTuple, TypeVar

from headway.clock import SYSTEM, as_clock
from headway.core.durations import count_of, to_ns
from headway.core.pace import Pace, pace_of, rate_text, ratio_of
from headway.core.pools import PoolRule, Pools, Turn
from headway.drive import TaskBell, ThreadBell, need_loop, running_loop
from headway.engines.memory import book as memory_book
from headway.engines.memory.book import ATOMIC
from headway.errors import InvalidArgument

try:
    import cython
except ImportError:
    from headway import _cython as cython

__all__ = ["Pacer", "PacerStats"]

T = TypeVar("T")

DEFAULT_RATIO = Fraction(11, 10)
MAX_SPIN = 1_000_000_000
NAP_NS = 200_000
FAR_NS = 1_000_000_000
NAPPING_NS = 50_000  # who wants more than 20,000/s naps

# A C value where this file is compiled.
_ATOMIC = ATOMIC

if not cython.compiled:
    # The compiled form has it from pacer.pxd, as a C function.
    def small(ops: int) -> int:
        """The number if it fits 63 bits, else -1."""
        return ops if -1 < ops < 1 << 63 else -1


def let_others_run() -> None:
    """Give up the GIL for a moment: time.sleep(0) would take 50 us on Linux."""
    if os.name == "posix":
        select.select((), (), (), 0)
    else:
        time.sleep(0)


class PacerStats(NamedTuple):
    """What a `Pacer` has done: `consumed_ns + active_ns + burst_ns + waiting_ns == elapsed_ns`, always.

    `ops` are granted operations, also those promised to the `waiters`; `rate` and `ratio` are what was asked for.
    """

    ops: int
    elapsed_ns: int
    consumed_ns: int
    active_ns: int
    burst_ns: int
    waiting_ns: int
    waiters: int
    rate: float
    ratio: float


class Pacer:
    """Lets operations start at a rate, evenly; what was missed is made up at `ratio` times the rate.

    `spec` is a rate (500, "500/s", "30/minute") or the whole string ("12000,1.1,restart"): see `headway.core.pace`.
    `ratio` 1.0 never makes up; the default is 1.1. `scope="thread"` gives each thread pools of its own. `spin` polls
    the clock for the last part of each wait (up to so many seconds): microseconds of accuracy for a busy processor.

    >>> from headway.testing import ManualClock
    >>> clock = ManualClock(autojump=True)
    >>> pacer = Pacer("100/s", clock=clock)
    >>> for _ in range(250):
    ...     delay_ns = pacer.acquire()
    >>> clock.now() / 1e9, delay_ns
    (2.5, 0)
    """

    def __init__(
        self,
        spec: str | float | Fraction,
        *,
        ratio: float | Fraction | None = None,
        scope: str | None = None,
        spin: float | timedelta = 0,
        clock: Any = None,
    ) -> None:
        pace = _complete(spec, ratio, scope)
        if pace.rate is None:
            raise InvalidArgument("spec", spec, "a rate before the verb, such as 500/s")
        self._clock = as_clock(clock)
        self._spin = _spin_ns(spin)
        self._lock = threading.RLock()
        self._scoped = pace.scope == "thread"
        self._local = threading.local()
        self._children: weakref.WeakSet[Pacer] = weakref.WeakSet()
        self._warned_loop = False
        now = self._clock.now()
        self._pools = Pools(PoolRule(pace.rate, pace.ratio or DEFAULT_RATIO), now)
        if pace.verb in ("configure", "stop"):
            self._pools.run(now, False)

    def __repr__(self) -> str:
        state = "" if self._pools.running else ", stopped"
        scope = ", scope='thread'" if self._scoped else ""
        return f"<Pacer {rate_text(self._pools.rule.rate)}, ratio {self.ratio:g}{scope}{state}>"

    # -- verbs

    def acquire(self, ops: int = 1) -> int:
        """Wait until `ops` operations may start; returns how far behind schedule they start, in ns.

        More than the pools can hold at once is paid in parts while the caller waits, and everybody who comes later
        waits behind it: `acquire(5000)` at 1000/s returns after 5 s.

        >>> from headway.testing import ManualClock
        >>> clock = ManualClock(autojump=True)
        >>> pacer = Pacer("1000/s", clock=clock)
        >>> pacer.acquire(5000), clock.now()
        (0, 5000000000)
        """
        delay = self._quick(ops)
        return delay if delay >= 0 else self._wait(ops)

    async def acquire_async(self, ops: int = 1) -> int:
        """`acquire` for a task; a task that is cancelled gives back what it was promised.

        >>> import headway.testing
        >>> async def main():
        ...     return await Pacer("10/s").acquire_async()
        >>> headway.testing.run(main())
        0
        """
        delay = self._quick(ops)
        return delay if delay >= 0 else await self._wait_async(ops)

    def try_acquire(self, ops: int = 1) -> bool:
        """Whether `ops` operations may start now; never waits.

        >>> from headway.testing import ManualClock
        >>> clock = ManualClock()
        >>> pacer = Pacer("1000/s", clock=clock)
        >>> pacer.try_acquire()
        False
        >>> clock.advance(0.001)
        >>> pacer.try_acquire(), pacer.try_acquire()
        (True, False)
        """
        if self._quick(ops) >= 0:
            return True
        me = self._mine()
        number = me._checked(ops)
        most = me._pools.rule.at_once
        if number > most:
            raise InvalidArgument(
                "ops", ops, f"at most {most}, all that the pools ever hold at once; acquire() waits for more"
            )
        return me is not self and me._quick(number) >= 0

    def over(self, items: Any, ops: int | Callable[[Any], int] = 1) -> Paced[Any]:
        """The items, each when its operation may start; for `for` and, also over async iterables, for `async for`.

        `ops` is what each item weighs, or a function that says it. An item is fetched before its turn is waited for.

        >>> from headway.testing import ManualClock
        >>> clock = ManualClock(autojump=True)
        >>> for letter in Pacer("2/s", clock=clock).over("ab"):
        ...     print(letter, clock.now() / 1e9)
        a 0.5
        b 1.0
        """
        return Paced(self, items, ops)

    # -- changing

    def retarget(
        self, spec: str | float | Fraction | None = None, *, ratio: float | Fraction | None = None
    ) -> None:
        """Change the pace while it runs: the backlog is kept, and those who wait get their times anew.

        What is not given stays. A verb in the string is obeyed: `retarget("24000,1.2,restart")`, `retarget("stop")`.

        >>> from headway.testing import ManualClock
        >>> clock = ManualClock()
        >>> pacer = Pacer("10/s", clock=clock)
        >>> clock.advance(60)
        >>> before = pacer.wait_time_ns
        >>> pacer.retarget("20/s")
        >>> pacer.rate, pacer.wait_time_ns - before == 110_000_000  # twice 110 ms fitted the pools, now half of it
        (20.0, True)
        """
        pace = _complete(spec, ratio, None)
        if pace.scope is not None and (pace.scope == "thread") != self._scoped:
            raise InvalidArgument("spec", spec, "the scope it was made with, or a new Pacer")
        for each in (self, *self._children):
            each._change(pace)

    def start(self) -> None:
        """Let time count (again): what went by while it was stopped is not made up."""
        self.retarget("start")

    def stop(self) -> None:
        """Let time stand still: nothing starts, and who calls `acquire` waits for `start`."""
        self.retarget("stop")

    def restart(self) -> None:
        """Begin anew, with empty pools and no backlog."""
        self.retarget("restart")

    def _change(self, pace: Pace) -> None:
        with self._lock:
            now, pools = self._clock.now(), self._pools
            rate = pools.rule.rate if pace.rate is None else pace.rate
            ratio = pools.rule.ratio if pace.ratio is None else pace.ratio
            if (rate, ratio) != (pools.rule.rate, pools.rule.ratio):
                pools.retarget(PoolRule(rate, ratio), now)
            if pace.verb == "restart":
                pools.restart(now)
            elif pace.verb != "configure" and (pace.verb is not None or pace.rate is not None):
                pools.run(now, pace.verb != "stop")
            self._ring()

    # -- looking

    @property
    def wait_time_ns(self) -> int:
        """The backlog: nanoseconds of schedule that nobody claimed (of this thread, if it is thread-scoped)."""
        me = self._mine()
        with me._lock:
            me._pools.fill(me._clock.now())
            return me._pools.waiting

    @property
    def rate(self) -> float:
        """Operations a second, as asked for."""
        return float(self._pools.rule.rate)

    @property
    def ratio(self) -> float:
        """How much faster it may go to catch up."""
        return float(self._pools.rule.ratio)

    def stats(self) -> PacerStats:
        """The counts as of now; thread-scoped, the sums over the threads that live.

        >>> from headway.testing import ManualClock
        >>> clock = ManualClock()
        >>> pacer = Pacer("1000/s", ratio=1.0, clock=clock)
        >>> clock.advance(5)
        >>> pacer.acquire() / 1e9, pacer.stats().active_ns, pacer.stats().waiting_ns
        (4.999, 1000000, 4998000000)
        """
        rows = [each._look() for each in (self._children if self._scoped else (self,))]
        ops, elapsed, consumed, active, burst, waiting, waiters = (
            [sum(column) for column in zip(*rows, strict=True)] if rows else [0] * 7
        )
        return PacerStats(ops, elapsed, consumed, active, burst, waiting, waiters, self.rate, self.ratio)

    def _look(self) -> tuple[int, ...]:
        with self._lock:
            pools = self._pools
            pools.fill(self._clock.now())
            return (
                pools.ops,
                pools.elapsed(),
                pools.consumed(),
                pools.active(),
                pools.burst(),
                pools.waiting,
                len(pools.turns),
            )

    # -- the kernel

    def _quick(self, ops: Any) -> int:
        """The delay, if it may start at once; -1 if not, or if it is not so simple."""
        if type(ops) is not int or self._scoped:
            return -1
        number = small(ops)
        if number < 1 or number > self._pools.rule.most:
            return -1
        now = self._clock.now()
        if _ATOMIC:
            return self._pools.take(now, number)
        with self._lock:
            return self._pools.take(now, number)

    def _mine(self) -> Pacer:
        """This pacer, or the calling thread's own."""
        if not self._scoped:
            return self
        mine: Pacer | None = getattr(self._local, "pacer", None)
        if mine is None:
            rule = self._pools.rule
            mine = Pacer(rule.rate, ratio=rule.ratio, spin=self._spin / 1e9, clock=self._clock)
            if not self._pools.running:
                mine.stop()
            self._local.pacer = mine
            self._children.add(mine)
        return mine

    def _checked(self, ops: Any) -> int:
        number = count_of(ops)
        most = self._pools.rule.most
        if number is None or not 1 <= number <= most:
            raise InvalidArgument("ops", ops, f"a whole number from 1 to {most}")
        return number

    def _join(self, ops: Any, bell: Any) -> Turn:
        turn = Turn(self._checked(ops))
        turn.bell = bell
        with self._lock:
            if not self._pools.join(turn, self._clock.now()):
                raise InvalidArgument("ops", ops, "less: the line is longer than 36 years already")
            if memory_book.disabled:
                turn_now = self._clock.now()
                self._pools.cancel(turn, turn_now)
        return turn

    def _wait(self, ops: Any) -> int:
        """Wait in this thread."""
        me = self._mine()
        if me is not self:
            return me.acquire(ops)
        bell = ThreadBell()
        turn = self._join(ops, bell)
        if memory_book.disabled:
            return 0
        clock = self._clock
        try:
            now = clock.now()
            if now < turn.due:
                self._mind_the_loop()
            while now < turn.due:
                until = self._until(turn, now)
                if until > now:
                    clock.park(bell.lock, until if turn.reserved else None)
                    bell.rearm()
                else:
                    let_others_run()
                if self._pools.held:
                    self._settle()
                now = clock.now()
            with self._lock:
                self._pools.leave(turn)
        except BaseException:
            self._cancel(turn)
            raise
        return max(0, now - turn.mark)

    async def _wait_async(self, ops: Any) -> int:
        """Wait in this task."""
        me = self._mine()
        if me is not self:
            return await me.acquire_async(ops)
        bell = TaskBell(need_loop())
        turn = self._join(ops, bell)
        if memory_book.disabled:
            return 0
        clock = self._clock
        try:
            now = clock.now()
            while now < turn.due:
                until = self._until(turn, now)
                if until > now:
                    await clock.park_async(bell.future, until if turn.reserved else None)
                    bell.rearm()
                else:
                    await clock.sleep_async(0)
                if self._pools.held:
                    self._settle()
                now = clock.now()
            with self._lock:
                self._pools.leave(turn)
        except BaseException:
            self._cancel(turn)
            raise
        return max(0, now - turn.mark)

    def _until(self, turn: Turn, now: int) -> int:
        """How long to sleep: to the turn, or, where the rest is spun, to a little before it.

        No system sleeps for a microsecond, and waking is dear: at a high rate a nap lets a small batch gather.
        """
        if self._clock is not SYSTEM or abs(monotonic_ns() - now) > FAR_NS:
            return turn.due  # virtual time: nothing passes while we spin, and no sleep is late
        if self._spin:
            return max(now, turn.due - self._spin)
        return max(turn.due, now + NAP_NS) if self._pools.rule.whole < NAPPING_NS else turn.due

    def _cancel(self, turn: Turn) -> None:
        with self._lock:
            if turn in self._pools.turns:
                looker = self._pools.cancel(turn, self._clock.now())
                if looker is not None:
                    looker.bell.ring()

    def _settle(self) -> None:
        with self._lock:
            self._pools.fill(self._clock.now())
            self._pools.settle()
            self._ring()

    def _ring(self) -> None:
        for turn in self._pools.turns:
            if turn.moved:
                turn.bell.ring()

    def _mind_the_loop(self) -> None:
        if not self._warned_loop and running_loop() is not None:
            self._warned_loop = True
            import warnings

            warnings.warn(
                "Pacer.acquire() has to wait inside a running event loop and stops all its tasks: "
                "use `await pacer.acquire_async()` or `async for`",
                RuntimeWarning,
                stacklevel=3,
            )


class Paced(Generic[T]):
    """What `Pacer.over` returns."""

    def __init__(self, pacer: Pacer, items: Iterable[T] | AsyncIterable[T], ops: Any) -> None:
        self._pacer = pacer
        self._items = items
        self._ops = ops

    def _weight(self, item: T) -> int:
        weight: int = self._ops(item) if callable(self._ops) else self._ops
        return weight

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self._items, Iterable):
            raise InvalidArgument("items", self._items, "an iterable, or use `async for`")
        for item in self._items:
            self._pacer.acquire(self._weight(item))
            yield item

    async def __aiter__(self) -> AsyncIterator[T]:
        if isinstance(self._items, AsyncIterable):
            async for item in self._items:
                await self._pacer.acquire_async(self._weight(item))
                yield item
        else:
            for item in self._items:
                await self._pacer.acquire_async(self._weight(item))
                yield item


def _complete(spec: Any, ratio: Any, scope: str | None) -> Pace:
    """The spec with what was given beside it; saying a thing twice is a mistake."""
    pace = Pace() if spec is None else pace_of(spec)
    if ratio is not None:
        if pace.ratio is not None:
            raise InvalidArgument("ratio", ratio, "a ratio in the spec or as an argument, not both")
        pace = pace._replace(ratio=ratio_of(ratio))
    if scope is not None:
        if pace.scope is not None or scope not in ("thread", "shared"):
            raise InvalidArgument("scope", scope, "'thread' or 'shared', in the spec or as an argument")
        pace = pace._replace(scope=scope)
    return pace


def _spin_ns(spin: Any) -> int:
    ns = None if isinstance(spin, str) else to_ns(spin)
    if ns is None or not 0 <= ns <= MAX_SPIN:
        raise InvalidArgument("spin", spin, "seconds from 0 to 1")
    return ns
