"""The body of a request: bounded, JSON, and with members that are known.

A body is counted while it comes, so that a client which announces little and sends much, or announces nothing, is
stopped at the bound. The content type has to be JSON: a page of another origin cannot send that without asking first,
so no page that a user happens to visit can post to a server on the user's own machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any, Final

from starlette.requests import Request

from headway.service.problems import Problem

MAX_BODY: Final = 1024 * 1024
"""Bytes. The longest event, value and id together, with every character escaped, are less than that."""
BODY_SECONDS: Final = 10.0
"""How long a client may take to send a body."""
SKIPPED: Final = 16 * MAX_BODY
"""Bytes. A body up to here is read to its end without being kept, since many clients look for an answer only when they
have sent everything. With a larger one the connection is closed in the middle."""


async def json_object(request: Request, known: Collection[str], most: int = MAX_BODY) -> dict[str, Any]:
    """The JSON object that a request has for a body; raises a `Problem` for anything else."""
    body = await json_bytes(request, most)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, nested too deep
        raise Problem("bad-json", f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Problem("bad-json", f"the body is JSON, but no object: give one, such as {_example(known)}")
    unknown = [name for name in found if name not in known]
    if unknown:
        detail = f"unknown member {_shown(unknown[0])}; accepted: {', '.join(known)}"
        raise Problem("bad-request", detail, member=unknown[0][:100])
    return found


async def json_bytes(request: Request, most: int = MAX_BODY) -> bytes:
    """The body, if it is said to be JSON; raises a `Problem` for anything else, and for one too large or too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        given = f"{kind!r}" if kind else "none"
        raise Problem("not-json", f"give the header 'Content-Type: application/json'; there is {given}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request, most)
    except TimeoutError:
        raise slow_body() from None


async def _read(request: Request, most: int) -> bytes:
    body, size = bytearray(), 0
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced[:18]) > SKIPPED:
        raise _too_large(most, {"Connection": "close"})
    async for part in request.stream():
        size += len(part)
        if size <= most:
            body += part
        elif size > SKIPPED:
            raise _too_large(most, {"Connection": "close"})
    if size > most:
        raise _too_large(most, {})
    return bytes(body)


def slow_body() -> Problem:
    detail = f"a body has {BODY_SECONDS:g} s to come"
    return Problem("slow-body", detail, headers={"Connection": "close"})


def _too_large(most: int, headers: dict[str, str]) -> Problem:
    return Problem("body-too-large", f"a body has {most} bytes at most", headers=headers, most=most)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 40 else name[:40] + "...")


def _example(known: Collection[str]) -> str:
    return json.dumps({next(iter(known)): "..."})
