"""Two small loops that run the flows of a shared ledger, one for threads and one for tasks: the twins of `drive`.

What goes wrong with an effect is thrown into the flow; whatever else ends the flow early closes it. Either way the flow
withdraws its request.

The first park of a decision returns at once: a wake-up may have come before the waker was installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headway.flows.drive import TaskWaker, ThreadWaker, need_loop, running_loop
from headway.flows.shared import Flow, Send

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.clock import Clock
    from headway.engines.base import Ledgers

_T = TypeVar("_T")


def run(flow: Flow[_T], ledgers: Ledgers, clock: Clock, on_block: Callable[[], None]) -> _T:
    """Run a flow in this thread."""
    waker = ThreadWaker()
    try:
        effect = next(flow)
        while True:
            answer = None
            try:
                if isinstance(effect, Send):
                    answer = ledgers.send(effect.command)
                elif effect.decision.waker is not waker:
                    effect.decision.waker = waker
                else:
                    if running_loop() is not None:
                        on_block()
                    clock.park(waker.lock, clock.now() + effect.wait_ns)
                    waker.rearm()
            except BaseException as error:  # noqa: BLE001 - the flow raises it again, if it does not handle it
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        flow.close()


async def run_async(flow: Flow[_T], ledgers: Ledgers, clock: Clock) -> _T:
    """Run a flow in this task."""
    loop = need_loop()
    waker = TaskWaker(loop)
    try:
        effect = next(flow)
        while True:
            answer = None
            try:
                if isinstance(effect, Send):
                    answer = await ledgers.send_async(effect.command, loop)
                elif effect.decision.waker is not waker:
                    effect.decision.waker = waker
                else:
                    await clock.park_async(waker.future, clock.now() + effect.wait_ns)
                    waker.rearm()
            except BaseException as error:  # noqa: BLE001 - the flow raises it again, if it does not handle it
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        flow.close()
