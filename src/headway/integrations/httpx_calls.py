"""What the transports of httpx and of httpx2 do with a call.

httpx2 is a fork: its classes have the same methods and are not the same classes, so each of the two has transports of
its own (`headway.integrations.httpx`, `.httpx2`). They are these, beside a base class of their library.
"""

from __future__ import annotations

from typing import Any

from headway.integrations.outbound import Outbound


class LimitedCalls:
    """A transport around another one, `_wrapped`. `_bytes_type` is the class of a body that can be sent again."""

    _outbound: Outbound
    _wrapped: Any
    _bytes_type: type

    def handle_request(self, request: Any) -> Any:
        call = self._outbound.call(request.url.raw_host.decode("ascii"), request)
        if call is None:
            return self._wrapped.handle_request(request)
        replayable = isinstance(request.stream, self._bytes_type)
        while True:
            with call.hold() as permit:
                response = self._wrapped.handle_request(request)
                try:
                    response.request = request
                    call.settle(permit, response)
                    said = call.hear(response)
                except BaseException:
                    response.close()
                    raise
            if not call.repeats(said, response.status_code, request.method, replayable=replayable):
                return response
            response.close()

    def close(self) -> None:
        self._wrapped.close()


class AsyncLimitedCalls:
    """`LimitedCalls` for tasks."""

    _outbound: Outbound
    _wrapped: Any
    _bytes_type: type

    async def handle_async_request(self, request: Any) -> Any:
        call = self._outbound.call(request.url.raw_host.decode("ascii"), request)
        if call is None:
            return await self._wrapped.handle_async_request(request)
        replayable = isinstance(request.stream, self._bytes_type)
        while True:
            async with call.hold() as permit:
                response = await self._wrapped.handle_async_request(request)
                try:
                    response.request = request
                    call.settle(permit, response)
                    said = await call.hear_async(response)
                except BaseException:
                    await response.aclose()
                    raise
            if not call.repeats(said, response.status_code, request.method, replayable=replayable):
                return response
            await response.aclose()

    async def aclose(self) -> None:
        await self._wrapped.aclose()
