"""Runs the service: opens it, listens, follows its file, and ends it gracefully.

The first SIGTERM or Ctrl-C begins the end: nothing is granted any more, requests that wait are answered with 503, and
clients have `drain` seconds to end the permits that they hold; then the listener closes, and what is still out is
abandoned. The second one ends it at once. SIGHUP, or a file that has changed, is a reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn

from headway.errors import HeadwayError
from headway.service.config import Config
from headway.service.config_changes import Difference
from headway.service.grpc.server import MAX_CONNECTIONS as MAX_PROXIES
from headway.service.hot import HotCalls
from headway.service.running import Server, connections_that_fit, event_loops, uvicorn_config
from headway.service.service import Service
from headway.service.tokens import grpc_guard
from headway.service.web import web_app

POLL: Final = 1.0
"""Seconds between two looks at the file."""
SETTLE: Final = 0.05
"""Seconds without another change after which a file that has changed is taken for whole."""
LOOKS: Final = 20
"""How often that is looked at: a file that never rests is read all the same."""


class _Server(Server):
    """One that drains the service before it stops to listen."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config, ready)
        self._service = service
        self._drain: asyncio.Task[None] | None = None
        self.reload = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own would raise the signal again when all is done, as if the process had been killed.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self._drain is not None:
            self.should_exit = self.force_exit = True
            return
        self._drain = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        service, seconds = self._service, self._service.config.server.drain
        try:
            if service.envoy is None:
                await service.drain(seconds)
            else:
                await asyncio.gather(service.drain(seconds), service.envoy.stop(seconds))
        finally:
            self.should_exit = True


def serve(
    config: Config,
    listener: socket.socket,
    *,
    engine: str,
    host: str,
    insecure: bool = False,
    file: Path | None = None,
    tls: tuple[Path, Path] | None = None,
    grpc_port: int | None = None,
    origins: Collection[str] = (),
    ready: Callable[[Service], None] = lambda _: None,
    told: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until a signal comes. Raises `ConfigError`, `EngineUnavailable` and their like.

    `told` gets a line for every reload. `grpc_port` takes the place of `[envoy] port`.
    """
    proxies = 0 if config.envoy is None else MAX_PROXIES
    options: dict[str, Any] = {
        "max_connections": connections_that_fit(config.server.max_connections, proxies)
    }
    if tls is not None:
        options |= {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1])}
    name = "" if file is None else str(file)
    began = None if file is None else _signature(file)

    async def main() -> None:
        service = Service(config, engine=engine, host=host, insecure=insecure, file=name)
        try:
            await service.start()
            if service.envoy is not None:
                port = service.envoy.config.port if grpc_port is None else grpc_port
                await service.envoy.start(host, port, tls, grpc_guard(service.tokens))
        except BaseException:
            await service.close()
            raise
        app = web_app(service, origins=origins)
        server = _Server(
            uvicorn_config(app, hot=HotCalls(service, origins), **options), service, lambda: ready(service)
        )
        service.metrics.connections.set_function(lambda: len(server.server_state.connections))
        watcher = None
        if file is not None:
            watcher = asyncio.ensure_future(watch(file, service, server.reload, told, began))
        try:
            await server.serve([listener])
        finally:
            if server.force_exit:
                await (
                    server.lifespan.shutdown()
                )  # which uvicorn leaves out then; it is cancelled loudly otherwise
            if watcher is not None:
                watcher.cancel()
            if service.envoy is not None:
                await service.envoy.stop(0)
        if server.failed is not None:
            raise server.failed

    with asyncio.Runner(loop_factory=event_loops(uvicorn_config(None, **options))) as runner:
        runner.run(main())


# -- the file --------------------------------------------------------------------------------------------


async def watch(
    file: Path,
    service: Service,
    wanted: asyncio.Event,
    told: Callable[[str], None],
    began: tuple[int, ...] | None = None,
) -> None:
    """Reload whenever the file changes, or one of those that it names, or when it is `wanted`.

    `began` is the signature of the file when it was read first.
    """

    def look() -> list[tuple[int, ...]]:
        return [
            _signature(each) for each in (file, *([] if service.envoy is None else service.envoy.watched()))
        ]

    known = look()
    known[0] = known[0] if began is None else began
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                await wanted.wait()
        now = look()
        if now == known and not wanted.is_set():
            continue
        wanted.clear()
        # A program that writes a file in place empties it first, and an empty file has no limits.
        for _ in range(LOOKS):
            before = now
            await asyncio.sleep(SETTLE)
            now = look()
            if now == before:
                break
        known = now
        try:
            text = await asyncio.to_thread(file.read_text, "utf-8")
            found = await service.reload(text, os.environ)
        except (OSError, UnicodeDecodeError) as error:
            service.metrics.reloaded("failed")
            told(f"{file} cannot be read, and nothing has changed: {error}")
        except HeadwayError as error:
            told(f"nothing has changed: {error}")
        else:
            told(f"{file} was read again: {summary(found)}")


def _signature(file: Path) -> tuple[int, ...]:
    """What is another one when a file has changed; () if it is not there."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def summary(found: Difference) -> str:
    """What a reload has changed, in words.

    >>> summary(Difference())
    'no changes'
    >>> from headway.service.config import LimitConfig
    >>> from headway.service.config_changes import Changes
    >>> summary(Difference(limits=Changes(added=(LimitConfig("api", "1/s"),)), server=("port",)))
    'limits: api added; port needs a restart'
    """
    parts = []
    for kind, changes in (("limits", found.limits), ("gates", found.gates), ("tokens", found.tokens)):
        words = [f"{item.name} added" for item in changes.added]
        words += [f"{item.name} removed" for item in changes.removed]
        words += [f"{after.name} changed" for _, after in changes.changed]
        if words:
            parts.append(f"{kind}: {', '.join(words)}")
    if found.rules is not None:
        parts.append(f"envoy: {found.rules} rules")
    parts += [f"{key} needs a restart" for key in found.server]
    return "; ".join(parts) or "no changes"
