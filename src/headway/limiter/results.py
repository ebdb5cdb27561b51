"""What an engine decided, as users read it: `Denied`, `Status` and `RateLimited`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headway.engines.base import Verdict
from headway.errors import RateLimited
from headway.status import Denied, Status, seconds, status_of

if TYPE_CHECKING:
    from headway.engines.base import Decision, Report
    from headway.limiter.request_input import Key


def status(report: Report) -> Status:
    """How things stand."""
    return status_of(report.rows(), report.in_doubt())


def denied(decision: Decision, key: Key) -> Denied:
    """The answer to a caller that does not wait."""
    return Denied(key, decision.rows() or _unknown(decision), decision.reason(), decision.in_doubt())


def limited(
    decision: Decision,
    report: Report | None,
    key: Key,
    why: str,
    timeout_ns: int | None = None,
    max_waiting: int | None = None,
) -> RateLimited:
    """The answer to a caller that would have waited, but not for so long or not behind so many."""
    known = status(report) if report is not None and report.rows() else None
    never = decision.verdict == Verdict.NEVER
    retry = math.inf
    if not never and known is not None:
        retry = known.retry_after
    elif decision.verdict == Verdict.QUEUED:
        retry = 0.0  # permits are out: the least that it can be
    return RateLimited(
        retry,
        limit=decision.rules[0].limit if known is None else known.limit,
        key=key if key is None or isinstance(key, str) else str(dict(key)),
        status=known,
        reason="never" if never else why,
        timeout=None if timeout_ns is None else seconds(timeout_ns),
        max_waiting=max_waiting,
        held_up=decision.reason(),
    )


def _unknown(decision: Decision) -> list[tuple[Any, int, int, int, int, int, bool]]:
    """Rows for a decision that came without numbers."""
    return [(rule.limit, 0, 1 << 62, 1 << 62, 0, 0, False) for rule in decision.rules]
