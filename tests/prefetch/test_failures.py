"""What happens when a fetch fails, hangs, is lost, or answers nonsense."""

import asyncio
import gc
import logging
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

from headway import AcquireTimeout, EngineUnavailable, Limiter, Prefetcher, Window
from headway.prefetch.fetching import MAX_HUNG
from headway.testing import run


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def now():
    return asyncio.get_running_loop().time()


class Flaky:
    """An async server that does at each call what its script says: seconds to wait, an error, or None for never."""

    def __init__(self, *script):
        self.script = list(script)
        self.asked = []
        self.running = 0

    async def fetch(self, amount):
        step = self.script.pop(0) if self.script else 0.1
        self.asked.append(now())
        assert self.running == 0, "two fetches at once"
        self.running += 1
        try:
            if isinstance(step, Exception):
                raise step
            if step is None:
                await asyncio.Event().wait()
            await asyncio.sleep(step)
            return amount, 60.0
        finally:
            self.running -= 1


def test_closed_raises_until_the_server_is_back(caplog):
    async def main():
        prefetcher = Prefetcher(Flaky(OSError("refused")).fetch, name="api")
        with pytest.raises(
            EngineUnavailable, match="engine of prefetcher 'api' is unavailable: OSError"
        ) as caught:
            await prefetcher.acquire_async()
        assert type(caught.value.__cause__) is OSError
        assert now() == 0
        # The close wait is over: it asks again, and until it is answered callers hear the same.
        await asyncio.sleep(0.5)
        with pytest.raises(EngineUnavailable):
            await prefetcher.acquire_async()
        await asyncio.sleep(0.2)
        assert await prefetcher.acquire_async()
        assert (prefetcher.stats().fetches, prefetcher.stats().failures) == (2, 1)

    with caplog.at_level(logging.WARNING, "headway"):
        run(main())
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "no permits from the server of prefetcher 'api': OSError('refused')"
    )


def test_every_outage_is_logged_once(caplog):
    async def main():
        prefetcher = Prefetcher(
            Flaky(OSError(), OSError(), 0.1, OSError(), OSError()).fetch, on_engine_error="open"
        )
        for _ in range(6):
            await prefetcher.acquire_async(1000)
            await asyncio.sleep(1)
        assert prefetcher.stats().failures == 4

    with caplog.at_level(logging.WARNING, "headway"):
        run(main())
    assert len(caplog.records) == 2


def test_a_fetch_has_a_deadline_and_is_cancelled_then():
    async def main():
        flaky = Flaky(None)
        prefetcher = Prefetcher(flaky.fetch, fetch_timeout=1)
        with pytest.raises(EngineUnavailable, match="no answer within 1 s") as caught:
            await prefetcher.acquire_async()
        assert type(caught.value.__cause__) is TimeoutError
        assert now() == 1
        await asyncio.sleep(0.2)
        assert flaky.asked == [0, 1], "it asks again at once"
        assert await prefetcher.acquire_async()
        assert flaky.running == 0

    run(main())


def test_every_waiter_hears_of_a_failure():
    async def main():
        prefetcher = Prefetcher(Flaky(None).fetch, fetch_timeout=1)
        waits = [prefetcher.acquire_async() for _ in range(5)]
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(result) for result in results] == [EngineUnavailable] * 5
        assert now() == 1
        assert prefetcher.stats().waiting == 0

    run(main())


def test_a_lost_answer_never_jams():
    async def main():
        flaky = Flaky(None, None, None)
        prefetcher = Prefetcher(flaky.fetch, fetch_timeout=1)
        admitted_at = None
        for _ in range(100):
            try:
                if await prefetcher.try_acquire_async():
                    admitted_at = admitted_at or now()
            except EngineUnavailable:
                pass
            await asyncio.sleep(0.05)
        assert flaky.asked[:4] == [
            0,
            pytest.approx(1, abs=0.06),
            pytest.approx(2, abs=0.11),
            pytest.approx(3, abs=0.16),
        ]
        assert admitted_at == pytest.approx(3.1, abs=0.2)

    run(main())


def test_open_lets_every_request_pass_while_fetching_fails():
    async def main():
        flaky = Flaky(OSError(), OSError(), 0.1)
        prefetcher = Prefetcher(flaky.fetch, on_engine_error="open")
        assert not await prefetcher.try_acquire_async(), "it has not failed yet"
        await asyncio.sleep(0.1)
        for _ in range(30):
            admission = await prefetcher.acquire_async()
            assert admission.reason == "fallback"
        assert prefetcher.stats().spent == 0
        await asyncio.sleep(1)
        await prefetcher.acquire_async()
        await asyncio.sleep(0.6)
        await prefetcher.acquire_async()
        await asyncio.sleep(0.2)
        assert (await prefetcher.acquire_async()).reason == "granted"

    run(main())


