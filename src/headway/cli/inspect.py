"""`headway inspect redis://... NAME [KEY]`: everything about one ledger, and `headway reset`, which makes it as new."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from headway.cli.ledger_text import describe, moment, state, title, use
from headway.cli.top import Uri, ago, as_data, complaints
from headway.cli.words import count
from headway.core.ledger import Ledger
from headway.engines.ledger_view import Holding, LedgerView, Scanner
from headway.engines.uri import open_scanner
from headway.errors import seconds_text
from headway.printable import printable

Name = Annotated[str, typer.Argument(help="The limiter's name.")]
Key = Annotated[
    str | None, typer.Argument(help="The key. Without it: the ledger that is used without a key.")
]


def inspect(
    uri: Uri,
    name: Name,
    key: Key = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON; times in seconds, or since 1970.")
    ] = False,
) -> None:
    """Show everything about one ledger of a shared engine: its rule, its state, its waiters and its clients.

    It changes nothing. The exit code is 1 if there is no such ledger: one that was never used, or that has been
    idle for long enough to be as new, is not stored.
    """
    with complaints():
        scanner = open_scanner(uri, 2.0)
        views = found(scanner, name, key)
        company = Company(scanner, views[0])
    if as_json:
        data = [{**as_data(view), **details(view)} for view in views]
        typer.echo(json.dumps({"ledgers": data, **company.data()}, indent=2))
        return
    for view in views:
        typer.echo(lines(describe(view)))
        typer.echo()
    typer.echo(lines(company.describe()))


def reset(
    uri: Uri,
    name: Name,
    key: Key = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Make a ledger of a shared engine as new: nothing taken, nothing owed, not paused.

    Its clients go on at once, and callers that wait are served. The ledger forgets what was sent lately, so the
    remote may see more than the limit once. A quarantine goes on.
    """
    with complaints():
        scanner = open_scanner(uri, 2.0)
        views = found(scanner, name, key)
        for view in views:
            typer.echo(f"{title(view)}: {printable(view.limit)}; {use(view)}, {view.waiting} waiting")
        if not yes and not typer.confirm("Reset it?"):
            raise typer.Exit(1)
        done = scanner.reset(views)
    if done < 0:
        typer.echo("headway: the ledger is gone by now, which is as good as new", err=True)
        return
    typer.echo("reset")


def found(scanner: Scanner, name: str, key: str | None) -> list[LedgerView]:
    views = scanner.of(name, key)
    if not views:
        what = repr(name) if key is None else f"{name!r} with key {key!r}"
        typer.echo(f"headway: no ledger of {what} on {scanner.where}", err=True)
        raise typer.Exit(1)
    return views


# -- one ledger -----------------------------------------------------------------------------------------------


def lines(pairs: Iterable[tuple[str, str]]) -> str:
    """Labels and sentences, in two columns."""
    return "\n".join(f"{name:<13}{text}".rstrip() for name, text in pairs)


def details(view: LedgerView) -> dict[str, Any]:
    return {
        "place": view.address.place.decode(errors="replace"),
        "rules": [
            {
                "kind": ledger.get_rule().limit.kind,
                "numbers_us": rule_numbers(ledger),
                "state": state(ledger, view.now),
                "remaining": ledger.remaining(view.now),
                "abandoned": lapses,
                "reset_after": ledger.reset_after(view.now) / 1e6,
            }
            for ledger, lapses in zip(view.ledgers, view.lapses, strict=True)
        ],
    }


def rule_numbers(ledger: Ledger) -> dict[str, int]:
    """The rule's numbers as the scripts know them; times in us."""
    rule: Any = ledger.get_rule()
    names = {
        "bucket": ("whole", "part", "parts", "room", "room_part"),
        "window": ("gap", "grid", "transit", "out_grid", "held", "bracketed", "bare_gap"),
        "spacing": ("interval", "step", "max_reserved"),
        "concurrency": ("lease",),
    }
    own = names.get(rule.limit.kind, ())
    return {"capacity": rule.capacity, **{name: int(getattr(rule, name)) for name in own}}


# -- its clients ----------------------------------------------------------------------------------------------


class Company:
    """The waiters and the clients of a ledger, in words and as data."""

    def __init__(self, scanner: Scanner, view: LedgerView) -> None:
        self.clients = scanner.clients(view)
        self.meta, self.now = view.meta, view.now
        self.rules = len(view.ledgers)

    def describe(self) -> list[tuple[str, str]]:
        meta = self.meta
        processes: dict[str, list[int]] = {}
        for stream, at in self.clients.streams.items():
            processes.setdefault(stream[:12], []).append(at)
        stream, _, number = self.clients.epoch.rpartition("#")
        return [
            ("waiting", self._waiting()),
            *[("called", f"{count(self.clients.granted, 'waiter')}, with no answer yet")][
                : self.clients.granted
            ],
            *(
                (
                    "process",
                    f"{process}, {count(len(times), 'stream')}, last heard of {ago(self.now - max(times))}",
                )
                for process, times in processes.items()
            ),
            *(("holder", self._holding(held)) for held in self.clients.holders),
            ("commands", f"{meta.seq:,} so far, the last {ago(self.now - meta.last)}"),
            ("limit set", f"at {moment(meta.generation)}"),
            (
                "began",
                f"with command {number} of stream {stream}",
            ),
            ("server", f"{self.clients.server}, the id of its run"),
            ("expires", f"in {seconds_text(self.clients.ttl_ms / 1e3)}, unless it is used before"),
            ("stored in", f"the key {self.clients.stored_in}"),
        ]

    def _holding(self, held: Holding) -> str:
        left = seconds_text(max(0, held.until - self.now) / 1e6)
        rule = f" of rule {held.rule}" if self.rules > 1 else ""
        return (
            f"{held.client}, {count(held.tokens, 'token')}{rule}, wants {held.wants / 1000:.3g}, lease {left}"
        )

    def _waiting(self) -> str:
        text = count(self.meta.waiting, "caller")
        if not self.clients.waiting:
            return text
        known = sum(self.clients.waiting.values())
        first = "" if self.meta.waiting <= known else f"of the first {known} "
        return f"{text}: {first}" + ", ".join(
            f"{number} in process {process}" for process, number in self.clients.waiting.items()
        )

    def data(self) -> dict[str, Any]:
        return {
            "waiting": [
                {"process": process, "tickets": number} for process, number in self.clients.waiting.items()
            ],
            "holders": [
                {
                    "client": held.client,
                    "rule": held.rule,
                    "tokens": held.tokens,
                    "wants": held.wants / 1000,
                    "lease_left": (held.until - self.now) / 1e6,
                }
                for held in self.clients.holders
            ],
            "called": self.clients.granted,
            "streams": {stream: at / 1e6 for stream, at in self.clients.streams.items()},
            "commands": self.meta.seq,
            "generation": self.meta.generation / 1e6,
            "epoch": self.clients.epoch,
            "server": self.clients.server,
            "ttl": self.clients.ttl_ms / 1e3,
            "now": self.now / 1e6,
        }
