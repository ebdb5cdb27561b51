"""How a limit stands, as an answer tells it: in the body, and in the headers.

An engine says it as rows, one for each rule. Most limits have one rule; then the answer is written from its row, and
the `Status` that users of the library get, which costs as much as the rest of the answer, is never made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from headway.limit_headers import as_block, texts_of
from headway.service.messages import LimitStatus, seconds, status_message
from headway.status import seconds as seconds_of_ns
from headway.status import status_of

if TYPE_CHECKING:
    from headway.status import Snapshot, Status


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
    retry_after, reset_after = seconds_of_ns(wait), seconds_of_ns(reset)
    texts = texts_of(limit)
    message = LimitStatus(
        limit=texts.text,
        remaining=left,
        retry_after=seconds(retry_after),
        reset_after=seconds(reset_after),
        waiting=waiting,
        in_flight=out,
        exact=exact,
        metric=metrics[0] if metrics else None,
    )
    head = as_block(texts, left, retry_after, reset_after, denied)
    return Standing(message, head, retry_after, reset_after)


def reset_or(found: Standing | None, otherwise: float) -> float:
    """Seconds until the limit is as if it was never used; `otherwise` where they are not known."""
    return otherwise if found is None or found.reset_after == math.inf else found.reset_after
