"""What happens, without doing it: waiting written once, for threads and for tasks.

A flow is a generator. It yields what it wants done (an *effect*), and finds the answer in the effect or in its
ticket; its driver (`headway.flows.drive`) decides whether a thread blocks or a task is suspended. A cancellation or
Ctrl-C can stop a flow at every yield; its driver then takes its ticket out of the queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.core.wait_queue import Ticket


class Decide:
    """Let the engine decide on the ticket; `ticket.granted` is the answer."""

    __slots__ = ()


class Park:
    """Sleep until the ticket's bell rings, or until `until` (None: only the bell); `woke` is when it was over."""

    __slots__ = ("until", "woke")

    def __init__(self) -> None:
        self.until: int | None = None
        self.woke = 0


class DeadlinePassed(Exception):
    """The deadline came first; the front end turns it into `RateLimited`."""


Effect = Decide | Park
Flow = Iterator[Effect]

DECIDE = Decide()


def wait_in_line(ticket: Ticket, deadline: int | None) -> Flow:
    """Until `ticket`, which stands in line, is granted; raises `DeadlinePassed` when `deadline` (a time of the clock)
    passes first.

    After every sleep the engine is asked again: sleeps end early, and the line may have changed. It is also
    asked at the deadline, so that what becomes free at that very moment is not missed.
    """
    park = Park()
    while True:
        park.until = ticket.ready
        if deadline is not None and (park.until is None or park.until > deadline):
            park.until = deadline
        yield park
        yield DECIDE
        if ticket.granted:
            return
        if deadline is not None and park.woke >= deadline:
            raise DeadlinePassed


def wait_for_slot(until: int, now: int) -> Flow:
    """Until a reserved slot has come."""
    park = Park()
    park.until = until
    park.woke = now
    while park.woke < until:
        yield park
