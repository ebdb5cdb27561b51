"""What a call of a language model costs in tokens: guessed from its request, and read from its answer. Pure.

Before the call only the request is known. Every token of the prompt is at least one byte of the body, and of any text
that people write it is two or more; so half the length of the body is above the prompt. The answer is as long as
the request allows (`max_tokens` and its other names). That is an upper bound, not a forecast: what it is too high comes
back with the answer, and what it is too low is debt.

After the call the answer tells: `usage` in a JSON body, or in the events of a stream. Both vendors' words are read:

    OpenAI      prompt_tokens, completion_tokens, total_tokens; in the Responses API input_tokens, output_tokens.
                In a stream of chat completions the last event tells it, if the request says
                stream_options={"include_usage": true}; in one of responses, the event response.completed.
    Anthropic   input_tokens, output_tokens; what was read from a cache is not in input_tokens, and does not count.
                A stream tells the prompt in message_start, and the answer, so far, in each message_delta.

A body that is too long, broken off, or not understood tells nothing, and the estimate stands.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

BYTES_PER_TOKEN: Final = 2
MOST_BODY: Final = 16 << 20
"""Bytes of an answer, or of one line of a stream, that are kept to be read."""
MOST_TOKENS: Final = 1 << 40
"""A vendor's number above this is taken for a mistake."""
ENCODINGS: Final = "gzip, deflate"
"""What an answer may be compressed with, so that it can be read here."""

OUTPUT_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
INPUT_NAMES: Final = ("input_tokens", "prompt_tokens")
OUTPUT_NAMES: Final = ("output_tokens", "completion_tokens")
INPUT_ONLY: Final = ("/embeddings", "/moderations")
"""Paths of calls whose answers are not made of tokens."""
COUNTED_ONLY: Final = "/count_tokens"
"""The path of a call that tells how many tokens another one would cost, and costs none."""

Tokens = dict[str, int]
"""Tokens by metric: tokens, input_tokens, output_tokens."""


def estimate(path: str, body: bytes, output_limit: int) -> Tokens:
    """At least what a call will cost; `output_limit` is for a request that does not limit its answer.

    >>> estimate("/v1/chat/completions", b'{"messages": [], "max_tokens": 50}', 1000)
    {'tokens': 67, 'input_tokens': 17, 'output_tokens': 50}
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, Mapping) or path.endswith(COUNTED_ONLY):
        return _tokens(0, 0)  # no call of a model: a list of models, an upload
    taken = -(-len(body) // BYTES_PER_TOKEN)
    if path.endswith(INPUT_ONLY):
        return _tokens(taken, 0)
    stated = [count for name in OUTPUT_LIMITS if (count := _count(request.get(name))) is not None]
    answers = _count(request.get("n")) or 1
    return _tokens(taken, answers * (max(stated) if stated else output_limit))


class UsageReader:
    """Reads an answer as it arrives, and knows its usage in the end.

    >>> reader = UsageReader("application/json", "")
    >>> reader.feed(b'{"usage": {"prompt_tokens": 7, "completion_')
    >>> reader.feed(b'tokens": 3, "total_tokens": 10}}')
    >>> reader.tokens()
    {'tokens': 10, 'input_tokens': 7, 'output_tokens': 3}
    """

    __slots__ = ("_buffer", "_final", "_found", "_lost", "_stream", "_unpack")

    def __init__(self, content_type: str, encoding: str) -> None:
        self._stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._unpack = _unpacker(encoding)
        self._buffer = bytearray()
        self._found: dict[str, int] = {}
        # The prompt alone is told first (message.usage); what is told of the answer comes at its end.
        self._final = False
        self._lost = not self._stream and "json" not in content_type.lower()

    def feed(self, chunk: bytes) -> None:
        """Some bytes of the body, as they came over the wire."""
        if self._lost:
            return
        try:
            text = chunk if self._unpack is None else self._unpack.decompress(chunk, MOST_BODY)
        except zlib.error:
            self._lost = True
            return
        self._buffer += text
        # Split only where a line ends: a long one that comes in small pieces would be copied with each of them.
        if self._stream and b"\n" in text:
            *lines, rest = self._buffer.split(b"\n")
            self._buffer = rest
            for line in lines:
                self._event(line)
        if len(self._buffer) > MOST_BODY or (self._unpack is not None and self._unpack.unconsumed_tail):
            self._lost = True
            self._buffer.clear()

    def _event(self, line: bytes | bytearray) -> None:
        if line.startswith(b"data:") and b"usage" in line:
            self._note(line[5:])

    def _note(self, text: bytes | bytearray) -> None:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(said, Mapping):
            return
        message = said.get("message")
        for holder in (said, said.get("response"), message):
            usage = holder.get("usage") if isinstance(holder, Mapping) else None
            if isinstance(usage, Mapping):
                self._final = self._final or holder is not message
                for kind, names in (("input", INPUT_NAMES), ("output", OUTPUT_NAMES)):
                    for name in names:
                        if (count := _count(usage.get(name))) is not None:
                            self._found[kind] = count
                if (written := _count(usage.get("cache_creation_input_tokens"))) is not None:
                    self._found["written"] = written

    def tokens(self) -> Tokens | None:
        """What the answer says that it cost, when its end is there; None: it does not say."""
        if not self._lost:
            (self._event if self._stream else self._note)(self._buffer)
        if self._lost or not self._final or "input" not in self._found:
            return None
        taken = self._found["input"] + self._found.get("written", 0)
        return _tokens(taken, self._found.get("output", 0))


def _tokens(taken: int, made: int) -> Tokens:
    return {"tokens": taken + made, "input_tokens": taken, "output_tokens": made}


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def _unpacker(encoding: str) -> Any:
    names = [name.strip().lower() for name in encoding.split(",") if name.strip()]
    if names in ([], ["identity"]):
        return None
    # A body that is compressed in another way is garbage to zlib, and tells nothing.
    return zlib.decompressobj(zlib.MAX_WBITS | 16 if names == ["gzip"] else zlib.MAX_WBITS)
