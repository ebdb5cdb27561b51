"""`headway events`: serve gates over STOMP and HTTP, submit an event, watch a gate."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import typer

from headway.cli.options import bad_option
from headway.cli.serving import WRONG, check_origins, complaints, need, state_engine
from headway.cli.words import count, shown, span
from headway.core.durations import to_ns
from headway.engines.uri import public
from headway.errors import InvalidLimit
from headway.once import Once

REJECTED = 1
DEFAULT_PORT = 8080
NAME = re.compile(r"[\w.:-]{1,200}")
TIMEOUT = 2.0
"""Seconds that the engine of a served gate has for an answer."""

app = typer.Typer(no_args_is_help=True, help="Events that must not repeat: serve gates, submit, watch.")


@app.callback()
def events() -> None:
    """Events that must not repeat: serve gates, submit, watch."""


Gate = Annotated[str, typer.Argument(help="The gate's name.", metavar="GATE")]
Url = Annotated[str, typer.Option("--url", help="Where `headway events serve` is.")]
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"


# -- serve ----------------------------------------------------------------------------------------------------


@app.command()
def serve(
    gate: Annotated[
        list[str],
        typer.Option(
            "--gate",
            help="A gate: its name, how long an event must not repeat, and `strict` if a repeat is to invalidate the "
            "first one too. May be given several times.",
            metavar="NAME=DURATION[,strict]",
        ),
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            help="Where events are kept: embedded://DIR, redis://..., memory://.  "
            "[default: embedded:// in ~/.local/state/headway/events]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")
    ] = DEFAULT_PORT,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="Pages of this origin may connect, too: https://ops.example.", metavar="ORIGIN"),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on an address that other machines can reach.")
    ] = False,
) -> None:
    """Serve gates over STOMP (WebSocket, at /stomp) and plain HTTP, until Ctrl-C.

    headway events serve --gate webhooks=5min --gate alarms=1min,strict
    """
    need("events serve", "starlette", "uvicorn", "httptools", "websockets")
    from headway.service.app import service_app
    from headway.service.running import check_exposure, listen, run, url_of

    check_origins(origin or ())
    terms = [read_gate(text) for text in gate]
    names = [name for name, _, _ in terms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise bad_option("--gate", f"{twice!r} is given twice")
    where = engine or state_engine("events")
    with complaints():
        check_exposure(host, insecure)
        gates = {name: open_gate(where, name, duration, mode) for name, duration, mode in terms}
        listener = listen(host, port)
        url = url_of(listener)
        run(
            service_app(gates, host=host, origins=origin or ()),
            listener,
            lambda: typer.echo(greeting(url, where, gates)),
        )
    typer.echo(
        "headway: ended; events that are pending are kept" if where != "memory://" else "headway: ended"
    )


def read_gate(text: str) -> tuple[str, str, str]:
    """Name, duration and mode of "alarms=1min,strict".

    >>> read_gate("alarms=1min,strict"), read_gate("webhooks=5min")
    (('alarms', '1min', 'strict'), ('webhooks', '5min', 'only'))
    """
    form = "give NAME=DURATION or NAME=DURATION,strict, such as webhooks=5min"
    name, equals, rest = text.partition("=")
    duration, comma, mode = rest.partition(",")
    if not equals or not duration:
        raise bad_option("--gate", f"{text!r}: {form}")
    if not NAME.fullmatch(name):
        raise bad_option("--gate", f"{name!r} is no name for a gate: use a-z, 0-9 and . _ : -")
    if comma and mode not in ("only", "strict"):
        raise bad_option("--gate", f"{text!r}: the mode is {mode!r}, and may be 'strict' or 'only'")
    try:
        to_ns(duration)
    except InvalidLimit as error:
        raise bad_option("--gate", error) from None
    return name, duration, mode or "only"


def open_gate(engine: str, name: str, duration: str, mode: Any) -> Once:
    """The gate, once it has answered: what is wrong with its engine is told before anything is served."""
    gate = Once(duration, mode, name=name, engine=engine, engine_timeout=TIMEOUT)
    gate.snapshot()
    return gate


def greeting(url: str, engine: str, gates: dict[str, Once]) -> str:
    """What is served where, and what to try."""
    first, width = next(iter(gates)), max(map(len, gates))
    promise = {
        "only": "the first of equal events within {}",
        "strict": "an event that is not repeated within {}",
    }
    lines = [f"headway: {count(len(gates), 'gate')} on {public(engine)}; Ctrl-C ends it"]
    for name, gate in gates.items():
        words = promise[gate.mode].format(span(round(gate.duration * 1e9)))
        lines.append(f"  {name:<{width}}  lets through {words}")
    option = "" if url == DEFAULT_URL else f" --url {url}"
    event = '{"event": "order 7"}'
    lines += [
        "",
        f"  {url}/v1/gates/{first}    what is pending there",
        f"  {url.replace('http', 'ws', 1)}/stomp    STOMP: subscribe to /topic/gates/{first}",
        "",
        "Try, in another terminal:",
        f"  headway events watch {first}{option}",
        f"  headway events submit {first} 'order 7'{option}",
        f"  curl -H 'Content-Type: application/json' -d '{event}' {url}/v1/gates/{first}/events",
    ]
    return "\n".join(lines)


# -- submit ---------------------------------------------------------------------------------------------------


@app.command()
def submit(
    gate: Gate,
    event: Annotated[
        str,
        typer.Argument(
            help="What must not repeat; - reads events from the input, one a line.", metavar="EVENT"
        ),
    ],
    id: Annotated[
        str | None, typer.Option("--id", help="The submission's own id: the same again is no repeat.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="A text that is carried along.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Submit an event, and say what became of it.

    headway events submit webhooks 'order 7' && ./handle 'order 7'

    The exit code is 0 if it was accepted, 1 if it was rejected as a repeat (of several: if one was), 2 if the request
    is wrong, 3 if the server does not answer. An answer that is lost is asked for again, with the same id.
    """
    from headway.service.client import Client

    if event == "-" and id is not None:
        raise bad_option("--id", "several events cannot have one id")
    if event == "-" and sys.stdin is None:
        typer.echo("headway: there is no input: stdin is closed", err=True)
        raise typer.Exit(WRONG)
    rejected = 0
    with complaints(), closing(Client(url)) as client:
        for one in lines_of(sys.stdin.buffer) if event == "-" else [event]:
            answer = client.submit(gate, one, id, value)
            rejected += not answer["accepted"]
            typer.echo(words_for(one, answer))
    raise typer.Exit(REJECTED if rejected else 0)


