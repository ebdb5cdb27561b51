"""Events that may happen once: which are let through, what became of each, and in which order.

Webhooks are delivered twice, sensors chatter, two workers find the same thing at the same moment. The naive remedy is
a set of what was seen: it grows for ever, says nothing to a program that looks later, and cannot take back what turned
out to be a repeat. A *gate* remembers for a `duration`, and keeps a log. It has two modes.

    only     the first of equal events is accepted, those within `duration` after it are rejected. A rejected event does
             not count: the next one is accepted when the *accepted* one is `duration` ago.
    strict   an event is let through only if it did not repeat at all. A repeat within `duration` is rejected, *and* it
             invalidates the one that was accepted before. Every event counts, a rejected one too: it takes `duration`
             of silence before the next one is accepted.

Exactly `duration` apart is no conflict.

**Lifecycle.** An accepted event is `SUBMITTED`. It ends in one of two ways, and never in both:

    from          what happens                                    to            mode
    (none)        the event comes, and no conflict is known       SUBMITTED     both
    SUBMITTED     at once                                         PUBLISHED     only
    SUBMITTED     its duration has passed without a repeat        PUBLISHED     strict
    SUBMITTED     an equal event comes before that                INVALIDATED   strict

In `only` mode nothing can invalidate an event, so it is published in the step that accepts it. In `strict` mode it is
*pending* meanwhile, and due `duration` after it came. An event that is due is published however late that is noticed: a
repeat that comes later than that, and before it was noticed, finds it published (`advance` comes first in every step).

**The scalar clock.** Every change of a status is one tick, and has a line in the log: the clock counts the lines. So a
lesser value happened before a greater one, and a value that is missing was not seen. A `snapshot` is what is pending,
and the clock to which that belongs: a client that has a snapshot of clock c and all changes after c has the state at
every later value. Within one step, lines are written in the order of their times: what was due comes first, in the
order of being due and then of being submitted.

**Twice is once.** A submit has an `id`. The answer to it is kept, and given again to a repetition, so that a client
that lost the answer may ask again. A repetition is not a repeat: it invalidates nothing, and extends nothing.

**Bounds.** Pending events, and those that are remembered because an equal one would conflict, are `max_pending` at
most: one more is refused, and nothing changes. Of the log and of answers the last `retention` is kept, by time, and
never less than `duration`. A subscriber that was away for longer is told that lines are missing (`changes` returns
None), and takes a snapshot.

Worked example, a duration of 3 s, events at 1 (pizza), 2, 3, 4 and 7 (taco).

    only     1 pizza accepted; 2 taco accepted; 3 and 4 rejected, as 2 is less than 3 s ago; 7 accepted
    strict   1 pizza accepted, published at 4. 2 taco accepted; 3 rejected, and 2 is invalidated; 4 rejected, as 3 is
             1 s ago; 7 accepted, as 4 is 3 s ago; published at 10

Times are integer nanoseconds of one clock. An earlier one counts as the latest seen: in a fleet it is the engine's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import IntEnum
from typing import NamedTuple

from headway.core.durations import duration_text
from headway.core.ledger import LONG_AGO
from headway.errors import GateFull, IdReused


class EventStatus(IntEnum):
    """What became of an event.

    >>> EventStatus.PUBLISHED.name
    'PUBLISHED'
    """

    REJECTED = 0
    SUBMITTED = 1
    INVALIDATED = 2
    PUBLISHED = 3


SUBMITTED, INVALIDATED, PUBLISHED = EventStatus.SUBMITTED, EventStatus.INVALIDATED, EventStatus.PUBLISHED

TRANSITIONS = (
    # from, what happens, to, mode
    (None, "the event comes, and no conflict is known", SUBMITTED, "both"),
    (SUBMITTED, "at once", PUBLISHED, "only"),
    (SUBMITTED, "its duration has passed without a repeat", PUBLISHED, "strict"),
    (SUBMITTED, "an equal event comes before that", INVALIDATED, "strict"),
)
"""The table above, for the diagram of the docs and for tests."""


class Change(NamedTuple):
    """A line of the log: at `clock` the event with this id got this status."""

    clock: int
    status: EventStatus
    id: str
    event: str
    value: str | None
    time: int


class Submission(NamedTuple):
    """The answer to a submit.

    Accepted: `clock` is that of its line SUBMITTED, `due` when it is published. Rejected: `clock` is the gate's,
    `conflict` the id of the event that it repeats.
    """

    accepted: bool
    id: str
    clock: int
    due: int
    conflict: str | None = None


class Pending(NamedTuple):
    """An event that was submitted and has not ended."""

    id: str
    event: str
    value: str | None
    time: int
    due: int
    clock: int


class Snapshot(NamedTuple):
    """What is pending, in the order of being due, at this value of the clock."""

    clock: int
    time: int
    pending: tuple[Pending, ...]


class Seen(NamedTuple):
    """The last event of its kind that counts: when it came, and its id."""

    time: int
    id: str


class OnceRule(NamedTuple):
    """What a gate keeps. All gates of one name have the same duration and mode."""

    duration: int
    strict: bool
    max_pending: int
    retention: int

    def __str__(self) -> str:
        """As a person reads it.

        >>> str(OnceRule(3 * 10**9, True, 10, 0)), str(OnceRule(3600 * 10**9, False, 10, 0))
        ('strict 3s', 'only 1 hour')
        """
        text = duration_text(self.duration)
        return f"{'strict' if self.strict else 'only'} {'' if text[0].isdigit() else '1 '}{text}"


class OnceGate:
    """One gate.

    >>> gate = OnceGate(OnceRule(duration=3, strict=True, max_pending=10, retention=100))
    >>> [gate.submit(at, "taco", f"t{at}").accepted for at in (2, 3, 4, 7)]
    [True, False, False, True]
    >>> gate.snapshot(10).pending
    ()
    >>> [(change.clock, change.status.name, change.id) for change in gate.changes(0)]
    [(1, 'SUBMITTED', 't2'), (2, 'INVALIDATED', 't2'), (3, 'SUBMITTED', 't7'), (4, 'PUBLISHED', 't7')]
    """

    __slots__ = ("answers", "clock", "log", "now", "pending", "rule", "seen")

    def __init__(self, rule: OnceRule) -> None:
        self.rule = rule
        self.clock = 0
        self.now = LONG_AGO
        # All in the order of time: what is old is in front. A plain dict finds its first key only behind the places of
        # all that were deleted before it, which takes for ever with a million.
        self.pending: OrderedDict[str, Pending] = OrderedDict()  # by event
        self.seen: OrderedDict[str, Seen] = OrderedDict()  # by event
        self.log: deque[Change] = deque()
        self.answers: OrderedDict[str, tuple[int, str, Submission, EventStatus]] = OrderedDict()  # by id

    # -- time

    def advance(self, now: int) -> int:
        """Let time act: publish what is due, forget what is old. Returns the time that counts."""
        self.now = now = max(now, self.now)
        while self.pending:
            event = next(iter(self.pending))
            if self.pending[event].due > now:
                break
            self._end(self.pending.pop(event), PUBLISHED, now)
        while self.seen:
            event = next(iter(self.seen))
            if self.seen[event].time + self.rule.duration > now:
                break
            del self.seen[event]
        old = now - max(self.rule.retention, self.rule.duration)
        while self.log and self.log[0].time < old:
            self.log.popleft()
        while self.answers:
            id = next(iter(self.answers))
            when, event, _, status = self.answers[id]
            if when >= old or (status == SUBMITTED and event in self.pending):
                break
            del self.answers[id]
        return now

    def next_due(self) -> int | None:
        """When the next event is due; None if none is pending."""
        return next(iter(self.pending.values())).due if self.pending else None

    # -- commands

    def submit(self, now: int, event: str, id: str, value: str | None = None) -> Submission:
        """An event comes; what its first submission with this id was told, if there was one."""
        now = self.advance(now)
        known = self.answers.get(id)
        if known is not None:
            if known[1] != event:
                raise IdReused(id, known[1], event)
            return known[2]
        seen = self.seen.get(event)
        if seen is not None:
            return self._reject(now, event, id, seen)
        if len(self.seen) >= self.rule.max_pending:
            oldest = next(iter(self.seen.values()))
            raise GateFull(self.rule.max_pending, (oldest.time + self.rule.duration - now) / 1e9)
        self.seen[event] = Seen(now, id)
        due = now + self.rule.duration if self.rule.strict else now
        pending = Pending(id, event, value, now, due, self._tick(SUBMITTED, id, event, value, now))
        answer = Submission(True, id, pending.clock, due)
        self.answers[id] = (now, event, answer, SUBMITTED)
        if self.rule.strict:
            self.pending[event] = pending
        else:
            self._end(pending, PUBLISHED, now)
        return answer

    def _reject(self, now: int, event: str, id: str, seen: Seen) -> Submission:
        if self.rule.strict:
            # It counts: silence begins anew. And what it repeats is not let through.
            self.seen[event] = Seen(now, id)
            self.seen.move_to_end(event)
            repeated = self.pending.pop(event, None)
            if repeated is not None:
                self._end(repeated, INVALIDATED, now)
        answer = Submission(False, id, self.clock, 0, seen.id)
        self.answers[id] = (now, event, answer, EventStatus.REJECTED)
        return answer

    def _end(self, pending: Pending, status: EventStatus, now: int) -> None:
        self._tick(status, pending.id, pending.event, pending.value, now)
        known = self.answers.get(pending.id)
        if known is not None:
            self.answers[pending.id] = (known[0], known[1], known[2], status)

    def _tick(self, status: EventStatus, id: str, event: str, value: str | None, now: int) -> int:
        self.clock += 1
        self.log.append(Change(self.clock, status, id, event, value, now))
        return self.clock

    # -- questions

    def status(self, now: int, id: str) -> EventStatus | None:
        """What became of the submission with this id; None if it is not known (any more)."""
        self.advance(now)
        known = self.answers.get(id)
        return None if known is None else known[3]

    def changes(self, since: int) -> list[Change] | None:
        """What happened after clock `since`, in order; None if some of it is not kept any more."""
        oldest = self.clock - len(self.log)
        if since < oldest:
            return None
        return [self.log[i] for i in range(since - oldest, len(self.log))]

    def snapshot(self, now: int) -> Snapshot:
        """What is pending, and the clock to which that belongs."""
        now = self.advance(now)
        return Snapshot(self.clock, now, tuple(self.pending.values()))
