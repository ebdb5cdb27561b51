"""Runs an application with uvicorn: binds first, tells when it is ready, and ends gracefully.

The socket is bound before uvicorn starts, so that an address that is in use is an error with a clear message, and the
port is known where 0 was given. The first Ctrl-C (or SIGTERM) ends it: requests that are being answered get `DRAIN`
seconds, WebSockets are closed with a code that says to come back, gates are closed. The second Ctrl-C ends it at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn

from headway.errors import HeadwayError, InvalidArgument
from headway.service.bodies import MAX_BODY
from headway.service.hosts import is_loopback
from headway.service.hot import HotCalls
from headway.service.hot_protocol import HotProtocol
from headway.service.protocol import MAX_CONNECTIONS, BoundedProtocol

DRAIN: Final = 5
"""Seconds that requests have when the server ends."""
KEEP_ALIVE: Final = 60
"""Seconds for which a connection is kept between two requests: a client that uses it again finds it open."""
HANDSHAKE_SECONDS: Final = 10.0
"""For TLS. A connection is counted when its handshake is done, so those that never do it must not stay."""
OTHER_FILES: Final = 256
"""Files that a server opens besides its clients' connections: those of the engine, of TLS, of Python."""


class CannotListen(HeadwayError):
    """The address cannot be bound; `reason` is the system's.

    >>> print(CannotListen("127.0.0.1", 80, "Permission denied"))
    cannot listen on 127.0.0.1 port 80: Permission denied
    """

    def __init__(self, host: str, port: int, reason: str, hint: str = "") -> None:
        self.host = host
        self.port = port
        self.reason = reason
        super().__init__(f"cannot listen on {host} port {port}: {reason}{hint}")


def check_exposure(host: str, insecure: bool) -> None:
    """Refuse an address that other machines can reach, unless that is wanted: there are no tokens."""
    if not is_loopback(host) and not insecure:
        accepted = (
            "a loopback address such as 127.0.0.1: another one is open to every machine that reaches it, "
            "and there are no tokens; --insecure allows it"
        )
        raise InvalidArgument("host", host, accepted)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises `CannotListen`."""
    plain = host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            plain, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
        # What it accepts inherits that. asyncio does not see that these are TCP, and the second part of an answer would
        # wait for the client to acknowledge the first: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except socket.gaierror as error:
        raise CannotListen(host, port, error.strerror or "unknown name") from None
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        hint = "; give another one with --port, or 0 for any that is free" if used else ""
        raise CannotListen(host, port, os.strerror(error.errno or 0), hint) from None


def connections_that_fit(most: int, besides: int = 0) -> int:
    """How many connections a server may have open: `most`, or fewer where the system allows fewer open files.

    `besides` are those of another port, which get their share of the files.

    A process may raise its own limit up to the hard one (`ulimit -Hn`), and few systems start it there. Where files run
    out, a connection cannot even be refused, so as many are left for other uses.
    """
    if sys.platform == "win32":
        return most
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + besides + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    left = soft - min(OTHER_FILES, soft // 2)
    return max(1, left * most // (most + besides))


def url_of(listener: socket.socket) -> str:
    """What to open: the URL of a socket that listens, by a name that reaches it from here."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Tells when it is ready, and takes a signal for the wish to end, not for the way to end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.failed: OSError | None = None
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            try:
                self._ready()
            except OSError as error:  # what it prints cannot be written
                self.failed = error
                self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # uvicorn's own raises the signal again when all is done, and so the process would seem to have been killed.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def uvicorn_config(
    app: Any, *, max_connections: int = MAX_CONNECTIONS, hot: HotCalls | None = None, **options: Any
) -> uvicorn.Config:
    """How every server here is set up. `hot`: calls that are answered without the application.

    Messages on a WebSocket are not compressed: they are small, each connection would have a compressor of its own, and
    a change goes to hundreds of connections.
    """
    protocol: Any = partial(BoundedProtocol, max_connections=max_connections)
    if hot is not None:
        protocol = partial(HotProtocol, max_connections=max_connections, hot=hot)
    return uvicorn.Config(
        app,
        http=protocol,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=DRAIN,
        timeout_keep_alive=KEEP_ALIVE,
        ws_max_size=2 * MAX_BODY,
        ws_per_message_deflate=False,
        **options,
    )


def event_loops(config: uvicorn.Config) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the event loop of a server: uvloop where it is, with a bound on the time of TLS handshakes.

    uvicorn has no option for it, and the loop's own bound is a minute.
    """
    factory = config.get_loop_factory()
    trial = factory() if factory is not None else asyncio.new_event_loop()
    trial.close()
    base: Any = type(trial)

    class Loop(base):  # type: ignore[misc] # which of them it is, is known now
        async def create_server(self, *arguments: Any, **options: Any) -> Any:
            if options.get("ssl") is not None:
                options.setdefault("ssl_handshake_timeout", HANDSHAKE_SECONDS)
            return await super().create_server(*arguments, **options)

    return Loop


def run(app: Any, listener: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal comes; `ready` is called when the first request can come."""
    server = Server(uvicorn_config(app, max_connections=connections_that_fit(MAX_CONNECTIONS)), ready)
    server.run([listener])
    if server.failed is not None:
        raise server.failed
