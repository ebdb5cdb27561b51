"""What a limiter warns about, once each: a fork, permits that nobody ends, answers that are too slow for the limit. And
in the log, a long wait, and once a minute that callers wait for abandoned permits."""

from __future__ import annotations

import logging
import sys
import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headway.core.window import WindowLedger, WindowRule

if TYPE_CHECKING:
    from typing import Protocol

    class Counted(Protocol):
        """What a limiter has counted, and the warnings it has given."""

        name: str | None
        warned: set[str]
        abandoned: int
        ended: int
        flight_ns: int

        @property
        def rules(self) -> Any: ...


AGAIN_NS = 60_000_000_000
"""How long a limiter is silent about abandoned permits after it has spoken of them."""
LONG_WAIT_NS = 60_000_000_000
"""What is waited for longer than this is logged."""
ENOUGH = 256
"""So many permits must have ended before their average says anything."""


def describe(store: Counted) -> str:
    """How a person would call the limiter of this book."""
    limits = "; ".join(str(rule.limit) for rule in store.rules)
    return f"limiter '{limits}'" if store.name is None else f"limiter {store.name!r} ('{limits}')"


def warn_once(store: Counted, what: str, message: str) -> None:
    if what not in store.warned:
        store.warned.add(what)
        warnings.warn(message, RuntimeWarning, stacklevel=outside())


def outside() -> int:
    """The `stacklevel` for who called headway: compiled functions have no frame, so it cannot be a constant."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headway."):
        level, frame = level + 1, frame.f_back
    return level


def warn_forked(store: Counted) -> None:
    """Parent and child each keep the whole limit now."""
    warn_once(
        store,
        "fork",
        f"{describe(store)} was forked: parent and child now keep the limit each on its own, so together they allow "
        "twice as much: give each its share, or share one ledger (engine='embedded://DIR')",
    )


def warn_blocking(store: Counted) -> None:
    """A thread sleeps in which an event loop runs."""
    warn_once(
        store,
        "block",
        f"a blocking verb of {describe(store)} has to wait inside a running event loop and stops all its tasks: "
        "use `await limiter.acquire_async()` or `async with limiter:`",
    )


def notice_wait(store: Counted, waited_ns: int) -> None:
    """Somebody has got its permit after so long; nothing is wrong with that, but it may not be expected."""
    if waited_ns > LONG_WAIT_NS and "wait" not in store.warned:
        store.warned.add("wait")
        logging.getLogger("headway").warning(
            "%s: a permit was waited for %.3g s; this is said once, on_event tells of each wait",
            describe(store),
            waited_ns / 1e9,
        )


_spoke_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def notice_abandoned(store: Any, keys: Iterable[str | None]) -> None:
    """Say in the log that callers with these keys wait for permits that were abandoned, at most once a minute.

    Retries of calls that timed out are the usual case: every attempt leaves a permit behind, and the next one waits
    for it.
    """
    ledgers = [keyed.peek(key) for key in set(keys) for keyed in store.keyed_ledgers]
    lost = [ledger for ledger in ledgers if isinstance(ledger, WindowLedger) and ledger.lost > 0]
    if not lost:
        return
    now = store.clock.now()
    before = _spoke_at.get(store)
    if before is not None and now - before < AGAIN_NS:
        return
    _spoke_at[store] = now
    ledger = max(lost, key=lambda ledger: ledger.lost)
    logging.getLogger("headway").warning(
        "%s: calls wait for %d of %d permits that were abandoned, each of which counts until %.3g s after its grant "
        "(max_transit): say which errors prove an answer (answered=) or that nothing was sent (not_sent=), end permits "
        "explicitly, or give a smaller max_transit; this is said once a minute",
        describe(store),
        ledger.lost,
        ledger.get_rule().capacity,
        ledger.rule.transit / 1e9,
    )


def check_health(store: Counted, tick_ns: int = 1) -> None:
    """Look at what has ended so far; by rules that reckon in ticks of so many nanoseconds."""
    # Of other kinds, an abandoned permit is as good as a completed one.
    windows = [rule for rule in store.rules if isinstance(rule, WindowRule) and rule.held]
    if not windows or store.ended < ENOUGH:
        return
    if store.abandoned * 100 > store.ended:
        warn_once(
            store,
            "abandoned",
            f"{store.abandoned} of {store.ended} permits of {describe(store)} were abandoned, and each counts until "
            "max_transit is over: end permits explicitly, or say which errors prove an answer (answered=) or that "
            "nothing was sent (not_sent=)",
        )
    completed = store.ended - store.abandoned
    if completed < ENOUGH:
        return
    mean_ns = store.flight_ns // completed
    for rule in windows:
        per_ns: int = rule.limit.per_ns  # type: ignore[attr-defined]
        cycle_ns = rule.gap * tick_ns + min(mean_ns, rule.transit * tick_ns)
        if 10 * per_ns < 9 * cycle_ns:
            warn_once(
                store,
                "latency",
                f"answers take {mean_ns / 1e9:.3g} s, so {describe(store)} reaches {per_ns / cycle_ns:.0%} of its "
                "rate at most: complete permits when the headers are there, give a smaller max_transit, or use a "
                "Bucket",
            )
