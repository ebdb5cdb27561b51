"""How a limit stands, as an answer tells it: in the body, and in the headers.

An engine says it as rows, one for each rule. Most limits have one rule; then the answer is written from its row, and
the `Status` that users of the library get, which costs as much as the rest of the answer, is never made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from headway.core.ledger import FOREVER
from headway.limit_headers import SECOND
from headway.service.messages import LimitStatus, status_message
from headway.status import status_of

try:
    import cython
except ImportError:
    from headway import _cython as cython

if not cython.compiled:
    # The compiled form has them from standing.pxd, as C functions.
    from headway.limit_headers import as_block, texts_of

if TYPE_CHECKING:
    from headway.status import Snapshot, Status


UNKNOWN_RESET = 60.0
"""Seconds for which a key is counted, at least, when it is not known until when its ledger is used."""

# C numbers where this file is compiled.
_INF, _FOREVER, _SECOND = math.inf, FOREVER, float(SECOND)


class Standing(Struct, frozen=True):
    """What an answer says of a limit."""

    message: LimitStatus
    head: bytes
    retry_after: float
    reset_after: float


def standing(status: Status) -> Standing:
    """Of a status."""
    return Standing(status_message(status), status.header_block(), status.retry_after, status.reset_after)


def standing_of_rows(rows: Snapshot, metrics: Sequence[str | None], denied: bool) -> Standing:
    """Of what each rule said; the same as of the status that is made of it."""
    if len(rows) != 1:
        return standing(status_of(rows, metrics, denied=denied))
    limit, left, wait, reset, waiting, out, exact = rows[0]
    retry_after = _INF if wait >= _FOREVER else wait / _SECOND
    reset_after = _INF if reset >= _FOREVER else reset / _SECOND
    texts = texts_of(limit)
    message = LimitStatus(
        texts.text,
        left,
        None if wait >= _FOREVER else retry_after,
        None if reset >= _FOREVER else reset_after,
        waiting,
        out,
        exact,
        0.0,
        metrics[0] if metrics else None,
    )
    head = as_block(texts, left, retry_after, reset_after, denied)
    return Standing(message, head, retry_after, reset_after)


def reset_or(found: Standing | None, lease: float) -> float:
    """Seconds until the limit is as if it was never used; where that is not known, a guess by the lease of permits."""
    if found is None or found.reset_after == math.inf:
        return max(UNKNOWN_RESET, lease)
    return found.reset_after
