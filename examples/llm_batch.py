"""Work through a batch of prompts as fast as an account allows, and never faster.

    pip install '.[cli]' openai
    OPENAI_API_KEY=... python examples/llm_batch.py prompts.txt answers.jsonl

One line of prompts.txt is one call. REQUESTS and TOKENS are the limits of the account, 500/minute and 30000/minute
without them; HEADWAY_ENGINE=redis://cache shares them with other processes. Answers are written as they come, each with
the number of its line; a line that failed says why, and the others go on.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TextIO

import httpx2
import openai

from headway import HeadwayError
from headway.integrations.llm import AsyncTransport

AT_ONCE = 64
MODEL = os.environ.get("MODEL", "gpt-5-mini")


def client() -> openai.AsyncOpenAI:
    transport = AsyncTransport(
        requests=os.environ.get("REQUESTS", "500/minute"),
        tokens=os.environ.get("TOKENS", "30000/minute"),
        name="llm-batch",
        engine=os.environ.get("HEADWAY_ENGINE", "memory://"),
    )
    return openai.AsyncOpenAI(http_client=httpx2.AsyncClient(transport=transport, timeout=600))


async def answer(model: openai.AsyncOpenAI, prompt: str) -> dict[str, object]:
    try:
        reply = await model.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], max_completion_tokens=300
        )
    except (openai.OpenAIError, HeadwayError) as error:  # the remote, or the server of the limits
        return {"error": str(error)}
    return {
        "answer": reply.choices[0].message.content,
        "tokens": reply.usage.total_tokens if reply.usage else None,
    }


async def answer_all(prompts: list[str], out: TextIO) -> None:
    left = enumerate(prompts, start=1)
    async with client() as model:

        async def work() -> None:
            for number, prompt in left:
                said = await answer(model, prompt)
                out.write(json.dumps({"line": number, **said}) + "\n")

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: llm_batch.py PROMPTS ANSWERS")
    lines = Path(sys.argv[1]).read_text().splitlines()
    with Path(sys.argv[2]).open("w") as answers:
        asyncio.run(answer_all(lines, answers))
    print(f"{len(lines)} answers in {sys.argv[2]}")
