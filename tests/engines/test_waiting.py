"""acquire where it has to wait: how long, in which order, until when, and what a wait that ends early leaves behind."""

# mypy: disable-error-code="union-attr"

import asyncio
import math
import time
from datetime import timedelta

import pytest

from engines.limits import HOUR
from engines.waiting import NEVER, Callers, eventually, eventually_async, in_line
from headway import AcquireTimeout, RateLimited, Remote, Window

# -- how long ----------------------------------------------------------------------------------------------------


def test_a_wait_is_never_too_short(make, fast, call):
    limiter = make(fast.limit)
    begin = time.monotonic()
    for _ in range(2 * fast.count + 1):
        call(limiter.acquire).complete()
    least = fast.per if fast.id == "fixed-window" else 2 * fast.per
    assert time.monotonic() - begin >= least
    assert (limiter.stats().granted, limiter.stats().waiting) == (2 * fast.count + 1, 0)


@pytest.mark.parametrize("bracket", ["with", "hold", "async with", "async hold"])
def test_waits_at_the_beginning_of_a_block(make, bracket):
    limiter = make(Window(1, per=0.1))
    asked, entered = [], []

    def block():
        with limiter if bracket == "with" else limiter.hold():
            entered.append(time.monotonic())

    async def block_async():
        async with limiter if bracket == "async with" else limiter.hold():
            entered.append(time.monotonic())

    for _ in range(3):
        asked.append(time.monotonic())
        asyncio.run(block_async()) if bracket.startswith("async") else block()
    assert all(later - earlier >= 0.1 for earlier, later in zip(asked, entered[1:], strict=False))


def test_a_held_permit_is_waited_for_until_it_comes_back(make, call):
    limiter = make("1 concurrent")
    held = limiter.acquire()
    ended = []

    def end():
        in_line(limiter, 1)
        ended.append(time.monotonic())
        held.complete()

    callers = Callers()
    callers.start(end)
    call(limiter.acquire, timeout=NEVER).complete()
    assert time.monotonic() >= ended[0]
    callers.join()


def test_threads_keep_a_window_as_the_remote_sees_it(make):
    limiter = make(Window(2, per=0.1, remote=Remote(resolution=0)))
    begun, ended = [], []

    def work():
        with limiter:
            begun.append(time.monotonic())
            ended.append(time.monotonic())

    callers = Callers()
    for _ in range(6):
        callers.start(work)
    assert callers.join() == [None] * 6
    # Of any three calls, the last began a window after the first had ended.
    assert all(later - first >= 0.1 for first, later in zip(sorted(ended), sorted(begun)[2:], strict=False))


# -- in which order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["1 concurrent", "1 concurrent; 1000/s", {"a": "1 concurrent", "b": "1000/s"}]
)
def test_tasks_are_served_in_the_order_in_which_they_came(make, limit):
    limiter = make(limit)
    order = []

    async def work(number):
        async with limiter:
            order.append(number)

    async def main():
        held = await limiter.acquire_async()
        tasks = []
        for number in range(8):
            tasks.append(asyncio.create_task(work(number)))
            await eventually_async(
                lambda number=number: limiter.stats().waiting == number + 1, "one more in line"
            )
            await limiter.peek_async()  # and the ledger has heard of it, too
        held.complete()
        await asyncio.wait_for(asyncio.gather(*tasks), NEVER)

    asyncio.run(main())
    assert order == list(range(8))


def serve_in_order(limiter, costs):
    """Let threads with these costs wait, one after another; the order in which they had their permits."""
    order, callers = [], Callers()

    def work(number, cost):
        with limiter.acquire(cost=cost):
            order.append(number)

    held = limiter.acquire()
    for number, cost in enumerate(costs):
        callers.start(work, number, cost)
        in_line(limiter, number + 1)
    assert not limiter.try_acquire(), "what is free is not for a call that comes now"
    held.complete()
    assert callers.join() == [None] * len(costs)
    return order


def test_threads_are_served_in_the_order_in_which_they_came(make):
    assert serve_in_order(make("1 concurrent"), [1, 1, 1, 1]) == [0, 1, 2, 3]


def test_a_heavy_request_is_not_starved_by_light_ones(make):
    assert serve_in_order(make("2 concurrent"), [2, 1])[0] == 0


def test_no_caller_overtakes_a_waiter(make, call):
    limiter = make("2 concurrent")
    held = limiter.acquire()
    callers = Callers()
    callers.start(lambda: limiter.acquire(cost=2).complete())
    in_line(limiter, 1)
    denied = call(limiter.try_acquire)
    assert (bool(denied), denied.status.waiting, denied.status.remaining) == (False, 1, 0)
    with pytest.raises(RateLimited):
        call(limiter.acquire, timeout=0)
    assert call(limiter.peek).remaining == 0
    held.complete()
    callers.join()
    limiter.acquire(cost=2, timeout=NEVER).complete()


