"""Limits for Dramatiq actors, kept by all workers together.

    broker.add_middleware(RateLimits())

    @dramatiq.actor(limit=TaskLimit("50/s burst 1", name="partner", engine="redis://db/0"))
    def send(order): ...

A message that may not be processed yet is enqueued again with a delay until a promised time
(`headway.integrations.tasks`), and its worker takes the next one. Its retries stay what they are, and no result is
stored for it. Actors that share a `TaskLimit` share the limit. Add the middleware last, so that no other one skips a
message that has its permit. A worker polls for delayed messages, by default up to a second apart
(`dramatiq_worker_timeout`, in milliseconds): so messages are wanted back a second before their slot, and wait the rest
in a thread of the worker.
"""

from __future__ import annotations

from typing import Any, Final

from dramatiq import Broker, Middleware
from dramatiq.broker import MessageProxy
from dramatiq.middleware import SkipMessage

from headway import Permit
from headway.errors import InvalidArgument
from headway.integrations import tasks
from headway.integrations.tasks import HEADER, Later

__all__ = ["RateLimits", "TaskLimit"]

EARLY: Final = 1.0
"""Seconds. A worker may poll once a second for what is delayed, and once a second for its queue."""


class TaskLimit(tasks.TaskLimit):
    """The option `limit` of an actor: as `headway.integrations.tasks.TaskLimit`, with `early=1`.

    >>> TaskLimit("100/minute").early
    1.0
    """

    def __init__(self, limit: Any, *, early: float = EARLY, **options: Any) -> None:
        super().__init__(limit, early=early, **options)


class RateLimits(Middleware):
    """Keeps the limits of actors that have one.

    >>> from dramatiq.brokers.stub import StubBroker
    >>> broker = StubBroker()
    >>> broker.add_middleware(RateLimits())
    """

    def __init__(self) -> None:
        # By message: each is processed in one thread, and comes once at a time.
        self._permits: dict[str, Permit] = {}

    @property
    def actor_options(self) -> set[str]:
        return {"limit"}

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        limit = broker.get_actor(message.actor_name).options.get("limit")
        if limit is None or message.failed:
            return
        if not isinstance(limit, tasks.TaskLimit):
            raise InvalidArgument("limit", limit, "a TaskLimit of headway.integrations.dramatiq")
        # Taken out: a promise is for one use, and a retry of the message would take it along.
        promise = message.options.pop(HEADER, None)
        begun = limit.begin(message.args, message.kwargs, promise)
        if not isinstance(begun, Later):
            self._permits[message.message_id] = begun.__enter__()
            return
        again = message.copy(options={} if begun.promise is None else {HEADER: begun.promise})
        broker.enqueue(again, delay=max(0, int(begun.seconds * 1000)))
        # Skipped is not done: the result is that of the message that was enqueued.
        message.options["store_results"] = False
        raise SkipMessage("its limit allows it later")

    def after_process_message(
        self,
        broker: Broker,  # noqa: ARG002 - as Dramatiq calls it
        message: MessageProxy,
        *,
        result: Any = None,  # noqa: ARG002
        exception: BaseException | None = None,
    ) -> None:
        permit = self._permits.pop(message.message_id, None)
        if permit is not None:
            permit.__exit__(None if exception is None else type(exception), exception, None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:  # noqa: ARG002
        permit = self._permits.pop(message.message_id, None)
        if permit is not None:
            permit.cancel()
