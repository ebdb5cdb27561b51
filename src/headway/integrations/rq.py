"""Limits for RQ jobs, kept by all workers together.

    @limited("50/s burst 1", name="partner", engine="redis://db/0")
    def send(order): ...

    queue.enqueue(send, order)

A job that may not run yet is scheduled again for a promised time (`headway.integrations.tasks`), and its worker takes
the next job. Scheduled jobs need a scheduler: run at least one worker with `--with-scheduler`. `retries_left` stays
what it is. RQ's scheduler looks once a second, and keeps whole seconds: so a job comes back up to two seconds before
its slot, and waits the rest in the worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rq import Retry, get_current_job
from rq.job import Job

from headway.integrations.tasks import HEADER, Later, TaskLimit, leads_to

__all__ = ["TaskLimit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

EARLY: Final = 1.2
"""Seconds. The scheduler looks once a second, and a worker forks for the job."""
FOREVER: Final = 10**9
"""How often a job may go back."""


def limited(limit: Any, **options: Any) -> Callable[[_F], _F]:
    """A decorator for the function of a job. The options are those of `TaskLimit`; `early` is 1.2 here.

    Called directly, the function waits for its turn where it is.

    >>> @limited("100/minute", key=lambda user: user)
    ... def greet(user):
    ...     return f"hello {user}"
    >>> greet("alice")
    'hello alice'
    """
    own = limit if isinstance(limit, TaskLimit) else TaskLimit(limit, **{"early": EARLY, **options})

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            job = get_current_job()
            if job is None or not leads_to(job.func, run):
                with own.hold(args, kwargs):
                    return function(*args, **kwargs)
            begun = own.begin(args, kwargs, _promise_of(job))
            if isinstance(begun, Later):
                return _again(job, begun)
            with begun:
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]

    return decorate


def _promise_of(job: Job) -> str | None:
    """The promise that a job brings, which is taken out: it is for one use, and a retry of the job would have it."""
    promise = job.meta.pop(HEADER, None)
    if promise is not None:
        job.save_meta()  # type: ignore[no-untyped-call]
    return promise  # type: ignore[no-any-return]


def _again(job: Job, later: Later) -> Retry:
    """What tells the worker to schedule the job again; its count of such returns stays what it is."""
    if later.promise is not None:
        job.meta[HEADER] = later.promise
        job.save_meta()  # type: ignore[no-untyped-call]
    job.number_of_retries = (job.number_of_retries or 0) - 1
    return Retry(max=FOREVER, interval=[max(0.0, later.seconds)])  # type: ignore[list-item] # fractions are fine
