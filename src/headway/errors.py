"""What can go wrong, as one family.

Everything headway raises on purpose is a `HeadwayError`. The facts are attributes, so that no caller ever has
to read a message; the message is for people. Mistakes in a call are also `ValueError` or `TypeError`, because
that is what they are. All of them survive pickling, since they travel between processes.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

from headway.printable import printable

__all__ = [
    "AcquireTimeout",
    "ChangesGone",
    "EngineUnavailable",
    "EventRepeated",
    "GateClosed",
    "GateFull",
    "HeadwayError",
    "IdReused",
    "InvalidArgument",
    "InvalidKey",
    "InvalidLimit",
    "InvalidUse",
    "LimitMismatch",
    "LimiterClosed",
    "NotPromised",
    "PermitExpired",
    "PermitFinished",
    "RateLimited",
    "UnsupportedAsync",
]


def seconds_text(seconds: float) -> str:
    """A duration as a person says it.

    >>> seconds_text(0.25), seconds_text(86400), seconds_text(0.0000025)
    ('0.25 s', '86400 s', '2.5 us')
    """
    if math.isinf(seconds) or math.isnan(seconds) or seconds == 0:
        return f"{seconds:g} s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        scaled = seconds * factor
        if abs(scaled) >= (0.01 if unit == "s" else 1) or unit == "ns":
            break
    return f"{scaled:.0f} {unit}" if abs(scaled) >= 1000 else f"{scaled:.3g} {unit}"


def _portable(fact: object) -> object:
    """The fact, or its repr where it cannot travel: an error that fails to pickle hides what went wrong."""
    try:
        pickle.dumps(fact)
    except Exception:  # noqa: BLE001 - the fact's own __getstate__ may raise anything
        return repr(fact)
    return fact


def _rebuild(kind: type[HeadwayError], message: str, facts: dict[str, object]) -> HeadwayError:
    error = kind.__new__(kind)
    error.args = (message,)
    error.__dict__.update(facts)
    return error


class HeadwayError(Exception):
    """The root of the family.

    >>> issubclass(RateLimited, HeadwayError)
    True
    """

    # The default rebuilds by calling the class with the message alone, which would lose every fact.
    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: _portable(fact) for name, fact in self.__dict__.items()}
        return _rebuild, (type(self), str(self), facts)


class RateLimited(HeadwayError):
    """No permit. `retry_after` is in seconds, `inf` when waiting will not help.

    `reason` is one of "limit", "timeout", "max_waiting", "paused", "quarantine", "never".

    >>> print(RateLimited(0.25, limit="100/minute", key="u1"))
    rate limited: 100/minute for key 'u1'; retry in 0.25 s
    """

    # `limit` is a Limit and `status` a Status; both live in layers above this one.
    def __init__(
        self,
        retry_after: float,
        *,
        limit: Any = None,
        key: str | None = None,
        status: Any = None,
        reason: str = "limit",
        timeout: float | None = None,
        max_waiting: int | None = None,
        held_up: str = "",
    ) -> None:
        self.retry_after = retry_after
        self.limit = limit
        self.key = key
        self.status = status
        self.reason = reason
        self.timeout = timeout
        self.max_waiting = max_waiting
        super().__init__(f"rate limited: {self._subject()}{self._why()}{self._note(held_up)}")

    def _subject(self) -> str:
        limit = "" if self.limit is None else str(self.limit)
        key = "" if self.key is None else f"key {self.key!r}"
        subject = " for ".join(filter(None, (limit, key)))
        return subject and f"{subject}; "

    def _why(self) -> str:
        wait = seconds_text(self.retry_after)
        exact = getattr(self.status, "exact", True)
        retry = f"retry in {wait}"
        if math.isinf(self.retry_after):
            retry = "it is not known when to retry"
        elif not exact:
            least = f", but not within {wait}" if self.retry_after >= 0.001 else ""
            retry = f"permits are out, so it is not known when to retry{least}"
        if self.reason == "never":
            return "this limit never grants it, so waiting does not help"
        if self.reason == "timeout" and self.timeout is not None:
            allowed = f"timeout={seconds_text(self.timeout)}"
            if exact and self.timeout < self.retry_after < math.inf:
                return f"would have to wait {wait}, longer than {allowed}"
            return f"not granted within {allowed}; {retry}"
        if self.reason == "max_waiting":
            bound = "" if self.max_waiting is None else f" (max_waiting={self.max_waiting})"
            return f"too many are waiting already{bound}; {retry}"
        return retry

    def _note(self, held_up: str) -> str:
        """What holds every caller up, whatever the reason for this refusal is."""
        if "paused" in (held_up, self.reason):
            return " (paused)"
        if "quarantine" in (held_up, self.reason):
            return " (in quarantine: the ledger was lost, and what it forgot is waited for)"
        if getattr(self.status, "in_doubt", 0):
            return " (in doubt: the ledger was lost, and max_quarantine cut the wait short)"
        return ""


class AcquireTimeout(RateLimited, TimeoutError):
    """A wait ended, or was refused at once, because of its `timeout`. It is a `RateLimited` and a `TimeoutError`.

    >>> print(AcquireTimeout(3.2, limit="100/minute", timeout=1))
    rate limited: 100/minute; would have to wait 3.2 s, longer than timeout=1 s
    >>> issubclass(AcquireTimeout, RateLimited), issubclass(AcquireTimeout, TimeoutError)
    (True, True)
    """

    def __init__(self, retry_after: float, *, reason: str = "timeout", **facts: Any) -> None:
        RateLimited.__init__(self, retry_after, reason=reason, **facts)


class LimiterClosed(HeadwayError):
    """The limiter was closed, before the call or while it waited.

    >>> print(LimiterClosed("api"))
    limiter 'api' is closed
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        super().__init__("the limiter is closed" if name is None else f"limiter {name!r} is closed")


