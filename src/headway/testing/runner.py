"""`asyncio.run` on virtual time.

A runner is a loop and a block: the `VirtualLoop` gives asyncio its time, the `virtual_time` block gives the same time
to the limiters, which asyncio does not know. Inside an existing block the runner joins it, ledgers included, so a
test may spend permits in plain code first and go on in tasks.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headway.testing.blocks import current_clock, virtual_time
from headway.testing.clocks import ManualClock
from headway.testing.loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["loop_factory", "run"]

T = TypeVar("T")


def loop_factory(clock: ManualClock | None = None) -> Callable[[], VirtualLoop]:
    """For `asyncio.Runner(loop_factory=loop_factory(clock))` and for test frameworks that take a factory.

    >>> clock = ManualClock()
    >>> with asyncio.Runner(loop_factory=loop_factory(clock)) as runner:
    ...     runner.run(asyncio.sleep(60))
    >>> clock.time()
    60.0
    """
    return partial(VirtualLoop, clock)


def run(main: Coroutine[Any, Any, T], *, clock: ManualClock | None = None, debug: bool | None = None) -> T:
    """Like `asyncio.run`, on virtual time: every wait takes no time at all, and takes place in order.

    Inside, limiters on the system's clock follow the same virtual time, as in `virtual_time`. Without `clock` it
    is the clock of the `virtual_time` block around this call, or a new one.

    >>> async def main():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run(main())
    3600.0
    """
    around = current_clock()
    clock = clock or around or ManualClock(autojump=True)
    if clock is not around:
        with virtual_time(clock):
            return run(main, clock=clock, debug=debug)
    with asyncio.Runner(debug=debug, loop_factory=loop_factory(clock)) as runner:
        return runner.run(main)
