"""One ledger of a server in words: what its limit is, what is left of it, and when that changes.

The numbers that scripts work with (ticks, gaps, grids) are for `--json`. Here each is a sentence with its unit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import singledispatch

from headway.cli.top import held_up, span
from headway.cli.words import count, shown
from headway.core.bucket import BucketLedger
from headway.core.concurrency import ConcurrencyLedger
from headway.core.fixed_window import FixedWindowLedger
from headway.core.ledger import LONG_AGO, Ledger
from headway.core.spacing import SpacingLedger
from headway.core.window import WindowLedger
from headway.engines.ledger_view import LedgerView
from headway.errors import seconds_text
from headway.printable import printable

TELLING = 1_000
"""Ticks: a shorter wait only means that the caller has to ask again."""


def title(view: LedgerView) -> str:
    address = view.address
    return (
        shown(address.label) if address.key is None else f"{shown(address.label)}, key {shown(address.key)}"
    )


def use(view: LedgerView) -> str:
    if not view.ledgers:
        return "as new"
    out = f", {view.in_flight} in use" if view.in_flight else ""
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
    times = dict.fromkeys((moment(first), moment(last)))  # those of one command look the same
    return " to ".join(times)


def describe(view: LedgerView) -> list[tuple[str, str]]:
    """What there is to say about a ledger, as pairs of a label and a sentence."""
    meta, now = view.meta, view.now
    lines = [("ledger", title(view)), ("limit", printable(view.limit))]
    if not view.ledgers:
        lines.append(("left", "everything: the ledger is as new"))
    else:
        lines.append(("left", f"{view.remaining} of {count(view.capacity or 0, 'permit')}"))
        if view.in_flight:
            lines.append(
                ("in use", f"{count(view.in_flight, 'permit')}, granted to calls that have not ended yet")
            )
        if view.holders:
            lent = f"{count(view.lent, 'token')} to {count(view.holders, 'client')}"
            lines.append(
                ("lent", f"{lent}; the last lease ends in {span(view.lent_for)} unless it is renewed")
            )
        lines.append(("next permit", next_permit(view)))
    if view.waiting > meta.waiting:
        lines.append(("reserved", f"{count(view.waiting - meta.waiting, 'slot')}, promised for later"))
    if view.abandoned:
        lines.append(
            ("abandoned", f"{count(view.abandoned, 'permit')} since the ledger began: no end was reported")
        )
    for ledger in view.ledgers:
        reset_after = ledger.reset_after(now)
        fresh = f"in {span(reset_after)}, at {moment(now + reset_after)}, if it is not used before"
        lines += [
            ("rule", rule(ledger)),
            ("state", state(ledger, now)),
            ("as new", fresh if reset_after else "now"),
        ]
    if view.held_up:
        until = moment(max(meta.quarantined, meta.paused))
        lines.append(("held up", f"{held_up(view)}, until {until}: nothing is granted before"))
    if view.in_doubt:
        lines.append(("in doubt", f"until {moment(meta.born)}: it was lost, and its quarantine cut short"))
    return lines


def next_permit(view: LedgerView) -> str:
    wait = view.wait
    if wait is None:
        return "never: this limit admits nothing"
    if not wait:
        return "now"
    if view.exact:
        return f"in {span(wait)}"
    if view.lent:
        return "not known: it comes when a client hands a token back, or its lease ends"
    if wait < TELLING:
        return "not known: it comes when one that is in use is returned"
    return f"not known: one that is in use has to be returned first; not within {span(wait)}"


@singledispatch
def rule(ledger: Ledger) -> str:
    """What the rule of a ledger says."""
    return f"at most {ledger.get_rule().capacity}"


@rule.register
def _(ledger: WindowLedger) -> str:
    own = ledger.rule
    gap, start = (own.gap, "its call has ended") if own.held else (own.bare_gap, "its grant")
    text = f"{count(own.capacity, 'permit')}; each is free again {span(gap)} after {start}"
    if own.bracketed:
        text += f", or {span(own.gap)} after the call that it brackets"
    if own.grid > 1:
        text += f", rounded up to {span(own.grid)}"
    if own.held:
        text += f"; a call that reports no end counts as ended after {span(own.transit)}"
    return text


@rule.register
def _(ledger: BucketLedger) -> str:
    own = ledger.rule
    every = seconds_text((own.whole + own.part / own.parts) / 1e6)
    return f"one permit every {every}, up to {own.capacity} saved up"


@rule.register
def _(ledger: SpacingLedger) -> str:
    own = ledger.rule
    late = f"; a holder may be {span(own.allowance)} late for its slot" if own.allowance else ""
    return f"one slot every {span(own.step)}, up to {own.max_reserved} reserved ahead{late}"


@rule.register
def _(ledger: FixedWindowLedger) -> str:
    return f"at most {ledger.rule.capacity} in each period of the calendar"


@rule.register
def _(ledger: ConcurrencyLedger) -> str:
    own = ledger.rule
    text = f"at most {own.capacity} at the same time"
    return (
        f"{text}; a holder that is not heard of for {span(own.lease)} loses its permit" if own.lease else text
    )


@singledispatch
def state(ledger: Ledger, now: int) -> str:
    """What a ledger remembers."""
    return f"{ledger.remaining(now)} free"


@state.register
def _(ledger: BucketLedger, now: int) -> str:
    return "full" if ledger.tat <= now else f"full again at {moment(ledger.tat)}"


@state.register
def _(ledger: WindowLedger, now: int) -> str:
    ledger.remaining(now)  # moves the permits whose time has come
    parts = [f"{max(0, ledger.free)} free"]
    for what, runs in (("spent, free again at", ledger.cooling), ("in use since", ledger.out)):
        pairs = runs.pairs() if runs is not None else ()
        if pairs:
            parts.append(f"{sum(pairs[1::2])} {what} {stretch(pairs[0], pairs[-2])}")
    if ledger.free < 0:
        parts.append(f"{-ledger.free} promised for later")
    return "; ".join(parts)


@state.register
def _(ledger: SpacingLedger, now: int) -> str:
    if ledger.last == LONG_AGO:
        return "never used"
    return f"the last slot {'is' if ledger.last > now else 'was'} at {moment(ledger.last)}"


@state.register
def _(ledger: FixedWindowLedger, now: int) -> str:
    left = ledger.remaining(now)
    return f"{ledger.rule.capacity - left} used in the period that ends at {moment(ledger.ends)}"


@state.register
def _(ledger: ConcurrencyLedger, now: int) -> str:
    out = ledger.in_flight(now)
    pairs = ledger.leases.pairs() if ledger.leases is not None else ()
    if not pairs:
        return f"{out} in use" if out else "none in use"
    lease = ledger.rule.lease
    ends = stretch(pairs[0] + lease, pairs[-2] + lease)
    return f"{out} in use; without a sign of life the lease ends at {ends}"
