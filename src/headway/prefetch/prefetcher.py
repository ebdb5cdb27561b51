"""`Prefetcher`: permits of any remote server, fetched ahead and handed out here.

Every verb is one look at the ledger (`headway.core.prefetch`) under a lock: count the request, begin a fetch if one
is needed, take a permit if one is there. No look talks to the server; the fetch runs beside it
(`headway.prefetch.fetching`). `try_acquire` looks once. `acquire` waits in a line and looks again when it is woken:
by an answer, by a failure, or by the waiter ahead of it. Only the head of the line may take, so waiters are served
first come first served, threads and tasks alike, whatever they want; while there is a line, `try_acquire` is denied.

The head looks also when the ledger changes by itself, because the fetch in flight is overdue or asking makes sense
again. So it needs no timer thread, and a prefetcher that is not used does nothing at all. Every other waiter looks
once in a `fetch_timeout` too: a wake-up that Ctrl-C has swallowed delays the line and does not stop it.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headway.clock import Clock, as_clock
from headway.diagnostics import outside
from headway.errors import (
    AcquireTimeout,
    EngineUnavailable,
    InvalidArgument,
    LimiterClosed,
    RateLimited,
    seconds_text,
)
from headway.flows.drive import TaskWaker, ThreadWaker, need_loop
from headway.limiter.async_call import AsyncCall
from headway.limiter.request_input import Timeout, costs_of, timeout_to_ns
from headway.prefetch.fallback import Fallback, OnError
from headway.prefetch.fetching import Fetching, TaskFetching, ThreadFetching
from headway.prefetch.input import FetchFunction, Span, is_async, read_answer, settings_of
from headway.prefetch.line import Line, Waiter
from headway.prefetch.results import GRANTED, Admission, PrefetcherStats

if TYPE_CHECKING:
    from headway.core.prefetch import Fetch, PrefetchLedger
    from headway.core.wait_queue import Waker

log = logging.getLogger("headway")

prefetchers: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
"""All of this process; `headway.prefetch.lifecycle` looks after them."""

disabled = False
"""Whether every request passes: a `headway.testing.disabled` block."""


class Prefetcher:
    """Decides here, with permits that any remote server has granted; no request waits for a remote call.

    `fetch(amount)` is your call to the server, sync or async. It returns `(granted, expires_in)`: how many of `amount`
    permits it got, and for how many seconds they are valid (None: they do not expire). A third value is the
    `retry_after` that the server named.

    >>> def fetch(amount):
    ...     return amount, 60.0                         # ask your server here
    >>> prefetcher = Prefetcher(fetch)
    >>> bool(prefetcher.acquire())                      # waits for the first answer
    True
    >>> bool(prefetcher.try_acquire())                  # decided here: 9 permits are left
    True

    As many permits are kept at hand as were asked for in the last `predict_window` seconds, and at least `min_prefetch`
    (at most `max_prefetch`): when less than half of them is left, a fetch begins in the background. After an answer
    that grants less than was asked for, there is none for `close_wait` seconds. A fetch has `fetch_timeout` seconds.

    Strict by default: only what was granted and has not expired is spent. With `optimistic=True` requests are also
    admitted while an answer is on its way; what it then does not cover is debt, at most `max_debt`, which the next
    permits pay.

    `on_engine_error` says what happens while fetching fails and no permit is left: "closed" (the verbs raise
    `EngineUnavailable`), "open" (every request passes), or a limit or `Limiter` that decides instead.
    """

    def __init__(
        self,
        fetch: FetchFunction,
        predict_window: Span = 1.0,
        min_prefetch: int = 10,
        close_wait: Span = 0.5,
        *,
        max_prefetch: int | None = None,
        optimistic: bool = False,
        max_debt: int | None = None,
        fetch_timeout: Span = 2.0,
        on_engine_error: OnError = "closed",
        timeout: float | timedelta | None = None,
        name: str | None = None,
        clock: Clock | Any = None,
    ) -> None:
        given = {
            "predict_window": predict_window, "min_prefetch": min_prefetch, "close_wait": close_wait,
            "max_prefetch": max_prefetch, "optimistic": optimistic, "max_debt": max_debt,
            "fetch_timeout": fetch_timeout,
        }  # fmt: skip
        self._fetching: Fetching = TaskFetching(fetch) if is_async(fetch) else ThreadFetching(fetch)
        if name is not None and not isinstance(name, str):
            raise InvalidArgument("name", name, "a str, or None")
        self._name = name
        self._clock = as_clock(clock)
        self._timeout_ns = timeout_to_ns(timeout)
        self._settings = settings_of(given, self._clock)
        self._server = _server_of(fetch, name)
        self._fallback = Fallback(on_engine_error, self._server, self._clock)
        # Re-entrant: a signal handler may call a verb, and a finalizer may run anywhere.
        self._lock = threading.RLock()
        self._ledger: PrefetchLedger = self._settings.open()
        self._line = Line()
        self._closed = False
        self._error: BaseException | None = None
        self._warned = False
        self._granted = self._denied = self._spent = self._fetches = self._failures = 0
        prefetchers.add(self)

    def __repr__(self) -> str:
        name = "" if self._name is None else f"{self._name!r}, "
        ledger = self._ledger
        owed = f", {ledger.debt} owed" if ledger.debt else ""
        state = "closed" if self._closed else f"{ledger.available} permits at hand{owed}"
        return f"<Prefetcher: {name}{state}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a prefetcher cannot be pickled: the copy would hold no permits, and ask for its own; "
            "build it where it is used, at module level for instance"
        )

    # -- verbs -------------------------------------------------------------------------------------------

    def try_acquire(self, cost: int = 1) -> Admission:
        """Whether the request may go now, by what is at hand; never waits.

        >>> prefetcher = Prefetcher(lambda amount: (amount, 60.0), min_prefetch=5)
        >>> bool(prefetcher.try_acquire())      # nothing is at hand yet: the first fetch begins now
        False
        >>> _ = prefetcher.acquire(cost=4)      # waits for it
        >>> bool(prefetcher.try_acquire())
        True
        """
        waiter = self._request(cost)
        if self._look(waiter, False):
            return GRANTED
        unavailable = self._unavailable()
        if unavailable is not None:
            return self._count(self._fallback.try_acquire(unavailable, waiter.cost))
        return self._refusal()

    def try_acquire_async(self, cost: int = 1) -> Coroutine[Any, Any, Admission]:
        """`try_acquire` for a task. Forgetting the `await` is an error: a coroutine would be true.

        >>> import asyncio
        >>> async def fetch(amount):
        ...     return amount, 60.0
        >>> bool(asyncio.run(Prefetcher(fetch).try_acquire_async()))
        False
        """
        return AsyncCall(self._try_acquire_async(cost), "if await prefetcher.try_acquire_async():")

    async def _try_acquire_async(self, cost: int) -> Admission:
        need_loop()
        waiter = self._request(cost)
        if self._look(waiter, False):
            return GRANTED
        unavailable = self._unavailable()
        if unavailable is not None:
            return self._count(await self._fallback.try_acquire_async(unavailable, waiter.cost))
        return self._refusal()

    def acquire(self, cost: int = 1, *, timeout: Timeout = ...) -> Admission:
        """Wait until the request may go, first come first served; raises `AcquireTimeout` after `timeout` seconds, at
        once where it is certain that they are not enough.

        >>> prefetcher = Prefetcher(lambda amount: (0, 60.0))  # a server that grants nothing
        >>> prefetcher.acquire(timeout=0.1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        headway.errors.AcquireTimeout: rate limited: ...
        """
        waiter = self._request(cost, timeout)
        try:
            for until in self._looks(waiter, timeout, ThreadWaker):
                if self._fetching.check_blocking():
                    self._warn_blocking()
                self._clock.park(waiter.waker.lock, until)  # type: ignore[union-attr]
            return GRANTED
        except EngineUnavailable as unavailable:
            self._leave(waiter)  # those behind need not wait for the fallback's answer
            return self._count(self._fallback.acquire(unavailable, waiter.cost, self._left(waiter)))
        finally:
            try:
                self._leave(waiter)
            except BaseException:
                self._leave(waiter)  # an interrupt came before it had left
                raise

    async def acquire_async(self, cost: int = 1, *, timeout: Timeout = ...) -> Admission:
        """`acquire` for a task.

        >>> import asyncio
        >>> async def fetch(amount):
        ...     return amount, 60.0
        >>> bool(asyncio.run(Prefetcher(fetch).acquire_async()))
        True
        """
        loop = need_loop()
        waiter = self._request(cost, timeout)
        try:
            for until in self._looks(waiter, timeout, lambda: TaskWaker(loop)):
                await self._clock.park_async(waiter.waker.future, until)  # type: ignore[union-attr]
                waiter.waker.rearm()  # type: ignore[union-attr]
            return GRANTED
        except EngineUnavailable as unavailable:
            self._leave(waiter)
            return self._count(
                await self._fallback.acquire_async(unavailable, waiter.cost, self._left(waiter))
            )
        finally:
            try:
                self._leave(waiter)
            except BaseException:
                self._leave(waiter)  # an interrupt came before it had left
                raise

    def stats(self) -> PrefetcherStats:
        """What was granted and fetched so far, and what is at hand.

        >>> Prefetcher(lambda amount: (amount, 1.0)).stats().fetches
        0
        """
        with self._lock:
            ledger = self._ledger
            if not self._closed:
                ledger.expire(self._clock.now())
            return PrefetcherStats(
                granted=self._granted,
                denied=self._denied,
                waiting=len(self._line),
                spent=self._spent,
                available=ledger.available,
                fetched=ledger.granted,
                expired=ledger.expired,
                debt=ledger.debt,
                fetches=self._fetches,
                failures=self._failures,
                in_flight=ledger.fetch is not None,
            )

    def close(self) -> None:
        """End every wait with `LimiterClosed`, end the thread or task of a fetch, and grant nothing any more.

        Permits that are left are not handed back: the server has no verb for that, and they expire.

        >>> prefetcher = Prefetcher(lambda amount: (amount, 1.0))
        >>> prefetcher.close()
        >>> prefetcher.try_acquire()
        Traceback (most recent call last):
        headway.errors.LimiterClosed: the limiter is closed
        """
        with self._lock:
            self._closed = True
            self._line.wake_all()
        self._fetching.close()
        self._fallback.close()

    async def close_async(self) -> None:
        """`close` for a task."""
        self.close()

    # -- the kernel --------------------------------------------------------------------------------------

    def _request(self, cost: Any, timeout: Timeout = None) -> Waiter:
        """A request, checked, also where nothing has to be waited for."""
        if type(cost) is not int or cost != 1:
            cost = costs_of(cost, (None,))[0]
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        self._fetching.prepare()
        return Waiter(cost, None if timeout_ns is None else self._clock.now() + timeout_ns)

    def _look(self, waiter: Waiter, queue: bool) -> bool:
        """Look at the ledger once: whether the request is admitted. With `queue` it waits in the line otherwise."""
        ledger, fetch = self._ledger, None
        try:
            with self._lock:
                if self._closed:
                    raise LimiterClosed(self._name)
                if disabled:
                    return True
                ledger, now = self._ledger, self._clock.now()
                if ledger.overdue(now) is not None:
                    self._note_failure(
                        TimeoutError(f"no answer within {seconds_text(ledger.timeout_ns / 1e9)}")
                    )
                line = self._line
                if line.number(waiter):
                    ledger.predictor.note(now, waiter.cost)
                queued = waiter in line
                fetch = ledger.begin(now, line.needed if queued else line.needed + waiter.cost)
                is_next = line.is_next(waiter)
                admitted = is_next and ledger.take(now, waiter.cost)
                if admitted:
                    self._granted += 1
                    self._spent += waiter.cost
                elif queue and not queued and not ledger.failed:
                    line.join(waiter)
                waiter.until = ledger.next_change(now) if is_next else now + ledger.timeout_ns
            if fetch is not None:
                self._fetches += 1
                self._start(ledger, fetch)
        except BaseException:
            if fetch is not None:
                # An interrupt came, perhaps before it was sent. If it was, its answer is taken as a late one.
                with self._lock:
                    ledger.give_up(fetch)
            raise
        return admitted

    def _looks(self, waiter: Waiter, timeout: Timeout, new_waker: Callable[[], Waker]) -> Iterator[int]:
        """Until the request is admitted; yields the times until which to sleep, unless the waker is called before."""
        if self._look(waiter, False):
            return  # most requests do not wait, and need nothing that wakes them
        waiter.waker = new_waker()
        while not self._look(waiter, True):
            unavailable = self._unavailable()
            if unavailable is not None:
                raise unavailable from unavailable.__cause__
            now = self._clock.now()
            if waiter.deadline is not None and (now >= waiter.deadline or self._is_hopeless(waiter)):
                raise self._timed_out(timeout)
            yield waiter.until if waiter.deadline is None else min(waiter.until, waiter.deadline)

    def _is_hopeless(self, waiter: Waiter) -> bool:
        """Whether not even a fetch can be begun before the deadline."""
        with self._lock:
            ledger = self._ledger
            return ledger.fetch is None and ledger.predictor.closed_until > (waiter.deadline or 0)

    def _leave(self, waiter: Waiter) -> None:
        with self._lock:
            self._line.leave(waiter)

    # -- fetching ----------------------------------------------------------------------------------------

    def _start(self, ledger: PrefetchLedger, fetch: Fetch) -> None:
        try:
            self._fetching.start(self, ledger, fetch)
        except RuntimeError as error:  # no thread can be started, or the loop was just closed
            self._on_error(ledger, fetch, error)

    def _on_answer(self, ledger: PrefetchLedger, fetch: Fetch, answer: Any) -> None:
        """What a fetch returned, from whichever thread or task has run it."""
        try:
            granted, valid_ns, retry_ns = read_answer(answer)
        except (TypeError, ValueError) as error:
            self._on_error(ledger, fetch, error)
            return
        with self._lock:
            # Another ledger may be in its place: the answer belongs to the parent of a fork, or to another time.
            if ledger is self._ledger:
                ledger.answer(fetch, self._clock.now(), granted, valid_ns, retry_ns)
                if not ledger.failed:
                    self._error = None
            self._line.wake_head()

    def _on_error(self, ledger: PrefetchLedger, fetch: Fetch, error: BaseException) -> None:
        with self._lock:
            if ledger is self._ledger and ledger.fetch is fetch:
                ledger.fail(fetch, self._clock.now())
                self._note_failure(error)
            self._line.wake_head()

    def _on_cancelled(self, ledger: PrefetchLedger, fetch: Fetch) -> None:
        """The task of a fetch was cancelled, by the end of its loop for instance: another one may ask."""
        with self._lock:
            ledger.give_up(fetch)
            self._line.wake_head()

    def _note_failure(self, error: BaseException) -> None:
        if self._error is None:
            log.warning(
                "no permits from the server %s: %r; this is said once until it answers", self._server, error
            )
        self._error = error
        self._failures += 1

    # -- answers -----------------------------------------------------------------------------------------

    def _unavailable(self) -> EngineUnavailable | None:
        """What to raise because fetching fails, if it does."""
        with self._lock:
            if not self._ledger.failed:
                return None
            error = EngineUnavailable(self._server, repr(self._error) if self._error else "")
            error.__cause__ = self._error
            return error

    def _count(self, admission: Admission) -> Admission:
        with self._lock:
            self._granted += bool(admission)
            self._denied += not admission
        return admission

    def _retry_after(self) -> float:
        now = self._clock.now()
        return (self._ledger.retry_at(now) - now) / 1e9

    def _refusal(self) -> Admission:
        with self._lock:
            self._denied += 1
            return Admission(False, "waiting" if self._line else "limit", self._retry_after())

    def _timed_out(self, timeout: Timeout) -> RateLimited:
        timeout_ns = self._timeout_ns if timeout is ... else timeout_to_ns(timeout)
        with self._lock:
            self._denied += 1
            return AcquireTimeout(
                self._retry_after(), timeout=None if timeout_ns is None else timeout_ns / 1e9
            )

    def _left(self, waiter: Waiter) -> float | None:
        if waiter.deadline is None:
            return None
        return max(0, waiter.deadline - self._clock.now()) / 1e9

    def _warn_blocking(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "acquire() of a prefetcher has to wait inside a running event loop and stops all its tasks: "
                "use `await prefetcher.acquire_async()`",
                RuntimeWarning,
                stacklevel=outside(),
            )


def _server_of(fetch: Any, name: str | None) -> str:
    """How messages call the server, of which no more is known."""
    if name is not None:
        return f"of prefetcher {name!r}"
    return f"behind {getattr(fetch, '__qualname__', None) or type(fetch).__qualname__}"
