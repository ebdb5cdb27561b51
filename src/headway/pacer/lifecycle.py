"""All gates of this process: what a fork does to them, and the blocks of `headway.testing`.

**Fork.** The child has the pools as they were, so parent and child each hold the whole rate: the first verb there
warns. Whoever waited was another thread, which does not exist in the child: its turn is given back. Forking takes every
lock first, so that no other thread is in the middle of something; the child makes new ones. A thread-scoped pacer does
not warn: it has a rate for each thread, and the thread of a child is one more.

**Blocks.** Pools count time, and the time of a block is another one. So when a block begins the pools on the system's
clock are set aside and empty ones stand in their place, which start with the block; when it ends they are put back,
pace and all, and what was made inside the block starts anew. Who waits at such a moment is let go when it wakes up.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from headway.clock import SYSTEM
from headway.core.pools import Pools
from headway.gate import Gate, gates

__all__ = ["bring_back", "set_aside", "set_disabled"]

Aside = list[tuple[Gate, Pools, Any, Any]]

_forking = threading.RLock()
_locked: list[list[Any]] = []


def _before_fork() -> None:
    _forking.acquire()
    locks = [gate._lock for gate in list(gates)]
    _locked.append(locks)
    for lock in locks:
        lock.acquire()


def _after_in_parent() -> None:
    for lock in _locked.pop():
        lock.release()
    _forking.release()


def _after_in_child() -> None:
    global _forking
    _forking = threading.RLock()
    _locked.clear()
    mine: set[Gate] = set()
    for gate in list(gates):
        gate._lock = threading.RLock()
        pools = gate._pools
        for turn in list(pools.turns):
            pools.cancel(turn, pools.at)
        if gate._scoped:
            own = getattr(gate._local, "gate", None)
            mine.update(gate._children)
            gate._children = weakref.WeakSet(() if own is None else (own,))
    for gate in list(gates):
        gate._forked = not gate._scoped and gate not in mine
        gate._choose()


def set_disabled(flag: bool) -> None:
    """Let every gate open at once, consuming nothing; who waits is let go."""
    for gate in list(gates):
        with gate._lock:
            gate._off = flag
            gate._choose()
            for turn in gate._pools.turns:
                turn.bell.ring()


def set_aside(now: int) -> Aside:
    """Put the pools of every gate on the system clock away, and start empty ones at `now` in their place."""
    token: Aside = []
    for gate in list(gates):
        if gate._clock is SYSTEM:
            with gate._lock:
                token.append((gate, gate._pools, gate._local, gate._children))
                _renew(gate, now)
    return token


def bring_back(token: Aside) -> None:
    """Put what `set_aside` returned back in its place."""
    known = {gate for gate, *_ in token}
    for gate in list(gates):
        if gate._clock is SYSTEM and gate not in known:
            with gate._lock:
                _renew(gate, SYSTEM.now())
    for gate, pools, local, children in token:
        with gate._lock:
            gate._pools, gate._local, gate._children = pools, local, children


def _renew(gate: Gate, now: int) -> None:
    """Empty pools at the same pace; threads get theirs when they ask."""
    running = gate._pools.running
    gate._pools = Pools(gate._pools.rule, now)
    if not running:
        gate._pools.run(now, False)
    gate._local = threading.local()
    gate._children = weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
