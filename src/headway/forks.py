"""What a fork means for headway, in one place.

The child of a fork has a copy of everything but the other threads: locks that those held stay taken, waiters that slept
there never wake, connections belong to the parent. Every module that has such things registers here what to do. The
hooks run in the order in which they were registered (`before` hooks in the opposite order, as the last lock is the
first to be taken), and one that fails is logged and keeps no other from running.

A child of `multiprocessing` ends without atexit. It runs only what was registered with that package, and only what was
registered after the fork: `plan_at_exit`, called when a process first has something to do at its end.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable

log = logging.getLogger("headway")

Hook = Callable[[], object]

_before: list[Hook] = []
_in_parent: list[Hook] = []
_in_child: list[Hook] = []
_planned: dict[Hook, int] = {}
"""In which process each was planned last."""


def on_fork(
    in_child: Hook | None = None, *, before: Hook | None = None, in_parent: Hook | None = None
) -> None:
    """Call these functions of a module when the process forks; they are kept as long as the process lives."""
    for hook, hooks in (before, _before), (in_parent, _in_parent), (in_child, _in_child):
        if hook is not None:
            hooks.append(hook)


def plan_at_exit(hook: Hook, priority: int = 0) -> None:
    """Call this function once when this process ends, if `multiprocessing` ends it; the highest priority is first."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _planned.get(hook) != os.getpid():
        _planned[hook] = os.getpid()
        util.Finalize(None, hook, exitpriority=priority)


def _run(hooks: Iterable[Hook]) -> None:
    for hook in hooks:
        try:
            hook()
        except Exception:
            log.exception("a fork left headway's %s undone", hook)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _run(reversed(_before)),
        after_in_parent=lambda: _run(_in_parent),
        after_in_child=lambda: _run(_in_child),
    )
