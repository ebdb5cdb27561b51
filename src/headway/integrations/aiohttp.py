"""A limit for every call of an aiohttp session.

    session = aiohttp.ClientSession(middlewares=[Middleware("100/minute")])

The options are those of `headway.integrations.httpx`. Middlewares of a client need aiohttp 3.12 or newer.
"""

from __future__ import annotations

from typing import Any

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.payload import BytesPayload, Payload

from headway.integrations.outbound import Limits, Outbound

__all__ = ["Middleware"]


class Middleware:
    """For `aiohttp.ClientSession(middlewares=[...])`.

    >>> limited = Middleware({"api.github.com": "5000/hour", "*": "10/s"})
    """

    def __init__(self, limit: Limits, **options: Any) -> None:
        self._outbound = Outbound(limit, **options)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        call = self._outbound.call(request.url.raw_host or "", request)
        if call is None:
            return await handler(request)
        while True:
            async with call.hold() as permit:
                response = await handler(request)
                try:
                    call.settle(permit, response)
                    said = await call.hear_async(response)
                except BaseException:
                    response.close()
                    raise
            replayable = not isinstance(request.body, Payload) or isinstance(request.body, BytesPayload)
            if not call.repeats(said, response.status, request.method, replayable=replayable):
                return response
            response.release()
