"""What should have happened at a gate, worked out by brute force from the definition, and the law.

`Definition` reads the submissions with the server's times and asks of each, looking at all that came before it: was it
heard before under this id? Is there an equal event that counts less than `duration` ago? It forgets nothing and keeps
no window and no queue, so it shares no mistake with the gate that it judges. `broken` compares every answer and line.

`law` reads nothing but the lines: clock values without gaps, times in order, submitted before its end, one end for each
event and never two; and at the end of a world that every accepted event has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headway.core.once import INVALIDATED, PUBLISHED, SUBMITTED, Change, EventStatus, OnceRule
from headway.engines.base import GateLog, GateView
from headway.errors import GateFull, IdReused
from headway.lab.once.server import History, Step

Answer = tuple[bool, str, int, int, str | None]
"""Accepted or not, id, clock, due, conflict."""


class Came(NamedTuple):
    """A submission that was heard for the first time and not refused."""

    time: int
    event: str
    id: str
    value: str | None
    answer: Answer


def law(lines: tuple[Change, ...], kept: int, *, ended: bool = True) -> Iterator[str]:
    """Where the lines of one gate break the law. An id may begin again when its answer is not `kept` any more."""
    states: dict[str, tuple[EventStatus, int]] = {}
    for place, line in enumerate(lines, 1):
        if line.clock != place:
            yield f"clock {line.clock} in place {place}"
        if place > 1 and line.time < lines[place - 2].time:
            yield f"line {place} is earlier than the one before"
        before = states.get(line.id)
        if line.status == SUBMITTED:
            if before is not None and (before[0] == SUBMITTED or line.time - before[1] < kept):
                yield f"{line.id} was submitted twice"
            states[line.id] = SUBMITTED, line.time
        else:
            if before is None:
                yield f"{line.id} ended before it was submitted"
            elif before[0] != SUBMITTED:
                yield f"{line.id} ended twice"
            states[line.id] = line.status, 0 if before is None else before[1]
    if ended:
        yield from (f"{id} never ended" for id, (status, _) in states.items() if status == SUBMITTED)


class Definition:
    """The definition of a gate, asked one step after another. It forgets nothing."""

    def __init__(self, rule: OnceRule) -> None:
        self.rule = rule
        self.kept = max(rule.retention, rule.duration)
        self.now = 0
        self.came: list[Came] = []
        self.lines: list[Change] = []
        self.ended: set[int] = set()  # by the clock of the submission

    def answer(self, step: Step) -> Any:
        """What the server should say; the lines that it should write are in `lines`."""
        self.now = max(self.now, step.time)
        # All that is due, in the order of being due and then of being submitted.
        for came in sorted(self.pending(), key=lambda came: (came.answer[3], came.answer[2])):
            if came.answer[3] <= self.now:
                self._line(PUBLISHED, came)
        match step.verb:
            case "submit":
                return self.submit(*step.arguments)
            case "status":
                return self.status(*step.arguments)
            case "changes":
                return self.changes(*step.arguments)
            case _:
                return len(self.lines), self.now, [came.id for came in self.pending()]

    def pending(self) -> list[Came]:
        """What was accepted and has not ended."""
        return [came for came in self.came if came.answer[0] and came.answer[2] not in self.ended]

    def submit(self, event: str, id: str, value: str | None) -> Any:
        strict, duration, now = self.rule.strict, self.rule.duration, self.now
        for came in self.came:
            if came.id == id and came.time >= now - self.kept:
                return came.answer if came.event == event else IdReused
        # What counts: in `only` mode an accepted event, in `strict` mode every one.
        near = [came for came in self.came if (strict or came.answer[0]) and now - came.time < duration]
        equal = [came for came in near if came.event == event]
        if equal:
            first = [came for came in self.pending() if came.event == event]
            if strict and first:
                self._line(INVALIDATED, first[0])
            answer: Answer = False, id, len(self.lines), 0, equal[-1].id
        elif len({came.event for came in near}) >= self.rule.max_pending:
            return GateFull
        else:
            answer = True, id, len(self.lines) + 1, now + strict * duration, None
        came = Came(now, event, id, value, answer)
        self.came.append(came)
        if answer[0]:
            self._line(SUBMITTED, came)
            if not strict:
                self._line(PUBLISHED, came)
        return answer

    def _line(self, status: EventStatus, came: Came) -> None:
        self.lines.append(Change(len(self.lines) + 1, status, came.id, came.event, came.value, self.now))
        if status != SUBMITTED:
            self.ended.add(came.answer[2])

    def status(self, id: str) -> EventStatus | None:
        for came in reversed(self.came):
            if came.id == id and came.time >= self.now - self.kept:
                if not came.answer[0]:
                    return EventStatus.REJECTED
                return next(line.status for line in reversed(self.lines) if line.id == id)
        return None

    def changes(self, since: int) -> tuple[int, list[int] | None]:
        """The clock, and the values after `since`; None if some are older than what is kept."""
        after = self.lines[since:]
        gone = bool(after) and after[0].time < self.now - self.kept
        return len(self.lines), None if gone else [line.clock for line in after]


def broken(rule: OnceRule, history: History, *, ended: bool) -> Iterator[str]:
    """Where a history is not what the definition says, or against the law."""
    yield from law(history.lines, max(rule.retention, rule.duration), ended=ended)
    definition = Definition(rule)
    for number, step in enumerate(history.steps):
        should = definition.answer(step)
        if (was := _plain(step.answer)) != should:
            yield f"step {number} {step.verb}{step.arguments}: {was} instead of {should}"
            return
    for was_line, line in zip(history.lines, definition.lines, strict=False):
        if was_line != line:
            yield f"{was_line} instead of {line}"
            return
    if len(history.lines) != len(definition.lines):
        yield f"{len(history.lines)} lines instead of {len(definition.lines)}"


def _plain(answer: Any) -> Any:
    """An answer as the definition gives it."""
    if isinstance(answer, Exception):
        return type(answer)
    if isinstance(answer, GateLog):
        return answer.clock, None if answer.changes is None else [line.clock for line in answer.changes]
    if isinstance(answer, GateView):
        return answer.snapshot.clock, answer.snapshot.time, [one.id for one in answer.snapshot.pending]
    return answer if answer is None or isinstance(answer, EventStatus) else tuple(answer)
