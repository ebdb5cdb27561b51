"""A limit for every call of a requests session.

    session.mount("https://", Adapter("100/minute"))

The options are those of `headway.integrations.httpx`, and those of `requests.adapters.HTTPAdapter` in `adapter`.
Mount one adapter for both `https://` and `http://` if they share a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from headway.integrations.outbound import Limits, Outbound

__all__ = ["Adapter"]


class Adapter(HTTPAdapter):
    """For `requests.Session.mount`.

    >>> import requests
    >>> with requests.Session() as session:
    ...     session.mount("https://api.github.com", Adapter("5000/hour"))
    """

    # What a session that is pickled takes along.
    __attrs__ = [*HTTPAdapter.__attrs__, "_outbound"]  # noqa: RUF012

    def __init__(self, limit: Limits, *, adapter: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._outbound = Outbound(limit, **options)
        super().__init__(**(adapter or {}))

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        call = self._outbound.call(urlsplit(request.url or "").hostname or "", request)
        if call is None:
            return super().send(request, *args, **options)
        while True:
            with call.hold() as permit:
                response = super().send(request, *args, **options)
                try:
                    call.settle(permit, response)
                    said = call.hear(response)
                except BaseException:
                    response.close()
                    raise
            replayable = request.body is None or isinstance(request.body, bytes | str)
            if not call.repeats(said, response.status_code, request.method or "", replayable=replayable):
                return response
            response.close()
