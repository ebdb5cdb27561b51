"""`headway try`: the service with a demo limit and a demo gate under gentle traffic, and what to do with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import zlib
from contextlib import ExitStack, suppress
from socket import socket
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.serving import complaints, need, state_engine
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.once import Once
    from headway.service.service import Service

PORT = 8080
WITHOUT_TERMINAL = 6.0
"""Seconds for which it runs where there is no terminal, and so no Ctrl-C."""


def try_service(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; another one is taken if it is in use.")
    ] = PORT,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=86400,
            help="How long to run.  [default: until Ctrl-C; 6 s where the output is no terminal]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Try the service: a demo limit and a demo gate under gentle traffic, until Ctrl-C.

    It prints what to open and what to try. The ledgers are on `embedded://`, in
    ~/.local/state/headway, so the next run goes on where this one has ended.
    """
    need("try", "starlette", "uvicorn", "httptools", "websockets", "msgspec", "prometheus_client")
    from headway.lab.demo.service_traffic import CONFIG, Traffic
    from headway.service.config import parse_config
    from headway.service.running import url_of
    from headway.service.server import serve as run

    terminal = sys.stdout.isatty()
    if seconds is None and not terminal:
        seconds = WITHOUT_TERMINAL
    tasks: list[asyncio.Future[None]] = []

    with complaints(), ExitStack() as stack:
        listener = stack.enter_context(listening(port))
        url = url_of(listener)

        def ready(service: Service) -> None:
            typer.echo(greeting(url, seconds))
            tasks.extend(Traffic(service).tasks)
            if seconds is not None:
                tasks.append(asyncio.ensure_future(show(service, seconds)))

        run(
            parse_config(CONFIG, ""),
            listener,
            engine=state_engine(place(CONFIG)),
            host="127.0.0.1",
            ready=ready,
        )
    typer.echo("headway: ended")


def place(config: str) -> str:
    """Where the ledgers of this demo are: another version, whose gate has another duration, has its own.

    >>> place("")
    'try-00000000'
    """
    return f"try-{zlib.crc32(config.encode()):08x}"


def listening(port: int) -> socket:
    """A socket on this port, or on another one where it is in use, and then it says so."""
    from headway.service.running import CannotListen, listen

    try:
        return listen("127.0.0.1", port)
    except CannotListen as error:
        found = listen("127.0.0.1", 0)
        typer.echo(f"headway: port {port}: {error.reason}; using port {found.getsockname()[1]}\n")
        return found


def greeting(url: str, seconds: float | None) -> str:
    """What to open, and what to try: every line can be pasted into a shell."""

    def post(path: str, **body: object) -> str:
        return f"  curl -s --json '{json.dumps(body)}' {url}{path}"

    end = "Ctrl-C ends it" if seconds is None else f"it ends in {seconds:g} s"
    return "\n".join(
        (
            f"headway: a demo limit and a demo gate, under gentle traffic; {end}",
            "",
            f"Open {url}/",
            "",
            "Try, in another terminal:",
            post("/v1/acquire", limit="api", key="you"),
            post("/v1/acquire", limit="calls", wait=30, lease=10),
            post("/v1/gates/alarms/events", event="coffee is out"),
            post("/v1/limits/api/pause", seconds=10),
            f"  curl -s {url}/v1/live",
            "",
            "Read next: docs/service.md, docs/console.md, or `make demo`: why a token bucket is not enough",
        )
    )


async def show(service: Service, seconds: float) -> None:
    """A line of figures every second, and then the end."""
    left = seconds
    with suppress(OSError):  # what reads the output has gone, as `head` does: there is nothing to run for
        while left > 0 and not service.decider.closing:
            await asyncio.sleep(min(1.0, left))
            left -= 1.0
            typer.echo(await figures(service))
    if not service.decider.closing:  # a second signal would end it at once
        os.kill(os.getpid(), signal.SIGTERM)


async def figures(service: Service) -> str:
    """What was done so far, in a line."""
    parts = [
        f"{served.name} {served.granted} granted, {served.denied} denied, {served.waiting} waiting"
        for served in service.limits
    ]
    parts += [f"{name} {await pending(gate)} pending" for name, gate in service.gates.items()]
    return "  " + "; ".join(parts)


async def pending(gate: Once) -> str:
    """How many events are pending; on a busy machine the engine may not answer in time."""
    try:
        return str(len((await gate.snapshot_async()).pending))
    except HeadwayError:
        return "?"
