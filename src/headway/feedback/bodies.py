"""What bodies of refusals say. Each function gets a body as `parse` gave it, of any shape, and is total."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from headway.feedback.stated import StatedLimit
from headway.feedback.values import LONGEST, MAX_TEXT, MOST, span

MAX_BODY: Final = 64 * 1024
"""Bytes of a body that are read; a refusal is short."""
MAX_ITEMS: Final = 100

_TRY_AGAIN: Final = re.compile(r"(?:try again|retry) (?:in|after) ([0-9][0-9a-zµμ.]{0,40})", re.IGNORECASE)
_XML_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")


def parse(body: object) -> Any:
    """A body as JSON if it is that, else as text; None if there is nothing to read."""
    if isinstance(body, dict | list):
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        body = bytes(body[:MAX_BODY]).decode("utf-8", "replace")
    if not isinstance(body, str):
        return None
    text = body[:MAX_BODY].strip()
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text or None


def at(body: Any, *path: str) -> Any:
    """What stands at a path of members; None where there is none."""
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body


def text_at(body: Any, *path: str) -> str:
    found = at(body, *path)
    return found if isinstance(found, str) else ""


def _items(value: Any) -> list[Any]:
    return value[:MAX_ITEMS] if isinstance(value, list) else []


def _number(value: Any, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None


# -- waits -------------------------------------------------------------------------------------------------------


def retry_after(body: Any) -> float | None:
    """Seconds as `retry_after`: Discord at the top, Telegram below `parameters`."""
    for path in (("retry_after",), ("parameters", "retry_after")):
        value = at(body, *path)
        found = span(value) if isinstance(value, str) else _number(value, LONGEST)
        if found is not None:
            return found
    return None


def google_retry(body: Any) -> float | None:
    """`retryDelay` of a `google.rpc.RetryInfo`: "36s", "0.5s"."""
    errors = [body, *_items(body)]
    for error in errors:
        for detail in _items(at(error, "error", "details")):
            if text_at(detail, "@type").endswith("google.rpc.RetryInfo"):
                return span(text_at(detail, "retryDelay"))
    return None


def try_again(body: Any) -> float | None:
    """OpenAI and its like tell it in words: "Please try again in 6m0s"."""
    message = text_at(body, "error", "message") or text_at(body, "message")
    if match := _TRY_AGAIN.search(message[:MAX_BODY]):
        return span(match[1].rstrip(".")[:MAX_TEXT])
    return None


def any_wait(body: Any) -> float | None:
    """A wait in a form that cannot be taken for something else."""
    found = retry_after(body)
    return google_retry(body) if found is None else found


# -- single vendors ----------------------------------------------------------------------------------------------


def aws_code(header: str, body: Any) -> str:
    """The error code: of the header, of `__type` or `code` in JSON, or of `<Code>` in XML."""
    code = header or text_at(body, "__type") or text_at(body, "code") or text_at(body, "Code")
    if not code and isinstance(body, str) and (match := _XML_CODE.search(body)):
        code = match[1]
    return code.partition(":")[0].rpartition("#")[2].strip()


def google_reason(body: Any) -> str:
    """The reason of an error, in the older form or in the newer one."""
    for error in _items(at(body, "error", "errors")):
        if reason := text_at(error, "reason"):
            return reason
    return next(
        (found for detail in _items(at(body, "error", "details")) if (found := text_at(detail, "reason"))), ""
    )


def shopify_throttled(body: Any) -> bool:
    codes = (text_at(error, "extensions", "code") for error in _items(at(body, "errors")))
    return "THROTTLED" in codes


def shopify_limits(body: Any) -> tuple[StatedLimit, ...]:
    """The bucket of GraphQL's cost; it is full again after `reset`."""
    throttle = at(body, "extensions", "cost", "throttleStatus")
    most = _number(at(throttle, "maximumAvailable"), MOST)
    left = _number(at(throttle, "currentlyAvailable"), MOST)
    rate = _number(at(throttle, "restoreRate"), MOST)
    if most is None or left is None:
        return ()
    reset = (most - left) / rate if rate and most >= left else None
    return (StatedLimit("cost", quota=most, remaining=left, reset=reset, unit="points"),)


def shopify_wait(body: Any) -> float | None:
    """How long until the query that was refused can be paid."""
    cost = at(body, "extensions", "cost")
    asked = _number(at(cost, "requestedQueryCost"), MOST)
    left = _number(at(cost, "throttleStatus", "currentlyAvailable"), MOST)
    rate = _number(at(cost, "throttleStatus", "restoreRate"), MOST)
    if asked is None or left is None or not rate:
        return None
    wait = max(0.0, (asked - left) / rate)
    return wait if wait <= LONGEST else None
