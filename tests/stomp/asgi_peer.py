"""A STOMP client of an ASGI app, without a socket: what it sends is put into the app's hands, and so is the room for
what the app sends."""

import asyncio
import json
from typing import Any

from headway.stomp import Frame, Parser, encode
from waiting import NEVER


class Peer:
    """Use as `async with Peer(app) as peer`. If it does not read, `send` of the app waits, as it does on a server."""

    def __init__(self, app, *, subprotocols=("v12.stomp",), reads=True, headers=()):
        self.app = app
        self.scope = {
            "type": "websocket",
            "path": "/anywhere",
            "headers": list(headers),
            "subprotocols": list(subprotocols),
        }
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()  # frames and other messages of the app
        self.parser = Parser("1.2")
        self.reads = asyncio.Event()
        if reads:
            self.reads.set()
        self.bytes_sent = 0
        self.beats = 0

    async def __aenter__(self):
        self.inbox.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(self.app(self.scope, self.inbox.get, self._send))
        self.accepted = await self.next()
        return self

    async def __aexit__(self, *_):
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await asyncio.wait_for(self.task, NEVER)

    async def _send(self, message):
        await self.reads.wait()
        if message["type"] != "websocket.send":
            self.sent.put_nowait(message)
            return
        data = message["text"].encode()
        self.bytes_sent += len(data)
        self.parser.feed(data)
        while (found := self.parser.next()) is not None:
            if isinstance(found, Frame):
                self.sent.put_nowait(found)
                if found.command == "CONNECTED":
                    self.parser.version = found.headers["version"]
            else:
                self.beats += 1

    async def next(self, within=NEVER):
        return await asyncio.wait_for(self.sent.get(), within)

    def now(self):
        """What has been sent and not been looked at."""
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]

    def put(self, data):
        kind = "text" if isinstance(data, str) else "bytes"
        self.inbox.put_nowait({"type": "websocket.receive", kind: data})

    def frame(self, command, body=b"", **headers):
        self.put(
            encode(Frame(command, {name.replace("_", "-"): str(v) for name, v in headers.items()}, body))
        )

    async def connect(self, **headers):
        self.frame("CONNECT", **({"accept_version": "1.2", "host": "here"} | headers))
        connected = await self.next()
        assert connected.command == "CONNECTED"
        return connected

    def subscribe(self, gate="a", id="0", **headers):
        self.frame("SUBSCRIBE", id=id, destination=f"/topic/gates/{gate}", **headers)

    async def submit(self, event, gate="a", **more):
        self.frame(
            "SEND",
            json.dumps({"event": event} | more).encode(),
            destination=f"/app/gates/{gate}",
            receipt="r",
        )
        return await self.next()

    async def error(self):
        """The ERROR that comes next, and the close after it."""
        frame = await self.next()
        assert frame.command == "ERROR", frame
        closed = await self.next()
        assert closed["type"] == "websocket.close"
        await asyncio.wait_for(self.task, NEVER)
        return frame, closed

    async def messages(self, count):
        found = [await self.next() for _ in range(count)]
        assert {frame.command for frame in found} <= {"MESSAGE"}, found
        return found


def clocks(messages):
    return [(frame.headers["kind"], int(frame.headers["clock"])) for frame in messages]


class Between:
    """Stands between a front end and its gate: answers may be late, or not come at all."""

    def __init__(self, once):
        self._gate = once._gate
        self.error = None
        self.turns = lambda: 0  # of the loop, before an answer
        self.let = asyncio.Event()
        self.let.set()
        self.snapshots = 0
        once._gate = self

    def __getattr__(self, name):
        return getattr(self._gate, name)

    def news(self, since):
        return None

    async def _late(self):
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error

    async def submit_async(self, *what):
        await self._late()
        return await self._gate.submit_async(*what)

    async def changes_async(self, since):
        await self._late()
        await self.let.wait()
        found = await self._gate.changes_async(since)
        await self._late()
        return found

    async def snapshot_async(self):
        await self._late()
        self.snapshots += 1
        found = await self._gate.snapshot_async()
        await self._late()
        return found


async def until(holds):
    for _ in range(round(NEVER / 0.001)):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


async def nothing_is_left(app):
    assert app._feeds == {}
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
