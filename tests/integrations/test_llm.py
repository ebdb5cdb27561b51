"""Limits of requests and tokens with the real openai and anthropic clients, against a server that enforces both."""

import asyncio
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import InvalidArgument, Limiter
from headway.integrations.llm import AsyncTransport, Transport
from headway.integrations.llm_usage import MOST_BODY, UsageReader, estimate
from integrations.own_process import LanguageModels
from waiting import NEVER

PROMPT = [{"role": "user", "content": "x " * 40}]


def with_openai(client, number):
    asked: Any = {"model": "m", "messages": PROMPT, "max_tokens": 60}
    if number % 2:
        for _ in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked):
            pass
    else:
        client.chat.completions.create(**asked)


def with_responses(client, number):
    asked: Any = {"model": "m", "input": "x " * 40, "max_output_tokens": 60}
    if number % 2:
        for _ in client.responses.create(stream=True, **asked):
            pass
    else:
        client.responses.create(**asked)


def with_anthropic(client, number):
    asked: Any = {"model": "m", "messages": PROMPT, "max_tokens": 60}
    if number % 2:
        with client.messages.stream(**asked) as stream:
            for _ in stream:
                pass
    else:
        client.messages.create(**asked)


def client_of(ask, url, transport, **options):
    http_client = httpx2.Client(transport=transport, timeout=NEVER)
    if ask is with_anthropic:
        return anthropic.Anthropic(api_key="none", base_url=url, http_client=http_client, **options)
    return openai.OpenAI(api_key="none", base_url=f"{url}/v1", http_client=http_client, **options)


