"""A server that enforces a sliding window by its own clock, when a request reaches it; in a process of its own.

`python tests/integrations/strict_server.py COUNT SECONDS [SAYS [HALVE_AFTER]]` prints its port and ends with its
standard input. It serves COUNT in any SECONDS; after HALVE_AFTER requests it serves half of that. SAYS is how it tells
its limit: retry-after (with a 429), ietf, x (X-RateLimit-*), or nothing. `/figures` is free, and tells what it counted.
"""

import asyncio
import json
import math
import os
import sys
import time
from collections import deque


class Strict:
    """What the server counts."""

    def __init__(self, count, seconds, says="nothing", halve_after=0):
        self.count, self.seconds, self.says, self.halve_after = count, seconds, says, halve_after
        self.arrivals: deque[float] = deque()
        self.served = self.refused = self.last_refused = 0
        self.first = self.last = None

    def arrive(self, now):
        """Whether a request is served, and the headers that tell of the limit."""
        total = self.served + self.refused
        if self.halve_after and total == self.halve_after:
            self.count //= 2
            self.halve_after = 0
        while self.arrivals and self.arrivals[0] <= now - self.seconds:
            self.arrivals.popleft()
        served = len(self.arrivals) < self.count
        if served:
            self.arrivals.append(now)
            self.served += 1
            self.first = self.first or now
            self.last = now
        else:
            self.refused += 1
            self.last_refused = total
        return served, self.headers(now, served)

    def headers(self, now, served):
        left = max(0, self.count - len(self.arrivals))
        reset = max(0.0, self.arrivals[0] + self.seconds - now) if self.arrivals else 0.0
        if self.says == "ietf":
            # Whole seconds, as the draft has it; a window below one cannot be told.
            return {
                "RateLimit-Policy": f'"strict";q={self.count};w={math.ceil(self.seconds)}',
                "RateLimit": f'"strict";r={left};t={math.ceil(reset)}',
            }
        if self.says == "x":
            return {
                "X-RateLimit-Limit": self.count,
                "X-RateLimit-Remaining": left,
                "X-RateLimit-Reset": f"{reset:.3f}",
            }
        if self.says == "retry-after" and not served:
            return {"Retry-After": f"{reset:.3f}"}
        return {}

    def figures(self):
        return {name: value for name, value in vars(self).items() if name != "arrivals"}


async def serve(strict):
    async def answer(reader, writer):
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                path = request.split(b" ", 2)[1].decode()
                length = next(
                    (
                        int(line[15:])
                        for line in request.lower().split(b"\r\n")
                        if line.startswith(b"content-length:")
                    ),
                    0,
                )
                await reader.readexactly(length)
                writer.write(respond(strict, path))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20, backlog=512)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def end():
        if not os.read(sys.stdin.fileno(), 1):
            ended.set()

    loop.add_reader(sys.stdin, end)
    await ended.wait()


def respond(strict, path):
    if path == "/figures":
        return plain(200, strict.figures())
    served, headers = strict.arrive(time.monotonic())
    if not served:
        return plain(429, "too many", headers)
    if path == "/redirect":
        return plain(302, "there", {**headers, "Location": "/"})
    return plain(200, "served", headers)


def plain(status, body, headers=()):
    content = json.dumps(body).encode()
    lines = [f"{name}: {value}\r\n" for name, value in dict(headers).items()]
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return "".join([head, *lines, "\r\n"]).encode() + content


if __name__ == "__main__":
    count, seconds, *rest = sys.argv[1:]
    asyncio.run(serve(Strict(int(count), float(seconds), *rest[:1], *map(int, rest[1:]))))
