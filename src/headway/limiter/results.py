"""What the ledger said, as users read it: its numbers turned into `Denied`, `Status` and `RateLimited`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headway.engines.redis.words import NEVER, REFUSED, TICK
from headway.errors import RateLimited
from headway.status import Denied, Status, seconds, status_of

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.desk import Key
    from headway.engines.redis.requests import Ask, Look, Row
    from headway.engines.redis.spec import Spec

_UNTOLD: Row = (0, NEVER, NEVER, 0, 0, 0)
"""Stands for every rule where the answer has no numbers."""


def status(look: Look) -> Status:
    """How things stand."""
    return status_of(survey(look), in_doubt(look))


def denied(ask: Ask, key: Key) -> Denied:
    """The answer to who does not wait."""
    return Denied(key, survey(ask), reason(ask), in_doubt(ask))


def limited(
    ask: Ask, key: Key, why: str, timeout_ns: int | None, max_waiting: int | None = None
) -> RateLimited:
    """The answer to who would have waited, but not for so long or not with so many."""
    known = status_of(survey(ask), in_doubt(ask)) if ask.rows else None
    never = ask.verdict == REFUSED
    retry = math.inf
    if not never and (known is not None or ask.stood):
        retry = known.retry_after if known is not None else 0.0  # permits are out: the least that it can be
    return RateLimited(
        retry,
        limit=ask.account.rules[0].limit if known is None else known.limit,
        key=key if key is None or isinstance(key, str) else str(dict(key)),
        status=known,
        reason="never" if never else why,
        timeout=None if timeout_ns is None else seconds(timeout_ns),
        max_waiting=max_waiting,
        held_up=reason(ask),
    )


def reason(ask: Ask) -> str:
    """Why there is no permit right now."""
    if ask.quarantine > 0:
        return "quarantine"
    return "paused" if ask.pause > 0 else "limit"


def in_doubt(request: Ask | Look) -> float:
    """For how many seconds still a loss may matter of which the quarantine was cut short."""
    return max(0.0, -request.quarantine) * TICK / 1e9


def survey(request: Ask | Look) -> list[tuple[Any, int, int, int, int, int, bool]]:
    """A row for every rule, as a ledger in memory would give it."""
    account = request.account
    rows = request.rows or [_UNTOLD] * len(account.rules)
    return [_row(account.spec, rule, row) for rule, row in zip(account.rules, rows, strict=True)]


def _row(spec: Spec, rule: Rule, row: Row) -> tuple[Any, int, int, int, int, int, bool]:
    remaining, wait, reset, waiting, out, exact = row
    return (
        rule.limit, int(remaining), spec.stretched(wait) if wait < NEVER else 1 << 62,
        int(reset * TICK), int(waiting), int(out), exact == 1,
    )  # fmt: skip
