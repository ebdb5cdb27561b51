"""What a user gets from a gate: values, with times in seconds since 1970 by the engine's clock.

A float of such a time is exact to a quarter of a microsecond, and has no more digits than that. It is there to be shown
and stored: whether an event conflicts with another, and when it is due, was decided in whole numbers by the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headway.core.once import EventStatus

if TYPE_CHECKING:
    from headway.core import once as core
    from headway.engines.base import GateView


class Submission(NamedTuple):
    """The answer to a submit; true if the event was accepted.

    Accepted: `clock` is that of its change SUBMITTED, and `due` is when it is published (in `only` mode it is published
    already). Rejected: `clock` is the gate's, `due` is None, and `conflict` is the id of the event that it repeats.

    >>> from headway import Once
    >>> gate = Once(60)
    >>> bool(gate.submit("order 7", id="a")), gate.submit("order 7", id="b").conflict
    (True, 'a')
    """

    accepted: bool
    id: str
    clock: int
    due: float | None
    conflict: str | None = None

    def __bool__(self) -> bool:
        return self.accepted


class Change(NamedTuple):
    """A line of a gate's log: at `clock` the event with this id got this status. `began` is when the gate began.

    >>> from headway import Once
    >>> gate = Once(60)
    >>> _ = gate.submit("order 7", value="2 pizzas")
    >>> [(change.clock, change.status.name, change.event, change.value) for change in gate.changes()]
    [(1, 'SUBMITTED', 'order 7', '2 pizzas'), (2, 'PUBLISHED', 'order 7', '2 pizzas')]
    """

    clock: int
    status: EventStatus
    id: str
    event: str
    value: str | None
    time: float
    began: float


class Pending(NamedTuple):
    """An event that was submitted, at `time` and `clock`, and is published when it is `due`."""

    id: str
    event: str
    value: str | None
    time: float
    due: float
    clock: int


class Snapshot(NamedTuple):
    """A key frame: what is pending at this value of the clock, in the order of being due.

    >>> from headway import Once
    >>> gate = Once(60, "strict")
    >>> _ = gate.submit("disk full")
    >>> snapshot = gate.snapshot()
    >>> snapshot.clock, [pending.event for pending in snapshot.pending]
    (1, ['disk full'])
    """

    clock: int
    time: float
    pending: tuple[Pending, ...]
    began: float


def seconds_of(ns: int) -> float:
    """A time as a user is given it: the float that is nearest, where a division of floats is off by a digit or two.

    >>> seconds_of(1704067200_750_000_000), 1704067200_750_000_000 / 1e9
    (1704067200.75, 1704067200.7500002)
    """
    return ns / 10**9


def ns_of(seconds: float) -> int:
    """A time that a user was given, in nanoseconds of whole microseconds: so far its float is exact."""
    return round(seconds * 1e6) * 1000


def submission_of(found: core.Submission) -> Submission:
    due = seconds_of(found.due) if found.accepted else None
    return Submission(found.accepted, found.id, found.clock, due, found.conflict)


def change_of(found: core.Change, began: int) -> Change:
    return Change(*found[:5], seconds_of(found.time), seconds_of(began))


def snapshot_of(view: GateView) -> Snapshot:
    began, (clock, time, pending) = view
    events = tuple(
        Pending(one.id, one.event, one.value, seconds_of(one.time), seconds_of(one.due), one.clock)
        for one in pending
    )
    return Snapshot(clock, seconds_of(time), events, seconds_of(began))