_ENDED = {"complete": "completed", "cancel": "cancelled", "abandon": "abandoned", "settle": "settled"}


class PermitFinished(HeadwayError):
    """A permit was ended a second time: `ended` says how it ended, `asked` what was asked of it now.

    >>> print(PermitFinished("complete", "cancel"))
    permit already completed, cannot cancel it: a permit ends once
    """

    def __init__(self, ended: str, asked: str) -> None:
        self.ended = ended
        self.asked = asked
        super().__init__(f"permit already {_ENDED.get(ended, ended)}, cannot {asked} it: a permit ends once")


class PermitExpired(HeadwayError):
    """A permit was spent after its dispatch deadline; by then it may belong to another. `late` is in seconds.

    >>> print(PermitExpired(2.0))
    permit expired 2 s ago: do not send, acquire a new one
    """

    def __init__(self, late: float | None = None) -> None:
        self.late = late
        when = "" if late is None else f" {seconds_text(late)} ago"
        super().__init__(f"permit expired{when}: do not send, acquire a new one")


class LimitMismatch(HeadwayError):
    """One name, two kinds of limit: the ledger of one cannot be read as the other.

    >>> print(LimitMismatch("api", "100/minute", "5 concurrent"))
    'api' is kept as '100/minute', not as '5 concurrent': use another name
    """

    def __init__(self, name: str | None, existing: Any, requested: Any) -> None:
        self.name = name
        self.existing = existing
        self.requested = requested
        whose, hint = ("this limiter", "make a new one") if name is None else (repr(name), "use another name")
        kept, asked = printable(str(existing)), printable(str(requested))
        super().__init__(f"{whose} is kept as '{kept}', not as '{asked}': {hint}")


class EngineUnavailable(HeadwayError):
    """The engine did not answer. `engine` is its address without secrets, `cause_text` what was heard of it.

    >>> print(EngineUnavailable("redis://db", "timed out"))
    engine redis://db is unavailable: timed out
    """

    def __init__(self, engine: str, cause_text: str = "") -> None:
        self.engine = engine
        self.cause_text = cause_text
        cause = f": {printable(cause_text)}" if cause_text else ""
        super().__init__(f"engine {printable(engine)} is unavailable{cause}")


class GateFull(HeadwayError):
    """A gate remembers as many events as it may; nothing has changed. `retry_after` is in seconds.

    >>> print(GateFull(1000, 2.5))
    the gate holds 1000 events already, which is its max_pending: try again in 2.5 s, or give it more room
    """

    def __init__(self, max_pending: int, retry_after: float) -> None:
        self.max_pending = max_pending
        self.retry_after = retry_after
        super().__init__(
            f"the gate holds {max_pending} event{'s' * (max_pending != 1)} already, which is its max_pending: "
            f"try again in {seconds_text(retry_after)}, or give it more room"
        )