def test_a_waiter_for_one_key_does_not_hold_up_another_key(make, call):
    limiter = make("1 concurrent")
    held = limiter.acquire("a")
    callers = Callers()
    callers.start(lambda: limiter.acquire("a").complete())
    in_line(limiter, 1, "a")
    call(limiter.acquire, "b", timeout=0).complete()
    assert (limiter.peek("a").waiting, limiter.peek("b").waiting) == (1, 0)
    held.complete()
    callers.join()


def test_a_waiter_at_one_limiter_is_woken_by_another_of_that_name(make):
    first, second = make("1 concurrent"), make("1 concurrent")
    held = first.acquire()
    callers = Callers()
    callers.start(lambda: second.acquire().complete())
    in_line(first, 1)
    held.complete()
    callers.join()


# -- until when --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(seconds=1)])
def test_a_wait_that_cannot_end_in_time_fails_at_once(make, kind, call, timeout):
    """Where the time is known. While permits are out it is not, and the deadline is waited for."""
    limiter = make(kind.limit)
    permit = limiter.acquire(cost=kind.cost(kind.count))
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not kind.exact and given == 1:
        given = timeout = 0.1
    begin = time.monotonic()
    with pytest.raises(RateLimited) as caught:
        call(limiter.acquire, timeout=timeout)
    error = caught.value
    assert (error.reason, error.timeout) == ("timeout", given)
    assert error.limit == error.status.limit
    assert error.retry_after == error.status.retry_after > 0
    if kind.exact:
        assert error.retry_after > given
    elif kind.id == "concurrency":
        assert time.monotonic() - begin >= given
    eventually(lambda: limiter.peek().waiting == limiter.stats().waiting == 0, "a place that is given back")
    assert limiter.stats().denied == 1
    permit.complete()


def test_a_limiter_has_a_time_out_of_its_own(make, call):
    limiter = make("1 concurrent", timeout=0.05)
    held = limiter.acquire()
    for ask in (limiter.acquire, limiter.hold().__enter__, limiter.__enter__):
        with pytest.raises(RateLimited, match=r"timeout=0\.05 s"):
            ask()
    with pytest.raises(RateLimited, match=r"timeout=0\.05 s"):
        call(limiter.acquire)
    with pytest.raises(RateLimited, match=r"timeout=0\.01 s"):
        call(limiter.acquire, timeout=0.01)
    callers = Callers()
    callers.start(lambda: limiter.acquire(timeout=None).complete())
    in_line(limiter, 1)
    time.sleep(0.1)
    assert not callers.ended
    held.complete()
    assert callers.join() == [None]


@pytest.mark.parametrize("forever", [None, math.inf])
def test_a_wait_without_end(make, call, forever):
    limiter = make("1/100ms")
    limiter.acquire()
    call(limiter.acquire, timeout=forever)


@pytest.mark.parametrize("options", [{"timeout": 0.1}, {"max_waiting": 0}], ids=str)
@pytest.mark.parametrize(
    ("limit", "least"), [("1 concurrent", 0), (Window(1, per=2, remote=Remote(max_transit=HOUR)), 2)], ids=str
)
def test_a_caller_that_gives_up_while_permits_are_out_is_told_the_least_wait(
    make, call, limit, least, options
):
    """No time is known: `retry_after` is the least that it can be, and not when a lease would end."""
    limiter = make(limit, **options)
    held = limiter.acquire()
    with pytest.raises(RateLimited, match="permits are out, so it is not known when") as caught:
        call(limiter.acquire)
    error = caught.value
    assert (error.status.exact, error.status.in_flight, error.reason) == (False, 1, next(iter(options)))
    assert least <= error.retry_after == error.status.retry_after < least + 1
    held.complete()


def test_only_so_many_may_wait(make, call):
    limiter = make("1 concurrent", max_waiting=2)
    held = limiter.acquire()
    callers = Callers()
    for number in (1, 2):
        callers.start(lambda: limiter.acquire().complete())
        in_line(limiter, number)
    # A waiter stands in the server's queue a moment before its process knows, and only what is known here counts.
    eventually(lambda: limiter.stats().waiting == 2, "both are counted")
    with pytest.raises(RateLimited, match="max_waiting=2") as caught:
        call(limiter.acquire, timeout=NEVER)
    assert not callers.ended
    assert (caught.value.reason, caught.value.max_waiting) == ("max_waiting", 2)
    eventually(lambda: limiter.stats().waiting == 2 and limiter.peek().waiting == 2, "the line as it was")
    held.complete()
    assert callers.join() == [None, None]


