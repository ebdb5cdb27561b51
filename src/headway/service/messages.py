"""The messages of the service: what a body may be, and what an answer has.

They are types, from which bodies are decoded and checked, answers are written, and the OpenAPI description is made: so
none of the three can say something else than the others. Seconds that are not known are null.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headway.limit_headers import texts_of

if TYPE_CHECKING:
    from headway.status import Status

MAX_KEY = 1024
MAX_ID = 128
MAX_WAIT = 3600

Name = Annotated[str, Meta(min_length=1, max_length=128, description="the name of a limit")]
KeyText = Annotated[str, Meta(max_length=MAX_KEY)]
Metric = Annotated[str, Meta(min_length=1, max_length=128)]
Amount = Annotated[int, Meta(ge=1, le=1 << 62)]
Part = Annotated[int, Meta(ge=0, le=1 << 62)]
Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_ID,
        description="a command with an id is applied once, however often it is sent",
    ),
]
Lease = Annotated[
    float,
    Meta(
        ge=0.1, le=86400, description="seconds after which a permit without an end or a renewal is abandoned"
    ),
]
Seconds = Annotated[float, Meta(ge=0)]

Key = Annotated[
    KeyText | dict[Metric, KeyText | None] | None,
    Meta(description="which ledger of the limit; with metrics, a key for single metrics"),
]
Cost = Annotated[
    Amount | dict[Metric, Part],
    Meta(description="how much to take; with metrics, how much of each (1 of those that are not named)"),
]


# -- bodies ----------------------------------------------------------------------------------------------


class Take(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """One permit of a batch that is all or nothing."""

    limit: Name
    key: Key = None
    cost: Cost = 1
    hold: Annotated[
        bool,
        Meta(
            description="keep the permit until it is ended: a window counts it until then, and it can be settled"
        ),
    ] = False
    lease: Lease | None = None


class Acquire(Take, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A permit, now or after a wait."""

    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="seconds to wait for it at most")] = 0
    id: Id | None = None