@pytest.fixture(params=[with_openai, with_responses, with_anthropic])
def ask(request):
    return request.param


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize(("requests", "tokens"), [(400, 2000), (20, 100_000)], ids=["tokens", "requests"])
def test_calls_at_once_are_never_refused_whichever_limit_binds(ask, requests, tokens):
    with (
        LanguageModels(requests, tokens, 0.5) as models,
        client_of(
            ask,
            models.url,
            Transport(requests=f"{requests}/500ms", tokens=f"{tokens}/500ms"),
            max_retries=0,
        ) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        list(pool.map(lambda number: ask(client, number), range(60)))
        figures = models.figures()
    assert (figures["served"], figures["refused"]) == (60, 0)
    assert figures["above"] == {"requests": 0, "tokens": 0}


@pytest.mark.realtime
def test_tasks_are_never_refused():
    async def main(url):
        transport = AsyncTransport(requests="400/500ms", tokens="2000/500ms")
        client = openai.AsyncOpenAI(
            api_key="none",
            base_url=f"{url}/v1",
            http_client=httpx2.AsyncClient(transport=transport, timeout=NEVER),
            max_retries=0,
        )

        async def call(number):
            asked: Any = {"model": "m", "messages": PROMPT, "max_tokens": 60}
            if number % 2:
                stream = await client.chat.completions.create(
                    stream=True, stream_options={"include_usage": True}, **asked
                )
                async for _ in stream:
                    pass
            else:
                await client.chat.completions.create(**asked)

        async with client:
            await asyncio.gather(*map(call, range(60)))

    with LanguageModels(400, 2000, 0.5) as models:
        asyncio.run(main(models.url))
        figures = models.figures()
    assert (figures["served"], figures["refused"]) == (60, 0)
    assert figures["above"] == {"requests": 0, "tokens": 0}


def test_what_was_used_is_what_counts_in_the_end(ask):
    limiter = Limiter({"requests": "100/hour", "tokens": "10000/hour"})
    with (
        LanguageModels(1000, 10**6, 1) as models,
        client_of(ask, models.url, Transport(limiter=limiter)) as client,
    ):
        ask(client, 0)
        ask(client, 1)
        used = sum(tokens for _, tokens in models.figures()["times"])
    assert [part.remaining for part in limiter.peek().parts] == [98, 10_000 - used]


def test_input_and_output_have_limits_of_their_own():
    limiter = Limiter({"input_tokens": "1000/hour", "output_tokens": "1000/hour"})
    with (
        LanguageModels(1000, 10**6, 1) as models,
        client_of(with_anthropic, models.url, Transport(limiter=limiter)) as client,
    ):
        with_anthropic(client, 1)
        made = sum(tokens for _, tokens in models.figures()["times"]) - 40
    assert [part.remaining for part in limiter.peek().parts] == [960, 1000 - made]


def test_settle_false_keeps_the_estimate():
    limiter = Limiter({"tokens": "10000/hour"})
    with (
        LanguageModels(1000, 10**6, 1) as models,
        client_of(
            with_openai,
            models.url,
            Transport(limiter=limiter, estimate=lambda request: 123, settle=False),
        ) as client,
    ):
        with_openai(client, 0)
    assert limiter.peek().remaining == 10_000 - 123


def test_a_stream_without_usage_costs_the_estimate():
    limiter = Limiter({"tokens": "10000/hour"})
    with (
        LanguageModels(1000, 10**6, 1) as models,
        client_of(
            with_openai, models.url, Transport(limiter=limiter, estimate=lambda request: {"tokens": 500})
        ) as client,
    ):
        for _ in client.chat.completions.create(model="m", messages=PROMPT, max_tokens=60, stream=True):
            pass
    assert limiter.peek().remaining == 9_500


def test_a_stream_that_is_given_up_costs_the_estimate_and_its_permit_ends():
    ends = []
    limiter = Limiter({"tokens": "10000/hour"}, on_event=lambda event: ends.append(event.kind))
    with (
        LanguageModels(1000, 10**6, 1) as models,
        client_of(
            with_anthropic, models.url, Transport(limiter=limiter, estimate=lambda request: 500)
        ) as client,
    ):
        stream = client.messages.create(model="m", messages=PROMPT, max_tokens=60, stream=True)
        next(iter(stream))
        stream.close()
    assert ends == ["granted", "completed"]
    assert limiter.peek().remaining == 9_500


def test_a_call_that_is_refused_costs_a_request_and_no_tokens():
    limiter = Limiter({"requests": "100/hour", "tokens": "10000/hour"})
    with (
        LanguageModels(1, 10, 60) as models,
        client_of(
            with_openai, models.url, Transport(limiter=limiter, feedback=False), max_retries=0
        ) as client,
        pytest.raises(openai.RateLimitError),
    ):
        with_openai(client, 0)
    assert [part.remaining for part in limiter.peek().parts] == [99, 10_000]


@pytest.mark.realtime
def test_retries_of_the_sdk_wait_in_line_and_succeed():
    with (
        LanguageModels(2, 10**6, 0.5) as models,
        client_of(
            with_openai, models.url, Transport(requests="3/500ms", tokens="100000/s"), max_retries=9
        ) as client,
    ):
        for number in range(6):
            with_openai(client, number)
        assert models.figures()["served"] == 6


def test_an_estimate_above_the_limit_is_the_limit():
    limiter = Limiter({"tokens": "50/hour"})
    with (
        LanguageModels(1000, 10**6, 1) as models,
        client_of(with_openai, models.url, Transport(limiter=limiter, settle=False)) as client,
    ):
        with_openai(client, 0)  # the estimate is more than 60
    assert limiter.peek().remaining == 0


def test_a_connection_that_is_refused_gives_all_back():
    limiter = Limiter({"requests": "100/hour", "tokens": "1000/hour"})
    client = client_of(with_openai, "http://127.0.0.1:1", Transport(limiter=limiter), max_retries=0)
    with client, pytest.raises(openai.APIConnectionError):
        with_openai(client, 0)
    assert [part.remaining for part in limiter.peek().parts] == [100, 1000]


def test_a_call_without_a_body_costs_no_tokens():
    limiter = Limiter({"requests": "100/hour", "tokens": "1000/hour"})
    with (
        LanguageModels(1000, 10**6, 1) as models,
        client_of(with_openai, models.url, Transport(limiter=limiter)) as client,
    ):
        assert list(client.models.list()) == []
    assert [part.remaining for part in limiter.peek().parts] == [99, 1000]


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}])
def test_an_answer_that_was_read_before_is_settled_too(headers):
    """A transport below may keep answers: such a one is not read again."""
    limiter = Limiter({"tokens": "1000/hour"})
    content = json.dumps(CHAT).encode()

    def kept(request):
        assert request.headers["accept-encoding"] == "gzip, deflate"
        body = gzip.compress(content) if headers else content
        return httpx2.Response(200, headers={"content-type": "application/json", **headers}, content=body)

    with httpx2.Client(transport=Transport(httpx2.MockTransport(kept), limiter=limiter)) as client:
        client.post("http://models.test/v1/chat/completions", json={"max_tokens": 90})
    assert limiter.peek().remaining == 990


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "limits of requests, tokens, input_tokens, output_tokens, or else a limiter"),
        ({"limiter": Limiter({"tokens": "1/s"}), "tokens": "1/s"}, "or else a limiter"),
        ({"limiter": Limiter("1/s")}, "a Limiter with metrics of requests"),
        ({"limiter": Limiter({"words": "1/s"})}, "a Limiter with metrics of requests"),
        ({"limiter": Limiter({"tokens": "1/s"}), "name": "n"}, "a Limiter without name"),
        ({"tokens": "1/s", "estimate": 5}, "estimate=5 is not accepted"),
        ({"tokens": "1/s", "output_limit": -1}, "output_limit=-1 is not accepted"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidArgument, match=message):
        Transport(**options)


