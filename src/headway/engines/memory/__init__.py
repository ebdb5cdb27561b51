"""Ledgers in this process: `memory://`.

One `MemoryStore` per limiter, or per name: limiters of one name on one clock share a book, as they would share a
ledger on a server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headway.engines.memory.store import MemoryStore, after_fork, bring_back, set_aside, set_disabled

if TYPE_CHECKING:
    from headway.clock import Clock

__all__ = ["MemoryStore", "bring_back", "open_book", "set_aside", "set_disabled"]

_named: dict[tuple[str, int], MemoryStore] = {}


def open_store(name: str | None, clock: Clock, *, start_full: bool) -> MemoryStore:
    """The book of a name on this clock, or a new one of its own."""
    if name is None:
        return MemoryStore(None, clock, start_full)
    place = (name, id(clock))
    if place not in _named or _named[place].closed:
        _named[place] = MemoryStore(name, clock, start_full)
    return _named[place]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)
