"""Limits of requests and of tokens for the clients of openai and anthropic.

    client = openai.OpenAI(http_client=httpx2.Client(transport=Transport(requests="500/minute", tokens="30000/minute")))
    client = anthropic.AsyncAnthropic(
        http_client=httpx2.AsyncClient(
            transport=AsyncTransport(requests="50/minute", input_tokens="30000/minute", output_tokens="8000/minute")
        )
    )

A call takes its request and its estimate of tokens in one step, before anything is sent. The permit is out until the
answer has been read to its end, streamed or not, and is then settled for what the answer says it cost
(`headway.integrations.llm_usage`). So whenever the remote counts the tokens, at the start, while they are made or at
the end, they are counted here. An answer that says nothing, or was not read to its end, costs the estimate. One that
was refused costs no tokens. The SDK's own retries are calls like any other, and wait in line.

These SDKs use httpx2, and so does this module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final

import httpx2

from headway import InvalidArgument, Limiter, Permit, RateLimited, Remote, Status
from headway.core.limits import Limit
from headway.integrations.llm_usage import ENCODINGS, UsageReader, estimate
from headway.integrations.outbound import Call, Outbound
from headway.limiter.hold import Hold
from headway.limiter.limit_input import limits_of

__all__ = ["AsyncTransport", "Transport"]

METRICS: Final = ("requests", "tokens", "input_tokens", "output_tokens")
REFUSED: Final = range(300, 500)
"""Statuses of calls that made no tokens: refused, or sent elsewhere, which is a call of its own."""

Estimate = Callable[[httpx2.Request], int | Mapping[str, int]]


class Meter:
    """The limits of a client of language models: what a call is estimated at, and what it turned out to cost.

    `requests`, `tokens`, `input_tokens` and `output_tokens` are limits; or `limiter` is one that has these metrics.
    `estimate` is a function of the request that says how many tokens it will cost: a number, or one for each metric.
    The default is an upper bound from the length of the body and `max_tokens`; for a request without that,
    `output_limit`. No estimate is above the limit itself, so that a small limit refuses no call. `settle=False`
    keeps the estimate: for a remote that counts `max_tokens`, and not what was used. `max_transit` is how long, in
    seconds, a call may take to be counted by the remote. `key`, `timeout`, `feedback`, `follow` and `profile` are those
    of `headway.integrations.httpx`, and all other options those of `Limiter`.
    """

    def __init__(
        self,
        *,
        requests: str | Limit | None = None,
        tokens: str | Limit | None = None,
        input_tokens: str | Limit | None = None,
        output_tokens: str | Limit | None = None,
        limiter: Limiter | None = None,
        estimate: Estimate | None = None,
        output_limit: int = 1000,
        settle: bool = True,
        max_transit: float = 600,
        **options: Any,
    ) -> None:
        if estimate is not None and not callable(estimate):
            raise InvalidArgument("estimate", estimate, "a function of the request, or None")
        if type(output_limit) is not int or output_limit < 0:
            raise InvalidArgument("output_limit", output_limit, "an integer from 0 up")
        given = dict(zip(METRICS, (requests, tokens, input_tokens, output_tokens), strict=True))
        limits = {metric: limit for metric, limit in given.items() if limit is not None}
        if (limiter is None) == (not limits):
            raise InvalidArgument("limiter", limiter, f"limits of {', '.join(METRICS)}, or else a limiter")
        own = {name: options.pop(name) for name in _OF_A_CALL if name in options}
        if limiter is None:
            limiter = Limiter(_facing(limits, max_transit), **options)
        elif options:
            raise InvalidArgument("limiter", limiter, f"a Limiter without {', '.join(sorted(options))}")
        kept = limiter.limit
        if not isinstance(kept, dict) or set(kept) - set(METRICS):
            raise InvalidArgument("limiter", limiter, f"a Limiter with metrics of {', '.join(METRICS)}")
        self._limiter = limiter
        self._metrics = tuple(kept)
        self._estimate = estimate
        self._output_limit = output_limit
        self._settle = settle
        self._outbound = Outbound(limiter, cost=self._cost, **own)

    def call(self, request: httpx2.Request) -> Call:
        request.headers["accept-encoding"] = ENCODINGS
        call = self._outbound.call(request.url.host, request)
        assert call is not None
        return call

    def _cost(self, request: httpx2.Request) -> dict[str, int]:
        """The estimate, at most what the limit can grant at once."""
        guess: Mapping[str, int] | int
        if self._estimate is not None:
            guess = self._estimate(request)
        else:
            guess = estimate(request.url.path, _body(request), self._output_limit)
        limits = self._limits()
        cost = {}
        for metric in self._metrics:
            if metric == "requests":
                cost[metric] = 1
                continue
            number = guess.get(metric) if isinstance(guess, Mapping) else guess
            if type(number) is not int or number < 0:
                wanted = f"a function that returns a number from 0 up, or one for each metric: {metric}, ..."
                raise InvalidArgument("estimate", guess, wanted)
            cost[metric] = min(number, limits[metric].capacity)
        return cost

    def _limits(self) -> dict[str, Limit]:
        limits = self._limiter.limit
        assert isinstance(limits, dict)
        return limits

    def fit(self, call: Call, error: RateLimited | InvalidArgument) -> bool:
        """Whether a call was denied because a limit has been lowered below its estimate; then it costs that limit."""
        assert isinstance(call.cost, Mapping)
        cost = dict(call.cost)
        # Another process may have lowered it, so that only the denial tells it.
        status: Status | None = getattr(error, "status", None)
        denied = () if status is None else status.parts or (status,)
        for metric, limit in (*self._limits().items(), *((part.metric, part.limit) for part in denied)):
            if metric in cost:
                cost[metric] = min(cost[metric], limit.capacity)
        lowered = cost != call.cost
        call.cost = cost
        return lowered

    def bill(self, permit: Permit, response: httpx2.Response) -> Bill:
        bill = Bill(permit, response, self._metrics if self._settle else ())
        if response.is_closed:  # it has been read already: it comes from a cache, for instance
            bill.read(response.content)
            bill.end()
        return bill


class Bill:
    """What one answer cost: ends its permit when the answer has been read, or is given up."""

    __slots__ = ("_metrics", "_permit", "_reader", "_refused")

    def __init__(self, permit: Permit, response: httpx2.Response, metrics: tuple[str, ...]) -> None:
        headers = response.headers
        self._permit = permit
        self._metrics = [metric for metric in metrics if metric != "requests"]
        self._refused = response.status_code in REFUSED
        packed = "" if response.is_closed else headers.get("content-encoding", "")
        self._reader = UsageReader(headers.get("content-type", ""), packed)

    def read(self, chunk: bytes) -> bytes:
        self._reader.feed(chunk)
        return chunk

    def end(self) -> None:
        """Settle for what is known by now; the estimate stands where nothing is."""
        if self._permit.ended is not None:
            return
        tokens = dict.fromkeys(self._metrics, 0) if self._refused else self._reader.tokens()
        if tokens is None or not self._metrics:
            self._permit.complete()
        else:
            self._permit.settle({metric: tokens[metric] for metric in self._metrics})


class Transport(httpx2.BaseTransport):
    """For `httpx2.Client`, and with it for `openai.OpenAI` and `anthropic.Anthropic`. Options: `Meter`.

    >>> client = httpx2.Client(transport=Transport(requests="500/minute", tokens="30000/minute"))
    >>> client.close()
    """

    def __init__(self, wrapped: httpx2.BaseTransport | None = None, **options: Any) -> None:
        self._meter = Meter(**options)
        self._wrapped = httpx2.HTTPTransport() if wrapped is None else wrapped

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        call = self._meter.call(request)
        while True:
            hold = call.hold()
            try:
                permit = hold.__enter__()
                break
            except (RateLimited, InvalidArgument) as error:
                if not self._meter.fit(call, error):
                    raise
        try:
            response = self._wrapped.handle_request(request)
        except BaseException as error:
            _fail(hold, error)
            raise
        try:
            response.request = request
            response.stream = _Read(response.stream, self._meter.bill(permit, response))
            call.hear(response)
        except BaseException as error:
            response.close()
            _fail(hold, error)
            raise
        return response

    def close(self) -> None:
        self._wrapped.close()


class AsyncTransport(httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`, and with it for `openai.AsyncOpenAI` and `anthropic.AsyncAnthropic`. Options: `Meter`.

    >>> client = httpx2.AsyncClient(transport=AsyncTransport(requests="500/minute", tokens="30000/minute"))
    """

    def __init__(self, wrapped: httpx2.AsyncBaseTransport | None = None, **options: Any) -> None:
        self._meter = Meter(**options)
        self._wrapped = httpx2.AsyncHTTPTransport() if wrapped is None else wrapped

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = self._meter.call(request)
        while True:
            hold = call.hold()
            try:
                permit = await hold.__aenter__()
                break
            except (RateLimited, InvalidArgument) as error:
                if not self._meter.fit(call, error):
                    raise
        try:
            response = await self._wrapped.handle_async_request(request)
        except BaseException as error:
            _fail(hold, error)
            raise
        try:
            response.request = request
            response.stream = _AsyncRead(response.stream, self._meter.bill(permit, response))
            await call.hear_async(response)
        except BaseException as error:
            await response.aclose()
            _fail(hold, error)
            raise
        return response

    async def aclose(self) -> None:
        await self._wrapped.aclose()


