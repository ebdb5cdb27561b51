"""How it is done for a shared ledger: two small loops that run an errand, one for threads and one for tasks.

The twins of `headway.drive`. What goes wrong with an effect is thrown into the errand, and whatever else ends it early
closes it: either way it gives back what it has.

Who naps for the first time does not sleep yet, but looks again: it may have been called before its bell hung there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headway.drive import TaskBell, ThreadBell, need_loop, running_loop
from headway.engines.redis.lanes import lane_of_tasks, lane_of_threads
from headway.errands import Errand, Say

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.clock import Clock

_T = TypeVar("_T")


def run(errand: Errand[_T], clock: Clock, on_block: Callable[[], None]) -> _T:
    """Run an errand in this thread."""
    bell = ThreadBell()
    try:
        effect = next(errand)
        while True:
            try:
                if isinstance(effect, Say):
                    account = effect.request.account
                    lane_of_threads(account).ask(effect.request)
                elif effect.request.bell is not bell:
                    effect.request.bell = bell
                else:
                    if running_loop() is not None:
                        on_block()
                    clock.park(bell.lock, effect.until)
                    bell.rearm()
            except BaseException as error:  # noqa: BLE001 - the errand raises it again, if it is not dealt with
                effect = errand.throw(error)
            else:
                effect = errand.send(clock.now())
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        errand.close()


async def run_async(errand: Errand[_T], clock: Clock) -> _T:
    """Run an errand in this task."""
    loop = need_loop()
    bell = TaskBell(loop)
    try:
        effect = next(errand)
        while True:
            try:
                if isinstance(effect, Say):
                    account = effect.request.account
                    await lane_of_tasks(account, loop).ask(effect.request)
                elif effect.request.bell is not bell:
                    effect.request.bell = bell
                else:
                    await clock.park_async(bell.future, effect.until)
                    bell.rearm()
            except BaseException as error:  # noqa: BLE001 - the errand raises it again, if it is not dealt with
                effect = errand.throw(error)
            else:
                effect = errand.send(clock.now())
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        errand.close()
