"""`Pacer`: hold an operation rate for hours, and know how far behind schedule the work is.

The verbs that are called often, and waiting, are in `headway.pacer.core`, which is compiled. Here is the rest:
reading the
spec, changing the pace, looking, and going over items.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar

from headway.clock import as_clock
from headway.core.durations import to_ns
from headway.core.pace import Pace, pace_of, rate_text, ratio_of
from headway.core.pools import PoolRule
from headway.errors import InvalidArgument
from headway.pacer import lifecycle  # noqa: F401 - it says what happens at a fork
from headway.pacer.core import PacerCore

__all__ = ["Pacer", "PacerStats"]

T = TypeVar("T")

DEFAULT_RATIO = Fraction(11, 10)
MAX_SPIN = 1_000_000_000


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


class Pacer(PacerCore):
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
        rule = PoolRule(pace.rate, pace.ratio or DEFAULT_RATIO)
        PacerCore.__init__(self, rule, as_clock(clock), _spin_ns(spin), pace.scope == "thread")
        if pace.verb in ("configure", "stop"):
            self._pools.run(self._pools.at, False)

    def __repr__(self) -> str:
        state = "" if self._pools.running else ", stopped"
        scope = ", scope='thread'" if self._scoped else ""
        return f"<Pacer {rate_text(self._pools.rule.rate)}, ratio {self.ratio:g}{scope}{state}>"

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

    def set_rate(
        self, spec: str | float | Fraction | None = None, *, ratio: float | Fraction | None = None
    ) -> None:
        """Change the pace while it runs: the backlog is kept, and waiters get their times anew.

        What is not given stays. A verb in the string is obeyed: `set_rate("24000,1.2,restart")`, `set_rate("stop")`.

        >>> from headway.testing import ManualClock
        >>> clock = ManualClock()
        >>> pacer = Pacer("10/s", clock=clock)
        >>> clock.advance(60)
        >>> before = pacer.wait_time_ns
        >>> pacer.set_rate("20/s")
        >>> pacer.rate, pacer.wait_time_ns - before == 110_000_000  # twice 110 ms fitted the pools, now half of it
        (20.0, True)
        """
        pace = _complete(spec, ratio, None)
        if pace.scope is not None and (pace.scope == "thread") != self._scoped:
            raise InvalidArgument("spec", spec, "the scope it was made with, or a new Pacer")
        _change(self, pace)
        for each in self._threads():
            _change(each, pace)

    def start(self) -> None:
        """Let time count (again): what went by while it was stopped is not made up."""
        self.set_rate("start")

    def stop(self) -> None:
        """Let time stand still: nothing starts, and `acquire` waits for `start`."""
        self.set_rate("stop")

    def restart(self) -> None:
        """Begin anew, with empty pools and no backlog."""
        self.set_rate("restart")

    def _threads(self) -> list[PacerCore]:
        """The pacers of the threads that live, if it is thread-scoped."""
        with self._lock:
            return list(self._children)

    # -- looking

    @property
    def wait_time_ns(self) -> int:
        """The backlog: nanoseconds of schedule that no operation claimed (of this thread, if it is thread-scoped)."""
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
        rows = [_look(each) for each in (self._threads() if self._scoped else [self])]
        ops, elapsed, consumed, active, burst, waiting, waiters = (
            [sum(column) for column in zip(*rows, strict=True)] if rows else [0] * 7
        )
        return PacerStats(ops, elapsed, consumed, active, burst, waiting, waiters, self.rate, self.ratio)


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


def _change(core: PacerCore, pace: Pace) -> None:
    with core._lock:
        now, pools = core._clock.now(), core._pools
        rate = pools.rule.rate if pace.rate is None else pace.rate
        ratio = pools.rule.ratio if pace.ratio is None else pace.ratio
        if (rate, ratio) != (pools.rule.rate, pools.rule.ratio):
            pools.set_rate(PoolRule(rate, ratio), now)
        if pace.verb == "restart":
            pools.restart(now)
        elif pace.verb != "configure" and (pace.verb is not None or pace.rate is not None):
            pools.run(now, pace.verb != "stop")
        core._ring()


def _look(core: PacerCore) -> tuple[int, ...]:
    with core._lock:
        pools = core._pools
        pools.fill(core._clock.now())
        return (
            pools.ops,
            pools.elapsed(),
            pools.consumed(),
            pools.active(),
            pools.burst(),
            pools.waiting,
            len(pools.turns),
        )
