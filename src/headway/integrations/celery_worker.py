"""Where a Celery worker decides about limited tasks: in its main process, before they get to the pool.

A pool process that finds out that its task may not run yet has been taken for nothing, and the way back is long: it
publishes the task again, a worker receives it again, and another pool process waits for its slot. In a flood, other
tasks stand in the queue behind two to four such passes of each limited one, and a slot that comes while its task
stands there is lost. So the worker that receives a limited task reserves for it and keeps it, as Celery keeps a task
with an ETA: not acknowledged, in memory, and not counted for the prefetch limit. When its slot has come, the pool gets
the task with the promise, and its process redeems the promise, as it would that of a task that came back.

    message -> strategy of the task -> HeldTasks.admit -> a thread asks the ledger -> held until the slot -> pool

The ledger is asked by a thread, because the main process may not wait for an engine: other tasks pass through it.

The pool decides, as it did before, about what cannot be held: limits that promise no time, a slot that is further
away than `max_delay`, tasks that have waited for an ETA (they have been with this worker for some time, and the broker
bounds that), brokers whose prefetch limit is fixed (quorum queues), and workers without an event loop (gevent). When a
worker stops, it sends back what it holds, with its promises: another worker redeems them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from celery import bootsteps
from celery.app.task import Context
from celery.worker import state
from celery.worker.strategy import default

from headway.errors import EngineUnavailable
from headway.integrations import tasks
from headway.integrations.celery import arguments_of, limit_of, longest_of, send_back
from headway.integrations.tasks import ENGINE_RETRY, HEADER, Later, TaskLimit

STRATEGY: Final = "headway.integrations.celery_worker:strategy"
EARLY: Final = 0.01
"""Seconds before its slot at which the pool of a punctual worker gets a task."""
LONGEST_EARLY: Final = 1.8
"""The bound of that on a busy machine, in units of the limit's `early`. After two of them a pool would send it back."""
SMOOTHING: Final = 0.1

logger = logging.getLogger(__name__)


def install(app: Any) -> None:
    """Let the workers of an application hold the tasks that `limit_of` finds; called before a worker is set up."""
    limited = [task for task in app.tasks.values() if limit_of(task) is not None]
    for task in limited:
        task.Strategy = STRATEGY
    if limited:
        app.steps["consumer"].add(HeldTasks)


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """What a worker does with each message of a task; Celery calls this when its consumer starts."""
    held = getattr(consumer, "held_tasks", None)
    limit = limit_of(task)
    if held is None or limit is None or limit.wait or not _prefetch_grows(consumer):
        return default(task, app, consumer, **options)
    handle = default(task, app, _Consumer(consumer, functools.partial(held.admit, task, limit)), **options)

    def on_message(message: Any, *given: Any) -> Any:
        if HEADER in message.headers:
            message.headers["eta"] = None  # the promise tells its time better
        return handle(message, *given)

    return on_message


def _prefetch_grows(consumer: Any) -> bool:
    """Whether a worker that holds tasks gets others beside them: not from quorum queues."""
    try:
        from celery.utils.quorum_queues import detect_quorum_queues
    except ImportError:  # before Celery 5.5, which knows none
        return True
    return not detect_quorum_queues(consumer.app, consumer.connection.transport.driver_type)[0]


class _Consumer:
    """A worker's consumer as the strategy of one task sees it: what may go to the pool is admitted first."""

    def __init__(self, consumer: Any, admit: Callable[[Any], None]) -> None:
        self._consumer = consumer
        self.on_task_request = admit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class _Held:
    """A task that has not got to the pool yet."""

    __slots__ = ("limit", "received", "request", "slot", "task", "timer")

    def __init__(self, task: Any, limit: TaskLimit, request: Any) -> None:
        self.task = task
        self.limit = limit
        self.request = request
        self.received = time.monotonic()
        self.slot = 0.0
        self.timer: Any = None


