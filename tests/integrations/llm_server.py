"""A server of language models that enforces requests and tokens in sliding windows, by its own clock.

`python tests/integrations/llm_server.py REQUESTS TOKENS SECONDS` prints its port and ends with its standard input. It
speaks OpenAI's chat completions and responses, and Anthropic's messages, streamed or not. How many tokens an answer
takes is known to it alone: the prompt says `x` once for each token of input, and the answer takes between a tenth and
all of `max_tokens`. The input is counted when the request arrives, the output when it has been made. A request that
would go above either limit is refused. `/figures` is free, and tells what was counted.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections import deque
from typing import Any


class Window:
    """So many in any so many seconds."""

    def __init__(self, limit, seconds):
        self.limit, self.seconds = limit, seconds
        self.noted: deque[tuple[float, int]] = deque()
        self.sum = self.above = 0

    def used(self, now):
        while self.noted and self.noted[0][0] <= now - self.seconds:
            self.sum -= self.noted.popleft()[1]
        return self.sum

    def note(self, now, count):
        self.used(now)
        self.noted.append((now, count))
        self.sum += count
        self.above = max(self.above, self.sum - self.limit)


class Model:
    """What the server counts, and what it says."""

    def __init__(self, requests, tokens, seconds):
        self.requests, self.tokens = Window(requests, seconds), Window(tokens, seconds)
        self.served = self.refused = 0
        self.times: list[tuple[float, int]] = []
        self.chance = random.Random(11)

    def arrive(self, now, taken, made):
        if (
            self.requests.used(now) >= self.requests.limit
            or self.tokens.used(now) + taken + made > self.tokens.limit
        ):
            self.refused += 1
            return False
        self.served += 1
        self.requests.note(now, 1)
        self.note(now, taken)
        return True

    def note(self, now, count):
        self.tokens.note(now, count)
        self.times.append((now, count))

    def figures(self):
        above = {"requests": self.requests.above, "tokens": self.tokens.above}
        return {"served": self.served, "refused": self.refused, "above": above, "times": self.times}

    async def answer(self, path, body, write):
        if path == "/figures":
            await write(whole(200, self.figures()))
            return
        if path == "/v1/models":
            self.arrive(time.monotonic(), 0, 0)
            await write(whole(200, {"object": "list", "data": []}))
            return
        asked = json.loads(body)
        taken = json.dumps(asked.get("messages") or asked.get("input")).count("x")
        most = asked.get("max_completion_tokens") or asked.get("max_output_tokens") or asked.get("max_tokens")
        made = self.chance.randint(most // 10, most)
        if not self.arrive(time.monotonic(), taken, made):
            await write(whole(429, {"error": {"message": "slow down", "type": "rate_limit_error"}}))
            return
        await asyncio.sleep(self.chance.uniform(0.002, 0.02))
        said = SAYS[path](asked, taken, made)
        if not asked.get("stream"):
            self.note(time.monotonic(), made)
            await write(whole(200, said))
            return
        await write(HEAD + b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        events = STREAMS[path](asked, said, taken, made)
        for event in events[:-1]:
            await write(event)
            await asyncio.sleep(self.chance.uniform(0.001, 0.005))
        self.note(time.monotonic(), made)
        await write(events[-1])


HEAD = b"HTTP/1.1 200 OK\r\n"


def whole(status, body):
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def event(data, name=None):
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def chat(asked, taken, made):
    usage = {"prompt_tokens": taken, "completion_tokens": made, "total_tokens": taken + made}
    choice = {"index": 0, "message": {"role": "assistant", "content": "y"}, "finish_reason": "stop"}
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": asked["model"],
        "choices": [choice], "usage": usage,
    }  # fmt: skip


def chat_stream(asked, said, taken, made):
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
    deltas = [
        event({**chunk, "choices": [{"index": 0, "delta": {"content": "y"}, "finish_reason": None}]})
        for _ in range(3)
    ]
    if (asked.get("stream_options") or {}).get("include_usage"):
        deltas.append(event({**chunk, "choices": [], "usage": said["usage"]}))
    return [*deltas, event("[DONE]")]


def messages(asked, taken, made):
    usage = {"input_tokens": taken, "cache_read_input_tokens": 5, "output_tokens": made}
    return {
        "id": "m", "type": "message", "role": "assistant", "model": asked["model"], "stop_sequence": None,
        "content": [{"type": "text", "text": "y"}], "stop_reason": "end_turn", "usage": usage,
    }  # fmt: skip


def messages_stream(asked, said, taken, made):
    begun = {**said, "content": [], "stop_reason": None, "usage": {"input_tokens": taken, "output_tokens": 1}}
    block = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": "y"}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    steps: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": made}},
        {"type": "message_stop"},
    ]
    return [event(step, step["type"]) for step in steps]


def responses(asked, taken, made):
    usage = {
        "input_tokens": taken, "output_tokens": made, "total_tokens": taken + made,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return {
        "id": "r", "object": "response", "created_at": 1, "model": asked["model"], "status": "completed", "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage,
    }  # fmt: skip


def responses_stream(asked, said, taken, made):
    begun = {
        "type": "response.created",
        "sequence_number": 0,
        "response": {**said, "status": "in_progress", "usage": None},
    }
    ended = {"type": "response.completed", "sequence_number": 1, "response": said}
    return [event(begun, begun["type"]), event(ended, ended["type"])]


SAYS = {"/v1/chat/completions": chat, "/v1/messages": messages, "/v1/responses": responses}
STREAMS = {
    "/v1/chat/completions": chat_stream,
    "/v1/messages": messages_stream,
    "/v1/responses": responses_stream,
}


async def serve(model):
    async def converse(reader, writer):
        async def write(content):
            writer.write(content)
            await writer.drain()

        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode().partition("?")[0]
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                body = await reader.readexactly(length)
                await model.answer(path, body, write)
                if b'"stream": true' in body or b'"stream":true' in body:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, limit=1 << 20, backlog=512)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    ended = asyncio.Event()

    def end():
        if not os.read(sys.stdin.fileno(), 1):
            ended.set()

    asyncio.get_running_loop().add_reader(sys.stdin, end)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(Model(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
