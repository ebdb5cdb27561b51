"""All prefetchers of this process: what a fork does to them, the end of the process, and the blocks of
`headway.testing`.

**Fork.** Permits that parent and child both hold would be spent twice, so the child starts with none, as a client
that has just begun; what is owed stays the parent's debt. Threads, loops and waiters are the parent's too.

**Exit.** Every prefetcher is closed. A thread that still runs a fetch is a daemon, and does not hold the process up.

**Blocks.** In `virtual_time` time is another one, and permits that end by the old one mean nothing: each prefetcher
on the system's clock gets a new ledger for the block, and its own back afterwards. In `disabled` every request
passes.
"""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING

from headway.clock import SYSTEM
from headway.forks import on_fork
from headway.prefetch import prefetcher as module
from headway.prefetch.line import Line
from headway.prefetch.prefetcher import Prefetcher, prefetchers

if TYPE_CHECKING:
    from headway.core.prefetch import PrefetchLedger

Aside = list[tuple[Prefetcher, "PrefetchLedger"]]


def after_fork() -> None:
    """In a forked child: start anew."""
    for prefetcher in list(prefetchers):
        prefetcher._lock = threading.RLock()
        prefetcher._ledger = prefetcher._settings.open()
        prefetcher._line = Line()
        prefetcher._error = None
        prefetcher._fetching.after_fork()


def close_all() -> None:
    """At the end of the process."""
    for prefetcher in list(prefetchers):
        prefetcher.close()


def set_aside() -> Aside:
    """Give every prefetcher on the system clock a new ledger; returns the old ones."""
    token: Aside = []
    for prefetcher in list(prefetchers):
        if prefetcher._clock is SYSTEM:
            with prefetcher._lock:
                token.append((prefetcher, prefetcher._ledger))
                prefetcher._ledger = prefetcher._settings.open()
                prefetcher._line.wake_all()
    return token


def bring_back(token: Aside) -> None:
    """Put what `set_aside` returned back in its place; what was made meanwhile starts anew."""
    known = dict(token)
    for prefetcher in list(prefetchers):
        if prefetcher._clock is SYSTEM:
            with prefetcher._lock:
                prefetcher._ledger = known.get(prefetcher) or prefetcher._settings.open()
                prefetcher._line.wake_all()


def set_disabled(flag: bool) -> None:
    """Let every request pass, and whatever waits."""
    module.disabled = flag
    for prefetcher in list(prefetchers):
        with prefetcher._lock:
            prefetcher._line.wake_all()


on_fork(after_fork)
atexit.register(close_all)