@pytest.mark.parametrize(
    "limit", ["1/hour", "1/hour burst 1", "1 every 1h", "1/month aligned", "1/hour; 2/hour"]
)
def test_no_caller_may_wait(make, call, limit):
    limiter = make(limit, max_waiting=0)
    limiter.acquire()
    with pytest.raises(RateLimited, match="max_waiting=0") as caught:
        call(limiter.acquire)
    assert caught.value.reason == "max_waiting"
    eventually(lambda: limiter.stats().waiting == limiter.peek().waiting == 0, "an empty line")
    assert limiter.acquire("another key")


# -- what a wait that ends early leaves behind -------------------------------------------------------------------


def test_a_cancelled_wait_gives_its_place_back(make):
    limiter = make("1 concurrent")

    async def main():
        held = await limiter.acquire_async()
        tasks = []
        for number in (1, 2):
            tasks.append(asyncio.create_task(limiter.acquire_async()))
            await eventually_async(lambda number=number: limiter.peek().waiting == number, "one more in line")
        tasks[0].cancel()
        await eventually_async(lambda: limiter.peek().waiting == 1, "one waiter fewer")
        assert limiter.stats().waiting == 1
        held.complete()
        (await asyncio.wait_for(tasks[1], NEVER)).complete()
        await eventually_async(lambda: limiter.peek().in_flight == 0, "nothing that is out")
        assert limiter.stats().waiting == 0

    asyncio.run(main())


@pytest.mark.parametrize("limit", ["1/hour burst 1", "1 every 1h", "1/hour", "1/month aligned"])
def test_a_cancelled_wait_takes_nothing(make, limit):
    limiter = make(limit)

    async def main():
        await limiter.acquire_async()
        before = await limiter.peek_async()
        for _ in range(2):
            task = asyncio.create_task(limiter.acquire_async())
            await eventually_async(lambda: limiter.stats().waiting == 1, "a waiter")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually_async(lambda: limiter.peek().waiting == 0, "an empty line")
        after = await limiter.peek_async()
        assert before.retry_after - NEVER < after.retry_after <= before.retry_after
        assert (limiter.stats().granted, limiter.stats().waiting) == (1, 0)

    asyncio.run(main())


def test_a_wait_that_times_out_lets_those_behind_move_up(make):
    limiter = make("2 concurrent")
    held = limiter.acquire()
    callers = Callers()
    callers.start(limiter.acquire, cost=2, timeout=0.3, label="heavy")
    eventually(lambda: limiter.stats().waiting == 1, "one in line")
    callers.start(lambda: limiter.acquire().complete(), label="light")
    outcomes = callers.join()
    assert [type(outcome) for outcome in outcomes if outcome] == [AcquireTimeout]
    held.complete()
    eventually(lambda: limiter.peek().in_flight == limiter.peek().waiting == 0, "a ledger as new")


@pytest.mark.parametrize(
    "limit", ["1/hour", "1 concurrent", "1/hour burst 1", "1 every 1h", "1/hour; 1 concurrent"]
)
@pytest.mark.parametrize("form", ["acquire", "hold", "with"])
def test_ctrl_c_gives_the_place_back(make, ctrl_c, limit, form):
    limiter = make(limit)
    permit = limiter.acquire()
    before = limiter.stats()
    ctrl_c(limiter)
    ask = {"acquire": limiter.acquire, "hold": limiter.hold().__enter__, "with": limiter.__enter__}[form]
    with pytest.raises(KeyboardInterrupt):
        ask()
    eventually(lambda: limiter.peek().waiting == 0, "an empty line")
    assert limiter.stats() == before
    permit.complete()


def test_a_loop_that_is_torn_down_gives_its_places_back(make):
    limiter = make("1 concurrent")
    permit = limiter.acquire()

    async def main():
        asyncio.ensure_future(limiter.acquire_async())  # noqa: RUF006 - nothing waits for it, on purpose
        await eventually_async(lambda: limiter.peek().waiting == 1, "one in line")

    asyncio.run(main())
    eventually(lambda: limiter.stats().waiting == limiter.peek().waiting == 0, "an empty line")
    callers = Callers()
    callers.start(lambda: limiter.acquire().complete())
    in_line(limiter, 1)
    permit.complete()
    callers.join()
    assert limiter.stats().completed == 2
