"""A limit for every call of an httpx client.

    client = httpx.Client(transport=Transport("100/minute"))
    client = httpx.AsyncClient(transport=AsyncTransport({"api.github.com": "5000/hour", "*": "10/s"}))

Each is a transport around another one (by default httpx's own, with its defaults). `limit` is one limit, a `Limiter`,
or one for each pattern of hosts. `key` and `cost` are values, or functions of the request; `settle` is a function of
the response, called when its headers are there, that says what the call really cost. `timeout` bounds the wait for a
permit, in seconds; `retries` is how often a refused call is sent again, in its turn. Feedback is on: `feedback=False`
turns it off, `follow=False` only the following of stated limits, and `profile` names the vendor where its host does
not. All other options are those of `headway.Limiter` (`name`, `engine`, `on_event`, ...).
"""

from __future__ import annotations

from typing import Any

import httpx

from headway.integrations.outbound import Limits, Outbound

__all__ = ["AsyncTransport", "Transport"]


class Transport(httpx.BaseTransport):
    """For `httpx.Client`.

    >>> import httpx
    >>> client = httpx.Client(transport=Transport("100/minute"))
    >>> client.close()
    """

    def __init__(self, limit: Limits, wrapped: httpx.BaseTransport | None = None, **options: Any) -> None:
        self._outbound = Outbound(limit, **options)
        self._wrapped = httpx.HTTPTransport() if wrapped is None else wrapped

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = self._outbound.call(request.url.host, request)
        if call is None:
            return self._wrapped.handle_request(request)
        while True:
            with call.hold() as permit:
                response = self._wrapped.handle_request(request)
                call.settle(permit, response)
            response.request = request
            said = call.hear(response)
            if not call.repeats(said, response.status_code, request.method, replayable=_replayable(request)):
                return response
            response.close()

    def close(self) -> None:
        self._wrapped.close()


class AsyncTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`.

    >>> import httpx
    >>> client = httpx.AsyncClient(transport=AsyncTransport("100/minute"))
    """

    def __init__(
        self, limit: Limits, wrapped: httpx.AsyncBaseTransport | None = None, **options: Any
    ) -> None:
        self._outbound = Outbound(limit, **options)
        self._wrapped = httpx.AsyncHTTPTransport() if wrapped is None else wrapped

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = self._outbound.call(request.url.host, request)
        if call is None:
            return await self._wrapped.handle_async_request(request)
        while True:
            async with call.hold() as permit:
                response = await self._wrapped.handle_async_request(request)
                call.settle(permit, response)
            response.request = request
            said = await call.hear_async(response)
            if not call.repeats(said, response.status_code, request.method, replayable=_replayable(request)):
                return response
            await response.aclose()

    async def aclose(self) -> None:
        await self._wrapped.aclose()


def _replayable(request: httpx.Request) -> bool:
    """Whether the body can be sent again: it is bytes, and no stream that was read."""
    return isinstance(request.stream, httpx.ByteStream)