class GateClosed(HeadwayError):
    """The gate was closed here, before the call or while it waited. Other processes may still use it.

    >>> print(GateClosed("orders"))
    gate 'orders' is closed
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        super().__init__("the gate is closed" if name is None else f"gate {name!r} is closed")


class EventRepeated(HeadwayError):
    """A guarded call did not run, as its event was a repeat, or was repeated. `conflict` is the id of the other one,
    where it is known; `status` is "rejected" or "invalidated".

    >>> print(EventRepeated("order 7", "b2", "rejected", "a1"))
    event 'order 7' was rejected: it repeats the event with id 'a1'
    >>> print(EventRepeated("order 7", "a1", "invalidated"))
    event 'order 7' was invalidated: an equal event came before its duration had passed
    """

    def __init__(self, event: str, id: str, status: str, conflict: str | None = None) -> None:
        self.event = event
        self.id = id
        self.status = status
        self.conflict = conflict
        why = "an equal event came before its duration had passed"
        if conflict is not None:
            why = f"it repeats the event with id {printable(conflict)!r}"
        super().__init__(f"event {printable(event)!r} was {status}: {why}")


class ChangesGone(HeadwayError):
    """Changes after clock `since` are not all kept any more, or the gate began anew; `oldest` is the earliest value
    after which all are.

    >>> print(ChangesGone(3, 120))
    the changes after clock 3 are not all kept any more, only those after 120: take a snapshot and go on from its clock
    >>> print(ChangesGone(50, 0, clock=7))
    the gate is at clock 7, and was not at 50 since it began or lost changes: take a snapshot and go on from its clock
    """

    def __init__(self, since: int, oldest: int, clock: int | None = None) -> None:
        self.since = since
        self.oldest = oldest
        if clock is not None and since > clock:
            problem = f"the gate is at clock {clock}, and was not at {since} since it began or lost changes"
        else:
            problem = f"the changes after clock {since} are not all kept any more, only those after {oldest}"
        super().__init__(f"{problem}: take a snapshot and go on from its clock")


class IdReused(HeadwayError, ValueError):
    """The id of a submission was given to another event before. `event` is that one, `asked` the one of now.

    >>> print(IdReused("42", "pizza", "taco"))
    id '42' was submitted with event 'pizza' before, not with 'taco': give each submission an id of its own
    """

    def __init__(self, id: str, event: str, asked: str) -> None:
        self.id = id
        self.event = event
        self.asked = asked
        super().__init__(
            f"id {printable(id)!r} was submitted with event {printable(event)!r} before, "
            f"not with {printable(asked)!r}: give each submission an id of its own"
        )


class InvalidLimit(HeadwayError, ValueError):
    """A limit that cannot be. `position` counts the characters of `text` from 0; None: nothing to point at.

    `what` is the word for what was read: a duration, a rate or a pace is no limit, and the message says so.

    >>> print(InvalidLimit("5/minuts", 2, "a unit such as s or minute", "unknown unit"))
    invalid limit '5/minuts', position 2: unknown unit
        5/minuts
          ^
    accepted: a unit such as s or minute
    """

    def __init__(
        self,
        text: str,
        position: int | None = None,
        accepted: str = "",
        problem: str = "",
        what: str = "limit",
    ) -> None:
        self.text = text
        self.position = position
        self.accepted = accepted
        self.problem = problem
        if position is None:
            lines = [f"invalid {what} {text}" + (f": {problem}" if problem else "")]
            if accepted:
                lines[0] += f"; accepted: {accepted}"
        else:
            # Of a very long text only the surroundings.
            first = 0 if len(text) <= 100 else max(0, position - 50)
            part = text[first : first + 100]
            lines = [f"invalid {what} {part!r}, position {position}" + (f": {problem}" if problem else "")]
            shown = "".join(c if c.isprintable() else " " for c in part)
            lines += [f"    {shown}", " " * (4 + position - first) + "^"]
            lines += [f"accepted: {accepted}"] if accepted else []
        super().__init__("\n".join(lines))


class InvalidArgument(HeadwayError, ValueError):
    """An argument outside of what is accepted.

    >>> print(InvalidArgument("timeout", -1, "None, or seconds from 0 up"))
    timeout=-1 is not accepted; give None, or seconds from 0 up
    """

    def __init__(self, argument: str, value: object, accepted: str) -> None:
        self.argument = argument
        self.value = value
        self.accepted = accepted
        super().__init__(f"{argument}={value!r} is not accepted; give {accepted}")


class InvalidKey(HeadwayError, TypeError):
    """Something that is no `str` where the key belongs. A number may have been meant as the cost, where there is one.

    >>> print(InvalidKey(5))
    key must be a str or None, not int; did you mean cost=5?
    """

    def __init__(self, value: object, *, costs: bool = True) -> None:
        self.value = value
        number = costs and isinstance(value, int | float) and not isinstance(value, bool)
        hint = f"; did you mean cost={value!r}?" if number else ""
        super().__init__(f"key must be a str or None, not {type(value).__name__}{hint}")


class InvalidUse(HeadwayError, TypeError):
    """Something was used in a way that cannot work; `instead` is what to write.

    >>> print(InvalidUse("a Permit cannot be awaited", "await limiter.acquire_async()"))
    a Permit cannot be awaited: write `await limiter.acquire_async()`
    """

    def __init__(self, problem: str, instead: str) -> None:
        self.problem = problem
        self.instead = instead
        super().__init__(f"{problem}: write `{instead}`")


class NotPromised(HeadwayError, TypeError):
    """`reserve()` on a limit that cannot promise a time: while its permits are out, or beyond the end of a lease.

    >>> print(NotPromised("5 concurrent"))
    '5 concurrent' cannot promise a time, so it takes no reservations: use acquire() or hold()
    """

    def __init__(self, limit: Any, leased: bool = False) -> None:
        self.limit = limit
        self.leased = leased
        where = " beyond the end of a lease (prefetch)" if leased else ""
        hint = "use acquire() or hold()"
        super().__init__(f"'{limit}' cannot promise a time{where}, so it takes no reservations: {hint}")


class UnsupportedAsync(HeadwayError, RuntimeError):
    """An async verb was called where no asyncio event loop runs.

    >>> print(UnsupportedAsync("trio"))
    headway waits with asyncio, and this runs under trio: call the blocking verb in a worker thread
    """

    def __init__(self, running: str | None = None) -> None:
        self.running = running
        where = "no asyncio event loop is running here" if running is None else f"this runs under {running}"
        hint = "call the blocking verb in a worker thread"
        super().__init__(f"headway waits with asyncio, and {where}: {hint}")
