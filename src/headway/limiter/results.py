"""What an engine decided, as users read it: `Denied`, `Status` and `RateLimited`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headway.denied import Denied
from headway.engines.base import Verdict
from headway.errors import AcquireTimeout, RateLimited
from headway.status import Status, seconds, status_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.engines.base import Decision, Report
    from headway.limiter.request_input import Key

    Metrics = Sequence[str | None]


def status(report: Report, metrics: Metrics, *, denied: bool = False) -> Status:
    """How things stand."""
    return status_of(report.rows(), metrics, report.in_doubt(), denied=denied)


def denied(decision: Decision, key: Key, metrics: Metrics) -> Denied:
    """The answer to a caller that does not wait."""
    rows = decision.rows() or _unknown(decision)
    return Denied(key, rows, decision.reason(), decision.in_doubt(), metrics)


def limited(
    decision: Decision,
    report: Report | None,
    key: Key,
    metrics: Metrics,
    why: str,
    timeout_ns: int | None = None,
    max_waiting: int | None = None,
) -> RateLimited:
    """The answer to a caller that would have waited, but not for so long or not behind so many."""
    known = status(report, metrics, denied=True) if report is not None and report.rows() else None
    never = decision.verdict == Verdict.NEVER
    retry = math.inf
    if not never and known is not None:
        retry = known.retry_after
    elif decision.verdict == Verdict.QUEUED:
        retry = 0.0  # permits are out: the least that it can be
    kind = AcquireTimeout if why == "timeout" and not never else RateLimited
    return kind(
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
