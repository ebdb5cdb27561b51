# mypy: disable-error-code="var-annotated"
"""What a gate tells as it happens: pushed, in order, without gaps; for threads and for tasks, on every engine.

Time is real here. A wait has an exact lower bound and no upper bound but `NEVER`.
"""

import asyncio
import itertools
import threading
import time
import warnings

import pytest

from headway import Change, EventStatus, GateClosed, Snapshot
from waiting import wait_until

REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = EventStatus
NEVER = 30.0


def take(subscription, count):
    """So many things of a subscription, by a thread that does not wait for ever."""
    found, errors = [], []

    def read():
        try:
            found.extend(itertools.islice(subscription, count))
        except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(NEVER)
    assert not errors, errors
    assert not thread.is_alive(), found
    return found


async def take_async(subscription, count):
    found = []
    async with asyncio.timeout(NEVER):
        while len(found) < count:
            found.append(await anext(subscription))
    return found


@pytest.fixture(params=["thread", "task"])
def reading(request):
    """reading(subscription, count): by a thread, or by a task of a loop of its own."""
    if request.param == "thread":
        return take
    return lambda subscription, count: asyncio.run(take_async(subscription, count))


def test_a_snapshot_comes_first_and_then_every_change(open_gate, reading):
    gate, other = open_gate(0.1, "strict"), open_gate(0.1, "strict")
    gate.submit("a", id="1")
    first, *changes = reading(gate.subscribe(), 2)
    assert isinstance(first, Snapshot)
    assert (first.clock, [pending.id for pending in first.pending]) == (1, ["1"])
    assert [(change.clock, change.status, change.id) for change in changes] == [(2, PUBLISHED, "1")]
    assert changes[0].time >= first.pending[0].due
    assert changes == other.changes(1)


def test_a_waiter_publishes_what_is_due(open_gate, reading):
    """No other process looks at the gate: the subscriber itself lets time act."""
    gate = open_gate(0.2, "strict")
    due = gate.submit("a").due
    submitted, published = reading(gate.subscribe(since=0), 2)
    assert (submitted.status, published.status) == (SUBMITTED, PUBLISHED)
    assert published.time >= due
    assert isinstance(published, Change)


def test_what_another_front_end_submits_is_pushed(open_gate):
    gate, other = open_gate(3600), open_gate(3600)
    subscription = gate.subscribe(since=0)
    threading.Timer(0.2, other.submit, ("a",)).start()
    began = time.monotonic()
    changes = take(subscription, 2)
    assert time.monotonic() - began > 0.19  # a timer may be a little early
    assert [change.status for change in changes] == [SUBMITTED, PUBLISHED]
    threading.Timer(0.2, other.submit, ("b",)).start()
    assert [change.clock for change in take(subscription, 2)] == [3, 4]


def test_subscribers_see_every_clock_value_in_order(open_gate):
    """Threads and tasks, some from the beginning and some that come later, while threads submit."""
    gate = open_gate(0.02, "strict")
    total = 2 * 60
    threads, seen = [], []

    def submit():
        for number in range(60):
            gate.submit(f"event {number}")
            time.sleep(0.005)

    def start(function, *args):
        threads.append(threading.Thread(target=function, args=args, daemon=True))
        threads[-1].start()

    def read(since):
        seen.append(list(itertools.islice(gate.subscribe(since), total - since)))

    def read_as_task(since):
        async def main():
            readers = [take_async(gate.subscribe(since), total - since) for _ in range(3)]
            return await asyncio.gather(*readers)

        seen.extend(asyncio.run(main()))

    for _ in range(3):
        start(read, 0)
    start(read_as_task, 0)
    start(submit)
    wait_until(lambda: gate.snapshot().clock >= 10, "events have come")
    start(read, 10)
    for thread in threads:
        thread.join(NEVER)
        assert not thread.is_alive()
    assert len(seen) == 7
    changes = gate.changes()
    assert len(changes) == total
    for found in seen:
        assert found == changes[total - len(found) :]


def test_a_subscription_goes_on_where_another_stood(open_gate, reading):
    gate = open_gate(3600)
    for event in "abc":
        gate.submit(event)
    some = take(gate.subscribe(since=0), 3)
    for since in (some[-1].clock, some[-1]):
        assert reading(gate.subscribe(since), 3) == gate.changes()[3:]
    snapshot = gate.snapshot()
    gate.submit("d")
    assert [change.clock for change in take(gate.subscribe(snapshot), 2)] == [7, 8]


def test_a_subscriber_that_was_away_for_too_long_gets_a_snapshot(timed_gate, reading):
    open_gate, set_time = timed_gate
    gate = open_gate(1, "strict", retention=10)
    gate.submit("a")
    set_time(50)
    gate.submit("b")
    set_time(100)
    gate.submit("c", id="c")
    (snapshot,) = reading(gate.subscribe(since=1), 1)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.clock, [pending.id for pending in snapshot.pending]) == (5, ["c"])


