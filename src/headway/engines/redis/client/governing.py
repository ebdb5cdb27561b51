"""Several versions of a limit under one name: the one that was declared last governs, and is the one that is shown.

A process with an older version goes by the rule that it finds stored. The numbers of its replies belong to that rule,
so the limit that is shown with them is read from the text that is stored beside the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.core.limits import AllOf, Limit
from headway.core.notation import parse_limit
from headway.errors import InvalidLimit

if TYPE_CHECKING:
    from headway.engines.redis.client.ledger_client import LedgerClient


def limits_in(text: str, metrics: Sequence[str | None]) -> list[Limit | None]:
    """For each rule (`metrics` has the metric of each), its limit in the text; None where the text does not say.

    >>> limits_in("50/s; 5 concurrent", (None, None, None))
    [Window(50, per=1), Concurrency(5), None]
    >>> limits_in("tokens: 300/minute; 5 concurrent; calls: 9/s", ("calls", "tokens"))
    [Window(9, per=1), Window(300, per=60)]
    """
    parts: dict[str | None, list[Limit]] = {}
    metric: str | None = None
    for piece in text.split("; "):
        name, colon, rest = piece.partition(": ")
        if colon:
            metric = name
        try:
            limit = parse_limit(rest if colon else piece)
        except InvalidLimit:  # some have no form that can be read back
            return [None] * len(metrics)
        parts.setdefault(metric, []).extend(limit.limits if isinstance(limit, AllOf) else [limit])
    return [next(iter([parts[name].pop(0)] if parts.get(name) else []), None) for name in metrics]


def newer_limit_found(client: LedgerClient, generation: float, stored: object) -> None:
    """Another process has declared a newer limit: show that one, and log it."""
    registry = client.registry
    text = stored.decode(errors="replace") if isinstance(stored, bytes) else ""
    client.governed = generation
    client.governing = limits_in(text, registry.names) if text else None
    log_other_limit(client, text, client.text.decode())


def older_limit_found(client: LedgerClient, stored: object) -> None:
    """This process brings the ledger under its own limit, which is newer; its own earlier limits are no news."""
    if isinstance(stored, bytes) and stored not in client.registry.past_texts:
        log_other_limit(client, client.text.decode(), stored.decode(errors="replace"))


def log_other_limit(client: LedgerClient, newest: str, older: str) -> None:
    if newest and newest != older:
        client.registry.engine.repeated_log.warning(
            f"limiter {client.registry.name!r}",
            f"there are two limits of this name, {newest!r} and {older!r}; the one that was declared last governs "
            f"for all processes, which is {newest!r}",
        )
