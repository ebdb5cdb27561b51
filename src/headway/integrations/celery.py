"""Limits for Celery tasks, kept by all workers together.

    @app.task
    @limited("50/s burst 1", name="partner", engine="redis://db/0")
    def send(order): ...

A task that may not run yet gets a promised time (`headway.integrations.tasks`), until which its worker holds it beside
the pool (`headway.integrations.celery_worker`) and takes the next task. Where it cannot be held, it goes back to its
queue with the promise. `request.retries` stays what it is. `LimitedTask` is the same as a base class, for limits that
several tasks share:

    class PartnerTask(LimitedTask):
        limit = TaskLimit("50/s burst 1", name="partner", engine="redis://db/0", key=lambda order: order["shop"])

    @app.task(base=PartnerTask)
    def send(order): ...

A task that is called directly, or eagerly, has no queue to go back to: it waits for its turn where it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from celery import Task, current_task
from celery.exceptions import Ignore
from celery.signals import worker_init

from headway.errors import InvalidUse
from headway.integrations.tasks import HEADER, Later, TaskLimit, leads_to

__all__ = ["LimitedTask", "TaskLimit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

_LIMIT: Final = "__headway_limit__"
"""The attribute of a limited function; decorators outside of it copy the attribute, and so it names the function."""
SHARE_OF_VISIBILITY: Final = 0.5
"""Of the broker's visibility timeout: for how long a task is sent away at most. After all of it, the broker would take
the worker that holds the message for dead, and deliver the task again."""


def limited(limit: Any, **options: Any) -> Callable[[_F], _F]:
    """A decorator between `@app.task` and the function. The options are those of `TaskLimit`.

    `key` and `cost` get what the function gets (with `bind=True`, the task first).

    >>> from celery import Celery
    >>> app = Celery()
    >>> @app.task
    ... @limited("100/minute", key=lambda user: user)
    ... def greet(user):
    ...     return f"hello {user}"
    >>> greet("alice")
    'hello alice'
    """
    own = limit if isinstance(limit, TaskLimit) else TaskLimit(limit, **options)

    def decorate(function: _F) -> _F:
        if isinstance(function, Task):
            raise InvalidUse(
                "limited() is for the function, not for the task", "@app.task above @limited(...)"
            )

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            task = current_task._get_current_object()
            ours = task is not None and leads_to(_function_of(task), run)
            with _admitted(task if ours else None, own, args, kwargs):
                return function(*args, **kwargs)

        run.__dict__[_LIMIT] = run, own
        return run  # type: ignore[return-value]

    return decorate


class LimitedTask(Task):  # type: ignore[misc] # Celery has no types
    """A task with a limit: `@app.task(base=LimitedTask, limit=TaskLimit(...))`, or `limit` in a subclass.

    `key` and `cost` get the arguments of the task.
    """

    abstract = True
    limit: TaskLimit

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        direct = self.request_stack.top is None or self.request.called_directly
        with _admitted(None if direct else self, self.limit, args, kwargs):
            return super().__call__(*args, **kwargs) if direct else self.run(*args, **kwargs)


def _admitted(task: Any, limit: TaskLimit, args: Any, kwargs: Any) -> Any:
    """What to enter before the task runs; raises `Ignore` when it has gone back."""
    if task is None or task.request.called_directly or task.request.is_eager:
        return limit.hold(args, kwargs)
    # Taken out: a promise is for one use, and a retry of the task would take it along.
    promise = (task.request.headers or {}).pop(HEADER, None)
    begun = limit.begin(args, kwargs, promise, longest_of(task))
    if isinstance(begun, Later):
        send_back(task, task.request, begun)
        raise Ignore
    return begun


def send_back(task: Any, request: Any, later: Later) -> None:
    """Send the task again, as `Task.retry` does, but for its count; the caller acknowledges this one after that."""
    headers = dict(request.headers or {})
    if later.promise is not None:
        headers[HEADER] = later.promise
    task.signature_from_request(
        request,
        eta=datetime.now(UTC) + timedelta(seconds=max(0.0, later.seconds)),
        retries=request.retries,
        headers=headers,
    ).apply_async()


def longest_of(task: Any) -> float | None:
    """For how many seconds a task may be sent away, or held, as its broker bounds it."""
    options = task.app.conf.broker_transport_options or {}
    visible = options.get("visibility_timeout")
    return None if visible is None else float(visible) * SHARE_OF_VISIBILITY


def limit_of(task: Any) -> TaskLimit | None:
    """The limit of a task, if its function gets just the arguments that are in a message."""
    if isinstance(task, LimitedTask):
        return getattr(task, "limit", None)
    run = _function_of(task)
    function, limit = getattr(run, _LIMIT, (None, None))
    return limit if getattr(run, "__func__", run) is function else None


def arguments_of(task: Any, args: Any) -> Any:
    """What `key` and `cost` get of the arguments in a message."""
    bound = not isinstance(task, LimitedTask) and inspect.ismethod(_function_of(task))
    return (task, *args) if bound else args


def _function_of(task: Any) -> Any:
    return getattr(task, "_orig_run", task.run)


@worker_init.connect  # type: ignore[untyped-decorator]
def _hold_tasks(sender: Any, **_: Any) -> None:
    from headway.integrations.celery_worker import install

    install(sender.app)
