"""An event loop on virtual time: an hour of waiting takes milliseconds, and the same program does the same every time.

The naive way is to patch `time()` and let `select` return at once: then the loop spins until the clock is moved from
outside, and everything still depends on rounded floats. Here the loop has no timers of its own. `call_at` and
`call_later` put them as whole nanoseconds into the clock's heap, between the clock's own sleepers, and asyncio's list
of scheduled calls stays empty. So asyncio asks its selector to wait without end exactly when nothing is ready, and
that is the one moment in which time may jump: the selector polls the sockets, moves the clock to the next alarm, and
returns.

What holds time back, and what does not:

- Jobs of `run_in_executor` and `to_thread` do: time stands while they run, unless they sleep on the clock.
- Other threads do, by the rule in `crew.py`.
- Sockets do a little. A server's listening socket is never "done", so time cannot stand for as long as one is open.
  While any is, each jump first gives it `io_grace` of real time (5 ms): enough for an answer from this machine, not
  for one from the internet. Without sockets nothing is waited for, and runs are deterministic.
- Subprocesses do not: give them real time.

When nothing is ready and nothing is due, nothing will ever wake this loop: `Deadlock` names the tasks that wait. Where
a socket, a signal handler or another thread might still bring something, the loop waits: for the first two without end,
for a thread `patience` real seconds.

What the loop uses of asyncio beyond its public interface: `_ready`, `_add_callback`, `_add_callback_signalsafe`,
`_scheduled` of a timer and `_timer_handle_cancelled`; all of them the same from Python 3.11 to 3.13.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from headway.clock import SECOND
from headway.errors import HeadwayError
from headway.printable import printable
from headway.testing.alarms import NEVER, Alarm, to_ns
from headway.testing.clocks import ManualClock
from headway.testing.crew import SLICE, Job
from headway.testing.idle import ready

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from contextvars import Context

    Events = list[tuple[selectors.SelectorKey, int]]

__all__ = ["Deadlock", "VirtualLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(HeadwayError, RuntimeError):
    """Every task waits for something that time cannot bring.

    >>> from headway.testing import run
    >>> run(asyncio.Event().wait())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    headway.testing.loop.Deadlock: every task waits for something that time cannot bring: Task-... (Event.wait)
    """

    def __init__(self, tasks: set[asyncio.Task[Any]]) -> None:
        names = sorted(
            f"{printable(task.get_name())} ({getattr(task.get_coro(), '__qualname__', '?')})"
            for task in tasks
        )
        shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        super().__init__(
            f"every task waits for something that time cannot bring: {shown or 'no task is left'}"
        )


class _Timer(asyncio.TimerHandle):
    __slots__ = ("alarm",)
    alarm: Alarm


class _Selector(selectors.DefaultSelector):
    """Polls; and where asyncio would wait without end, lets the loop jump."""

    loop: VirtualLoop

    def poll(self, seconds: float) -> Events:
        return super().select(seconds)

    def select(self, timeout: float | None = None) -> Events:
        return self.poll(0) or ([] if timeout is not None else self.loop._idle(self))


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on the time of a `ManualClock`, which jumps whenever nothing is ready.

    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(asyncio.sleep(3600))
    ...     runner.get_loop().time()
    3600.0
    """

    io_grace: float = 0.005
    """Real seconds that open sockets get before each jump."""

    patience: float = 5.0
    """Real seconds in which another thread may still call this loop before it is a `Deadlock`."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = ManualClock() if clock is None else clock
        self._timers: set[Alarm] = set()
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """The clock's time in seconds."""
        return self.clock.time()

    # Timers.

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        due = self.clock.now() + max(0, to_ns(delay, "delay"))
        return self._schedule(due, due / SECOND, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        now = self.clock.now()
        due = max(now, to_ns(when, "when"))
        if due == now and when > self.time():
            due += 1  # less than a nanosecond ahead, but ahead: a wait in such steps must end
        return self._schedule(due, when, callback, args, context)

    def _schedule(
        self,
        due: int,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        if self.get_debug():
            self._check_thread()  # type: ignore[attr-defined]
        timer = _Timer(when, callback, args, self, context)
        clock = self.clock
        with clock._lock:
            timer.alarm = clock._alarms.add(max(due, clock.now()), partial(self._fire, timer))
            self._timers.add(timer.alarm)
        timer._scheduled = due < NEVER  # type: ignore[attr-defined]  # asks for _timer_handle_cancelled
        return timer

    def _fire(self, timer: _Timer) -> None:
        timer._scheduled = False  # type: ignore[attr-defined]
        self._timers.discard(timer.alarm)
        if asyncio._get_running_loop() is self:
            self._add_callback(timer)  # type: ignore[attr-defined]
        else:
            self._add_callback_signalsafe(timer)  # type: ignore[attr-defined]

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        with self.clock._lock:
            self.clock._alarms.cancel(handle.alarm)
            self._timers.discard(handle.alarm)

    # Jumping.

    def run_forever(self) -> None:
        # A blocking sleep inside the loop must end too, and only a jump can end it.
        before, self.clock.autojump = self.clock.autojump, True
        try:
            super().run_forever()
        finally:
            self.clock.autojump = before

    def _idle(self, selector: _Selector) -> Events:
        """Nothing is ready: jump, or wait in real time for what holds time back."""
        clock = self.clock
        if len(selector.get_map()) > 1 and (events := selector.poll(self.io_grace)):  # 1: the loop's own pipe
            return events
        queue = ready(self)
        since = time.monotonic()
        with clock._lock:
            clock._crew.lie_down(lambda: bool(queue), is_loop=True)
        try:
            while not queue:
                wait = clock._try_jump()
                if wait is None:
                    self._check_deadlock(selector, since)
                    wait = 10 * SLICE
                if wait and (events := selector.poll(wait)):
                    return events
        finally:
            with clock._lock:
                clock._crew.get_up()
        return []

    def _check_deadlock(self, selector: _Selector, since: float) -> None:
        if len(selector.get_map()) > 1 or getattr(self, "_signal_handlers", None):
            return
        executor = getattr(self, "_default_executor", None)
        idle_workers: set[threading.Thread] = getattr(executor, "_threads", set())
        with self.clock._lock:
            others = self.clock._crew.others() - idle_workers
        if not others or time.monotonic() - since > self.patience:
            raise Deadlock(asyncio.all_tasks(self))

    # Threads.

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        job = Job()
        crew, lock = self.clock._crew, self.clock._lock

        def call() -> T:
            with lock:
                job.thread = threading.current_thread()
                crew.begin(job)  # again, if the waiter was cancelled just before this
            try:
                return func(*args)
            finally:
                with lock:
                    job.ended = True
                    if future.cancelled():
                        crew.end(job)

        def done(_: object) -> None:
            with lock:
                # A cancelled future's thread runs on, and time goes on standing until it has ended.
                if job.ended or job.thread is None:
                    crew.end(job)

        with lock:
            crew.begin(job)
            in_thread = executor is None or isinstance(executor, ThreadPoolExecutor)
            try:
                # Under the lock, so that `call` finds `future`.
                future: asyncio.Future[T] = (
                    super().run_in_executor(executor, call)
                    if in_thread
                    else super().run_in_executor(executor, func, *args)
                )
            except BaseException:
                crew.end(job)
                raise
        future.add_done_callback(done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        """Time stands while the workers end, so a `timeout` would never come."""
        job = Job()
        with self.clock._lock:
            self.clock._crew.begin(job)
        try:
            await super().shutdown_default_executor()
        finally:
            with self.clock._lock:
                self.clock._crew.end(job)

    def close(self) -> None:
        with self.clock._lock:
            for alarm in self._timers:
                self.clock._alarms.cancel(alarm)
            self._timers.clear()
        super().close()