class _Read(httpx2.SyncByteStream):
    """The body of an answer, read for its bill on the way."""

    def __init__(self, body: Any, bill: Bill) -> None:
        self._body = body
        self._bill = bill

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._body:
            yield self._bill.read(chunk)
        self._bill.end()

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            self._bill.end()


class _AsyncRead(httpx2.AsyncByteStream):
    """`_Read` for a task."""

    def __init__(self, body: Any, bill: Bill) -> None:
        self._body = body
        self._bill = bill

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            yield self._bill.read(chunk)
        self._bill.end()

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._bill.end()


_OF_A_CALL: Final = ("key", "timeout", "feedback", "follow", "profile")


def _facing(limits: Mapping[str, str | Limit], max_transit: float) -> dict[str, Limit]:
    """The limits, of which tokens may be counted as late as `max_transit`; a request is counted when it arrives."""
    late = Remote(max_transit=max_transit)
    return {
        metric: limits_of({metric: limit}, None if metric == "requests" else late)[metric]
        for metric, limit in limits.items()
    }


def _body(request: httpx2.Request) -> bytes:
    """The body, unless it is a stream, which can be read only once."""
    return request.read() if isinstance(request.stream, httpx2.ByteStream) else b""


def _fail(hold: Hold, error: BaseException) -> None:
    hold.__exit__(type(error), error, error.__traceback__)
