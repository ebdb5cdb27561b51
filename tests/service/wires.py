"""A connection of the service in this process: bytes in, answers out, in virtual time and without a socket."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httptools
from uvicorn.server import ServerState

from headway.service.config import parse_config
from headway.service.hot import HotCalls
from headway.service.running import uvicorn_config
from headway.service.service import Service
from headway.service.web import web_app


class Wire(asyncio.Transport):
    """The server's end of a connection. What is written is kept; a client that does not read fills it up."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True
        self.protocol: Any = None

    def write(self, data):
        assert not self.closed
        self.written.append(bytes(data))

    def close(self):
        self.abort()

    def abort(self):
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_extra_info(self, name, default=None):
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def get_write_buffer_size(self):
        return 0

    def set_protocol(self, protocol):
        self.protocol = protocol


class Said(NamedTuple):
    """One answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Answers:
    def __init__(self) -> None:
        self.found: list[Said] = []
        self.interim: list[int] = []
        self.parser: Any = None

    def on_message_begin(self):
        self._headers: list[tuple[str, str]] = []
        self._body = b""

    def on_header(self, name, value):
        self._headers.append((name.decode().lower(), value.decode()))

    def on_body(self, body):
        self._body += body

    def on_message_complete(self):
        status = self.parser.get_status_code()
        if status < 200:
            self.interim.append(status)
        else:
            self.found.append(Said(status, self._headers, self._body))


class Connection:
    """A client and its connection."""

    def __init__(self, config, state):
        self.wire = Wire()
        self.protocol = config.http_protocol_class(config=config, server_state=state, app_state={})
        self.wire.protocol = self.protocol
        self.protocol.connection_made(self.wire)

    def send(self, data):
        if not self.wire.closed:
            self.protocol.data_received(data)

    def answers(self):
        """All answers so far; raises where what was written is no HTTP."""
        found = _Answers()
        parser = found.parser = httptools.HttpResponseParser(found)
        parser.feed_data(b"".join(self.wire.written))
        return found

    async def after(self, count):
        """The answers, when so many are there or the connection has ended."""
        while len(self.answers().found) < count and not self.wire.closed:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        return self.answers().found

    def leave(self):
        if not self.wire.closed:
            self.wire.closed = True
            self.protocol.connection_lost(None)


class Served:
    """A service with connections to it: of a server that answers hot calls itself, or leaves all to the application."""

    def __init__(self, service, hot, origins=()):
        self.service = service
        self.asked: list[str] = []
        app = web_app(service, origins=origins)

        async def counted(scope, receive, send):
            self.asked.append(scope["path"])
            await app(scope, receive, send)

        self.state = ServerState()
        self.state.default_headers = [(b"date", b"today")]
        self.hot = HotCalls(service, origins) if hot else None
        self.config = uvicorn_config(counted, hot=self.hot)
        self.config.load()

    def connect(self):
        return Connection(self.config, self.state)


@asynccontextmanager
async def served(text, hot=True, engine="memory://", **options):
    loop = asyncio.get_running_loop()
    service = Service(parse_config(text, "h.toml"), engine=engine, now=loop.time, **options)
    await service.start()
    try:
        yield Served(service, hot)
    finally:
        await service.close()


def request(method, path, body=None, *, headers=(), version="1.1", chunked=False):
    """A request, byte for byte."""
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in headers)]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
        text = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:5], body[5:]) if part)
        sent = text + b"0\r\n\r\n"
    else:
        sent = body or b""
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + sent


PLAIN = (("Host", "localhost"), ("Content-Type", "application/json"))


def acquire(body):
    return request("POST", "/v1/acquire", body, headers=PLAIN)


HEALTH = request("GET", "/healthz", headers=(("Host", "localhost"),))


def kinds(answers):
    """What each answer is to."""
    found = []
    for said in answers:
        body = json.loads(said.body)
        found.append(next(name for name in ("granted", "limits", "permit", "status") if name in body))
    return found
