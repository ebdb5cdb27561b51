"""Waiting for a shared ledger, written once: what happens, without doing it.

The flows of `headway.flows.local` ask a ledger in this process, which answers at once. Here the ledger is behind an
engine (`headway.engines.base`), so sending a command is an effect too. The engine says what the next step of a wait
is; the flow takes the steps, and gives up when its caller's deadline comes first.

What goes wrong with an effect is raised where the flow yielded it. Whatever ends a flow early (a cancellation, Ctrl-C)
withdraws the request: a place in the queue or a promised slot goes back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from headway.engines.base import Acquire, Action, Check, Command, Peek
from headway.errors import HeadwayError, LimiterClosed
from headway.flows.local import DeadlinePassed

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.base import Decision, Ledgers, Report, Step

_T = TypeVar("_T")


class Send(NamedTuple):
    """Send a command; the answer is the engine's."""

    command: Command


class Park(NamedTuple):
    """Sleep for so long, or until the decision's waker is called."""

    decision: Decision
    wait_ns: int


Flow: TypeAlias = Generator[Send | Park, Any, _T]


class QueueFull(DeadlinePassed):
    """More callers wait already than `max_waiting`."""


class Refused(Exception):
    """A wait has ended without a permit; `decision` is the last one, `report` how things stand."""

    def __init__(self, decision: Decision, report: Report | None, reason: str) -> None:
        super().__init__(reason)
        self.decision = decision
        self.report = report
        self.reason = reason


def acquire_flow(
    ledgers: Ledgers,
    name: str,
    command: Acquire,
    decision: Decision,
    clock: Clock,
    deadline: int | None,
    most: int | None,
) -> Flow[Decision]:
    """From the engine's first answer until a permit may be spent; returns the decision that granted it.

    Raises `Refused` when `deadline` comes first, and at once when `most` callers wait already.
    """
    try:
        if most is not None and ledgers.waiting >= most:
            raise QueueFull
        ledgers.begin_wait(decision)
        while (step := decision.next_step()).action != Action.SPEND:
            if ledgers.closed:
                raise LimiterClosed(name)
            if step.action == Action.GIVE_UP:
                raise DeadlinePassed
            if step.action == Action.CHECK:
                yield Send(Check(decision))
            elif step.action == Action.ACQUIRE_AGAIN:
                longest = None if deadline is None else max(0, deadline - clock.now())
                again = yield Send(command._replace(longest_ns=longest))
                ledgers.begin_wait(again)
                ledgers.end_wait(decision)
                decision = again
            else:
                yield from _wait(decision, step, clock, deadline)
        if ledgers.closed:
            raise LimiterClosed(name)
    except DeadlinePassed as late:
        decision.withdraw()
        report = yield from final_report(command, decision)
        raise Refused(decision, report, "max_waiting" if isinstance(late, QueueFull) else "timeout") from None
    except BaseException:
        decision.withdraw()
        raise
    finally:
        ledgers.end_wait(decision)
    return decision


def _wait(decision: Decision, step: Step, clock: Clock, deadline: int | None) -> Flow[None]:
    wait_ns = step.wait_ns
    if deadline is not None:
        left = deadline - clock.now()
        if left <= 0 or step.least_ns > left:
            raise DeadlinePassed
        wait_ns = min(wait_ns, left)
    yield Park(decision, wait_ns)


def final_report(command: Acquire, decision: Decision) -> Flow[Report | None]:
    """How things stand for a caller that gave up. A queued request was told only when to look again."""
    if decision.rows():
        return decision
    try:
        report: Report = yield Send(Peek(command.keys, command.costs))
    except HeadwayError:
        return None  # the caller is late already, and that is what it hears
    return report


def slot_flow(decision: Decision) -> Flow[None]:
    """Until a reserved slot has come, or the decision is revoked."""
    while (step := decision.next_step()).action not in (Action.SPEND, Action.ACQUIRE_AGAIN):
        yield Send(Check(decision)) if step.action == Action.CHECK else Park(decision, step.wait_ns)
