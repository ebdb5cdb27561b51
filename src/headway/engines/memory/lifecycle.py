"""All stores of this process: the names they are shared by, what a fork does to them, and the blocks of
`headway.testing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.clock import SYSTEM
from headway.engines.memory import store as module
from headway.engines.memory.keyed_ledgers import KeyedLedgers
from headway.engines.memory.pauses import Pauses
from headway.engines.memory.store import MemoryStore, stores
from headway.forks import on_fork

if TYPE_CHECKING:
    from headway.clock import Clock

Aside = list[tuple[MemoryStore, list[KeyedLedgers], Pauses]]

_named: dict[tuple[str, int], MemoryStore] = {}


def open_store(name: str | None, clock: Clock, *, start_full: bool) -> MemoryStore:
    """The store of a name on this clock, or a new one of its own."""
    if name is None:
        return MemoryStore(None, clock, start_full)
    place = (name, id(clock))
    if place not in _named or _named[place].closed:
        _named[place] = MemoryStore(name, clock, start_full)
    return _named[place]


def after_fork() -> None:
    """In a forked child: the lock and the waiters belong to threads that do not exist here."""
    for store in list(stores):
        store.new_lock()
        store.depth = 0
        store.queues.clear()
        store.forked = True
        store.uncontended = False


on_fork(after_fork)


def set_disabled(flag: bool) -> bool:
    """Let every memory limiter grant everything at once; returns what was before."""
    before, module.disabled = module.disabled, flag
    for store in list(stores):
        store.off = flag
        store.uncontended = False
        store.tidy()
    return before


def set_aside() -> Aside:
    """Put the ledgers of every store on the system clock away, and start fresh ones in their place."""
    token: Aside = []
    for store in list(stores):
        if store.clock is SYSTEM:
            fresh = [KeyedLedgers(keyed.rule, keyed.choose, None) for keyed in store.keyed_ledgers]
            token.append((store, list(store.keyed_ledgers), store.pauses))
            _put(store, fresh, Pauses())
    return token


def bring_back(token: Aside) -> None:
    """Put what `set_aside` returned back in its place."""
    for store, ledgers, pauses in token:
        _put(store, ledgers, pauses)


def _put(store: MemoryStore, ledgers: list[KeyedLedgers], pauses: Pauses) -> None:
    with store.lock:
        store.uncontended = False
        store.keyed_ledgers[:] = ledgers
        store.first = ledgers[0]
        store.pauses = pauses
        store.queues.resumed = 0
        store.settle()
