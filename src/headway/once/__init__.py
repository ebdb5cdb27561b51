"""Events that must not repeat: gates that let an event through once, and tell what became of it.

    gate            `Once`: the verbs
    subscription    changes as they happen, for threads and for tasks
    replica         a copy of a gate's state, kept by what a subscription hands out
    guard           the decorator: a call that runs if its event is let through
    input           what a user gives, checked
    results         what a user gets: `Submission`, `Change`, `Snapshot`, `Pending`
    stomp           gates over STOMP on WebSocket: `stomp_app`, which is imported when it is asked for

What is decided, and in which order, is below: `headway.core.once`.
"""

from typing import TYPE_CHECKING, Any

from headway.core.once import EventStatus
from headway.once.gate import Once
from headway.once.replica import Replica
from headway.once.results import Change, Pending, Snapshot, Submission
from headway.once.subscription import Subscription

if TYPE_CHECKING:
    from headway.once.stomp import stomp_app

__all__ = [
    "Change",
    "EventStatus",
    "Once",
    "Pending",
    "Replica",
    "Snapshot",
    "Submission",
    "Subscription",
    "stomp_app",
]


def __getattr__(name: str) -> Any:
    if name == "stomp_app":
        from headway.once.stomp import stomp_app

        globals()[name] = stomp_app
        return stomp_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