@pytest.mark.parametrize("guess", [None, -1, 12.5, True, {"token": 5}, {"tokens": "5"}])
def test_an_estimate_that_is_no_number_is_refused_and_nothing_is_sent(guess):
    transport = Transport(tokens="10/s", estimate=lambda request: guess)
    with httpx2.Client(transport=transport) as client, pytest.raises(InvalidArgument, match="estimate="):
        client.get("http://127.0.0.1:1/")


# -- what fails after an answer is there -------------------------------------------------------------------------


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that tells whether it was closed."""

    closed = False

    def close(self):
        self.closed = True

    async def aclose(self):
        self.closed = True


def test_an_engine_that_is_down_keeps_no_answer_from_the_program():
    limiter = Limiter(
        {"requests": "100/hour", "tokens": "1000/hour"},
        name="n",
        engine="redis://127.0.0.1:1",
        on_engine_error="local",
    )
    remote = httpx2.MockTransport(lambda request: httpx2.Response(429, headers={"retry-after": "5"}))
    with httpx2.Client(transport=Transport(remote, limiter=limiter)) as client:
        assert client.get("http://models.test/").status_code == 429


def test_a_task_that_is_cancelled_while_it_acts_on_an_answer_leaves_nothing_out(monkeypatch):
    limiter = Limiter({"requests": "100/hour", "tokens": "1000/hour"})
    body = Body()

    async def main():
        begun = asyncio.Event()

        async def never(*args, **options):
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Limiter, "feedback_async", never)
        remote = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=body))
        transport = AsyncTransport(remote, limiter=limiter, estimate=lambda request: 500)
        call = asyncio.create_task(
            transport.handle_async_request(httpx2.Request("POST", "http://models.test/", json={}))
        )
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert body.closed
    status = limiter.peek()
    assert [(part.remaining, part.in_flight) for part in status.parts] == [(99, 0), (500, 0)]


@pytest.mark.parametrize("timeout", [None, NEVER])
def test_a_limit_that_is_lowered_below_the_estimates_of_calls_that_wait_refuses_none_of_them(timeout):
    limiter = Limiter({"tokens": "1000/200ms"})

    async def answer(request):
        await asyncio.sleep(0)
        return httpx2.Response(200, headers={"x-ratelimit-limit-tokens": "400"}, json=CHAT)

    async def main():
        transport = AsyncTransport(httpx2.MockTransport(answer), limiter=limiter, timeout=timeout)
        async with httpx2.AsyncClient(transport=transport) as client:
            asked = {"max_tokens": 10**6}
            return await asyncio.gather(
                *(client.post("http://models.test/v1/chat/completions", json=asked) for _ in range(3))
            )

    assert [reply.status_code for reply in asyncio.run(main())] == [200, 200, 200]


def test_a_redirect_is_a_request_without_tokens():
    limiter = Limiter({"requests": "100/hour", "tokens": "1000/hour"})
    remote = httpx2.MockTransport(lambda request: httpx2.Response(307, headers={"location": "/other"}))
    with httpx2.Client(transport=Transport(remote, limiter=limiter)) as client:
        client.post("http://models.test/v1/chat/completions", json={"max_tokens": 90})
    assert [part.remaining for part in limiter.peek().parts] == [99, 1000]


# -- what is read ----------------------------------------------------------------------------------------------

CHAT = {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
SEVEN_AND_THREE = {"tokens": 10, "input_tokens": 7, "output_tokens": 3}
STREAM = b"".join(
    b"data: %s\n\n" % json.dumps(step).encode()
    for step in (
        {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"text": "usage"}},
        {"type": "message_delta", "usage": {"output_tokens": 2}},
        {"type": "message_delta", "usage": {"output_tokens": 3}},
    )
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_may_be_split_anywhere(cuts):
    reader = UsageReader("text/event-stream; charset=utf-8", "")
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(places):
        reader.feed(STREAM[start:end])
    assert reader.tokens() == SEVEN_AND_THREE


def test_a_last_line_without_its_end_is_read():
    reader = UsageReader("text/event-stream", "")
    reader.feed(b"data: " + json.dumps(CHAT).encode())
    assert reader.tokens() == SEVEN_AND_THREE


def test_a_compressed_answer_is_read():
    body = gzip.compress(json.dumps(CHAT).encode())
    reader = UsageReader("application/json", "gzip")
    for place in range(len(body)):
        reader.feed(body[place : place + 1])
    assert reader.tokens() == SEVEN_AND_THREE


def test_what_was_written_to_a_cache_counts_and_what_was_read_from_it_does_not():
    usage = {
        "input_tokens": 7, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 900, "output_tokens": 3,
    }  # fmt: skip
    reader = UsageReader("application/json", "")
    reader.feed(json.dumps({"usage": usage}).encode())
    assert reader.tokens() == {"tokens": 15, "input_tokens": 12, "output_tokens": 3}


@pytest.mark.parametrize("encoding", ["", "gzip", "br", "deflate", "identity"])
@given(kind=st.sampled_from(["application/json", "text/event-stream", "text/html", ""]), body=st.binary())
def test_garbage_tells_nothing_and_raises_nothing(encoding, kind, body):
    reader = UsageReader(kind, encoding)
    reader.feed(body)
    assert reader.tokens() is None


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_an_answer_that_is_nested_without_end_tells_nothing(kind):
    reader = UsageReader(kind, "")
    reader.feed(b'data: {"usage":'[6 * (kind == "application/json") :] + b"[" * 100_000 + b"\n\n")
    assert reader.tokens() is None


def test_a_long_line_that_comes_in_pieces_is_not_split_with_each_of_them():
    class Counted(bytearray):
        splits = 0

        def split(self, *args):
            Counted.splits += 1
            return super().split(*args)

    reader = UsageReader("text/event-stream", "")
    reader._buffer = Counted()
    for _ in range(100):
        reader.feed(b"x" * 1024)
    assert Counted.splits == 0
    reader.feed(b"\ndata: " + json.dumps(CHAT).encode() + b"\n")
    assert Counted.splits == 1
    assert reader.tokens() == SEVEN_AND_THREE


@pytest.mark.parametrize("value", [-1, True, "7", 7.5, None, 1 << 60, [7]])
def test_absurd_numbers_tell_nothing(value):
    reader = UsageReader("application/json", "")
    reader.feed(json.dumps({"usage": {"prompt_tokens": value, "completion_tokens": 3}}).encode())
    assert reader.tokens() is None


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_an_answer_without_end_is_not_kept(kind):
    reader = UsageReader(kind, "")
    for _ in range(20):
        reader.feed(b"x" * (1 << 20))
    assert len(reader._buffer) <= MOST_BODY
    assert reader.tokens() is None


def test_a_bomb_is_not_unpacked():
    reader = UsageReader("application/json", "gzip")
    reader.feed(gzip.compress(b" " * (64 << 20)))
    assert len(reader._buffer) <= MOST_BODY
    assert reader.tokens() is None


def test_to_count_tokens_costs_none():
    assert set(estimate("/v1/messages/count_tokens", b'{"messages": []}', 500).values()) == {0}


@pytest.mark.parametrize(
    ("path", "body", "output"),
    [
        ("/v1/chat/completions", {"max_completion_tokens": 9}, 9),
        ("/v1/chat/completions", {"max_tokens": 9, "n": 3}, 27),
        ("/v1/responses", {"max_output_tokens": 9}, 9),
        ("/v1/messages", {"max_tokens": "9"}, 500),
        ("/v1/messages", {}, 500),
        ("/v1/embeddings", {"input": "x"}, 0),
    ],
)
def test_an_estimate_is_half_the_body_and_all_that_the_answer_may_be(path, body, output):
    text = json.dumps(body).encode()
    half = (len(text) + 1) // 2
    assert estimate(path, text, 500) == {
        "tokens": half + output, "input_tokens": half, "output_tokens": output,
    }  # fmt: skip
