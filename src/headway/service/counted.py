"""Counts every answer of the application in `headway_requests_total`, also those that no call gives.

A token that is wrong, a page of another origin, a path that is not there: these are refused before a call is reached,
and an operator looks for them in the figures. The label is the path as the description has it, never the one of a
request, which a client could invent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

COUNTED: Final = "headway.counted"
"""A member of a request's scope: its call counts by itself."""
ACCEPTED, REFUSED = 101, 403
"""What a WebSocket is answered with."""


class AnswerCounter:
    """Around an ASGI application. `label_of` says which path a request is counted under."""

    def __init__(self, app: Any, label_of: Callable[[str], str], count: Callable[[str, int], None]) -> None:
        self._app = app
        self._label_of = label_of
        self._count = count

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        begun = False

        async def counting(message: Any) -> None:
            nonlocal begun
            if not begun:
                begun = True
                status = status_of(message)
                if status is not None and COUNTED not in scope:
                    self._count(self._label_of(scope["path"]), status)
            await send(message)

        await self._app(scope, receive, counting)


def status_of(message: Any) -> int | None:
    """The status that a first message says.

    >>> status_of({"type": "http.response.start", "status": 200}), status_of({"type": "websocket.close"})
    (200, 403)
    """
    match message["type"]:
        case "http.response.start":
            status: int = message["status"]
            return status
        case "websocket.accept":
            return ACCEPTED
        case "websocket.close":
            return REFUSED
    return None
