"""How the values of the seam travel as JSON: limits, rows, calls of leases, lines of a gate's log, errors.

Both sides of the protocol between the `http://` engine and the service read and write by this file. A value is a list
of numbers, strings, null and lists, in the order of its fields. Whatever cannot be read raises `ValueError`, so that a
server can refuse a command that makes no sense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway import errors
from headway.core import lease
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.once import Change, EventStatus, OnceRule, Pending, Snapshot, Submission
from headway.core.remote import Remote
from headway.engines.base import GateLog, GateView, Row
from headway.errors import HeadwayError

PATH = "/v1/engine"
"""Where commands are posted."""
EVENTS_PATH = "/v1/engine/events"
"""Where a session is told what happens."""

# -- limits --------------------------------------------------------------------------------------------------------


def limit_out(limit: Limit) -> list[Any]:
    """A limit with one rule.

    >>> limit_out(Window(100, per=60)), limit_out(Spacing(6))
    (['window', 100, 60000000000, None], ['spacing', 6000000000, 100, None, True])
    """
    match limit:
        case Window():
            remote = limit.remote
            return ["window", limit.count, limit.per_ns, _remote_out(remote) if remote else remote]
        case Bucket():
            return ["bucket", limit.count, limit.per_ns, limit.burst]
        case Spacing():
            return ["spacing", limit.interval_ns, limit.max_reserved, limit.expire_after_ns, limit.strict]
        case FixedWindow():
            return ["fixed_window", limit.count, limit.per_ns, limit.monthly, limit.tz]
        case Concurrency():
            return ["concurrency", limit.count]
    raise ValueError(f"{limit!r} has no form on the wire")


def limit_in(said: Any) -> Limit:
    """The limit that was written so.

    >>> limit_in(limit_out(Window(5, per=1, remote=Remote(max_transit=3)))), limit_in(["bucket", 10, 10**9, 3])
    (Window(5, per=1, remote=Remote(max_transit=3)), Bucket('10/s', burst=3))
    """
    match said:
        case ["window", count, int(per), remote]:
            read = _remote_in(remote) if isinstance(remote, list) else remote
            return Window(count, per=f"{per}ns", remote=read)
        case ["bucket", count, int(per), burst]:
            return Bucket((count, f"{per}ns"), burst=burst)
        case ["spacing", int(interval), reserved, expire_after, strict]:
            late = None if expire_after is None else _span(expire_after)
            return Spacing(f"{interval}ns", max_reserved=reserved, expire_after=late, strict=strict)
        case ["fixed_window", count, int(per), monthly, str(tz)]:
            return FixedWindow(count, per="month" if monthly else f"{per}ns", tz=tz)
        case ["concurrency", count]:
            return Concurrency(count)
    raise ValueError(f"{str(said)[:100]!r} is no limit")


def _remote_out(remote: Remote) -> list[Any]:
    spans = (remote.out_latency_ns, remote.back_latency_ns, remote.max_transit_ns)
    return [remote.resolution_ns, remote.drift_ppm, *spans]


def _remote_in(said: list[Any]) -> Remote:
    resolution, drift_ppm, out, back, transit = said
    return Remote(
        resolution=_span(resolution),
        drift_ppm=drift_ppm,
        out_latency=_span(out),
        back_latency=_span(back),
        max_transit=_span(transit),
    )


def _span(ns: int) -> Any:
    return f"{int(ns)}ns" if ns else 0


def rows_out(rows: list[Row], limits: Sequence[Limit]) -> list[list[Any]]:
    """Rows, with the limit only where another one governs than the client's own."""
    return [
        [None if row[0] == own or not isinstance(row[0], Limit) else limit_out(row[0]), *row[1:]]
        for row, own in zip(rows, limits, strict=False)
    ]


def rows_in(said: list[list[Any]], limits: Sequence[Limit]) -> list[Row]:
    """Rows as `Report.rows` gives them."""
    return [
        (own if row[0] is None else limit_in(row[0]), *row[1:])
        for row, own in zip(said, limits, strict=False)
    ]


# -- leases --------------------------------------------------------------------------------------------------------


def ask_in(said: list[Any] | None) -> lease.Sync | None:
    """One call of a client of tokens."""
    if said is None:
        return None
    client, seq, attempt, number, want, holding, back, closing = said
    return lease.Sync(client, seq, attempt, number, want, holding, _batch(back), closing)


def answer_in(said: list[Any] | None) -> lease.Answer | None:
    """The ledger's answer to one call."""
    if said is None:
        return None
    seq, attempt, number, tokens, recall, ttl, again, void = said
    return lease.Answer(seq, attempt, number, _batch(tokens), recall, ttl, again, void)


def _batch(said: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(count), int(after)) for count, after in said)


# -- gates ---------------------------------------------------------------------------------------------------------


def rule_in(said: list[Any]) -> OnceRule:
    duration, strict, max_pending, retention = said
    return OnceRule(int(duration), bool(strict), int(max_pending), int(retention))


def submission_in(said: list[Any]) -> Submission:
    return Submission(*said)


def log_in(said: list[Any], run: int) -> GateLog:
    """A part of a log; `run` is added to the server's, which counts for that server alone."""
    began, clock, oldest, lines, theirs = said
    changes = None
    if lines is not None:
        changes = [Change(line[0], EventStatus(line[1]), *line[2:]) for line in lines]
    return GateLog(began, clock, oldest, changes, run + theirs)


def view_in(said: list[Any]) -> GateView:
    began, (clock, time, pending) = said
    return GateView(began, Snapshot(clock, time, tuple(Pending(*one) for one in pending)))


# -- errors --------------------------------------------------------------------------------------------------------


def error_out(error: HeadwayError) -> list[Any]:
    """An error of ours: its class, its message and its facts.

    >>> error_out(errors.GateFull(5, 1.0))[0], error_out(errors.GateFull(5, 1.0))[2]
    ('GateFull', {'max_pending': 5, 'retry_after': 1.0})
    """
    plain = (str, int, float, bool, type(None))
    facts = {
        name: fact if isinstance(fact, plain) else str(fact)
        for name, fact in error.__dict__.items()
        if not name.startswith("_")
    }
    return [type(error).__name__, str(error), facts]


def error_in(said: list[Any]) -> HeadwayError:
    """The same error again; one that is not known here becomes a `HeadwayError` with its message.

    >>> error_in(["GateFull", "it is full", {"max_pending": 5}]).max_pending
    5
    >>> error_in(["SystemExit", "no", {}])
    HeadwayError('no')
    """
    name, text, facts = said
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, HeadwayError)):
        kind, facts = HeadwayError, {}
    return errors._rebuild(kind, text, facts)
