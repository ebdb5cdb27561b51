"""The decorator of a gate: a call that runs if its event is let through.

    mode      the caller                                       the call runs
    only      is told at once                                  if its event was accepted
    strict    waits until the event has ended                  if its event was published: no repeat came

A call that does not run returns None, or raises `EventRepeated`. A call that runs is an ordinary call: its result is
returned, its exception is raised, and neither changes what the gate has decided. So after an error a retry within
`duration` is a repeat. A process that ends, or a task that is cancelled, while it waits for a strict gate leaves its
event behind: the event is published, and the call does not run. The promise is at most one call, not at least one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.core.once import INVALIDATED, PUBLISHED, SUBMITTED, EventStatus
from headway.errors import EngineUnavailable, EventRepeated, GateClosed, InvalidArgument, InvalidUse
from headway.once.results import Change, Snapshot, Submission

if TYPE_CHECKING:
    from headway.once.gate import Once

ENDS = (INVALIDATED, PUBLISHED)


def guarded(once: Once, key: Any, on_repeat: Any) -> Callable[[Any], Any]:
    """The decorator, of checked options."""
    if on_repeat not in ("skip", "raise"):
        raise InvalidArgument("on_repeat", on_repeat, "'skip' or 'raise'")
    if inspect.isfunction(key) and inspect.iscoroutinefunction(key):
        raise InvalidArgument("key", key, "a function that returns the event, not a coroutine")
    if not (key is None or isinstance(key, str | int) or callable(key)) or isinstance(key, bool):
        raise InvalidArgument("key", key, "a str, an int, or a function of the call's arguments")

    def decorate(function: Any) -> Any:
        return _decorate(_Guard(once, _event_of(key, function), on_repeat == "raise"), function)

    return decorate


def _event_of(key: Any, function: Any) -> Callable[..., str]:
    if key is None:
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        if module is None or name is None:
            raise InvalidArgument("key", key, f"one: {function!r} has no name")
        key = f"{module}:{name}"
    if not callable(key):
        return lambda *args, **kwargs: str(key)  # noqa: ARG005

    def event(*args: Any, **kwargs: Any) -> Any:
        found = key(*args, **kwargs)
        return str(found) if isinstance(found, int) and not isinstance(found, bool) else found

    return event


def _decorate(guard: _Guard, function: Any) -> Any:
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise InvalidUse(f"put the guard below @{kind}", f"@{kind} @once.guard(...) def ...")
    if isinstance(function, type) or not callable(function):
        raise InvalidUse(f"a guard decorates functions, not {function!r}", "@once.guard(...) def ...")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidUse("a guard decorates calls, and a generator is not one", "@once.guard(...) def ...")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs) if await guard.passes_async(args, kwargs) else None

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if guard.passes(args, kwargs) else None

    return call


class _Guard:
    """Whether a call runs."""

    def __init__(self, once: Once, event_of: Callable[..., str], raises: bool) -> None:
        self.once = once
        self.event_of = event_of
        self.raises = raises

    def passes(self, args: Any, kwargs: Any) -> bool:
        once = self.once
        event = self.event_of(*args, **kwargs)
        submission = once.submit(event)
        if not submission.accepted or not once._rule.strict:
            return self._judge(event, submission, PUBLISHED)
        changes = once.subscribe(submission.clock)
        try:
            for change in changes:
                end = self._end(change, submission)
                if end is None and isinstance(change, Snapshot):
                    end = self._known(once.status(submission.id))
                if end is not None:
                    return self._judge(event, submission, end)
        finally:
            changes.close()
        raise GateClosed(once.name)

    async def passes_async(self, args: Any, kwargs: Any) -> bool:
        once = self.once
        event = self.event_of(*args, **kwargs)
        submission = await once.submit_async(event)
        if not submission.accepted or not once._rule.strict:
            return self._judge(event, submission, PUBLISHED)
        changes = once.subscribe(submission.clock)
        try:
            async for change in changes:
                end = self._end(change, submission)
                if end is None and isinstance(change, Snapshot):
                    end = self._known(await once.status_async(submission.id))
                if end is not None:
                    return self._judge(event, submission, end)
        finally:
            changes.close()
        raise GateClosed(once.name)

    def _end(self, change: Change | Snapshot, submission: Submission) -> EventStatus | None:
        """How the event of this submission ended, if that is what the change says."""
        mine = isinstance(change, Change) and change.id == submission.id and change.status in ENDS
        return change.status if mine else None  # type: ignore[union-attr]

    def _known(self, status: EventStatus | None) -> EventStatus | None:
        """The same after a gap in the log, from the status of the submission."""
        if status is None:
            raise EngineUnavailable(
                self.once._address,
                "the gate was lost, and with it an event that was accepted: the call does not run",
            )
        return None if status == SUBMITTED else status

    def _judge(self, event: str, submission: Submission, end: EventStatus) -> bool:
        if submission.accepted and end == PUBLISHED:
            return True
        if self.raises:
            status = "invalidated" if submission.accepted else "rejected"
            raise EventRepeated(event, submission.id, status, submission.conflict)
        return False
