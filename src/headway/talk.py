"""How it is done for a shared ledger: two small loops that run an errand, one for threads and one for tasks.

The twins of `headway.drive`. Whatever ends an errand early is thrown into it, so that it gives back what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.drive import TaskBell, ThreadBell, need_loop, running_loop
from headway.errands import Errand, Say

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.clock import Clock


def run(errand: Errand, clock: Clock, on_block: Callable[[], None]) -> None:
    """Run an errand in this thread."""
    bell = ThreadBell()
    try:
        effect = next(errand)
        while True:
            if isinstance(effect, Say):
                account = effect.request.account
                account.spec.engine.lane(account).ask(effect.request)
            else:
                if running_loop() is not None:
                    on_block()
                effect.request.bell = bell
                clock.park(bell.lock, effect.until)
                bell.rearm()
            effect = errand.send(clock.now())
    except StopIteration:
        return
    except BaseException as error:
        _tell(errand, error)
        raise


async def run_async(errand: Errand, clock: Clock) -> None:
    """Run an errand in this task."""
    loop = need_loop()
    bell = TaskBell(loop)
    try:
        effect = next(errand)
        while True:
            if isinstance(effect, Say):
                account = effect.request.account
                await account.spec.engine.task_lane(account, loop).ask(effect.request)
            else:
                effect.request.bell = bell
                await clock.park_async(bell.future, effect.until)
                bell.rearm()
            effect = errand.send(clock.now())
    except StopIteration:
        return
    except BaseException as error:
        _tell(errand, error)
        raise


def _tell(errand: Errand, error: BaseException) -> None:
    """Let the errand know how it ended, unless it ended itself."""
    try:
        errand.throw(error)
    except BaseException as raised:
        if raised is not error:
            raise
