"""Ledgers in this process: `memory://`.

One `MemoryStore` per limiter, or per name: limiters of one name on one clock share a store, as they would share a
ledger on a server. The store has a lock and its collaborators: the ledgers of each rule (`keyed_ledgers`), the waiting
requests (`wait_queues`), the `pauses`, and the counts. `gates` has the gates of events.
"""

from __future__ import annotations

from headway.engines.memory.gates import begin_gates_anew, bring_back_gates, open_gate, set_aside_gates
from headway.engines.memory.lifecycle import bring_back, open_store, set_aside, set_disabled
from headway.engines.memory.store import MemoryStore

__all__ = [
    "MemoryStore",
    "begin_gates_anew",
    "bring_back",
    "bring_back_gates",
    "open_gate",
    "open_store",
    "set_aside",
    "set_aside_gates",
    "set_disabled",
]
