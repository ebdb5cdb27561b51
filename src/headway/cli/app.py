"""The list of commands, and what they have in common."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from headway import __version__, compiled
from headway.cli.demo import demo
from headway.cli.events import app as events
from headway.cli.explain import explain
from headway.cli.lab import app as lab
from headway.cli.lab_adaptive import adaptive
from headway.cli.lab_prefetch import prefetch
from headway.cli.pace import pace, plot
from headway.cli.serve import serve
from headway.cli.try_service import try_service

app = typer.Typer(
    name="headway",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # the other mode keeps the line ends of a docstring, and drops "[default: drawn]"
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(explain)
app.command()(pace)
app.command()(serve)
app.command("try")(try_service)

try:
    from headway.cli.inspect import inspect, reset
    from headway.cli.top import top
except ModuleNotFoundError as missing:
    if missing.name not in ("redis", "hiredis"):
        raise

    def _without_redis(context: typer.Context) -> None:
        """Needs redis-py: pip install 'headway[redis]'."""
        typer.echo(
            f"headway {context.info_name}: this needs redis-py: pip install 'headway[redis]'", err=True
        )
        raise typer.Exit(2)

    for _name in ("top", "inspect", "reset"):
        app.command(_name, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
            _without_redis
        )
else:
    app.command()(top)
    app.command()(inspect)
    app.command()(reset)

lab.command(name="pacer")(plot)
lab.command()(prefetch)
lab.command()(adaptive)
app.add_typer(events, name="events")
app.add_typer(lab, name="lab")


def _version(wanted: bool) -> None:
    if wanted:
        form = "compiled" if compiled else "interpreted"
        typer.echo(f"headway {__version__} ({form}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def headway(
    _: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Rate limits that can be proved: see them work, and see what they mean."""
