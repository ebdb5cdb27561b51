"""Events that must not repeat: gates that let an event through once, and tell what became of it.

    gate            `Once`: the verbs
    subscription    changes as they happen, for threads and for tasks
    replica         a copy of a gate's state, kept by what a subscription hands out
    guard           the decorator: a call that runs if its event is let through
    input           what a user gives, checked
    results         what a user gets: `Submission`, `Change`, `Snapshot`, `Pending`

What is decided, and in which order, is below: `headway.core.once`.
"""

from headway.core.once import EventStatus
from headway.once.gate import Once
from headway.once.replica import Replica
from headway.once.results import Change, Pending, Snapshot, Submission
from headway.once.subscription import Subscription

__all__ = ["Change", "EventStatus", "Once", "Pending", "Replica", "Snapshot", "Submission", "Subscription"]
