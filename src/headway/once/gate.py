"""`Once`: a gate that lets an event through once, and tells what became of it.

The verbs check what they are given and send one command; the engine decides (`headway.core.once` says how). A command
that was sent twice because its answer was lost changes nothing the second time: every submission has an id, also where
the caller gives none.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

from headway.clock import Clock, as_clock
from headway.core.durations import Duration, duration_text
from headway.engines.base import Engine, GateTerms
from headway.engines.memory import open_gate
from headway.engines.uri import check_engine, is_local, open_engine
from headway.errors import ChangesGone, GateClosed, InvalidArgument
from headway.once.guard import guarded
from headway.once.input import (
    checked_clock,
    checked_event,
    checked_id,
    checked_limit,
    checked_value,
    rule_of,
    timeout_ns_of,
)
from headway.once.results import (
    Change,
    Snapshot,
    Submission,
    change_of,
    ns_of,
    seconds_of,
    snapshot_of,
    submission_of,
)
from headway.once.subscription import Subscription

if TYPE_CHECKING:
    from headway.core.once import EventStatus
    from headway.engines.base import Gate, GateLog
    from headway.throttle.decorator import Skipping, Throttling


class Once:
    """A gate: of equal events within `duration` it lets one through (`only`), or none that was repeated (`strict`).

    >>> gate = Once("5min")
    >>> bool(gate.submit("order 7")), bool(gate.submit("order 7")), bool(gate.submit("order 8"))
    (True, False, True)
    >>> [change.event for change in gate.changes() if change.status.name == "PUBLISHED"]
    ['order 7', 'order 8']

    In `only` mode the first of equal events is accepted and published at once; repeats are rejected until `duration`
    after it. In `strict` mode an accepted event is published `duration` later, unless an equal one came meanwhile: that
    one is rejected, and the first is invalidated; it takes `duration` of silence before the next one is accepted.

    `engine` says where the gate is: in this process, or shared with others under its `name`. At most `max_pending`
    events are remembered at a time. The log of changes, and answers to submissions, are kept for `retention` seconds.
    """

    def __init__(
        self,
        duration: Duration,
        mode: Literal["only", "strict"] = "only",
        *,
        name: str | None = None,
        engine: str | Engine | Any = "memory://",
        max_pending: int = 100_000,
        retention: float | timedelta = 3600.0,
        engine_timeout: float | timedelta = 0.25,
        clock: Clock | Any = None,
    ) -> None:
        check_engine(engine)
        rule = rule_of(duration, mode, max_pending, retention)
        source, timeout_ns = as_clock(clock), timeout_ns_of(engine_timeout)
        local = is_local(engine)
        if name is None and local:
            pass
        elif not isinstance(name, str) or not name:
            accepted = "a str that is not empty" + (
                ", or None" if local else ": it says which gate is shared"
            )
            raise InvalidArgument("name", name, accepted)
        self._rule, self._name, self._clock = rule, name, source
        terms = GateTerms(name, source, rule, timeout_ns)
        self._gate: Gate
        if local:
            self._options: dict[str, Any] | None = None
            self._address = "memory://"
            self._gate = open_gate(terms)
        else:
            self._options = {
                "duration": duration, "mode": mode, "name": name, "engine": engine, "max_pending": max_pending,
                "retention": retention, "engine_timeout": engine_timeout, "clock": clock,
            }  # fmt: skip
            opened = open_engine(engine, timeout_ns / 1e9)
            self._address = opened.address
            self._gate = opened.open_gate(terms)
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._closed = False

    @property
    def name(self) -> str | None:
        """The name that it is shared by."""
        return self._name

    @property
    def duration(self) -> float:
        """In seconds.

        >>> Once("5min").duration
        300.0
        """
        return self._rule.duration / 1e9

    @property
    def mode(self) -> str:
        """ "only" or "strict"."""
        return "strict" if self._rule.strict else "only"

    def __repr__(self) -> str:
        name = "" if self._name is None else f", name={self._name!r}"
        return f"Once({duration_text(self._rule.duration)!r}, {self.mode!r}{name})"

    def __reduce__(self) -> Any:
        if self._options is None:
            raise TypeError(
                "a gate on memory:// cannot be pickled: the copy would let the same events through again; "
                "build it where it is used, at module level for instance"
            )
        return _rebuild, (type(self), dict(self._options))

    # -- events ------------------------------------------------------------------------------------------

    def submit(self, event: str, id: str | None = None, value: str | None = None) -> Submission:
        """An event comes. `event` is what must not repeat, `value` is carried along.

        A second submit with the same `id` is no repeat: it is told what the first was told. Raises `GateFull` where
        `max_pending` events are remembered already, and `IdReused` for an id that belongs to another event.

        >>> gate = Once(60)
        >>> gate.submit("order 7", id="a").accepted, gate.submit("order 7", id="a").accepted
        (True, True)
        """
        return submission_of(self._open().submit(*_checked(event, id, value)))

    async def submit_async(self, event: str, id: str | None = None, value: str | None = None) -> Submission:
        """`submit` for a task."""
        return submission_of(await self._open().submit_async(*_checked(event, id, value)))

    def status(self, id: str) -> EventStatus | None:
        """What became of the submission with this id; None if it is not known, or not any more.

        >>> gate = Once(60)
        >>> _ = gate.submit("order 7", id="a"), gate.submit("order 7", id="b")
        >>> gate.status("a").name, gate.status("b").name, gate.status("c")
        ('PUBLISHED', 'REJECTED', None)
        """
        return self._open().status(checked_id(id))

    async def status_async(self, id: str) -> EventStatus | None:
        """`status` for a task."""
        return await self._open().status_async(checked_id(id))

    # -- the log -----------------------------------------------------------------------------------------

    def changes(self, since: int = 0, limit: int | None = None) -> list[Change]:
        """What happened after clock `since`, in order, or the first `limit` of it; raises `ChangesGone` if some of it
        is not kept any more.

        >>> gate = Once(60)
        >>> _ = gate.submit("order 7"), gate.submit("order 8")
        >>> [change.clock for change in gate.changes(1)], [change.clock for change in gate.changes(1, limit=2)]
        ([2, 3, 4], [2, 3])
        """
        gate, clock, most = self._open(), checked_clock(since), checked_limit(limit)
        found: list[Change] = []
        log = gate.changes(clock)
        while self._read(log, clock, found) and (most is None or len(found) < most):
            log = gate.changes(found[-1].clock)
        return found[:most]

    async def changes_async(self, since: int = 0, limit: int | None = None) -> list[Change]:
        """`changes` for a task."""
        gate, clock, most = self._open(), checked_clock(since), checked_limit(limit)
        found: list[Change] = []
        log = await gate.changes_async(clock)
        while self._read(log, clock, found) and (most is None or len(found) < most):
            log = await gate.changes_async(found[-1].clock)
        return found[:most]

    def _read(self, log: GateLog, since: int, found: list[Change]) -> bool:
        """Take a part of the log in; whether more is to be read."""
        began = seconds_of(log.began)
        if log.changes is None or since > log.clock or (found and found[-1].began != began):
            raise ChangesGone(since, log.oldest, log.clock)
        found.extend(change_of(line, log.began) for line in log.changes)
        return bool(log.changes) and found[-1].clock < log.clock

    def snapshot(self) -> Snapshot:
        """What is pending, and the clock value to which that belongs: changes after it tell all that follows."""
        return snapshot_of(self._open().snapshot())

    async def snapshot_async(self) -> Snapshot:
        """`snapshot` for a task."""
        return snapshot_of(await self._open().snapshot_async())

    def subscribe(self, since: int | Change | Snapshot | None = None) -> Subscription:
        """Changes as they happen, for `for` and for `async for`; it ends when it is closed, or the gate here.

        None: a `Snapshot` comes first, of the moment when the first value is asked for, and then every change after it.
        Otherwise every change after that clock value; a `Snapshot` comes first if some are not kept any more. A
        `Change` or `Snapshot` of an earlier subscription says the clock value too, and also notices if the gate was
        lost and has begun anew since.
        """
        began: int | None = None
        last: tuple[str, int, int] | int | None = None
        if isinstance(since, Change | Snapshot):
            clock: int | None = since.clock
            began = ns_of(since.began)
            if isinstance(since, Change):
                last = since.id, int(since.status), ns_of(since.time)
            elif since.clock:
                last = ns_of(since.time)
        else:
            clock = None if since is None else checked_clock(since)
        subscription = Subscription(self._open(), self._clock, clock, began, last)
        self._subscriptions.add(subscription)
        return subscription

    # -- calls -------------------------------------------------------------------------------------------

    @overload
    def guard(
        self, key: str | int | Callable[..., str | int] | None = None, *, on_repeat: Literal["skip"] = "skip"
    ) -> Skipping: ...
    @overload
    def guard(
        self, key: str | int | Callable[..., str | int] | None = None, *, on_repeat: Literal["raise"]
    ) -> Throttling: ...
    def guard(
        self,
        key: str | int | Callable[..., str | int] | None = None,
        *,
        on_repeat: Literal["skip", "raise"] = "skip",
    ) -> Any:
        """A decorator: the call runs if its event is let through. `key` makes the event of the call's arguments.

        >>> seen = []
        >>> @Once("5min").guard(key=lambda order: order)
        ... def handle(order):
        ...     seen.append(order)
        ...     return "done"
        >>> handle("order 7"), handle("order 7"), seen
        ('done', None, ['order 7'])

        In `only` mode it runs at once. In `strict` mode the caller waits until the event is published, and then the
        call runs; it does not if the event was repeated meanwhile. A call that does not run returns None, or raises
        `EventRepeated` with `on_repeat="raise"`. Without `key`, the event is the function's own name.
        """
        return guarded(self, key, on_repeat)

    # -- the end -----------------------------------------------------------------------------------------

    def _open(self) -> Gate:
        if self._closed:
            raise GateClosed(self._name)
        return self._gate

    def close(self) -> None:
        """End its subscriptions, and refuse every verb from now on. Events are kept: other gates of this name go on.

        >>> gate = Once(60)
        >>> gate.close()
        >>> gate.submit("order 7")
        Traceback (most recent call last):
        headway.errors.GateClosed: the gate is closed
        """
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()
        self._gate.close()

    async def close_async(self) -> None:
        """`close` for a task."""
        self.close()


def _checked(event: Any, id: Any, value: Any) -> tuple[str, str, str | None]:
    own = new_id() if id is None else checked_id(id)
    return checked_event(event), own, None if value is None else checked_value(value)


def new_id() -> str:
    """As `uuid.uuid4().hex`, in a fifth of the time.

    >>> import uuid
    >>> uuid.UUID(new_id()).version
    4
    """
    digits = os.urandom(16).hex()
    return f"{digits[:12]}4{digits[13:16]}{_VARIANT[digits[16]]}{digits[17:]}"


_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
"""The digit of a UUID that says how it is laid out."""


def _rebuild(kind: type[Once], options: dict[str, Any]) -> Once:
    return kind(**options)