def lines_of(source: Any) -> Iterator[str]:
    """Every line of the input that is not empty, without its end."""
    for number, line in enumerate(source, 1):
        text = line.rstrip(b"\r\n")
        if text:
            try:
                yield text.decode()
            except UnicodeDecodeError:
                typer.echo(f"headway: line {number:,} is no UTF-8: not submitted", err=True)
                raise typer.Exit(WRONG) from None


def words_for(event: str, answer: dict[str, Any]) -> str:
    """What the answer to a submit says.

    >>> about = {"mode": "strict", "duration": 60.0, "id": "a1", "conflict": None}
    >>> words_for("disk full", about | {"accepted": True})
    "accepted: 'disk full', id a1; it is published in 1 minute, unless it is repeated"
    >>> words_for("order 7", about | {"accepted": False, "conflict": "a0"})
    "rejected: 'order 7', id a1, repeats the one with id a0"
    """
    what = f"{shown(event, 200)}, id {shown(str(answer.get('id')), 200)}"
    if not answer["accepted"]:
        return f"rejected: {what}, repeats the one with id {shown(str(answer.get('conflict')), 200)}"
    if answer.get("mode") == "strict":
        wait = span(round(float(answer["duration"]) * 1e9))
        return f"accepted: {what}; it is published in {wait}, unless it is repeated"
    return f"accepted: {what}; it is published"


# -- watch ----------------------------------------------------------------------------------------------------


@app.command()
def watch(gate: Gate, url: Url = DEFAULT_URL) -> None:
    """Show a gate live: what is pending, and every change as it happens, until Ctrl-C.

    headway events watch alarms | grep PUBLISHED

    On a terminal it is a picture that is kept up to date; elsewhere a line for each change. A lost connection is made
    again, and what happened meanwhile is caught up: nothing is left out unless it says so.
    """
    need("events watch", "websockets")
    from headway.cli.events_watch import show

    with complaints():
        try:
            show(url, gate)
        except KeyboardInterrupt:
            return  # the usual end
