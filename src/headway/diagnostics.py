"""What a limiter warns about, once each: a fork, permits that are dropped or abandoned, answers that are too slow for
the limit, a blocked event loop. In the log: a long wait, and once a minute that callers wait for abandoned permits."""

from __future__ import annotations

import logging
import sys
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.window import WindowLedger, WindowRule

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.counts import LimiterCounts

log = logging.getLogger("headway")

AGAIN_NS = 60_000_000_000
"""How long a limiter is silent about abandoned permits after it has spoken of them."""
LONG_WAIT_NS = 60_000_000_000
"""What is waited for longer than this is logged."""
ENOUGH = 256
"""So many permits must have ended before their average says anything."""


class Counted(Protocol):
    """What a warning has to know of a limiter."""

    @property
    def name(self) -> str | None: ...

    @property
    def rules(self) -> Sequence[Rule]: ...

    @property
    def counts(self) -> LimiterCounts: ...


def describe(limiter: Counted) -> str:
    """How a person would call the limiter."""
    limits = "; ".join(str(rule.limit) for rule in limiter.rules)
    return f"limiter '{limits}'" if limiter.name is None else f"limiter {limiter.name!r} ('{limits}')"


def warn_once(limiter: Counted, what: str, message: str) -> None:
    if limiter.counts.first_time(what):
        warnings.warn(message, RuntimeWarning, stacklevel=outside())


def outside() -> int:
    """The `stacklevel` of the code that called headway: compiled functions have no frame, so it is not a constant."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headway."):
        level, frame = level + 1, frame.f_back
    return level


def warn_forked(limiter: Counted) -> None:
    """Parent and child each keep the whole limit now."""
    warn_once(
        limiter,
        "fork",
        f"{describe(limiter)} was forked: parent and child now keep the limit each on its own, so together they allow "
        "twice as much: give each its share, or share one ledger (engine='embedded://DIR')",
    )


def warn_blocking(limiter: Counted) -> None:
    """A blocking verb puts a thread to sleep in which an event loop runs."""
    warn_once(
        limiter,
        "block",
        f"a blocking verb of {describe(limiter)} has to wait inside a running event loop and stops all its tasks: "
        "use `await limiter.acquire_async()` or `async with limiter:`",
    )


def notice_wait(limiter: Counted, waited_ns: int) -> None:
    """A permit was granted after so long a wait; nothing is wrong with that, but it may not be expected."""
    if waited_ns > LONG_WAIT_NS and limiter.counts.first_time("wait"):
        log.warning(
            "%s: a permit was waited for %.3g s; this is said once, on_event tells of each wait",
            describe(limiter),
            waited_ns / 1e9,
        )


def notice_drop(limiter: Counted, permit: object) -> None:
    """A held permit was dropped without an end. Called by its finalizer, in which nothing may be raised."""
    text = (
        f"{permit!r} of {describe(limiter)} was dropped without an end and counts as abandoned: "
        "use `with limiter.hold():`, or keep the permit and call complete(), cancel() or abandon()"
    )
    if limiter.counts.first_time("drop"):
        # A ResourceWarning is hidden by default, and a limit that holds nothing up should not be a secret.
        log.warning("%s; this is logged once", text)
    warnings.warn(text, ResourceWarning, source=permit, stacklevel=outside())


_spoke_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def notice_abandoned(store: Any, keys: Iterable[str | None]) -> None:
    """Say in the log that callers with these keys wait for permits that were abandoned, at most once a minute.

    Retries of calls that timed out are the usual case: every attempt leaves a permit behind, and the next one waits
    for it.
    """
    if not store.counts.abandoned:
        return
    ledgers = [keyed.peek(key) for key in set(keys) for keyed in store.keyed_ledgers]
    lost = [ledger for ledger in ledgers if isinstance(ledger, WindowLedger) and ledger.lost > 0]
    if not lost:
        return
    ledger = max(lost, key=lambda ledger: ledger.lost)
    permits = f"{ledger.lost} of {ledger.get_rule().capacity} permits"
    _say_abandoned(store, store.clock.now(), permits, ledger.rule.transit)


def notice_abandoned_here(limiter: Counted, now: int, since_ns: int, tick_ns: int) -> None:
    """The same for a limiter on a shared engine, which knows of the permits that this process has abandoned.

    `since_ns`: how long ago it abandoned one last.
    """
    for rule in limiter.rules:
        if isinstance(rule, WindowRule) and since_ns < (rule.transit + rule.gap) * tick_ns:
            _say_abandoned(limiter, now, "permits", rule.transit * tick_ns)
            return


def _say_abandoned(limiter: Counted, now: int, permits: str, transit_ns: int) -> None:
    before = _spoke_at.get(limiter)
    if before is not None and now - before < AGAIN_NS:
        return
    _spoke_at[limiter] = now
    log.warning(
        "%s: calls wait for %s that were abandoned, each of which counts until %.3g s after its grant "
        "(max_transit): say which errors prove an answer (answered=) or that nothing was sent (not_sent=), end permits "
        "explicitly, or give a smaller max_transit; this is said once a minute",
        describe(limiter),
        permits,
        transit_ns / 1e9,
    )


def check_health(limiter: Counted) -> None:
    """Look at what has ended so far, as is done now and then while permits end."""
    # Of other kinds, an abandoned permit is as good as a completed one.
    windows = [
        rule for rule in limiter.rules if isinstance(rule, WindowRule) and (rule.held or rule.bracketed)
    ]
    counts = limiter.counts
    if not windows or counts.ended < ENOUGH:
        return
    if counts.abandoned * 100 > counts.ended:
        warn_once(
            limiter,
            "abandoned",
            f"{counts.abandoned} of {counts.ended} permits of {describe(limiter)} were abandoned, and each counts "
            "until max_transit is over: end permits explicitly, or say which errors prove an answer (answered=) or "
            "that nothing was sent (not_sent=)",
        )
    completed = counts.ended - counts.abandoned
    if completed < ENOUGH:
        return
    mean_ns = counts.flight_ns // completed
    for rule in windows:
        per_ns: int = rule.limit.per_ns  # type: ignore[attr-defined]
        cycle_ns = rule.tick_ns * rule.gap + min(mean_ns, rule.tick_ns * rule.transit)
        if 10 * per_ns < 9 * cycle_ns:
            warn_once(
                limiter,
                "latency",
                f"answers take {mean_ns / 1e9:.3g} s, so {describe(limiter)} reaches {per_ns / cycle_ns:.0%} of its "
                "rate at most: complete permits when the headers are there, give a smaller max_transit, or use a "
                "Bucket",
            )
