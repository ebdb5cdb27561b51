"""All pacers of this process: what a fork does to them, and the blocks of `headway.testing`.

**Fork.** The child has the pools as they were, so parent and child each hold the whole rate: the first verb there
warns. The waiters were other threads, which do not exist in the child: their turns are given back. Forking takes every
lock first, so that no other thread is in the middle of something; the child makes new ones. A thread-scoped pacer does
not warn: it has a rate for each thread, and the thread of a child is one more.

**Blocks.** Pools count time, and the time of a block is another one. So when a block begins the pools on the system's
clock are set aside and empty ones stand in their place, which start with the block; when it ends they are put back,
pace and all, and what was made inside the block starts anew. A waiter of such a moment is let go when it wakes up.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from headway.clock import SYSTEM
from headway.core.pools import Pools
from headway.forks import on_fork
from headway.pacer.core import PacerCore, gates

__all__ = ["bring_back", "set_aside", "set_disabled"]

Aside = list[tuple[PacerCore, Pools, Any, Any]]

_forking = threading.RLock()
_locked: list[list[Any]] = []


def _before_fork() -> None:
    _forking.acquire()
    locks = [core._lock for core in list(gates)]
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
    mine: set[PacerCore] = set()
    for core in list(gates):
        core._lock = threading.RLock()
        pools = core._pools
        for turn in list(pools.turns):
            pools.cancel(turn, pools.at)
        if core._scoped:
            own = getattr(core._local, "core", None)
            mine.update(core._children)
            core._children = weakref.WeakSet(() if own is None else (own,))
    for core in list(gates):
        core._forked = not core._scoped and core not in mine
        core._choose()


def set_disabled(flag: bool) -> None:
    """Let every operation start at once, consuming nothing; waiters are let go."""
    for core in list(gates):
        with core._lock:
            core._off = flag
            core._choose()
            for turn in core._pools.turns:
                turn.waker.wake()


def set_aside(now: int) -> Aside:
    """Put the pools of every pacer on the system clock away, and start empty ones at `now` in their place."""
    token: Aside = []
    for core in list(gates):
        if core._clock is SYSTEM:
            with core._lock:
                token.append((core, core._pools, core._local, core._children))
                _renew(core, now)
    return token


def bring_back(token: Aside) -> None:
    """Put what `set_aside` returned back in its place."""
    known = {core for core, *_ in token}
    for core in list(gates):
        if core._clock is SYSTEM and core not in known:
            with core._lock:
                _renew(core, SYSTEM.now())
    for core, pools, local, children in token:
        with core._lock:
            core._pools, core._local, core._children = pools, local, children


def _renew(core: PacerCore, now: int) -> None:
    """Empty pools at the same pace; threads get theirs when they ask."""
    running = core._pools.running
    core._pools = Pools(core._pools.rule, now)
    if not running:
        core._pools.run(now, False)
    core._local = threading.local()
    core._children = weakref.WeakSet()


on_fork(_after_in_child, before=_before_fork, in_parent=_after_in_parent)
