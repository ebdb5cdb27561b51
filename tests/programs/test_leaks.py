"""Nothing leaks: dropped permits come back, limiters are freed, and memory does not grow with the number of calls."""

import asyncio
import contextlib
import gc
import sys
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import headway
from headway import Limiter, RateLimited, Remote, Window
from headway.testing import ManualClock

pytestmark = pytest.mark.both_forms

# The attributes that a throttled function has beyond its type are looked at here, and wrong calls are made.
throttle: Callable[..., Callable[[Any], Any]] = headway.throttle

PLENTY = "1000000000/s burst 1000000000"


# -- dropped permits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [1, 2])
def test_a_dropped_permit_is_abandoned_with_a_warning(cost):
    limiter = Limiter("2 concurrent")
    permit = limiter.acquire("ann", cost=cost)
    assert limiter.peek("ann").in_flight == cost
    with pytest.warns(  # noqa: PT031
        ResourceWarning, match=r"<Permit for 'ann': abandon>.*with limiter\.hold\(\)"
    ) as caught:
        del permit
        gc.collect()
    assert len(caught) == 1
    assert limiter.peek("ann").in_flight == 0
    assert limiter.stats().abandoned == 1


def test_dropped_permits_of_several_limits():
    limiter = Limiter({"requests": "5 concurrent", "tokens": "100/hour"})
    with pytest.warns(ResourceWarning):  # noqa: PT031
        limiter.acquire(cost={"tokens": 10})
        gc.collect()
    assert limiter.peek().parts[0].in_flight == 0


def test_of_other_kinds_there_is_nothing_to_drop():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for limit in ("5/s", "5/s burst 5", "1 every 1s", "5/day aligned", "5/s; 10/minute"):
            Limiter(limit).acquire()
            gc.collect()


def test_a_dropped_permit_wakes_a_waiter():
    limiter = Limiter("1 concurrent")

    async def main():
        permit = await limiter.acquire_async()
        waiter = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0)
        with pytest.warns(ResourceWarning):  # noqa: PT031
            del permit
            gc.collect()
        (await asyncio.wait_for(waiter, 5)).complete()

    asyncio.run(main())


def test_dropped_in_a_cycle_and_inside_of_the_limiter():
    """The collector may run anywhere, also while the limiter's lock is held."""
    limiter = Limiter("1000 concurrent; 100000/hour")
    threshold = gc.get_threshold()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.set_threshold(3, 2, 2)
        try:
            for _ in range(500):
                cycle = [limiter.acquire()]
                cycle.append(cycle)  # type: ignore[arg-type]
                del cycle
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
    assert limiter.peek().parts[0].in_flight == 0
    assert limiter.stats().abandoned == 500


def test_dropped_in_a_window():
    clock = ManualClock()
    limiter = Limiter(Window(1, per=10, remote=Remote(resolution=0, drift_ppm=0, max_transit=5)), clock=clock)
    with pytest.warns(ResourceWarning):  # noqa: PT031
        limiter.acquire()
        gc.collect()
    clock.advance(14.9)
    assert not limiter.try_acquire()
    clock.advance(0.2)
    limiter.try_acquire().complete()  # type: ignore[union-attr]


def test_ended_permits_are_silent():
    limiter = Limiter("9 concurrent")
    limiter.acquire().complete()
    limiter.acquire().cancel()
    limiter.acquire().abandon()
    limiter.acquire().settle(1)
    with limiter.acquire():
        pass
    with pytest.raises(OSError, match="mine"), limiter:
        raise OSError("mine")
    gc.collect()
    assert limiter.peek().in_flight == 0


# -- limiters are freed -----------------------------------------------------------------------------------------------


def use_try(limiter):
    limiter.try_acquire()
    limiter.try_acquire("ann")


def use_with(limiter):
    with limiter, limiter:
        pass


def use_hold(limiter):
    with limiter.hold("ann", cost=2):
        pass


def use_throttle(limiter):
    throttle(limiter)(lambda: None)()
    throttle(limiter, key="ann")(lambda: None)()


def use_async(limiter):
    async def main():
        async with limiter, limiter.hold("ann"):
            pass
        (await limiter.acquire_async()).complete()

    asyncio.run(main())


