"""How to notice that an ordinary event loop has nothing to do.

A loop does not report that it is idle. But a callback that asks to be called again next time runs once per round, and
between two rounds the loop has polled its sockets. Three rounds in which our callback found nothing else ready mean
that every task waits for something: then the clock may jump. A loop that does not show its ready queue (uvloop) is
given a millisecond of real time instead.

What this cannot see is why the tasks wait. `asyncio.sleep` and `asyncio.timeout` on an ordinary loop run on real time,
and a thread of the executor gets the clock's grace and no more: `headway.testing.run` treats all of them exactly.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headway.testing.crew import SLICE

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS = 3
_MOST_ROUNDS = 1000


def ready(loop: asyncio.AbstractEventLoop) -> Any:
    """The loop's queue of ready callbacks, or None where it is not shown."""
    return getattr(loop, "_ready", None)


async def let_others_run() -> None:
    """Yield until no other task of this loop is ready (or so often that it must be a busy loop)."""
    queue = ready(asyncio.get_running_loop())
    quiet = 0
    for _ in range(_MOST_ROUNDS):
        await asyncio.sleep(0)
        quiet = 0 if queue else quiet + 1
        if quiet >= (_ROUNDS if queue is not None else 10 * _ROUNDS):
            return


class Watch:
    """Looks at one loop for as long as one of its tasks sleeps on the clock; `jump` is the clock's `_try_jump`."""

    def __init__(self, jump: Callable[[], float | None], loop: asyncio.AbstractEventLoop) -> None:
        self._jump = jump
        self._loop = loop
        self._sleepers = 0
        self._is_looking = False

    def join(self) -> None:
        self._sleepers += 1
        if not self._is_looking:
            self._is_looking = True
            self._look_again(0)

    def leave(self) -> None:
        self._sleepers -= 1

    def _look(self, quiet: int) -> None:
        if not self._sleepers:
            self._is_looking = False
        elif ready(self._loop):
            self._look_again(0)
        elif quiet < _ROUNDS:
            self._look_again(quiet + 1)
        elif (wait := self._jump()) == 0:
            self._look_again(0)
        else:
            self._loop.call_later(SLICE if wait is None else wait, self._look, 0)

    def _look_again(self, quiet: int) -> None:
        if ready(self._loop) is None:
            self._loop.call_later(SLICE, self._look, _ROUNDS)
        else:
            self._loop.call_soon(self._look, quiet)
