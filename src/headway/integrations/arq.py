"""Limits for arq jobs, kept by all workers together.

    @limited("50/s burst 1", name="partner", engine="redis://db/0")
    async def send(ctx, order): ...

    class WorkerSettings:
        functions = [send]

A job that may not run yet is deferred until a promised time (`headway.integrations.tasks`), and its worker takes the
next job. `job_try` stays what it is, so `max_tries=1` is fine. arq polls twice a second (`poll_delay`): so a job is
wanted back half a second before its slot, and waits the rest as a task of the worker.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, TypeVar

from arq import Retry
from arq.constants import retry_key_prefix

from headway.integrations.tasks import HEADER, Later, TaskLimit

__all__ = ["TaskLimit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Awaitable[Any]])

EARLY: Final = 0.6
"""Seconds. A worker polls twice a second."""
KEPT: Final = 60.0
"""Seconds for which a promise is kept longer than until its job comes back: it is over by then."""


def limited(limit: Any, **options: Any) -> Callable[[_F], _F]:
    """A decorator for the coroutine function of a job. The options are those of `TaskLimit`; `early` is 0.6 here.

    `key` and `cost` get the arguments of the job, without `ctx`. Called with a `ctx` that is not a worker's, the
    function waits for its turn where it is.

    >>> import asyncio
    >>> @limited("100/minute", key=lambda user: user)
    ... async def greet(ctx, user):
    ...     return f"hello {user}"
    >>> asyncio.run(greet({}, "alice"))
    'hello alice'
    """
    own = limit if isinstance(limit, TaskLimit) else TaskLimit(limit, **{"early": EARLY, **options})

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        async def run(ctx: dict[Any, Any], *args: Any, **kwargs: Any) -> Any:
            if "job_try" not in ctx or "redis" not in ctx:
                async with own.hold(args, kwargs):
                    return await function(ctx, *args, **kwargs)
            # A promise is for one use: it is taken out.
            brought = await ctx["redis"].getdel(_key(ctx))
            begun = await own.begin_async(args, kwargs, None if brought is None else brought.decode())
            if isinstance(begun, Later):
                await _defer(ctx, begun)
            async with begun:
                return await function(ctx, *args, **kwargs)

        return run  # type: ignore[return-value]

    return decorate


def _key(ctx: dict[Any, Any]) -> str:
    return f"arq:{HEADER}:{ctx['job_id']}"


async def _defer(ctx: dict[Any, Any], later: Later) -> NoReturn:
    """Leave the promise where the job will find it, take back the try that arq has counted, and go."""
    seconds = max(0.001, later.seconds)
    async with ctx["redis"].pipeline(transaction=True) as pipe:
        if later.promise is not None:
            pipe.set(_key(ctx), later.promise, px=int((seconds + KEPT) * 1000))
        pipe.decr(retry_key_prefix + ctx["job_id"])
        await pipe.execute()
    raise Retry(defer=seconds)
