"""What the ledger said, as users read it: its numbers turned into `Denied`, `Status` and `RateLimited`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headway.engines.redis.script.protocol import NEVER, REFUSED, TICK
from headway.errors import AcquireTimeout, RateLimited
from headway.status import Denied, Status, seconds, status_of

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.engines.redis.client.registry import LimiterRegistry
    from headway.engines.redis.client.requests import Acquire, Peek, Row
    from headway.limiter.local import Key

_UNTOLD: Row = (0, NEVER, NEVER, 0, 0, 0)
"""Stands for every rule where the answer has no numbers."""


def status(peek: Peek) -> Status:
    """How things stand."""
    return status_of(snapshot(peek), peek.ledger.registry.names, in_doubt(peek))


def denied(acquire: Acquire, key: Key) -> Denied:
    """The answer to who does not wait."""
    return Denied(key, snapshot(acquire), reason(acquire), in_doubt(acquire), acquire.ledger.registry.names)


def limited(
    acquire: Acquire, key: Key, why: str, timeout_ns: int | None, max_waiting: int | None = None
) -> RateLimited:
    """The answer to who would have waited, but not for so long or not with so many."""
    names = acquire.ledger.registry.names
    known = status_of(snapshot(acquire), names, in_doubt(acquire), denied=True) if acquire.rows else None
    never = acquire.verdict == REFUSED
    retry = math.inf
    if not never and (known is not None or acquire.stood):
        retry = known.retry_after if known is not None else 0.0  # permits are out: the least that it can be
    kind = AcquireTimeout if why == "timeout" and not never else RateLimited
    return kind(
        retry,
        limit=acquire.ledger.rules[0].limit if known is None else known.limit,
        key=key if key is None or isinstance(key, str) else str(dict(key)),
        status=known,
        reason="never" if never else why,
        timeout=None if timeout_ns is None else seconds(timeout_ns),
        max_waiting=max_waiting,
        held_up=reason(acquire),
    )


def reason(acquire: Acquire) -> str:
    """Why there is no permit right now."""
    if acquire.quarantine > 0:
        return "quarantine"
    return "paused" if acquire.pause > 0 else "limit"


def in_doubt(request: Acquire | Peek) -> float:
    """For how many seconds still a loss may matter of which the quarantine was cut short."""
    return max(0.0, -request.quarantine) * TICK / 1e9


def snapshot(request: Acquire | Peek) -> list[tuple[Any, int, int, int, int, int, bool]]:
    """A row for every rule, as a ledger in memory would give it."""
    ledger = request.ledger
    rows = request.rows or [_UNTOLD] * len(ledger.rules)
    return [_row(ledger.registry, rule, row) for rule, row in zip(ledger.rules, rows, strict=True)]


def _row(registry: LimiterRegistry, rule: Rule, row: Row) -> tuple[Any, int, int, int, int, int, bool]:
    remaining, wait, reset, waiting, out, exact = row
    return (
        rule.limit, int(remaining), registry.stretched(wait) if wait < NEVER else 1 << 62,
        int(reset * TICK), int(waiting), int(out), exact == 1,
    )  # fmt: skip