class AcquireEach(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Several permits, each by itself."""

    requests: Annotated[list[Acquire], Meta(min_length=1, max_length=100_000)]
    id: Id | None = None


class AcquireAll(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Several permits, all or none of them."""

    requests: Annotated[list[Take], Meta(min_length=1, max_length=100_000)]
    id: Id | None = None


class Release(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """How a permit ended."""

    how: Literal["complete", "cancel", "abandon", "settle"] = "complete"
    cost: Annotated[
        Part | dict[Metric, Part] | None, Meta(description="for settle: what it cost in the end")
    ] = None
    id: Id | None = None


class Renew(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Keep a permit for longer."""

    lease: Lease | None = None
    id: Id | None = None


class Pause(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Grant nothing for so long; 0 lifts a pause."""

    seconds: Annotated[float, Meta(ge=0, le=1e9)]
    key: KeyText | None = None
    id: Id | None = None


class Reset(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Let a key start anew."""

    key: KeyText | dict[Metric, KeyText | None] | None = None
    id: Id | None = None


class LimitBody(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A limit, with the keys that its table in the configuration has."""

    limit: str | dict[str, str] | None = None
    unlimited: bool = False
    shadow: bool = False
    overrides: dict[str, str | dict[str, str]] | None = None
    remote: bool | dict[str, float] | None = None
    max_waiting: int | None = None
    max_keys: int | None = None
    lease: float | str | None = None
    prefetch: bool | dict[str, float] | None = None
    on_engine_error: str | None = None
    engine_timeout: float | str | None = None
    local_share: float | None = None
    on_ledger_loss: str | None = None
    max_quarantine: float | str | None = None


# -- answers ---------------------------------------------------------------------------------------------


class LimitStatus(Struct, frozen=True, omit_defaults=True):
    """How a limit stands for a key. `retry_after` is 0 if there is something now, and null if the time is not known."""

    limit: str
    remaining: int
    retry_after: Seconds | None
    reset_after: Seconds | None
    waiting: int
    in_flight: int
    exact: Annotated[bool, Meta(description="false: permits are out, and retry_after is a lower bound")]
    in_doubt: float = 0.0
    metric: str | None = None
    parts: list[LimitStatus] = []


class Grant(Struct, frozen=True):
    """A permit."""

    limit: Name
    granted: Literal[True] = True
    permit: Annotated[
        str | None, Meta(description="to be ended or renewed by; null: there is nothing to be ended")
    ] = None
    expires_in: Annotated[
        Seconds | None, Meta(description="seconds until it is abandoned, unless renewed")
    ] = None
    spend_within: Annotated[
        Seconds | None,
        Meta(description="seconds within which what it was taken for has to begin; null: any time"),
    ] = None
    waited: Seconds = 0.0
    would_deny: Annotated[
        str | None, Meta(description="of a limit in shadow mode: why it would have been denied")
    ] = None
    status: LimitStatus | None = None


class ProblemBody(Struct, kw_only=True, frozen=True):
    """What is wrong (RFC 9457). Types have further members, such as `retry_after`."""

    type: str
    title: str
    status: int
    detail: str


class Denial(ProblemBody, kw_only=True, frozen=True):
    """No permit."""

    limit: str
    reason: Literal["limit", "timeout", "max_waiting", "max_keys", "paused", "quarantine", "never"]
    retry_after: Seconds | None
    limit_status: LimitStatus | None
    granted: Literal[False] = False


class EachItem(Struct, kw_only=True, frozen=True):
    """One request's answer: a permit, or the problem that it would have had alone."""

    granted: bool
    grant: Grant | None = None
    problem: dict[str, Any] | None = None


class EachAnswer(Struct, kw_only=True, frozen=True):
    """One answer for each request, in their order."""

    answers: list[EachItem]


class AllAnswer(Struct, kw_only=True, frozen=True):
    """All permits, in the order of their requests."""

    permits: list[Grant]
    granted: Literal[True] = True


class Ended(Struct, kw_only=True, frozen=True):
    """How a permit ended."""

    permit: str
    ended: Literal["complete", "cancel", "abandon", "settle"]


class Renewed(Struct, kw_only=True, frozen=True):
    """A permit that is kept."""

    permit: str
    expires_in: Seconds


class LimitInfo(Struct, kw_only=True, frozen=True):
    """A limit that is served."""

    name: Name
    limit: str
    source: Annotated[Literal["file", "api"], Meta(description="which of them said last what it is")]
    ledgers: Annotated[str, Meta(description="the name of its ledgers on the engine")]
    granted: int
    denied: int
    waiting: int
    in_flight: int
    keys: int
    config: dict[str, Any]


class LimitList(Struct, kw_only=True, frozen=True):
    """All limits."""

    limits: list[LimitInfo]


class StatusAnswer(Struct, kw_only=True, frozen=True):
    """How a limit stands for a key; null for one that is unlimited."""

    limit: Name
    key: str | None
    status: LimitStatus | None


class Done(Struct, kw_only=True, frozen=True):
    """A command was carried out."""

    limit: Name
    done: Literal[True] = True


class Health(Struct, kw_only=True, frozen=True):
    """Whether the server, or the engine, answers."""

    status: Literal["ok"] = "ok"


ENCODER = msgspec.json.Encoder()


def seconds(value: float) -> float | None:
    """Seconds as JSON has them: there is no infinity."""
    return None if value == math.inf else value


def status_message(status: Status) -> LimitStatus:
    """A status, as it is written."""
    return LimitStatus(
        limit=texts_of(status.limit).text,
        remaining=status.remaining,
        retry_after=seconds(status.retry_after),
        reset_after=seconds(status.reset_after),
        waiting=status.waiting,
        in_flight=status.in_flight,
        exact=status.exact,
        in_doubt=status.in_doubt,
        metric=status.metric,
        parts=[status_message(part) for part in status.parts],
    )
