"""`AdaptiveConcurrency`: a bracket around calls of a backend, which finds how many of them should be made at once.

The number is that of `headway.core.adaptive_concurrency`. Waiting, its order, time-outs and cancellation are those of a
`Limiter` with a `Concurrency`, whose count follows the number. A bracket measures how long its call took, from the
permit to the end of the block: the time in our own queue is no latency of the backend.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from headway.clock import Clock, as_clock
from headway.core.adaptive_concurrency import AdaptiveCount
from headway.core.limits import Concurrency
from headway.errors import InvalidArgument, InvalidUse
from headway.limiter.hold import Hold
from headway.limiter.limiter import Limiter
from headway.limiter.request_input import Timeout
from headway.outcome import Outcome, outcome_of

MOST = 1 << 20


class AdaptiveConcurrency:
    """At most so many calls at once as the backend serves without a queue; the number is found from their latency.

    >>> backend = AdaptiveConcurrency(start=10, least=1, most=100)
    >>> with backend:                                       # waits until a call may be made
    ...     answer = "call the backend here"
    >>> backend.allowed, backend.in_flight
    (10, 0)

    `async with` is the same for a task, and `hold(timeout=...)` for one call with its own time-out. An exception that
    means a time-out or a broken connection lowers the number. It is kept in this process, and talks to no other.
    """

    __slots__ = ("__weakref__", "_clock", "_count", "_entered", "_limiter", "_lock")

    def __init__(
        self,
        start: int = 10,
        least: int = 1,
        most: int = 200,
        *,
        timeout: float | None = None,
        clock: Clock | Any = None,
    ) -> None:
        for name, number in (("start", start), ("least", least), ("most", most)):
            if type(number) is not int or not 1 <= number <= MOST:
                raise InvalidArgument(name, number, f"an integer from 1 to {MOST}")
        if not least <= start <= most:
            raise InvalidArgument("start", start, f"an integer from least={least} to most={most}")
        self._clock = as_clock(clock)
        self._count = AdaptiveCount(start, least, most)
        self._limiter = Limiter(Concurrency(start), timeout=timeout, clock=clock)
        self._lock = threading.Lock()
        self._entered: dict[tuple[int, int], list[ConcurrencyHold]] = {}

    @property
    def allowed(self) -> int:
        """How many calls may be made at once, now."""
        return self._count.allowed

    @property
    def in_flight(self) -> int:
        """How many calls are being made."""
        return self._count.in_flight

    def hold(self, *, timeout: Timeout = ...) -> ConcurrencyHold:
        """`with` and `async with` around one call.

        >>> with AdaptiveConcurrency().hold(timeout=1.0):
        ...     pass
        """
        return ConcurrencyHold(self, self._limiter.hold(timeout=timeout))

    def close(self) -> None:
        """End every wait with `LimiterClosed`, and let no call begin any more."""
        self._limiter.close()

    def __enter__(self) -> None:
        hold = self.hold()
        hold.__enter__()
        self._entered.setdefault(_caller(), []).append(hold)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pop().__exit__(kind, error, trace)

    async def __aenter__(self) -> None:
        hold = self.hold()
        await hold.__aenter__()
        self._entered.setdefault(_caller(), []).append(hold)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pop().__exit__(kind, error, trace)

    def _pop(self) -> ConcurrencyHold:
        caller = _caller()
        holds = self._entered.get(caller)
        if not holds:
            raise InvalidUse("this thread or task has not entered the block", "with backend.hold():")
        found = holds.pop()
        if not holds:
            del self._entered[caller]
        return found

    def __repr__(self) -> str:
        count = self._count
        return f"AdaptiveConcurrency({self.allowed}, least={count.least}, most={count.most})"

    # -- what a bracket tells ----------------------------------------------------------------------------

    def _began(self) -> int:
        with self._lock:
            self._count.began()
        return self._clock.now()

    def _ended(self, begun: int, error: BaseException | None) -> None:
        now = self._clock.now()
        how = Outcome.COMPLETE if error is None else Outcome(outcome_of(error, None, None))
        with self._lock:
            before = self._count.allowed
            if how == Outcome.COMPLETE:
                self._count.ended(begun, now)
            elif how == Outcome.ABANDON and _is_loss(error):
                self._count.lost(begun, now)
            else:
                self._count.dropped()
            allowed = self._count.allowed
            if allowed != before:
                self._limiter.set_limit(Concurrency(allowed))


class ConcurrencyHold:
    """One call: waits when the block is entered, and measures how long it takes."""

    __slots__ = ("_begun", "_hold", "_owner")

    def __init__(self, owner: AdaptiveConcurrency, hold: Hold) -> None:
        self._owner = owner
        self._hold = hold
        self._begun = 0

    def __enter__(self) -> None:
        self._hold.__enter__()
        self._begun = self._owner._began()

    async def __aenter__(self) -> None:
        await self._hold.__aenter__()
        self._begun = self._owner._began()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._owner._ended(self._begun, error)
        finally:
            self._hold.__exit__(kind, error, trace)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)


def _is_loss(error: BaseException | None) -> bool:
    """Whether the call timed out or its connection broke. Libraries' own time-outs are known by their names."""
    return isinstance(error, OSError) or any(
        "timeout" in kind.__name__.lower() for kind in type(error).__mro__
    )


def _caller() -> tuple[int, int]:
    """This thread, and this task if there is one."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task) if task is not None else 0
