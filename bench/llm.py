"""Language models: 2,000 calls, 64 at once, against a server that enforces requests and tokens by its own clock.

The server (`tests/integrations/llm_server.py`, in a process of its own) alone knows what an answer will cost. It counts
the input when a request arrives and the output when it has been made, in sliding windows; time is scaled, and a window
that is a minute elsewhere is five seconds here. Half of the calls are streamed. Every call goes through the real
`openai` client with the default estimate, which is an upper bound here. No call may be refused. The share is the
tokens that were counted per second over what the limit allows, from the second window on and as long as all 64 are
at work.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bench.alone import in_own_process
from bench.figure import Effort, Figure, Findings, Reading, Section
from bench.remotes import PATIENCE, counted, remote

CALLERS = 64
SECONDS = 5
REQUESTS = 1000
TOKENS = 100_000


async def calls(url: str, count: int) -> None:
    import httpx2
    import openai

    from headway.integrations.llm import AsyncTransport

    pool = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=CALLERS))
    transport = AsyncTransport(pool, requests=f"{REQUESTS}/{SECONDS}s", tokens=f"{TOKENS}/{SECONDS}s")
    numbers = iter(range(count))
    async with openai.AsyncOpenAI(
        api_key="none",
        base_url=f"{url}/v1",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport, timeout=PATIENCE),
    ) as client:

        async def caller() -> None:
            for number in numbers:
                asked: dict[str, Any] = {
                    "model": "m",
                    "messages": [{"role": "user", "content": "x " * (50 + number % 100)}],
                    "max_tokens": 300,
                }
                if number % 2:
                    stream = await client.chat.completions.create(
                        stream=True, stream_options={"include_usage": True}, **asked
                    )
                    async for _ in stream:
                        pass
                else:
                    await client.chat.completions.create(**asked)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))


@in_own_process()
def llm(effort: Effort) -> Findings:
    count = 1000 if effort.quick else 2000
    with remote("llm_server.py", REQUESTS, TOKENS, SECONDS) as url:
        asyncio.run(calls(url, count))
        figures = counted(url)
    times = figures["times"]
    begin, end = times[0][0] + SECONDS, times[-2 * CALLERS][0]
    used = sum(tokens for at, tokens in times if begin < at <= end)
    found = Findings()
    found.readings["llm-refused"] = Reading(figures["refused"], note=f"{figures['served']} were served")
    found.readings["llm-share"] = Reading(used / (end - begin) * SECONDS / TOKENS)
    return found


SECTION = Section(
    "llm",
    "Language models",
    (
        Figure("llm-refused", "openai, 64 callers: answers that are 429", llm, "<=", 0, "count"),
        Figure("llm-share", "openai, 64 callers: share of the tokens' limit", llm, ">=", 0.95, "%"),
    ),
)
