"""What all task queues have in common: a task that may not run yet goes back, with a time that was promised to it.

A task that waits for its limit in the worker keeps a place that other tasks need. One that goes back to ask again
later has no place in line: whichever task asks at the lucky moment runs. So a denied task *reserves*. The ledger
promises it the next free slot, the task goes back to its broker with the promise in its message, and the worker that
gets it next redeems the promise instead of asking again. Its retries are not touched: nothing has been tried.

A broker is not punctual. A task comes back `early` seconds before its slot, and waits the rest in the worker. If it
comes too late, its slot is over: tasks that were held up and then ran all at once would be more than the limit allows.
So a promise is worth something until `late` seconds after its slot, and then the task asks again. When the body of a
task begins, at most `burst + rate * (d + late)` others of a `Bucket` have begun in any time `d`. By default `late` is
nine tenths of the time for one permit (at least 10 ms): a whole permit more than `burst + rate * d` is not possible
then. A `Spacing` has its own allowance, `expire_after`, and keeps its interval at use.

Limits that cannot promise a time (a `Window`, `Concurrency`, several limits at once; whatever is kept in memory) send a
task back for the time after which it may be worth to ask again, spread by as much so that not all come back at once.

A queue's module turns a message into arguments and a promise, and `Later` into a message. It does nothing else:

    begun = limit.begin(args, kwargs, promise)
    if isinstance(begun, Later):
        send_back(begun.seconds, begun.promise)
    else:
        with begun:
            run(*args, **kwargs)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from headway import InvalidArgument, Limiter, Permit, RateLimited
from headway.core.limits import Bucket, Limit, Spacing
from headway.errors import EngineUnavailable, NotPromised, PermitExpired
from headway.limiter.hold import Hold
from headway.limiter.promises import hand_over, lateness, redeem, redeem_async
from headway.throttle.call_policy import as_key

KeyOf = str | Callable[..., Any] | None
CostOf = int | Mapping[str, int] | Callable[..., Any]

HEADER: Final = "headway_promise"
"""Under this name a promise travels in a message."""
ENGINE_RETRY: Final = 1.0
"""Seconds until a task may come back that could not be decided, and as much again as a spread."""
EARLY: Final = 0.05
LEAST_LATE: Final = 0.010
SHARE_LATE: Final = 0.9
"""Of the time for one permit: how late a promise of a `Bucket` may be used."""
ATTEMPTS: Final = 3
"""How often a task asks whose slot is over each time it gets there; after that it comes back later."""


class Later(NamedTuple):
    """The task goes back, for so many seconds; with a promise it does not have to ask again."""

    seconds: float
    promise: str | None = None


_Flow: TypeAlias = Generator[tuple[Any, ...], Any, Permit | Later]


class TaskLimit:
    """A limit for tasks: `limit` is a string, a limit, or a `Limiter`; other options are those of `headway.Limiter`.

    `key` and `cost` are values, or functions of the task's arguments. `wait`: a task whose turn comes within so many
    seconds waits in the worker. `early`: how long before its slot a task comes back. `late`: how long after its slot a
    promise may still be used. `max_delay`: the furthest time that is promised, and for which a task is sent away.

    >>> limit = TaskLimit("100/minute", key=lambda order: order["shop"])
    >>> with limit.begin([{"shop": "a"}], {}) as permit:
    ...     permit.key
    'a'
    """

    def __init__(
        self,
        limit: str | Limit | Mapping[str, str | Limit] | Limiter,
        *,
        key: KeyOf = None,
        cost: CostOf = 1,
        wait: float = 0,
        early: float = EARLY,
        max_delay: float = 600,
        late: float | None = None,
        **options: Any,
    ) -> None:
        for name, seconds in (("wait", wait), ("early", early), ("max_delay", max_delay), ("late", late)):
            if seconds is not None and not 0 <= seconds < float("inf"):
                raise InvalidArgument(name, seconds, "seconds, from 0 up")
        if isinstance(limit, Limiter):
            if options:
                raise InvalidArgument(
                    "limit", limit, f"a limit, or a Limiter without {', '.join(sorted(options))}"
                )
            self.limiter = limit
        else:
            self.limiter = Limiter(limit, **options)
        self.key = key
        self.cost = cost
        self.wait = wait
        self.early = early
        self.max_delay = max_delay
        self.late = late

    def begin(
        self, args: Any, kwargs: Any, promise: str | None = None, longest: float | None = None
    ) -> Permit | Later:
        """The permit to run with, or when to come back; `longest` bounds that further, as a broker needs it."""
        flow = self._flow(args, kwargs, promise, longest)
        try:
            step = next(flow)
            while True:
                verb, *given = step
                try:
                    found = _VERBS[verb](self.limiter, *given)
                except Exception as error:  # noqa: BLE001 - the flow knows which of them it expects
                    step = flow.throw(error)
                else:
                    step = flow.send(found)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def begin_async(
        self, args: Any, kwargs: Any, promise: str | None = None, longest: float | None = None
    ) -> Permit | Later:
        """`begin` for a task of an event loop."""
        flow = self._flow(args, kwargs, promise, longest)
        try:
            step = next(flow)
            while True:
                verb, *given = step
                try:
                    found = await _ASYNC_VERBS[verb](self.limiter, *given)
                except Exception as error:  # noqa: BLE001 - the flow knows which of them it expects
                    step = flow.throw(error)
                else:
                    step = flow.send(found)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def ahead(
        self, args: Any, kwargs: Any, promise: str | None = None, longest: float | None = None
    ) -> Later | None:
        """When a task may run, and a promise of it, for a process that does not run it; another one begins with it.

        None where no time is promised within the bounds of `begin`: then the process that runs the task has to ask.
        Raises `EngineUnavailable`.
        """
        shared = self.limiter._shared is not None and isinstance(self.limiter.limit, Bucket | Spacing)
        permit = self._reserved_ahead(args, kwargs, promise, self._most(longest)) if shared else None
        if permit is None:
            return None
        delay = permit.delay
        handed = _promise_of(permit)
        if handed is None:
            permit.cancel()
            return None
        return Later(delay, handed)

    def _reserved_ahead(self, args: Any, kwargs: Any, promise: str | None, most: float) -> Permit | None:
        if promise is not None:
            try:
                redeemed = redeem(self.limiter, promise)
            except (PermitExpired, InvalidArgument):
                pass  # it asks again
            else:
                if lateness(redeemed) <= self._late(redeemed):
                    return redeemed
        asked = self._asked(args, kwargs)
        try:
            return self.limiter.acquire(asked[0], cost=asked[1], timeout=0)
        except RateLimited as denied:
            if denied.retry_after > most:
                return None
        try:
            return self.limiter.reserve(asked[0], cost=asked[1])
        except (NotPromised, RateLimited):
            return None

    def hold(self, args: Any, kwargs: Any) -> Hold:
        """The bracket of a call that cannot go back, because it was not called by a worker: it waits in line."""
        key, cost = self._asked(args, kwargs)
        return self.limiter.hold(key, cost=cost)

    def _asked(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        key = self.key(*args, **kwargs) if callable(self.key) else self.key
        return as_key(key), self.cost(*args, **kwargs) if callable(self.cost) else self.cost

    def _most(self, longest: float | None) -> float:
        return self.max_delay if longest is None else min(self.max_delay, longest)

    def _flow(self, args: Any, kwargs: Any, promise: str | None, longest: float | None) -> _Flow:
        asked = self._asked(args, kwargs)
        most = self._most(longest)
        try:
            return (yield from self._turn(asked, promise, most))
        except EngineUnavailable:
            # Nothing was decided: a promise is still one.
            return Later(ENGINE_RETRY * (1 + random.random()), promise)

    def _turn(self, asked: tuple[Any, Any], promise: str | None, most: float) -> _Flow:
        reserved = (yield from self._redeemed(promise)) if promise is not None else None
        came_back = reserved is not None
        for _ in range(ATTEMPTS):
            if reserved is None:
                try:
                    granted: Permit = yield "acquire", *asked, self.wait
                except RateLimited as denied:
                    retry_after = denied.retry_after
                else:
                    return granted
                found = yield from self._reserved(asked, retry_after, most)
                if isinstance(found, Later):
                    return found
                reserved = found
                came_back = False
            # A task that came back for its slot waits for it, if it came a little too early. A new one waits only if
            # its broker could not bring it back in time: what waits here keeps a place that other tasks need.
            if reserved.delay > max(self.wait, (2 if came_back else 1) * self.early):
                return Later(reserved.delay - self.early, _promise_of(reserved))
            try:
                yield "wait", reserved
                reserved.check()
            except PermitExpired:
                reserved = None
            else:
                if lateness(reserved) <= self._late(reserved):
                    return reserved
                reserved = None  # its slot is over
        return self._unpromised(self.wait, most)

    def _reserved(self, asked: tuple[Any, Any], retry_after: float, most: float) -> _Flow:
        """A permit for the next free slot; or when to ask again, where none is promised."""
        if self.limiter._shared is not None and retry_after <= most:
            try:
                reserved: Permit = yield "reserve", *asked
            except NotPromised:
                pass  # it comes back when it may be worth to ask again
            except RateLimited as full:  # too many slots are reserved already
                retry_after = full.retry_after
            else:
                return reserved
        return self._unpromised(retry_after, most)

    def _redeemed(self, promise: str) -> Generator[tuple[Any, ...], Any, Permit | None]:
        """The permit of a promise. None: it is over, or was made under another name of the limiter."""
        if self.limiter._shared is None:
            return None
        try:
            permit: Permit = yield "redeem", promise
        except (PermitExpired, InvalidArgument):
            return None
        return permit

    def _late(self, permit: Permit) -> float:
        if self.late is not None:
            return self.late
        limit = self.limiter.limit
        if not isinstance(limit, Bucket) or limit.count == 0:
            return float("inf")
        own: float = SHARE_LATE * permit.cost * limit.per_ns / limit.count / 1e9
        return max(LEAST_LATE, own)

    def _unpromised(self, retry_after: float, most: float) -> Later:
        least = max(retry_after, self.wait, LEAST_LATE)
        return Later(min(least * (1 + random.random()), most * (0.5 + 0.5 * random.random())))


def leads_to(found: Any, function: Callable[..., Any]) -> bool:
    """Whether a function of a task is this one, or wraps it.

    What a worker runs for a task may go back to the queue. The same function, called by the body of another task, may
    not: it is the other task that would go.
    """
    found = getattr(found, "__func__", found)
    while found is not None and found is not function:
        found = getattr(found, "__wrapped__", None)
    return found is function


def _promise_of(permit: Permit) -> str | None:
    """None where another limiter decides while the engine is away: what it promised is in this process only."""
    return hand_over(permit) if hasattr(permit, "_decision") else None


_VERBS: Final[dict[str, Callable[..., Any]]] = {
    "acquire": lambda limiter, key, cost, wait: limiter.acquire(key, cost=cost, timeout=wait),
    "reserve": lambda limiter, key, cost: limiter.reserve(key, cost=cost),
    "redeem": redeem,
    "wait": lambda _, permit: permit.wait(),
}
_ASYNC_VERBS: Final[dict[str, Callable[..., Any]]] = {
    "acquire": lambda limiter, key, cost, wait: limiter.acquire_async(key, cost=cost, timeout=wait),
    "reserve": lambda limiter, key, cost: limiter.reserve_async(key, cost=cost),
    "redeem": redeem_async,
    "wait": lambda _, permit: permit.wait_async(),
}
