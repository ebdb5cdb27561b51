"""A copy of a gate's state, kept by what a subscription hands out, that never is wrong without knowing.

The naive copy applies whatever comes. It is wrong for ever after the first change that it did not get: an event stays
pending that has ended long ago. What helps is the gate's clock. A copy that is at clock c applies the change c + 1 and
no other, and so equals the gate at every value that it is at:

    what comes                                     what it does
    a key frame (`Snapshot`)                       takes it, whatever it had: it is the whole state at its clock value
    the next change of the same gate               applies it
    an older change, or the last one again         ignores it: it was delivered twice
    a change further on                            a gap: from now on it needs a key frame
    a change of a gate that began at another time  the same: its gate was lost, and another has its name
    a change that contradicts: another one with    the same: a server has lost lines and written others
      the last clock value, or the end of an event
      that is not pending, or its second beginning

While it needs a key frame it applies no change. Its state is still that of the gate at `clock`, only not the latest.

A key frame is believed even if it is older than the copy: a server that has lost its last lines is at an older value.
A key frame that merely came late costs nothing but another key frame, since the next change then is a gap.

`since` is what to resume with after a lost connection: `gate.subscribe(since=replica.since)` hands out what is missing,
or a key frame if it is not kept any more. Where the copy needs a key frame `since` is None, and so one comes first.

A change does not say when its event is due. That is `duration` after it came in `strict` mode, and at once in `only`
mode, so a copy is made with the duration and mode of its gate. The times are those of the engine, and no clock is read
here.
"""

from __future__ import annotations

from typing import Literal

from headway.core.durations import Duration
from headway.core.once import EventStatus
from headway.errors import InvalidArgument
from headway.once.input import rule_of
from headway.once.results import Change, Pending, Snapshot, ns_of, seconds_of


class Replica:
    """What is pending at a gate, by the changes and key frames of a subscription. For one thread or task at a time.

    >>> from headway import Once
    >>> gate = Once(60, "strict")
    >>> _ = gate.submit("disk full")
    >>> replica = Replica(60, "strict")
    >>> replica.needs_key_frame
    True
    >>> replica.apply(gate.snapshot())
    True
    >>> _ = gate.submit("disk full"), gate.submit("fan stuck")  # a repeat, and another event
    >>> for change in gate.changes(replica.clock):
    ...     _ = replica.apply(change)
    >>> replica.clock, [pending.event for pending in replica.pending]
    (3, ['fan stuck'])
    >>> replica.pending == gate.snapshot().pending
    True
    """

    __slots__ = ("_due_after", "_gap", "_pending", "_since")

    def __init__(self, duration: Duration, mode: Literal["only", "strict"] = "only") -> None:
        rule = rule_of(duration, mode, 1, 0)
        self._due_after = rule.duration if rule.strict else 0
        self._pending: dict[str, Pending] = {}  # by id, in the order of being due
        self._since: Change | Snapshot | None = None  # what was applied last
        self._gap = False

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What is pending at `clock`, in the order of being due."""
        return tuple(self._pending.values())

    @property
    def clock(self) -> int:
        """The value of the gate's clock that it is at; 0 before anything came."""
        return 0 if self._since is None else self._since.clock

    @property
    def began(self) -> float | None:
        """When its gate began; None before anything came."""
        return None if self._since is None else self._since.began

    @property
    def needs_key_frame(self) -> bool:
        """Whether something is missing: changes are not applied until a `Snapshot` comes."""
        return self._gap or self._since is None

    @property
    def since(self) -> Change | Snapshot | None:
        """What to give to `Once.subscribe` in order to go on; None where a key frame is needed."""
        return None if self._gap else self._since

    def apply(self, item: Change | Snapshot) -> bool:
        """Take in what a subscription handed out; whether it was applied."""
        if isinstance(item, Snapshot):
            self._pending = {pending.id: pending for pending in item.pending}
            self._since, self._gap = item, False
            return True
        if not isinstance(item, Change):
            raise InvalidArgument("item", item, "a Change or a Snapshot of a subscription")
        if self._gap or self._was_applied(item):
            return False
        # The first change of a gate needs no key frame: before it there was nothing.
        follows = item.clock == self.clock + 1 and self.began in (None, item.began)
        if not follows or not self._fits(item):
            self._gap = True
            return False
        if item.status is EventStatus.SUBMITTED:
            due = seconds_of(ns_of(item.time) + self._due_after)
            self._pending[item.id] = Pending(item.id, item.event, item.value, item.time, due, item.clock)
        else:
            del self._pending[item.id]
        self._since = item
        return True

    def _was_applied(self, change: Change) -> bool:
        last = self._since
        if last is None or change.began != last.began:
            return False
        return change.clock < last.clock or (
            change.clock == last.clock and (isinstance(last, Snapshot) or change == last)
        )

    def _fits(self, change: Change) -> bool:
        """Whether this can happen to the event: it begins once, and ends once after that."""
        return (change.status is EventStatus.SUBMITTED) != (change.id in self._pending)

    def __repr__(self) -> str:
        gap = ", needs a key frame" if self.needs_key_frame else ""
        return f"<Replica at clock {self.clock}: {len(self._pending)} pending{gap}>"