class HeldTasks(bootsteps.StartStopStep):  # type: ignore[misc] # Celery has no types
    """The tasks that a worker holds. All methods run in the event loop of the worker's main process."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._consumer = consumer
        self._held: dict[int, _Held] = {}
        self._decider: _Decider | None = None
        self._lag = _Lag()

    def include_if(self, consumer: Any) -> bool:
        return consumer.hub is not None

    def create(self, consumer: Any) -> None:
        consumer.held_tasks = self

    def start(self, consumer: Any) -> None:  # noqa: ARG002 - as Celery calls it
        self._decider = _Decider()

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:  # noqa: ARG002
        assert self._decider is not None
        hub.add_reader(self._decider.wakes, self._decided)

    def stop(self, consumer: Any) -> None:
        decider, self._decider = self._decider, None
        if decider is None:
            return
        consumer.hub.remove(decider.wakes)
        decider.close()
        held, self._held = self._held, {}
        for each in held.values():
            if each.timer is not None:
                each.timer.cancel()
        # After the loss of a connection the broker delivers again what was held. A worker that ends can do better.
        if consumer.blueprint.state == bootsteps.CLOSE:
            self._send_back([each for each in held.values() if each.slot])

    def admit(self, task: Any, limit: TaskLimit, request: Any) -> None:
        """Ask for a task that would go to the pool; Celery has noted it as reserved by now."""
        if request.eta is not None or self._decider is None:
            self._consumer.on_task_request(request)
            return
        # Not counted for the prefetch limit from here on, whatever the engine takes to answer.
        self._consumer.qos.increment_eventually()
        state.reserved_requests.discard(request)
        each = _Held(task, limit, request)
        self._held[id(request)] = each
        self._decider.ask(each)

    def _decided(self) -> None:
        decider = self._decider
        if decider is None:
            return
        for each, later in decider.answers():
            if later is None:
                self._hand_on(each.request)
            elif later.promise is None:
                each.timer = self._consumer.timer.call_after(later.seconds, self._again, (each.request,))
            else:
                each.request.request_dict[HEADER] = later.promise
                each.slot = later.seconds
                self._wait(each.request, LONGEST_EARLY * each.limit.early, self._near)

    # The first argument of what a timer calls is the request: so `celery inspect scheduled` lists it.

    def _again(self, request: Any) -> None:
        each = self._held.get(id(request))
        if each is not None and self._decider is not None:
            self._decider.ask(each)

    def _wait(self, request: Any, early: float, then: Callable[..., None]) -> None:
        each = self._held[id(request)]
        now = time.monotonic()
        at = each.slot - early
        if at > now:
            each.timer = self._consumer.timer.call_after(at - now, then, (request, at))
        else:
            then(request, now)  # its slot was too near for that, and that is not a lag

    def _near(self, request: Any, at: float) -> None:  # noqa: ARG002
        # How early the pool should have it is known best now, and not when its slot was promised.
        each = self._held.get(id(request))
        if each is not None:
            self._wait(request, self._lag.early(each.limit), self._due)

    def _due(self, request: Any, at: float) -> None:
        self._lag.handed_on(request, at)
        self._hand_on(request)

    def _hand_on(self, request: Any) -> None:
        if self._held.pop(id(request), None) is not None:
            self._consumer.qos.decrement_eventually()
            state.task_reserved(request)
            self._consumer.on_task_request(request)

    def _send_back(self, held: list[_Held]) -> None:
        for each in held:
            request = each.request
            embedded = request._payload[2] or {}
            context = Context({**request.request_dict, **embedded}, called_directly=False, is_eager=False)
            seconds = each.slot - time.monotonic() - each.limit.early
            try:
                send_back(each.task, context, Later(seconds, request.request_dict[HEADER]))
            except Exception:
                # What was not acknowledged is delivered again, without its promise, and asks again.
                logger.exception("Held tasks were not sent back to their queue")
                return
            request.message.ack_log_error(logger, self._consumer.connection_errors)


class _Lag:
    """How long it takes from the time at which a task is due until a pool process has it; on a busy machine, long.

    A task waits for its slot in the pool, and there it is in the way of others: so it gets there just early enough.
    """

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0
        self._handed_on: deque[tuple[Any, float]] = deque(maxlen=100)

    def early(self, limit: TaskLimit) -> float:
        return min(EARLY + self._mean + 2 * self._deviation, LONGEST_EARLY * limit.early)

    def handed_on(self, request: Any, at: float) -> None:
        self._handed_on.append((request, time.time() - (time.monotonic() - at)))
        longest = LONGEST_EARLY * tasks.EARLY
        # The pool has told by now when its processes began earlier ones.
        while self._handed_on and (begun := self._handed_on[0][0].time_start) is not None:
            lag = min(begun - self._handed_on.popleft()[1], longest)
            self._deviation += SMOOTHING * (abs(lag - self._mean) - self._deviation)
            self._mean += SMOOTHING * (lag - self._mean)


class _Decider:
    """A thread that asks for held tasks, one after the other."""

    def __init__(self) -> None:
        self.wakes, self._wake = socket.socketpair()
        self.wakes.setblocking(False)
        self._wake.setblocking(False)
        self._asked: SimpleQueue[_Held | None] = SimpleQueue()
        self._answers: deque[tuple[_Held, Later | None]] = deque()
        self._away: dict[TaskLimit, float] = {}
        threading.Thread(target=self._run, name="headway-held-tasks", daemon=True).start()

    def ask(self, each: _Held) -> None:
        self._asked.put(each)

    def answers(self) -> list[tuple[_Held, Later | None]]:
        with contextlib.suppress(BlockingIOError):  # an earlier call may have taken what woke this one
            self.wakes.recv(4096)
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def close(self) -> None:
        self._asked.put(None)
        self.wakes.close()
        self._wake.close()

    def _run(self) -> None:
        while (each := self._asked.get()) is not None:
            self._answers.append((each, self._answer(each)))
            try:
                self._wake.send(b"\0")
            except BlockingIOError:
                pass  # the loop has been told often enough
            except OSError:
                return  # closed: the worker stops, or has lost its broker

    def _answer(self, each: _Held) -> Later | None:
        """A slot by the monotonic clock; or when to ask again; or None: the pool decides."""
        try:
            if time.monotonic() < self._away.get(each.limit, 0.0):
                return self._later(each)
            return _ask(each)
        except EngineUnavailable:
            self._away[each.limit] = time.monotonic() + ENGINE_RETRY
            return self._later(each)
        except Exception:  # noqa: BLE001 - the pool meets it too, and there it is an error of the task
            return None

    def _later(self, each: _Held) -> Later | None:
        seconds = ENGINE_RETRY * (1 + random.random())
        longest = longest_of(each.task)
        most = each.limit.max_delay if longest is None else min(each.limit.max_delay, longest)
        return Later(seconds) if time.monotonic() + seconds < each.received + most else None


def _ask(each: _Held) -> Later | None:
    task, request = each.task, each.request
    # `key` and `cost` may look at the request of the task, as they may in the pool.
    task.request_stack.push(Context(request.request_dict, called_directly=False, is_eager=False))
    try:
        args = arguments_of(task, request.args)
        later = each.limit.ahead(args, request.kwargs, request.request_dict.get(HEADER), longest_of(task))
    finally:
        task.request_stack.pop()
    return None if later is None else later._replace(seconds=later.seconds + time.monotonic())