def use_denial(limiter):
    permits = []
    while permit := limiter.try_acquire():
        permits.append(permit)
    with pytest.raises(RateLimited):
        limiter.acquire(timeout=0)
    for permit in permits:
        permit.complete()


def use_waiters(limiter):
    async def main():
        permits = []
        while permit := limiter.try_acquire():
            permits.append(permit)
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for permit in permits:
            permit.complete()

    asyncio.run(main())


def use_rest(limiter):
    limiter.peek()
    limiter.stats()
    limiter.pause(5, "ann")
    limiter.reset()
    limiter.set_limit(limiter.limit)
    limiter.close()


USES = [use_try, use_with, use_hold, use_throttle, use_async, use_denial, use_waiters, use_rest]
MAKERS = {
    "bucket": lambda: Limiter("10/hour burst 10"),
    "window": lambda: Limiter("10/hour"),
    "remote": lambda: Limiter("10/hour", remote=True),
    "concurrency": lambda: Limiter("10 concurrent"),
    "several": lambda: Limiter("10/hour; 8 concurrent"),
    "calendar": lambda: Limiter("10/day aligned"),
    "overrides": lambda: Limiter("10/hour", overrides={"bob": "5/hour"}),
    "listening": lambda: Limiter("10/hour", on_event=lambda event: None),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_limiter_is_freed(kind, use):
    limiter = MAKERS[kind]()
    use(limiter)
    use_try(limiter) if use is not use_rest else None
    alive = weakref.ref(limiter), weakref.ref(limiter._store)
    del limiter
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_a_listener_that_knows_its_limiter_and_a_permit():
    class Client:
        def __init__(self):
            self.limiter = Limiter("10 concurrent", on_event=self.note)
            self.permit = self.limiter.acquire()

        def note(self, event):
            pass

    client = Client()
    client.permit.complete()
    alive = weakref.ref(client)
    del client
    gc.collect()
    assert alive() is None


def test_a_throttled_function_is_freed():
    for decorate in (throttle("10/hour"), throttle(Limiter(PLENTY)), throttle("10 concurrent", key="ann")):
        function = decorate(lambda: None)
        function()
        function.itself = function
        alive = weakref.ref(function)
        del function, decorate
        gc.collect()
        assert alive() is None


def test_what_was_passed_and_raised_is_freed():
    class Thing:
        pass

    call = throttle(PLENTY)(lambda thing, *, named=None: Thing())

    @throttle(PLENTY)
    def fail(thing):
        raise OSError(thing)

    thing = Thing()
    alive = weakref.ref(thing), weakref.ref(call(thing, named=thing))
    try:
        fail(thing)
    except OSError as error:
        assert error.args == (thing,)  # noqa: PT017 - pytest.raises would keep it
    gc.disable()
    try:
        del thing
        assert [ref() for ref in alive] == [None, None], "without any help of the collector"
    finally:
        gc.enable()


# -- memory does not grow ---------------------------------------------------------------------------------------------


def grown(operation, times, warm_up=500):
    """Bytes by which memory grew, and by how many the counts of None and of the objects did."""
    for i in range(warm_up):
        operation(i)
    gc.collect()
    tracemalloc.start(1)
    try:
        operation(0)
        gc.collect()
        before, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
        nones = sys.getrefcount(None)
        for i in range(times):
            operation(i)
        gc.collect()
        return (
            tracemalloc.get_traced_memory()[0] - before,
            len(gc.get_objects()) - objects,
            0 if sys.version_info >= (3, 12) else sys.getrefcount(None) - nones,
        )
    finally:
        tracemalloc.stop()


def verbs():  # noqa: C901 - one long list
    plenty, held = Limiter(PLENTY), Limiter("1000 concurrent")
    remote = Limiter("1000000/s", remote=True)
    several = Limiter({"a": PLENTY, "b": "1000 concurrent"})
    full = Limiter("1/day")
    full.acquire()
    told = Limiter(PLENTY, on_event=lambda event: None)
    plain = throttle(PLENTY)(lambda a, *args, b=1: a)
    keyed = throttle("1000 concurrent", key=str, cost=2, settle=lambda result: 1)(lambda a: a)
    failing = throttle(remote)(lambda a: 1 / 0)
    generator = throttle(held)(lambda: (yield from (1, 2)))
    skipping = throttle(full, on_limit="skip", timeout=0)(lambda: 0)

    @throttle(held)
    async def coroutine(a):
        return a

    @throttle(held)
    async def stream():
        yield 1

    def end(how, *args):
        return lambda i: getattr(held.acquire(), how)(*args)

    def block(limiter, *args):
        def enter(i):
            with limiter.hold(*args) if args else limiter:
                pass

        return enter

    def late(make):
        """A real coroutine without a loop: nothing here has to wait."""

        def drive(i):
            with pytest.raises(StopIteration):
                make(i).send(None)

        return drive

    def caught(error, function):
        def call(i):
            with contextlib.suppress(error):
                function(i)

        return call

    async def whole(stream):
        async for _ in stream:
            pass

    async def enter_async():
        async with plenty, held.hold("ann"):
            pass

    return {
        "try_acquire": lambda i: plenty.try_acquire(),
        "try_acquire key": lambda i: plenty.try_acquire("ann"),
        "try_acquire many keys": lambda i: plenty.try_acquire(str(i % 50)),
        "try_acquire cost": lambda i: plenty.try_acquire(cost=3),
        "denied": lambda i: full.try_acquire().retry_after,  # type: ignore[union-attr]
        "acquire": lambda i: plenty.acquire(),
        "complete": end("complete"),
        "cancel": end("cancel"),
        "abandon": end("abandon"),
        "settle": end("settle", 1),
        "remote": lambda i: remote.acquire().complete(),
        "several": lambda i: several.acquire(cost={"a": 2}).complete(),
        "with": block(plenty),
        "with held": block(held),
        "hold": block(plenty, "ann"),
        "reserve": lambda i: plenty.reserve().cancel(),
        "peek": lambda i: plenty.peek(str(i)),
        "stats": lambda i: plenty.stats(),
        "pause": lambda i: plenty.pause(0),
        "reset": lambda i: plenty.reset("ann"),
        "event": lambda i: told.acquire(),
        "acquire_async": late(lambda i: plenty.acquire_async()),
        "async with": late(lambda i: enter_async()),
        "timeout": caught(RateLimited, lambda i: full.acquire(timeout=0)),
        "wrong": caught(ValueError, lambda i: plenty.acquire(cost=-i)),
        "throttle": lambda i: plain(i, 2, b=3),
        "throttle wrong": caught(TypeError, lambda i: plain(c=i)),
        "throttle keyed": lambda i: keyed(i % 10),
        "throttle failing": caught(ZeroDivisionError, failing),
        "throttle generator": lambda i: list(generator()),
        "throttle generator left": lambda i: next(generator()),
        "throttle skip": lambda i: skipping(),
        "throttle coroutine": late(coroutine),
        "throttle async generator": late(lambda i: whole(stream())),
    }


VERBS = verbs()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("verb", VERBS)
def test_memory_does_not_grow(verb):
    size, objects, nones = grown(VERBS[verb], 3000)
    assert size < 16 * 3000, "less than the smallest object for each call"
    assert objects < 50, "fewer than before are those of another test"
    assert abs(nones) < 50


@pytest.mark.parametrize("verb", ["try_acquire", "with", "remote", "throttle"])
def test_memory_does_not_grow_over_many_calls(verb):
    many = 100_000 if headway.compiled else 20_000
    size, objects, nones = grown(VERBS[verb], many)
    assert size < 16 * many
    assert objects < 50, "fewer than before are those of another test"
    assert abs(nones) < 50


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_memory_does_not_grow_with_waiters_or_limiters(caplog):
    caplog.set_level(
        "ERROR", "headway"
    )  # it keeps what is logged, and every limiter logs a permit that is dropped
    limiter = Limiter("1 concurrent")

    async def main():
        async with limiter:
            tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
        for task in tasks[1::2]:
            (await task).complete()

    def loop(i):
        with asyncio.Runner() as runner:
            runner.run(main())

    size, objects, _ = grown(loop, 30, warm_up=5)
    assert size < 20_000
    assert objects < 50, "fewer than before are those of another test"

    def make(i):
        for maker in MAKERS.values():
            use_try(maker())

    size, objects, _ = grown(make, 200, warm_up=20)
    assert size < 20_000
    assert objects < 50, "fewer than before are those of another test"
    assert limiter.stats().waiting == 0
