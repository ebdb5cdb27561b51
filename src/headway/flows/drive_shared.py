"""How it is done for a shared ledger: two small loops that run an errand, one for threads and one for tasks.

The twins of `headway.flows.drive`. What goes wrong with an effect is thrown into the errand, and whatever else ends
it early
closes it: either way it gives back what it has.

Who naps for the first time does not sleep yet, but looks again: it may have been called before its bell hung there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headway.engines.redis.client.batching import loop_batcher, thread_batcher
from headway.flows.drive import TaskWaker, ThreadWaker, need_loop, running_loop
from headway.flows.shared import Flow, Send

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.clock import Clock

_T = TypeVar("_T")


def run(flow: Flow[_T], clock: Clock, on_block: Callable[[], None]) -> _T:
    """Run an errand in this thread."""
    waker = ThreadWaker()
    try:
        effect = next(flow)
        while True:
            try:
                if isinstance(effect, Send):
                    ledger = effect.request.ledger
                    thread_batcher(ledger).send(effect.request)
                elif effect.request.waker is not waker:
                    effect.request.waker = waker
                else:
                    if running_loop() is not None:
                        on_block()
                    clock.park(waker.lock, effect.until)
                    waker.rearm()
            except BaseException as error:  # noqa: BLE001 - the errand raises it again, if it is not dealt with
                effect = flow.throw(error)
            else:
                effect = flow.send(clock.now())
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        flow.close()


async def run_async(flow: Flow[_T], clock: Clock) -> _T:
    """Run an errand in this task."""
    loop = need_loop()
    waker = TaskWaker(loop)
    try:
        effect = next(flow)
        while True:
            try:
                if isinstance(effect, Send):
                    ledger = effect.request.ledger
                    await loop_batcher(ledger, loop).send(effect.request)
                elif effect.request.waker is not waker:
                    effect.request.waker = waker
                else:
                    await clock.park_async(waker.future, effect.until)
                    waker.rearm()
            except BaseException as error:  # noqa: BLE001 - the errand raises it again, if it is not dealt with
                effect = flow.throw(error)
            else:
                effect = flow.send(clock.now())
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        flow.close()