def test_a_clock_value_that_the_gate_has_not_reached_gets_a_snapshot(open_gate, reading):
    gate = open_gate(3600)
    gate.submit("a")
    (snapshot,) = reading(gate.subscribe(since=99), 1)
    assert (type(snapshot), snapshot.clock) == (Snapshot, 2)


def test_closing_the_gate_or_the_subscription_ends_it(open_gate):
    gate, other = open_gate(3600), open_gate(3600)
    ends = []

    def read(subscription):
        ends.append(list(subscription))

    async def read_async(subscription):
        ends.append([change async for change in subscription])

    closed = other.subscribe(since=0)
    threads = [
        threading.Thread(target=read, args=(gate.subscribe(since=0),), daemon=True),
        threading.Thread(target=lambda: asyncio.run(read_async(gate.subscribe(since=0))), daemon=True),
        threading.Thread(target=read, args=(closed,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert ends == []
    gate.close()
    closed.close()
    for thread in threads:
        thread.join(NEVER)
    assert ends == [[], [], []]
    assert list(closed) == []
    assert other.submit("a")


def test_a_cancelled_task_leaves_the_subscription_usable(open_gate):
    gate = open_gate(3600)

    async def main():
        subscription = gate.subscribe(since=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(subscription)
        await gate.submit_async("a")
        return await take_async(subscription, 2)

    assert [change.clock for change in asyncio.run(main())] == [1, 2]


def test_waiting_in_a_running_loop_is_warned_of(open_gate):
    gate = open_gate(0.05, "strict")
    gate.submit("a")

    async def main():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(gate.subscribe(since=1))
        return [str(warning.message) for warning in caught]

    (text,) = asyncio.run(main())
    assert "async for" in text


# -- the guard ---------------------------------------------------------------------------------------------


def test_a_guarded_call_runs_once(open_gate):
    gate, calls = open_gate(3600), []

    @gate.guard(key=lambda order, **_: f"order {order}")
    def handle(order, *, times=1):
        """Handle an order."""
        calls.append(order)
        return order * times

    assert (handle(7, times=2), handle(7), handle(8)) == (14, None, 8)
    assert calls == [7, 8]
    assert (handle.__name__, handle.__doc__) == ("handle", "Handle an order.")
    assert [change.event for change in gate.changes() if change.status == PUBLISHED] == ["order 7", "order 8"]


def test_a_guarded_coroutine_runs_once(open_gate):
    gate, calls = open_gate(3600), []

    @gate.guard(key=int)
    async def handle(order):
        await asyncio.sleep(0)
        calls.append(order)
        return order

    async def main():
        return await asyncio.gather(*[handle("7") for _ in range(5)], handle("8"))

    assert sorted(asyncio.run(main()), key=str) == ["7", "8", None, None, None, None]
    assert sorted(calls) == ["7", "8"]


def test_an_error_of_a_guarded_call_is_raised_and_its_event_stays_used(open_gate):
    gate = open_gate(3600)

    @gate.guard(key="the only event")
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert fail() is None


def test_a_strict_guard_runs_the_call_when_no_repeat_came(open_gate):
    gate, calls = open_gate(0.3, "strict"), []

    @gate.guard(key=lambda what: what)
    def alert(what):
        calls.append((what, time.monotonic()))
        return what

    began = time.monotonic()
    results = {}

    def call(what, after):
        time.sleep(after)
        results[what, after] = alert(what)

    jobs = [("disk full", 0.0), ("noise", 0.0), ("noise", 0.1)]
    threads = [threading.Thread(target=call, args=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert results == {("disk full", 0.0): "disk full", ("noise", 0.0): None, ("noise", 0.1): None}
    ((what, at),) = calls
    assert what == "disk full"
    assert at - began >= 0.3


def test_a_strict_guard_for_coroutines_raises_what_happened_if_asked_to(open_gate):
    from headway import EventRepeated

    gate = open_gate(0.3, "strict")

    @gate.guard(key=lambda what: what, on_repeat="raise")
    async def alert(what):
        return what

    async def main():
        return await asyncio.gather(alert("noise"), alert("noise"), alert("fire"), return_exceptions=True)

    *repeated, result = asyncio.run(main())
    assert result == "fire"
    assert all(isinstance(error, EventRepeated) and error.event == "noise" for error in repeated)
    assert sorted(error.status for error in repeated) == ["invalidated", "rejected"]


def test_closing_a_gate_ends_the_wait_of_a_guarded_call(open_gate):
    gate, errors = open_gate(3600, "strict"), []

    @gate.guard("event")
    def never():
        raise AssertionError("it must not run")

    def call():
        try:
            never()
        except GateClosed as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while gate.snapshot().clock == 0:
        time.sleep(0.01)
    gate.close()
    thread.join(NEVER)
    assert len(errors) == 1