@pytest.mark.parametrize("limit", ["3/minute", Window(3, per=60), None])
def test_a_limit_decides_while_fetching_fails(limit):
    async def main():
        own = Limiter("3/minute") if limit is None else limit
        prefetcher = Prefetcher(Flaky(*[OSError()] * 100).fetch, on_engine_error=own)
        answers = [await prefetcher.acquire_async() for _ in range(2)] + [
            await prefetcher.try_acquire_async()
        ]
        assert [answer.reason for answer in answers] == ["fallback"] * 3
        denied = await prefetcher.try_acquire_async()
        assert (bool(denied), denied.reason, 59 < denied.retry_after <= 60) == (False, "fallback", True)
        with pytest.raises(AcquireTimeout):
            await prefetcher.acquire_async(timeout=1)
        with pytest.raises(EngineUnavailable):
            await prefetcher.acquire_async(4)  # more than the fallback can ever grant
        before = now()
        assert await prefetcher.acquire_async()
        assert 59 < now() - before <= 60.1
        prefetcher.close()
        if limit is None:
            assert own.peek().remaining >= 0, "a limiter that was given is not closed"

    run(main())


def test_waiters_that_a_limit_makes_wait_do_not_hold_up_the_line():
    async def main():
        prefetcher = Prefetcher(Flaky(OSError()).fetch, on_engine_error="1/minute")
        waits = [asyncio.create_task(prefetcher.acquire_async()) for _ in range(4)]
        await asyncio.sleep(0.01)
        assert [wait.done() for wait in waits] == [True, False, False, False]
        assert prefetcher.stats().waiting == 0, "they wait for the limit now"
        await asyncio.sleep(1)
        with pytest.raises(AcquireTimeout):
            await prefetcher.acquire_async(timeout=0)
        await asyncio.sleep(0.2)
        assert (await prefetcher.acquire_async()).reason == "granted", "the server is back"
        for wait in waits:
            wait.cancel()

    run(main())


def test_sync_verbs_use_the_fallback_too(server, clock):
    server.error = OSError("down")
    prefetcher = Prefetcher(server.fetch, on_engine_error="2/minute", clock=clock)
    assert prefetcher.acquire().reason == "fallback"
    assert prefetcher.try_acquire()
    assert not prefetcher.try_acquire()
    with pytest.raises(AcquireTimeout):
        prefetcher.acquire(timeout=1)
    with pytest.raises(EngineUnavailable):
        prefetcher.try_acquire(3)
    stats = prefetcher.stats()
    assert (stats.granted, stats.denied, stats.spent) == (2, 1, 0)


@pytest.mark.parametrize(
    "answer",
    [None, 10, (10,), (10, 1, 2, 3), ("10", 1.0), (-1, 1.0), (1.5, 1.0), (True, 1.0), (10, -1), (10, "soon"),
     (10, float("nan")), (10, 1, -1)],
    ids=repr,
)  # fmt: skip
def test_an_answer_that_is_none_is_a_failure_that_says_what_is_expected(answer, clock):
    prefetcher = Prefetcher(lambda amount: answer, clock=clock)
    with pytest.raises(EngineUnavailable, match="is not accepted; give"):
        prefetcher.acquire()
    assert prefetcher.stats().fetched == 0


def test_a_function_that_returns_a_coroutine_is_named(clock):
    async def fetch(amount):
        return amount, 1.0

    prefetcher = Prefetcher(lambda amount: fetch(amount + 0), clock=clock)
    with pytest.raises(EngineUnavailable, match="fetch returned something to await"):
        prefetcher.acquire()


def test_an_object_with_an_async_call_is_an_async_fetch():
    class Client:
        async def __call__(self, amount):
            return amount, 1.0

    async def main():
        assert await Prefetcher(Client()).acquire_async()

    run(main())


def test_a_sync_fetch_that_hangs_is_left_behind_and_its_late_answer_counts_once(server, clock):
    server.gate.clear()
    prefetcher = Prefetcher(server.fetch, clock=clock)
    assert not prefetcher.try_acquire()
    until(lambda: server.running == 1)
    clock.advance(2)
    with pytest.raises(EngineUnavailable, match="no answer within 2 s"):
        prefetcher.try_acquire()  # gives up, and asks again
    until(lambda: server.running == 2)
    assert prefetcher.stats().failures == 1
    server.gate.set()
    until(lambda: prefetcher.stats().fetched == 20)
    assert prefetcher.stats().available == 20, "the server has granted both, once each"
    assert prefetcher.try_acquire()


def test_threads_that_hang_are_bounded(server, clock):
    before = threading.active_count()
    server.gate.clear()
    prefetcher = Prefetcher(server.fetch, clock=clock, on_engine_error="open")
    for _ in range(MAX_HUNG + 5):
        prefetcher.try_acquire()
        clock.advance(3)
    until(lambda: server.running == MAX_HUNG + 1)
    assert threading.active_count() <= before + MAX_HUNG + 1
    server.gate.set()
    until(lambda: server.running == 0)
    clock.advance(3)
    prefetcher.try_acquire()
    until(lambda: prefetcher.stats().available > 0)
    prefetcher.close()
    until(lambda: threading.active_count() <= before)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "headway prefetch"]


