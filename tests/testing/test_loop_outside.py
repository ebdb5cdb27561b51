"""What reaches a virtual loop from outside: jobs, threads, sockets."""

import asyncio
import concurrent.futures
import threading
import time

import pytest

from headway.testing import Deadlock, ManualClock, crew, run
from waiting import NEVER, SOON

SECOND = 10**9


def test_executor_jobs_are_not_jumped_over():
    async def main():
        loop = asyncio.get_running_loop()
        ticker = asyncio.ensure_future(asyncio.sleep(3600))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ticker), 1)
        for executor in (None, concurrent.futures.ThreadPoolExecutor(1)):
            await asyncio.gather(*(loop.run_in_executor(executor, time.sleep, 0.05) for _ in range(3)))
            assert loop.time() == 1.0
            if executor:
                executor.shutdown()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        begun, go, ended = threading.Event(), threading.Event(), threading.Event()

        def job():
            begun.set()
            go.wait(NEVER)
            ended.set()

        cancelled = loop.run_in_executor(None, job)
        await asyncio.to_thread(begun.wait, NEVER)
        cancelled.cancel()
        threading.Timer(0.05, go.set).start()
        await asyncio.sleep(1)  # waits for the abandoned thread
        assert ended.is_set()
        await ticker
        return loop.time()

    assert run(main()) == 3600.0


def test_jobs_that_sleep_on_the_clock():
    """A blocking limiter in a worker thread: its virtual wait passes, also with more jobs than workers."""
    clock, trace = ManualClock(), []

    def job(name):
        clock.sleep(10)
        trace.append((clock.now() // SECOND, name))

    async def main():
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [loop.run_in_executor(pool, job, name) for name in range(4)]
            await asyncio.sleep(5)
            assert clock.now() == 5 * SECOND
            await asyncio.gather(*jobs)

    run(main(), clock=clock)
    assert [moment for moment, _ in trace] == [10, 10, 20, 20]


def test_a_job_still_asleep_at_the_end_is_slept_to_its_end():
    clock = ManualClock()

    async def main():
        asyncio.get_running_loop().run_in_executor(None, clock.sleep, 50)
        await asyncio.sleep(1)

    run(main(), clock=clock)
    assert clock.now() == 50 * SECOND


def test_a_blocking_sleep_inside_the_loop_ends():
    clock = ManualClock()

    async def main():
        timer = asyncio.ensure_future(asyncio.sleep(1))
        await asyncio.sleep(0)
        clock.sleep(10)
        await timer
        return clock.now()

    assert run(main(), clock=clock) == 10 * SECOND
    assert not clock.autojump


def test_other_threads_may_call_in():
    async def main():
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def late():
            time.sleep(0.1)
            loop.call_soon_threadsafe(answer.set_result, "here")

        thread = threading.Thread(target=late)
        thread.start()
        assert await answer == "here"
        thread.join()

    run(main())


def test_threads_and_tasks_share_the_time(monkeypatch):
    monkeypatch.setattr(crew, "PATIENCE", 0.1)  # the job waits for a thread that sleeps
    clock, trace = ManualClock(), []

    def thread_work():
        for _ in range(5):
            clock.sleep(2)
            trace.append((clock.now() // SECOND, "thread"))

    async def main():
        thread = threading.Thread(target=thread_work)
        thread.start()
        for _ in range(3):
            await asyncio.sleep(3)
            trace.append((clock.now() // SECOND, "task"))
        await asyncio.to_thread(thread.join)

    run(main(), clock=clock)
    assert [moment for moment, name in trace if name == "thread"] == [2, 4, 6, 8, 10]
    assert [moment for moment, name in trace if name == "task"] == [3, 6, 9]


def test_sockets_work():
    async def main():
        async def echo(reader, writer):
            writer.write(await reader.readline())
            await asyncio.sleep(60)
            writer.write(b"later\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            async with asyncio.timeout(61):
                assert await reader.readline() == b"hello\n"
                assert await reader.readline() == b"later\n"
            writer.close()
            await writer.wait_closed()
        return asyncio.get_running_loop().time()

    assert run(main()) == 60.0


def test_the_last_worker_thread_is_no_hope():
    async def main():
        await asyncio.to_thread(int)
        await asyncio.Event().wait()

    began = time.monotonic()
    with pytest.raises(Deadlock):
        run(main())
    assert time.monotonic() - began < SOON
