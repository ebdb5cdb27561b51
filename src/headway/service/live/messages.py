"""What a watcher is told, as types: a state first, and then what has changed since.

A change is a state that has only the limits and gates that differ from the last one told, and whose series have only
the newest bin. A client that applies it by name has the whole state again.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Time = Annotated[float, Meta(description="seconds since 1970 by the server's clock")]
Count = Annotated[int, Meta(ge=0)]
Series = Annotated[list[int], Meta(description="counts by bin, oldest first; the last one is of `bin`")]
Rate = Annotated[float, Meta(ge=0, description="a second, over the last seconds")]


class LivePart(Struct, kw_only=True, frozen=True):
    """One limit of a ledger, and what is left of it."""

    limit: str
    metric: str | None
    capacity: Count
    remaining: Count


class LiveLedger(Struct, kw_only=True, frozen=True):
    """How a limit stands for a key that was used lately; null: without a key."""

    key: str | None
    parts: list[LivePart]
    waiting: Count
    in_flight: Count


class LiveHolder(Struct, kw_only=True, frozen=True):
    """A permit that a client holds until its lease runs out, or it ends it. Only that client knows the id."""

    key: str | None
    lease: float
    expires: Time


class LiveLimit(Struct, kw_only=True, frozen=True):
    """A limit: counts of this server since it began, and the ledgers as the engine has them."""

    name: str
    limit: str
    source: Literal["file", "api"]
    shadow: bool
    unlimited: bool
    granted: Count
    denied: Count
    granted_rate: Rate
    denied_rate: Rate
    waiting: Count
    permits: Annotated[
        int, Meta(ge=0, description="permits that clients hold; `holders` has the first of them")
    ]
    keys: Annotated[int, Meta(ge=0, description="keys in use; `ledgers` has some that were used lately")]
    paused_until: Annotated[
        Time | None, Meta(description="nothing is granted before: a pause, or a quarantine")
    ]
    ledgers: list[LiveLedger]
    holders: list[LiveHolder]
    granted_series: Series
    denied_series: Series


class LivePending(Struct, kw_only=True, frozen=True):
    """An event that is published when it is due, unless it is repeated before."""

    id: str
    event: str
    submitted: Time
    due: Time


class LiveChange(Struct, kw_only=True, frozen=True):
    """What became of an event."""

    status: Literal["SUBMITTED", "PUBLISHED", "INVALIDATED"]
    id: str
    event: str
    time: Time


class LiveGate(Struct, kw_only=True, frozen=True):
    """A gate. What it published and invalidated is counted from `since` on, when a watcher came."""

    name: str
    mode: Literal["only", "strict"]
    duration: float
    clock: Count
    pending: Annotated[
        int, Meta(ge=0, description="how many are pending; `upcoming` has those that are due first")
    ]
    upcoming: list[LivePending]
    published: Count
    invalidated: Count
    since: Time
    subscribers: Annotated[int, Meta(ge=0, description="STOMP subscriptions at this server")]
    recent: Annotated[list[LiveChange], Meta(description="the last changes, newest first")]
    readable: Annotated[bool, Meta(description="whether the engine answered when it was looked at last")]


class LiveState(Struct, kw_only=True, frozen=True):
    """What a server does now. As a change: what is different, and the names of what is gone."""

    time: Time
    step: Annotated[float, Meta(description="seconds of a bin")]
    bin: Annotated[int, Meta(description="the number of the newest bin of every series")]
    engine: str
    engine_up: bool
    limits: list[LiveLimit]
    gates: list[LiveGate]
    more_limits: Annotated[int, Meta(ge=0, description="limits that are not shown: the busiest are")]
    more_gates: Count
    gone: Annotated[
        list[str], Meta(description='limits and gates that are not shown any more: "limits/api"')
    ] = []


class LiveHello(Struct, kw_only=True, frozen=True):
    """The first event of a stream: what its token may do."""

    role: Literal["read", "use", "admin"]
    token: Annotated[str, Meta(description="the name of the token; empty where none are configured")]
    version: str