def test_the_thread_starts_with_the_first_fetch_and_ends_with_its_prefetcher(server):
    prefetcher = Prefetcher(server.fetch)
    mine = set(prefetch_threads())
    prefetcher.acquire()
    (thread,) = set(prefetch_threads()) - mine
    assert thread.daemon
    prefetcher.acquire(50)
    assert set(prefetch_threads()) - mine == {thread}, "one, for all fetches"
    prefetcher.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_prefetcher_that_is_dropped_is_reclaimed_and_its_thread_ends():
    class Client:
        """Knows its prefetcher, and its fetch is a method."""

        def __init__(self):
            self.prefetcher = Prefetcher(self.fetch, fetch_timeout=30)

        def fetch(self, amount):
            return amount, 60.0

    mine = set(prefetch_threads())
    client = Client()
    client.prefetcher.acquire()
    (thread,) = set(prefetch_threads()) - mine
    gone = weakref.ref(client.prefetcher)
    del client
    until(lambda: gc.collect() >= 0 and gone() is None)
    thread.join(30)
    assert not thread.is_alive()


def test_cancelling_a_wait_at_any_step_loses_and_mints_nothing():
    """Each run cancels one step later, until the wait is over before it is cancelled."""

    async def attempt(steps):
        async def fetch(amount):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return amount, None

        prefetcher = Prefetcher(fetch, min_prefetch=1)
        wait = asyncio.create_task(prefetcher.acquire_async(3))
        behind = asyncio.create_task(prefetcher.acquire_async(2))
        for _ in range(steps):
            await asyncio.sleep(0)
        ended = wait.done()
        wait.cancel()
        results = await asyncio.gather(wait, behind, return_exceptions=True)
        assert results[1]
        stats = prefetcher.stats()
        assert stats.waiting == 0
        assert stats.spent == (2 if isinstance(results[0], asyncio.CancelledError) else 5)
        assert stats.spent + stats.available == stats.fetched
        return ended

    steps = 0
    while not run(attempt(steps)):
        steps += 1
        assert steps < 100
    assert steps >= 3


PROGRAM = """
    import os, sys, threading, time
    from headway import Prefetcher

    def fetch(amount):
        return amount, 60.0
"""


def program(text):
    code = textwrap.dedent(PROGRAM) + textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_forked_child_does_not_spend_its_parents_permits():
    done = program("""
        prefetcher = Prefetcher(fetch)
        prefetcher.acquire()
        prefetcher._lock.acquire()  # as if another thread had it at that moment
        pid = os.fork()
        if pid == 0:
            before = prefetcher.stats()
            denied = not prefetcher.try_acquire()
            granted = bool(prefetcher.acquire(timeout=20))
            os._exit(0 if (before.available, denied, granted) == (0, True, True) else 1)
        prefetcher._lock.release()
        status = os.waitpid(pid, 0)[1]
        assert status == 0, status
        assert prefetcher.stats().available == 9
        assert prefetcher.try_acquire()
        print("done")
    """)
    assert done.stdout == "done\n", done.stderr


def test_a_process_ends_while_a_fetch_hangs():
    began = time.monotonic()
    done = program("""
        prefetcher = Prefetcher(lambda amount: time.sleep(100))
        prefetcher.try_acquire()
        time.sleep(0.1)
        print("done")
    """)
    assert (done.stdout, done.returncode, done.stderr) == ("done\n", 0, "")
    assert time.monotonic() - began < 50


def test_exit_ends_waiting_threads():
    done = program("""
        prefetcher = Prefetcher(lambda amount: (0, 60.0))
        ended = []
        def wait():
            try:
                prefetcher.acquire()
            except Exception as error:
                print(type(error).__name__, flush=True)
        threading.Thread(target=wait, daemon=True).start()
        while not prefetcher.stats().waiting:
            time.sleep(0.001)
        import atexit
        atexit.register(time.sleep, 0.5)
        import headway.prefetch.lifecycle as lifecycle
        atexit.unregister(lifecycle.close_all)
        atexit.register(lifecycle.close_all)
    """)
    assert done.stdout == "LimiterClosed\n", done.stderr


def test_ctrl_c_ends_a_wait_and_nothing_else():
    done = program("""
        import signal
        prefetcher = Prefetcher(lambda amount: (granted, 60.0), close_wait=0.01)
        granted = 0
        main = threading.main_thread().ident
        for _ in range(20):
            threading.Timer(0.02, signal.pthread_kill, (main, signal.SIGINT)).start()
            try:
                prefetcher.acquire()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("admitted")
        assert prefetcher.stats().waiting == 0
        granted = 10
        assert prefetcher.acquire(timeout=20)
        print("done")
    """)
    assert done.stdout == "done\n", done.stderr
