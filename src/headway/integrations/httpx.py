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

from headway.integrations.httpx_calls import AsyncLimitedCalls, LimitedCalls
from headway.integrations.outbound import Limits, Outbound

__all__ = ["AsyncTransport", "Transport"]


class Transport(LimitedCalls, httpx.BaseTransport):
    """For `httpx.Client`.

    >>> import httpx
    >>> client = httpx.Client(transport=Transport("100/minute"))
    >>> client.close()
    """

    _bytes_type = httpx.ByteStream

    def __init__(self, limit: Limits, wrapped: httpx.BaseTransport | None = None, **options: Any) -> None:
        self._outbound = Outbound(limit, **options)
        self._wrapped = httpx.HTTPTransport() if wrapped is None else wrapped


class AsyncTransport(AsyncLimitedCalls, httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`.

    >>> import httpx
    >>> client = httpx.AsyncClient(transport=AsyncTransport("100/minute"))
    """

    _bytes_type = httpx.ByteStream

    def __init__(
        self, limit: Limits, wrapped: httpx.AsyncBaseTransport | None = None, **options: Any
    ) -> None:
        self._outbound = Outbound(limit, **options)
        self._wrapped = httpx.AsyncHTTPTransport() if wrapped is None else wrapped
