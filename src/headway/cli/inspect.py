"""`headway inspect redis://... NAME [KEY]`: everything about one ledger, and `headway reset`, which makes it as new."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import singledispatch
from struct import unpack_from
from typing import Annotated, Any

import typer

from headway.cli.ledger_view import LedgerView
from headway.cli.scanner import LedgerScanner
from headway.cli.top import Uri, ago, as_data, complaints, held_up, next_permit, span
from headway.cli.words import count
from headway.core.bucket import BucketLedger
from headway.core.concurrency import ConcurrencyLedger
from headway.core.fixed_window import FixedWindowLedger
from headway.core.ledger import LONG_AGO, Ledger
from headway.core.spacing import SpacingLedger
from headway.core.window import WindowLedger
from headway.engines.redis.script.protocol import command
from headway.errors import seconds_text

QUEUE = 100
"""Entries of the queue that are read."""

Name = Annotated[str, typer.Argument(help="The limiter's name.")]
Key = Annotated[str | None, typer.Argument(help="The key; without it, the ledger that has none.")]


def inspect(
    uri: Uri,
    name: Name,
    key: Key = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON; times in seconds, or since 1970.")
    ] = False,
) -> None:
    """Tell everything about one ledger of a shared engine: its rule, its state, who waits, who talks to it.

    Nothing is changed by it. The exit code is 1 if there is no such ledger: one that was never used, or that has
    been idle for long enough to be as new, is not stored.
    """
    with complaints():
        register = LedgerScanner(uri)
        views = found(register, name, key)
        company = Company(register, views[0])
    if as_json:
        data = [{**as_data(view), **details(view)} for view in views]
        typer.echo(json.dumps({"ledgers": data, **company.data()}, indent=2))
        return
    for view in views:
        typer.echo(lines(describe(view)))
        typer.echo()
    typer.echo(lines(company.describe(views[0])))


def reset(
    uri: Uri,
    name: Name,
    key: Key = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make a ledger of a shared engine as new: nothing taken, nothing owed, not paused.

    Its clients go on at once, and those who wait are served from it. What they have sent lately is forgotten by
    it, so the remote may see more than the limit for once. A quarantine is not ended.
    """
    with complaints():
        register = LedgerScanner(uri)
        views = found(register, name, key)
        for view in views:
            typer.echo(f"{title(view)}: {view.limit}; {use(view)}, {view.waiting} waiting")
        if not yes and not typer.confirm("Reset it?"):
            raise typer.Exit(1)
        done = register.reset(views)
    if done < 0:
        typer.echo("headway: it is gone by now, which is as good as new", err=True)
        return
    typer.echo("reset")


def found(register: LedgerScanner, name: str, key: str | None) -> list[LedgerView]:
    views = register.of(name, key)
    if not views:
        what = repr(name) if key is None else f"{name!r} with key {key!r}"
        typer.echo(f"headway: no ledger of {what} on {register.engine.address}", err=True)
        raise typer.Exit(1)
    return views


# -- one ledger -----------------------------------------------------------------------------------------------


