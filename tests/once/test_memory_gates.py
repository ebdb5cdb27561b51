# mypy: disable-error-code="attr-defined, union-attr, arg-type"
"""Gates in this process: what only they have. No thread of their own, forks, the blocks of `headway.testing`."""

import asyncio
import gc
import os
import threading
import warnings
import weakref

import pytest

from headway import EventStatus, InvalidArgument, InvalidUse, Once, Snapshot
from headway.testing import ManualClock, disabled, run, virtual_time

PUBLISHED = EventStatus.PUBLISHED


def test_no_thread_is_started_and_a_look_publishes_what_is_due():
    clock = ManualClock()
    before = threading.active_count()
    gate = Once(10, "strict", clock=clock)
    gate.submit("a", id="a")
    clock.advance(1000)
    assert threading.active_count() == before
    assert gate.status("a") is PUBLISHED
    (_, published) = gate.changes()
    assert published.time == clock.wall() / 1e9, "when it was noticed"


def test_a_task_sleeps_until_the_event_is_due():
    gate = Once(3600, "strict")

    async def main():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gate = Once(3600, "strict")
            submission = await gate.submit_async("a")
            return submission, [change async for change in first(gate.subscribe(since=1), 1)]

    submission, (change,) = run(main())
    assert (change.status, change.time) == (PUBLISHED, submission.due)
    assert gate.snapshot().clock == 0


async def first_async(order):
    return order


async def first(subscription, count):
    async for change in subscription:
        yield change
        count -= 1
        if not count:
            return


def test_in_virtual_time_a_gate_begins_anew_and_gets_its_events_back():
    gate = Once(3600, "strict")
    gate.submit("a", id="a")
    before = gate.snapshot()
    with virtual_time(ManualClock()) as clock:
        assert gate.snapshot().pending == ()
        assert gate.submit("a", id="inside")
        clock.advance(3600)
        assert gate.status("inside") is PUBLISHED
        inside = Once(60)
        inside.submit("a")
    after = gate.snapshot()
    assert (after.clock, after.pending, after.began) == (before.clock, before.pending, before.began)
    assert gate.status("inside") is None
    assert inside.submit("a"), "its events were of another time"


def test_a_subscriber_in_virtual_time_learns_that_the_gate_is_another_one():
    gate = Once(3600)
    gate.submit("a")
    subscription = gate.subscribe()
    assert isinstance(next(subscription), Snapshot)
    with virtual_time():
        gate.submit("b")
        frame, first, second = next(subscription), next(subscription), next(subscription)
    assert (frame.clock, first.event, second.clock) == (0, "b", 2)


def test_disabled_blocks_do_not_let_repeats_pass():
    gate = Once(3600)
    with disabled():
        assert gate.submit("a")
        assert not gate.submit("a")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_has_a_gate_of_its_own():
    gate = Once(3600, "strict", name="forked")
    gate.submit("a", id="a")
    read, write = os.pipe()
    held = gate._gate._shared.lock  # another thread may have it when the process forks
    with held:
        pid = os.fork()
        if pid == 0:
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    answers = [gate.submit("a").accepted, gate.status("a"), len(gate.snapshot().pending)]
                    text = f"{answers} {[str(one.message)[:24] for one in caught]}"
            except BaseException as error:  # noqa: BLE001 - the parent tells
                text = repr(error)
            os.write(write, text.encode())
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    said = os.read(read, 1000).decode()
    os.close(read)
    assert said == "[True, None, 1] [\"gate 'forked' was forked\"]"
    assert gate.submit("a").conflict == "a"
    gate.close()


def test_the_last_one_that_closes_a_name_lets_it_go():
    one, two = Once(3600, name="let go"), Once(3600, name="let go")
    one.submit("a")
    one.close()
    assert not two.submit("a")
    two.close()
    three = Once(60, "strict", name="let go")
    assert three.submit("a"), "a fresh gate, which may be of another kind"
    three.close()


def test_the_newest_bounds_count():
    small, large = Once(3600, name="bounds", max_pending=1), Once(3600, name="bounds", max_pending=2)
    assert small.submit("a")
    assert small.submit("b")
    small.close()
    large.close()


def test_a_dropped_subscription_leaves_nothing_behind():
    gate = Once(3600)
    subscription = gate.subscribe()
    next(subscription)
    gone = weakref.ref(subscription)
    del subscription
    gc.collect()
    assert gone() is None
    assert gate._gate._shared.wakers == {}


def test_a_loop_that_was_closed_with_a_waiter_is_no_error():
    gate = Once(3600)
    loop = asyncio.new_event_loop()
    task = loop.create_task(anext(gate.subscribe(since=0)))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.submit("a")
    assert gate._gate._shared.wakers == {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task._log_destroy_pending = False
        del task
        gc.collect()


# -- the guard ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"on_repeat": "retry"}, "on_repeat"),
        ({"key": 1.5}, "key"),
        ({"key": True}, "key"),
        ({"key": first_async}, "key"),
        ({"key": object()}, "key"),
    ],
)
def test_a_guard_that_cannot_be_is_refused(options, argument):
    with pytest.raises(InvalidArgument) as error:
        Once(60).guard(**options)
    assert error.value.argument == argument


def test_a_guard_decorates_functions_and_nothing_else():
    guard = Once(60).guard("a")

    def generator():
        yield

    class Kind:
        pass

    for thing in (generator, first, Kind, 7, staticmethod(len)):
        with pytest.raises(InvalidUse):
            guard(thing)


def test_a_guard_without_a_key_is_for_the_function_itself():
    gate = Once(60)

    @gate.guard()
    def nightly():
        return "ran"

    assert [nightly(), nightly()] == ["ran", None]
    (change, _) = gate.changes()
    assert change.event.endswith("test_a_guard_without_a_key_is_for_the_function_itself.<locals>.nightly")


def test_a_guard_of_a_method_sees_the_instance():
    gate = Once(60)

    class Shop:
        def __init__(self, name):
            self.name = name

        @gate.guard(key=lambda self, order: f"{self.name} {order}")
        def ship(self, order):
            return order

    north, south = Shop("north"), Shop("south")
    assert [north.ship(1), south.ship(1), north.ship(1)] == [1, 1, None]


def test_an_event_of_a_key_that_is_no_text_is_refused():
    @Once(60).guard(key=lambda order: order)
    def handle(order):
        return order

    with pytest.raises(InvalidArgument, match="event"):
        handle(1.5)


def test_a_cancelled_call_of_a_strict_guard_does_not_run_and_its_event_is_published():
    gate, calls = Once(10, "strict", clock=(clock := ManualClock())), []

    @gate.guard("a")
    async def alert():
        calls.append(1)

    async def main():
        task = asyncio.create_task(alert())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    clock.advance(10)
    assert [change.status for change in gate.changes()] == [EventStatus.SUBMITTED, PUBLISHED]
    assert calls == []
