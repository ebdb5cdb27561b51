"""The calls of gates, for the OpenAPI description: `headway.service.gates` answers them, and these are their types.

A test submits events and looks at them, and every answer has exactly the members that are said here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from headway.once.input import LONGEST_EVENT, LONGEST_ID
from headway.service.api import Endpoint

Mode = Literal["only", "strict"]
EventName = Annotated[str, Meta(max_length=LONGEST_EVENT)]
EventId = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Time = Annotated[float, Meta(description="seconds since 1970 by the engine's clock")]


class Event(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An event that must not repeat."""

    event: EventName
    id: Annotated[EventId | None, Meta(description="the submission's own: the same again is no repeat")] = (
        None
    )
    value: Annotated[EventName | None, Meta(description="a text that is carried along")] = None


class GateInfo(Struct, kw_only=True, frozen=True):
    """A gate that is served."""

    gate: str
    mode: Mode
    duration: float


class GateList(Struct, kw_only=True, frozen=True):
    """All gates."""

    gates: list[GateInfo]


class SubmissionAnswer(GateInfo, kw_only=True, frozen=True):
    """What became of an event: accepted, or (with 409) rejected since it repeats the one with the id `conflict`."""

    accepted: bool
    id: str
    clock: int
    due: Time | None
    conflict: str | None


class EventStatusAnswer(Struct, kw_only=True, frozen=True):
    """What became of a submission."""

    gate: str
    id: str
    status: Literal["SUBMITTED", "PUBLISHED", "INVALIDATED", "REJECTED"]


class PendingEvent(Struct, kw_only=True, frozen=True):
    """An event that is published when it is due."""

    id: str
    event: str
    value: str | None
    time: Time
    due: Time
    clock: int


class KeyFrame(GateInfo, kw_only=True, frozen=True):
    """What is pending, at one value of the clock."""

    clock: int
    time: Time
    began: Time
    pending: list[PendingEvent]


class ChangeLine(Struct, kw_only=True, frozen=True):
    """At `clock` an event got this status."""

    clock: int
    status: Literal["SUBMITTED", "PUBLISHED", "INVALIDATED"]
    id: str
    event: str
    value: str | None
    time: Time
    began: Time


class ChangesAnswer(Struct, kw_only=True, frozen=True):
    """What happened after `since`; ask again from `clock` on while there is `more`."""

    gate: str
    clock: int
    more: bool
    changes: list[ChangeLine]


ANY = ("unknown-gate", "engine-unavailable", "closing", "misconfigured")
SUBMITTING = (*ANY, "repeated-event", "id-reused", "gate-full")
GATE = "/v1/gates/{gate}"

GATE_CALLS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/gates", "read", None, "All gates", GateList, name="list_gates"),
    Endpoint("GET", GATE, "read", None, "What is pending", KeyFrame, ANY, name="get_gate"),
    Endpoint(
        "POST", f"{GATE}/events", "use", None, "Submit an event", SubmissionAnswer, SUBMITTING, Event,
        name="submit_event",
    ),
    Endpoint(
        "GET", f"{GATE}/events/{{id}}", "read", None, "What became of an event", EventStatusAnswer,
        (*ANY, "unknown-event"), name="event_status",
    ),
    Endpoint(
        "GET", f"{GATE}/changes", "read", None, "What happened", ChangesAnswer, (*ANY, "changes-gone"),
        query=("since", "limit"), name="gate_changes",
    ),
)  # fmt: skip