def lines(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what there is to say, in two columns."""
    return "\n".join(f"{name:<13}{text}".rstrip() for name, text in pairs)


def title(view: LedgerView) -> str:
    address = view.address
    return address.label if address.key is None else f"{address.label}, key {address.key}"


def use(view: LedgerView) -> str:
    if not view.ledgers:
        return "as new"
    out = f", {view.in_flight} out" if view.in_flight else ""
    return f"{view.remaining} of {view.capacity} left{out}"


def moment(ticks: float) -> str:
    """A time on the server's clock.

    >>> moment(1_700_000_000_123_456)
    '2023-11-14 22:13:20.123 UTC'
    """
    at = datetime.fromtimestamp(ticks / 1e6, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"


def stretch(first: float, last: float) -> str:
    """
    >>> stretch(1_700_000_000_123_456, 1_700_000_000_123_999), stretch(0, 1_000_000)
    ('2023-11-14 22:13:20.123 UTC', '1970-01-01 00:00:00.000 UTC to 1970-01-01 00:00:01.000 UTC')
    """
    said = dict.fromkeys((moment(first), moment(last)))  # those of one command look the same
    return " to ".join(said)


def describe(view: LedgerView) -> list[tuple[str, str]]:
    meta, now = view.meta, view.now
    said = [("ledger", title(view)), ("limit", view.limit), ("use", use(view))]
    if view.ledgers:
        said.append(("next permit", next_permit(view)))
    if view.waiting > meta.waiting:
        said.append(("reserved", f"{count(view.waiting - meta.waiting, 'slot')}, promised for later"))
    if view.abandoned:
        said.append(("abandoned", f"{view.abandoned}, that came back without an end"))
    for ledger in view.ledgers:
        numbers = ", ".join(f"{name} {value}" for name, value in rule_numbers(ledger).items())
        said.append(("rule", f"{ledger.get_rule().limit.kind}: {numbers} (times in us)"))
        said.append(("state", state(ledger, now)))
        reset_after = ledger.reset_after(now)
        said.append(
            ("as new", "now" if not reset_after else f"in {span(reset_after)}, {moment(now + reset_after)}")
        )
    if view.held_up:
        said.append(("held up", f"{held_up(view)}, until {moment(max(meta.quarantined, meta.paused))}"))
    if view.in_doubt:
        said.append(("in doubt", f"until {moment(meta.born)}: it was lost, and its quarantine cut short"))
    return said


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
    """The rule as the scripts know it."""
    rule: Any = ledger.get_rule()
    names = {
        "bucket": ("whole", "part", "parts", "room", "room_part"),
        "window": ("gap", "grid", "transit", "out_grid", "held", "bracketed", "bare_gap"),
        "spacing": ("interval", "step", "max_reserved"),
        "concurrency": ("lease",),
    }
    own = names.get(rule.limit.kind, ())
    return {"capacity": rule.capacity, **{name: int(getattr(rule, name)) for name in own}}


@singledispatch
def state(ledger: Ledger, now: int) -> str:
    """What a ledger remembers, in words."""
    return f"{ledger.remaining(now)} left"


@state.register
def _(ledger: BucketLedger, now: int) -> str:
    return "full" if ledger.tat <= now else f"paid for until {moment(ledger.tat)}"


@state.register
def _(ledger: WindowLedger, now: int) -> str:
    ledger.remaining(now)  # lets what has cooled go free
    said = [f"{max(0, ledger.free)} free"]
    for what, runs in (("cooling, until", ledger.cooling), ("out, since", ledger.out)):
        pairs = runs.pairs() if runs is not None else ()
        if pairs:
            said.append(f"{sum(pairs[1::2])} {what} {stretch(pairs[0], pairs[-2])}")
    if ledger.free < 0:
        said.append(f"{-ledger.free} promised for later")
    return "; ".join(said)


@state.register
def _(ledger: SpacingLedger, now: int) -> str:
    if ledger.last == LONG_AGO:
        return "never used"
    return f"last slot {'is' if ledger.last > now else 'was'} {moment(ledger.last)}"


@state.register
def _(ledger: FixedWindowLedger, now: int) -> str:
    left = ledger.remaining(now)
    return f"{ledger.rule.capacity - left} used in the period that ends {moment(ledger.ends)}"


@state.register
def _(ledger: ConcurrencyLedger, now: int) -> str:
    out = ledger.in_flight(now)
    pairs = ledger.leases.pairs() if ledger.leases is not None else ()
    lease = ledger.rule.lease
    return (
        "none out" if not pairs else f"{out} out, leases end {stretch(pairs[0] + lease, pairs[-2] + lease)}"
    )


# -- those who use it -----------------------------------------------------------------------------------------


class Company:
    """Who waits at a root and who talks to it, and what else is known there."""

    def __init__(self, register: LedgerScanner, view: LedgerView) -> None:
        root = view.address.root
        place = register.pool_of(root)
        fields, queue, self.granted, self.ttl_ms = register.ask(
            place,
            command(b"HKEYS", root),
            command(b"LRANGE", root + b":q", b"0", b"%d" % (QUEUE - 1)),
            command(b"HLEN", root + b":g"),
            command(b"PTTL", root),
        )
        self.meta, self.now = view.meta, view.now
        self.waiting = Counter(entry[:12].decode(errors="replace") for entry in queue)
        names = [field for field in fields if field[:1] == b"c"]
        said = register.ask(place, *(command(b"HGET", root, name) for name in names))
        self.streams = {
            name[1:].decode(errors="replace"): int(unpack_from("<d", answer, 8)[0])
            for name, answer in zip(names, said, strict=True)
            if answer is not None
        }

    @property
    def epoch(self) -> str:
        """A ledger is named after the stream and the number of the command that began it."""
        epoch = self.meta.epoch
        return f"{epoch[:16].decode(errors='replace')}#{unpack_from('<d', epoch, 16)[0]:.0f}"

    def describe(self, view: LedgerView) -> list[tuple[str, str]]:
        meta = self.meta
        processes: dict[str, list[int]] = {}
        for stream, at in self.streams.items():
            processes.setdefault(stream[:12], []).append(at)
        waiting = ", ".join(f"{number} of process {process}" for process, number in self.waiting.items())
        return [
            ("waiting", f"{meta.waiting}{': ' if waiting else ''}{waiting}"),
            ("called", f"{self.granted}, who have not been heard of since"),
            *(
                ("process", f"{process}, streams: {len(times)}, last heard of {ago(self.now - max(times))}")
                for process, times in processes.items()
            ),
            ("commands", f"{meta.seq}, the last {ago(self.now - meta.last)}"),
            ("generation", f"limits declared {moment(meta.generation)}"),
            ("epoch", self.epoch),
            ("server", meta.server.decode(errors="replace")),
            ("expires", f"in {seconds_text(self.ttl_ms / 1e3)}, if nobody uses it"),
            ("stored in", view.address.root.decode(errors="replace")),
        ]

    def data(self) -> dict[str, Any]:
        return {
            "waiting": [{"process": process, "tickets": number} for process, number in self.waiting.items()],
            "called": self.granted,
            "streams": {stream: at / 1e6 for stream, at in self.streams.items()},
            "commands": self.meta.seq,
            "generation": self.meta.generation / 1e6,
            "epoch": self.epoch,
            "server": self.meta.server.decode(errors="replace"),
            "ttl": self.ttl_ms / 1e3,
            "now": self.now / 1e6,
        }
