"""What happens, without doing it: waiting written once, for threads and for tasks.

A flow is a generator. It yields what it wants done (an *effect*) and is sent the answer; who runs it
(`headway.drive`) decides whether a thread blocks or a task is suspended. A flow can be stopped at every yield,
by a cancellation or by Ctrl-C; its ticket is then taken out of the line by who ran it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from headway.core.line import Ticket


class Ask(NamedTuple):
    """Let the engine decide on a ticket; the answer is whether it was granted."""

    ticket: Ticket


class Park(NamedTuple):
    """Sleep until the ticket's bell rings, or until `until` (None: only the bell)."""

    ticket: Ticket
    until: int | None


class Late(Exception):
    """The deadline came first; the front end turns it into `RateLimited`."""


Effect = Ask | Park
Flow = Generator[Effect, Any, None]


def wait_in_line(ticket: Ticket, deadline: int | None) -> Flow:
    """Until `ticket`, which stands in line, is granted; raises `Late` when `deadline` (a time of the clock)
    passes first.

    After every sleep the engine is asked again: sleeps end early, and the line may have changed. It is also
    asked at the deadline, so that what becomes free at that very moment is not missed.
    """
    while True:
        until = ticket.ready
        if deadline is not None and (until is None or until > deadline):
            until = deadline
        now = yield Park(ticket, until)
        if (yield Ask(ticket)):
            return
        if deadline is not None and now >= deadline:
            raise Late


def wait_for_slot(ticket: Ticket, until: int, now: int) -> Flow:
    """Until a reserved slot has come."""
    while now < until:
        now = yield Park(ticket, until)
